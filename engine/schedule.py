"""The learning rate as a function of how far a run is."""

import math


def lr_factor(position: float, total_steps: int, warmup_steps: float) -> float:
    """What the base learning rate is multiplied by in optimizer step `position`, counted from 0.

    Linear warm-up, then cosine to 0. After a resume with another global batch, position and warmup_steps may be
    fractions.
    """
    if position < warmup_steps:
        return min(1.0, (position + 1) / warmup_steps)
    if position >= total_steps:
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * (position - warmup_steps) / (total_steps - warmup_steps)))

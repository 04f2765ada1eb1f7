"""The learning rate over a run: --schedule."""

import math

POLY_POWER = 0.9  # DeepLab (arXiv:1606.00915, section 4.1.1)


def lr_factor(position: float, total_steps: int, warmup_steps: float, kind: str = "cosine") -> float:
    """Return the factor, 0 to 1, on the peak learning rate in optimizer step `position`, counted from 0.

    Linear warm-up, then cosine to 0; or (1 - t)^POLY_POWER, with t the share done of the steps after the warm-up, for
    the kind "poly"; or 1 for "constant". In a resumed run with another batch, position and warmup_steps may be
    fractions.
    """
    if position < warmup_steps:
        return min(1.0, (position + 1) / warmup_steps)
    if kind == "constant":
        return 1.0
    if position >= total_steps:
        return 0.0
    if kind == "poly":
        return ((total_steps - position) / (total_steps - warmup_steps)) ** POLY_POWER
    return 0.5 * (1 + math.cos(math.pi * (position - warmup_steps) / (total_steps - warmup_steps)))

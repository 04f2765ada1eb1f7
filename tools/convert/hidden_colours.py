"""What painted masks hide: colours under transparency, and two colours that may be one class."""

import itertools
from collections import Counter

import numpy as np

HIDDEN = "painted colours under alpha 0: read as unlabelled (save without transparency)"
ALMOST, FEW = 2, 4  # difference of a channel, and factor between numbers of masks: see twins()
NUM_TWINS = 3  # lines on them, at most


def opaque(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return (rgb, is_clear, is_hidden) of RGB or RGBA pixels (H, W, C).

    rgb: the colours, black where alpha is 0. is_clear: where alpha is 0, (H, W) bool. is_hidden: whether alpha 0 hides
    a colour.
    """
    is_clear, rgb = pixels[:, :, 3:].min(axis=2, initial=255) == 0, pixels[:, :, :3]  # without alpha, none is clear
    return rgb * ~is_clear[:, :, None], is_clear, bool(rgb[is_clear].any())


def twins(colours: list[int], palettes: list[set[int]]) -> list[str]:
    """Return a line on each colour in few masks that is almost that of many, and never beside it in a mask.

    palettes: the colours of each mask.
    """
    masks = Counter(colour for palette in palettes for colour in palette)
    channels = {colour: np.array(list(colour.to_bytes(3, "big"))) for colour in colours}
    lines = [
        f"#{rare:06x} ({masks[rare]} mask(s)) is almost #{usual:06x}: if they are one class, paint them alike, or "
        f"leave #{rare:06x} out of a --classes FILE, which ignores it"
        for rare, usual in itertools.permutations(colours, 2)
        if FEW * masks[rare] <= masks[usual] and abs(channels[rare] - channels[usual]).max() <= ALMOST
        if not any({rare, usual} <= palette for palette in palettes)
    ]
    more = [f"... and {len(lines) - NUM_TWINS} more such pairs"] if len(lines) > NUM_TWINS else []
    return lines[:NUM_TWINS] + more

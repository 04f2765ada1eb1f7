"""Predict an image row of windows by row of windows, so that neither the image nor its logits are in memory whole."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evaluation.predictor import CPU_BAND_BYTES, Predictor
from evaluation.windows import WindowGrid, WindowLogits


class Band(NamedTuple):
    """Finished rows: the slice of them, the image's (rows, W, C), and probabilities (C, rows, W) float32."""

    rows: slice
    image: np.ndarray
    probs: Tensor


def can_stream(predictor: object) -> bool:
    """Return True if a model predicts by windows at the image's own size: other scales need the whole image."""
    return (
        isinstance(predictor, Predictor)
        and predictor.window > 0
        and predictor.scales == (1.0,)
        and not predictor.long_side
    )


@torch.inference_mode()
def stream(
    predictor: Predictor, read: Callable[[int, int], np.ndarray], size: tuple[int, int], device: torch.device
) -> Iterator[Band]:
    """Yield the bands of an image of `size` (height, width) from the top: as Predictor.probs(), up to rounding.

    read: function from (top, bottom) to rows of the image, (bottom - top, W, C). Each row is read once, in order.
    """
    grid = WindowGrid.over(size, 1.0, 0, predictor.window, predictor.stride_rate)
    kept: list[tuple[int, Tensor]] = []  # first row of a row of windows, and its logits
    image, done = read(0, 0), 0  # the rows from `done` on that are in memory
    for number, top in enumerate(grid.tops):
        last = min(top + grid.window[0], size[0])
        image = np.concatenate([image, read(done + len(image), last)])
        kept.append((top, _logits(predictor, grid, torch.from_numpy(image[top - done :])[None].to(device))))
        stop = grid.tops[number + 1] if number + 1 < len(grid.tops) else size[0]
        windows = WindowLogits(
            replace(grid, tops=[first - kept[0][0] for first, _ in kept]), torch.cat([part for _, part in kept], dim=1)
        )
        a_row = 4 * kept[0][1].shape[4] * max(size[1], grid.lefts[-1] + grid.window[1])
        for band_top in range(done, stop, max(1, CPU_BAND_BYTES // a_row)):
            rows = slice(band_top, min(band_top + max(1, CPU_BAND_BYTES // a_row), stop))
            probs = windows.rows(rows.start - kept[0][0], rows.stop - kept[0][0], softmax=True)[0]
            yield Band(rows, image[rows.start - done : rows.stop - done], probs)
        kept = [(first, part) for first, part in kept if first + grid.window[0] > stop]
        image, done = image[stop - done :].copy(), stop


def _logits(predictor: Predictor, grid: WindowGrid, image: Tensor) -> Tensor:
    """Return the logits of one row of windows, (1 or 2 with mirror images, 1, grid columns, 1, C, h, w).

    image: (1, rows, W, C), the rows under these windows.
    """
    if image.dtype != torch.uint8:
        image = image.float()
    size = image.shape[1], image.shape[2]
    row = replace(grid, tops=[0], size=size, out=size)
    outputs = list(predictor._outputs(image, [row]))
    logits = [torch.stack(outputs)]
    if predictor.flip:  # each window comes with its mirror image
        logits = [torch.stack(outputs[::2]), torch.stack([out.flip(2) for out in outputs[1::2]])]
    values = torch.stack(logits)[:, None, :, None]
    return values if values.dtype == torch.float64 else values.float()

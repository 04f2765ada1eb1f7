"""Predict label maps: multi-scale, mirrored and sliding-window inference with bounded memory."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.amp import autocast

BAND_BYTES = 32 * 2**20  # probabilities of one band of rows; about six times as much is in use at once


class ImagePredictor(Protocol):
    """Interface of a model that predicts label maps: Predictor and exporting.graph.ExportedModel have these methods."""

    @property
    def images_at_once(self) -> int: ...

    def labels(self, images: Tensor) -> Tensor: ...

    def probs(self, images: Tensor) -> Iterator[tuple[slice, Tensor]]: ...


@dataclass(frozen=True)
class Predictor:
    """A PyTorch model with multi-scale, mirrored and sliding-window inference, which predicts at the images' own size.

    Each image is resized by each of `scales` and cut into overlapping windows. The softmax of a window's upsampled
    logits is averaged over overlapping windows and, with `flip`, over the window and its mirror image. The result is
    resized to the image and averaged over the scales, as in CDSP and semseg (github.com/hszhao/semseg, tool/test.py).

    model: models.Segmenter in eval mode. long_side: longer side in pixels at scale 1; 0: the image's own. window: side
    of a window in pixels; 0: the whole image. An image smaller than a window is padded with the mean colour.
    stride_rate: step between windows as a fraction of the window, rounded up to pixels. batch_size: windows per forward
    pass. amp: precision of the forward pass, as --amp.

    Whole maps exist only as logits at the model's stride. Full-size maps exist for one band of rows at a time, with
    BAND_BYTES of probabilities. Bands and batch_size change results by rounding only.
    """

    model: nn.Module
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    long_side: int = 0
    window: int = 0
    stride_rate: float = 2 / 3
    batch_size: int = 4
    amp: str = "none"

    @property
    def images_at_once(self) -> int:
        """Return the number of images to pass in one call: batch_size, or 1 with sliding windows."""
        return 1 if self.window else self.batch_size

    def labels(self, images: Tensor) -> Tensor:
        """Return label maps (B, H, W) uint8 of images (B, H, W, 3) uint8 RGB on the model's device."""
        return torch.cat([band.argmax(1).to(torch.uint8) for _, band in self._bands(images, probs=False)], dim=1)

    def probs(self, images: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield bands of rows from the top: (slice of rows, probabilities (B, C, rows, W) float32).

        images: (B, H, W, 3) uint8 RGB on the model's device.
        """
        return self._bands(images, probs=True)

    @torch.inference_mode()
    def _bands(self, images: Tensor, *, probs: bool) -> Iterator[tuple[slice, Tensor]]:
        batch, height, width = images.shape[:3]
        passes = [self._forward(images, scale) for scale in self.scales]
        # With a single map the largest logit is the largest probability, so labels need no softmax.
        softmax = probs or not (len(passes) == 1 and passes[0].is_plain)
        # A row of the scaled image may be wider than a row of the image.
        pixels_a_row = max(width, *(scaled.pixels_a_row for scaled in passes))
        num_rows = max(1, int(BAND_BYTES / (4 * batch * passes[0].num_classes * pixels_a_row)))
        for top in range(0, height, num_rows):
            bottom = min(top + num_rows, height)
            band = passes[0].rows(top, bottom, softmax=softmax)
            for other in passes[1:]:
                band += other.rows(top, bottom, softmax=softmax)
            if len(passes) > 1:
                band /= len(passes)
            yield slice(top, bottom), band

    def _forward(self, images: Tensor, scale: float) -> "_ScaledLogits":
        """Return the logits, at the model's stride, of all windows of images (B, H, W, 3) resized by `scale`."""
        height, width = images.shape[1:3]
        longer = round(scale * (self.long_side or max(height, width)))
        size = max(1, round(longer * height / max(height, width))), max(1, round(longer * width / max(height, width)))
        values = images.permute(0, 3, 1, 2)  # (B, H, W, 3) -> (B, 3, H, W)
        if size != (height, width):
            values = F.interpolate(values.float(), size=size, mode="bilinear", align_corners=False)
        window = (self.window, self.window) if self.window else size
        pad = [max(0, window[axis] - size[axis]) for axis in (0, 1)]
        if any(pad):
            mean = self.model.mean
            assert isinstance(mean, Tensor)
            # The model subtracts the mean, so padding with it gives zeros. The image is centred.
            border = (pad[1] // 2, pad[1] - pad[1] // 2, pad[0] // 2, pad[0] - pad[0] // 2)
            values = F.pad(values.float() - mean, border) + mean
        tops, lefts = (
            window_starts(size[axis] + pad[axis], window[axis], math.ceil(window[axis] * self.stride_rate))
            for axis in (0, 1)
        )
        crops = [
            values[number : number + 1, :, top : top + window[0], left : left + window[1]]
            for top in tops
            for left in lefts
            for number in range(len(images))
        ]
        grid = self._logits(crops).unflatten(1, (len(tops), len(lefts), len(images)))
        return _ScaledLogits(grid, window, tops, lefts, size, (pad[0] // 2, pad[1] // 2), (height, width))

    def _logits(self, crops: list[Tensor]) -> Tensor:
        """Return logits (1, N, C, h, w) of N windows (1, 3, H, W); with flip, (2, N, C, h, w): also of mirror images.

        The logits of a mirror image are mirrored back. The dtype is float32, or float64 if the model's is.
        """
        logits = torch.empty(0)
        for mirrored in (False, True) if self.flip else (False,):
            for first in range(0, len(crops), self.batch_size):
                values = torch.cat(crops[first : first + self.batch_size])
                values = values.flip(3) if mirrored else values
                with autocast(self.amp, values.device):
                    out = self.model(values.permute(0, 2, 3, 1))["logits"]
                if not len(logits):
                    dtype = out.dtype if out.dtype == torch.float64 else torch.float32
                    logits = out.new_empty((2 if self.flip else 1, len(crops), *out.shape[1:]), dtype=dtype)
                logits[int(mirrored), first : first + len(out)] = out.flip(3) if mirrored else out
        return logits


def window_starts(size: int, window: int, stride: int) -> list[int]:
    """Return starts of windows along a side of `size` >= `window` pixels: every `stride`, the last at the end."""
    return [min(number * stride, size - window) for number in range(math.ceil((size - window) / stride) + 1)]


@dataclass(frozen=True)
class _ScaledLogits:
    """The logits of a grid of windows over a batch of images at one scale.

    logits: (1 or 2 with mirror images, grid rows, grid columns, B, C, h, w). window: (height, width) of a window. tops,
    lefts: first row and column of the windows in the padded image. size: (height, width) of the scaled image before
    padding by `offset` pixels at the top and left. out: (height, width) of the image before scaling.
    """

    logits: Tensor
    window: tuple[int, int]
    tops: list[int]
    lefts: list[int]
    size: tuple[int, int]
    offset: tuple[int, int]
    out: tuple[int, int]

    @property
    def num_classes(self) -> int:
        return self.logits.shape[4]

    @property
    def is_plain(self) -> bool:
        """Return True if there is one window, no mirror image and no resizing."""
        return self.logits.shape[:3] == (1, 1, 1) and self.size == self.out

    @property
    def pixels_a_row(self) -> float:
        """Return the number of pixels of the padded, scaled image per row of the image before scaling."""
        return (self.lefts[-1] + self.window[1]) * self.size[0] / self.out[0]

    def rows(self, top: int, bottom: int, *, softmax: bool) -> Tensor:
        """Return rows top..bottom - 1 at image size, (B, C, rows, W): probabilities or, if not softmax, logits."""
        if self.size == self.out:
            return self._scaled_rows(top, bottom, softmax=softmax)
        # Align pixel centres, as cv2.resize and F.interpolate without align_corners do.
        ratio = self.size[0] / self.out[0]
        first = int(max(0.0, (top + 0.5) * ratio - 0.5))
        last = min(int(max(0.0, (bottom - 0.5) * ratio - 0.5)) + 1, self.size[0] - 1)
        y = ((self._range(top, bottom) + 0.5) * ratio - 0.5).clamp(min=0) - first
        rows = _rows_at(self._scaled_rows(first, last + 1, softmax=softmax), y)
        return F.interpolate(rows, size=(bottom - top, self.out[1]), mode="bilinear", align_corners=False)

    def _scaled_rows(self, top: int, bottom: int, *, softmax: bool) -> Tensor:
        """Return rows top..bottom - 1 at the scaled image's size, averaged over the windows that cover each pixel.

        The result is (B, C, rows, scaled width): probabilities or, without softmax, logits.
        """
        height, width = self.window
        top, bottom = top + self.offset[0], bottom + self.offset[0]
        columns = slice(self.offset[1], self.offset[1] + self.size[1])
        if len(self.tops) == len(self.lefts) == 1:
            return self._window_rows(0, 0, top, bottom, softmax=softmax)[..., columns]
        shape = (*self.logits.shape[3:5], bottom - top, self.lefts[-1] + width)
        sums = torch.empty(
            shape, dtype=self.logits.dtype, device=self.logits.device, memory_format=torch.channels_last
        ).zero_()
        covered = [sums.new_zeros(length) for length in sums.shape[2:]]  # number of windows over each row, each column
        for grid_row, window_top in enumerate(self.tops):
            first, last = max(top, window_top), min(bottom, window_top + height)
            if first >= last:
                continue
            covered[0][first - top : last - top] += 1
            for grid_column, left in enumerate(self.lefts):
                values = self._window_rows(
                    grid_row, grid_column, first - window_top, last - window_top, softmax=softmax
                )
                sums[:, :, first - top : last - top, left : left + width] += values
        for left in self.lefts:
            covered[1][left : left + width] += 1
        sums /= covered[0].unsqueeze(1) * covered[1]
        return sums[..., columns]

    def _window_rows(self, grid_row: int, grid_column: int, top: int, bottom: int, *, softmax: bool) -> Tensor:
        """Return rows top..bottom - 1 of one window, averaged with the mirror image if any: (B, C, rows, window width).

        Row 0 is the window's first. The values are probabilities or, without softmax, logits.
        """
        logits = self.logits[:, grid_row, grid_column]
        y = self._range(top, bottom) * (logits.shape[3] - 1) / max(1, self.window[0] - 1)  # align_corners
        # Channels last makes the argmax over classes five times as fast.
        rows = _rows_at(logits.flatten(0, 1), y).contiguous(memory_format=torch.channels_last)
        rows = F.interpolate(rows, size=(bottom - top, self.window[1]), mode="bilinear", align_corners=True)
        if softmax:
            rows = rows.softmax(1)
        return rows.unflatten(0, logits.shape[:2]).mean(0) if len(logits) > 1 else rows

    def _range(self, first: int, stop: int) -> Tensor:
        return torch.arange(first, stop, dtype=torch.float64, device=self.logits.device)


def _rows_at(values: Tensor, y: Tensor) -> Tensor:
    """Return values (N, C, H, W) interpolated linearly at row positions y, float64 in 0..H - 1: (N, C, len(y), W)."""
    above = y.floor().long().clamp(max=values.shape[2] - 1)
    below = (above + 1).clamp(max=values.shape[2] - 1)
    weight = (y - above).to(values.dtype).unsqueeze(1)
    return torch.lerp(values.index_select(2, above), values.index_select(2, below), weight)

"""Windows over a batch of images at one scale, and the label scores that their logits give."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from data.images.resize import check_pixels, scaled_size


def window_starts(size: int, window: int, stride: int) -> list[int]:
    """Return starts of windows along a side of `size` >= `window` pixels: every `stride`, the last at the end."""
    return [min(number * stride, size - window) for number in range(math.ceil((size - window) / stride) + 1)]


class Windows:
    """Windows over a batch of images at one scale, and the scores that a model's logits of them give.

    Arguments: out: (height, width) of the image before scaling by `scale`; the others are as in Predictor. Raises
    UserError if the windows have so many pixels that memory may run out.
    Attributes: window: (height, width) of a window. tops, lefts: first row and column of the windows in the padded
    image. size: (height, width) of the scaled image before padding by `offset` pixels at the top and left. predicted:
    yields the logits of each row of windows, from the top.
    """

    predicted: Iterator[Tensor]

    def __init__(
        self, out: tuple[int, int], scale: float, long_side: int, window: int, stride_rate: float, source: str = ""
    ):
        self.out, self.size = out, scaled_size(out, round(scale * (long_side or max(out))))
        self.window = sides = (window, window) if window else self.size
        padded = max(self.size[0], sides[0]), max(self.size[1], sides[1])
        self.tops, self.lefts = (
            window_starts(padded[axis], sides[axis], math.ceil(sides[axis] * stride_rate)) for axis in (0, 1)
        )
        flags = f"--long_side {long_side}, --window {window}, --stride_rate {stride_rate:.3g}, --scales {scale:g}"
        check_pixels(len(self.tops) * len(self.lefts) * math.prod(sides), out, f"{source}{flags}")
        self.offset = (padded[0] - self.size[0]) // 2, (padded[1] - self.size[1]) // 2
        self._kept: dict[int, Tensor] = {}  # {row of windows: its logits}

    @property
    def pixels_a_row(self) -> float:
        """Return the number of pixels of the padded, scaled image per row of the image before scaling."""
        return (self.lefts[-1] + self.window[1]) * self.size[0] / self.out[0]

    def crops(self, images: Tensor, mean: Tensor | None) -> Iterator[Tensor]:
        """Yield the windows of images (B, H, W, 3) from the top left, of all images at each position: (1, 3, h, w).

        The images may have been resized before; they are brought to `size`. mean: (3, 1, 1), colour of the padding,
        which the model subtracts. Only a padded image needs it.
        """
        values = images.permute(0, 3, 1, 2)  # (B, H, W, 3) -> (B, 3, H, W)
        if self.size != tuple(values.shape[2:]):
            values = F.interpolate(values.float(), size=self.size, mode="bilinear", align_corners=False)
        (top, left), (height, width) = self.offset, self.window
        down = self.tops[-1] + height - self.size[0] - top
        right = self.lefts[-1] + width - self.size[1] - left
        if top or left or down or right:
            assert mean is not None
            values = F.pad(values.float() - mean, (left, right, top, down)) + mean
        for first_row in self.tops:
            for first_column in self.lefts:
                window = values[:, :, first_row : first_row + height, first_column : first_column + width]
                yield from window.split(1)

    @property
    def is_plain(self) -> bool:
        """Return True if there is one window and no resizing."""
        return len(self.tops) == len(self.lefts) == 1 and self.size == self.out

    def logits(self, row: int) -> Tensor:
        """Return the logits of a row of windows: (1 or 2 with mirror images, columns, B, C, h, w).

        The rows above that are not predicted yet are predicted first.
        """
        while row not in self._kept:
            self._kept[max(self._kept, default=-1) + 1] = next(self.predicted)
        return self._kept[row]

    def rows(self, top: int, bottom: int, *, softmax: bool) -> Tensor:
        """Return rows top..bottom - 1 at image size, (B, C, rows, W): probabilities or, if not softmax, logits.

        No later call may ask for rows above `top`.
        """
        size, out = self.size, self.out
        if size == out:
            return self._scaled_rows(top, bottom, softmax=softmax)
        # Align pixel centres, as cv2.resize and F.interpolate without align_corners do.
        ratio = size[0] / out[0]
        first = int(max(0.0, (top + 0.5) * ratio - 0.5))
        last = min(int(max(0.0, (bottom - 0.5) * ratio - 0.5)) + 1, size[0] - 1)
        scaled = self._scaled_rows(first, last + 1, softmax=softmax)
        y = ((_range(top, bottom, scaled) + 0.5) * ratio - 0.5).clamp(min=0) - first
        rows = _rows_at(scaled, y)
        return F.interpolate(rows, size=(bottom - top, out[1]), mode="bilinear", align_corners=False)

    def _scaled_rows(self, top: int, bottom: int, *, softmax: bool) -> Tensor:
        """Return rows top..bottom - 1 at the scaled image's size: the mean of the windows that cover each pixel.

        A window's weight falls to almost 0 at its border, so that no border shows in the mean. The result is
        (B, C, rows, scaled width): probabilities or, without softmax, logits.
        """
        height, width = self.window
        top, bottom = top + self.offset[0], bottom + self.offset[0]
        columns = slice(self.offset[1], self.offset[1] + self.size[1])
        if len(self.tops) == len(self.lefts) == 1:
            return self._window_rows(0, 0, top, bottom, softmax=softmax)[..., columns]
        for row in [row for row in self._kept if self.tops[row] + height <= top]:
            del self._kept[row]
        last_row = self.logits(max(row for row, window_top in enumerate(self.tops) if window_top < bottom))
        shape = (*last_row.shape[2:4], bottom - top, self.lefts[-1] + width)
        sums = last_row.new_zeros(shape).contiguous(memory_format=torch.channels_last)
        weights, of_column = (_weights(length, sums) for length in self.window)
        totals = [sums.new_zeros(length) for length in sums.shape[2:]]  # of the weights over each row, each column
        for row, window_top in enumerate(self.tops):
            first, last = max(top, window_top), min(bottom, window_top + height)
            if first >= last:
                continue
            of_row = weights[first - window_top : last - window_top]
            totals[0][first - top : last - top] += of_row
            for column, left in enumerate(self.lefts):
                values = self._window_rows(row, column, first - window_top, last - window_top, softmax=softmax)
                sums[:, :, first - top : last - top, left : left + width].addcmul_(values, of_row[:, None] * of_column)
        for left in self.lefts:
            totals[1][left : left + width] += of_column
        sums /= totals[0].unsqueeze(1) * totals[1]
        return sums[..., columns]

    def _window_rows(self, row: int, column: int, top: int, bottom: int, *, softmax: bool) -> Tensor:
        """Return rows top..bottom - 1 of one window, averaged with the mirror image if any: (B, C, rows, window width).

        Row 0 is the window's first. The values are probabilities or, without softmax, logits.
        """
        logits = self.logits(row)[:, column]
        y = _range(top, bottom, logits) * (logits.shape[3] - 1) / max(1, self.window[0] - 1)  # align_corners
        # Channels last makes the argmax over classes five times as fast.
        rows = _rows_at(logits.flatten(0, 1), y).contiguous(memory_format=torch.channels_last)
        rows = F.interpolate(rows, size=(bottom - top, self.window[1]), mode="bilinear", align_corners=True)
        if softmax:
            rows = rows.softmax(1)
        return rows.unflatten(0, logits.shape[:2]).mean(0) if len(logits) > 1 else rows


def _range(first: int, stop: int, like: Tensor) -> Tensor:
    return torch.arange(first, stop, dtype=torch.float64, device=like.device)


def _weights(length: int, like: Tensor) -> Tensor:
    """Return the weights of a window's rows or columns, a raised cosine: (length,), above 0, largest in the middle."""
    positions = torch.arange(length, dtype=like.dtype, device=like.device) + 0.5
    return torch.sin(positions * (math.pi / length)) ** 2


def _rows_at(values: Tensor, y: Tensor) -> Tensor:
    """Return values (N, C, H, W) interpolated linearly at row positions y, float64 in 0..H - 1: (N, C, len(y), W)."""
    above = y.floor().long().clamp(max=values.shape[2] - 1)
    below = (above + 1).clamp(max=values.shape[2] - 1)
    weight = (y - above).to(values.dtype).unsqueeze(1)
    return torch.lerp(values.index_select(2, above), values.index_select(2, below), weight)

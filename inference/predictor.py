"""Predict label maps: multi-scale, mirrored and sliding-window inference with bounded memory."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from data.images.reader import ImageReader
from data.images.resize import resize, scaled_size
from data.loader import Loader, batched
from distributed.group import Group
from distributed.precision import DTYPES, autocast
from inference.windows import Windows
from models.fold import fold_batch_norm
from support.progress import progress_bar

if TYPE_CHECKING:
    from inference.onnx_model import OnnxModel

BAND_BYTES = 32 * 2**20  # probabilities of one band of rows; about six times as much is in use at once
# A CPU is faster if its caches hold a band, and a pass's features: those of one window of 465, or of some small ones.
CPU_BAND_BYTES = 4 * 2**20
CPU_PASS_PIXELS = 2**18

# Both predict label maps and probabilities, and have the same methods.
ImagePredictor: TypeAlias = "Predictor | OnnxModel"
Step = Callable[[int], object]  # called with the number of windows that a forward pass predicted; may raise Cancelled


class Cancelled(Exception):
    """A signal has come, which other ranks may not know of."""


def no_step(num_windows: int) -> None:
    pass


def predict_batch(
    model: ImagePredictor, images: Tensor, probs: torch.dtype | None = None, step: Step = no_step
) -> tuple[np.ndarray, Sequence[np.ndarray | None]]:
    """Return the label maps (B, H, W) uint8 of images (B, H, W, 3), and for each its probabilities (C, H, W), or None.

    probs: dtype of the probabilities; None computes none.
    """
    if probs is None:
        return model.labels(images, step).cpu().numpy(), [None] * len(images)
    bands = [(band.argmax(1).to(torch.uint8).cpu(), band.to(probs).cpu()) for _, band in model.probs(images, step)]
    labels, values = (torch.cat(parts, dim=-2).numpy() for parts in zip(*bands, strict=True))
    return labels, list(values)


def each_batch(
    model: ImagePredictor,
    loader: Loader,
    group: Group,
    work: Callable[[Any, Step], object],
    title: str = "images",
) -> None:
    """Call work(batch, step) with each batch of this rank's loader, below a progress bar. Collective.

    The loader's batch_sampler is an EvalBatches. step: the Step of the predictions. A signal to any rank ends the loop,
    also between two windows, and raises Stopped on all ranks.
    """
    batches = loader.batch_sampler
    counts = [model.num_windows(batches.sizes[index]) for batch in batches for index in batch]
    unit = "window" if max(counts, default=1) > 1 else "image"
    with (
        contextlib.suppress(Cancelled),
        progress_bar(None, total=sum(counts), title=title, unit=unit, enabled=group.is_main) as bar,
    ):

        def step(num_windows: int) -> None:
            bar.update(num_windows)
            if group.stop:
                raise Cancelled

        for batch in loader:
            step(0)
            work(batch, step)
    group.raise_if_stopped()


@dataclass(frozen=True)
class Predictor:
    """A PyTorch model with multi-scale, mirrored and sliding-window inference, which predicts at the images' own size.

    Each image is resized by each of `scales` and cut into overlapping windows. The softmax of a window's upsampled
    logits is averaged over overlapping windows and, with `flip`, over the window and its mirror image. The result is
    resized to the image and averaged over the scales, as in CDSP and semseg (github.com/hszhao/semseg, tool/test.py).

    model: models.Segmenter in eval mode. The first prediction folds its batch norm into convolutions with weights of
    their own (models.fold), so later changes of the model's weights have no effect. long_side: longer side in
    pixels at scale 1; 0: the image's own. A larger image is first averaged down to it, as in training. window: side of
    a window in pixels; 0: the whole image. An image smaller than a window is padded with the mean colour. stride_rate:
    step between windows as a fraction of the window, rounded up to pixels. batch_size: most windows per forward pass,
    mirror images included; a CPU takes fewer, see CPU_PASS_PIXELS. amp: precision of the forward pass, as --amp.
    source: where flags are from, for messages. reader: reads image files as in training; not used here.

    Whole maps exist only as logits at the model's stride and, with sliding windows at one scale, not at all: a row of
    windows is predicted when it is needed, and dropped below it. Full-size maps exist for one band of rows, with
    BAND_BYTES or CPU_BAND_BYTES of probabilities. Bands and batch_size change results by rounding only.
    """

    model: nn.Module
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    long_side: int = 0
    window: int = 0
    stride_rate: float = 2 / 3
    batch_size: int = 4
    amp: str = "none"
    source: str = ""
    reader: ImageReader = ImageReader()  # noqa: RUF009

    @property
    def images_at_once(self) -> int:
        """Return the number of images to pass in one call: batch_size, or 1 with sliding windows."""
        return 1 if self.window else self.batch_size

    def num_windows(self, size: tuple[int, int]) -> int:
        """Return the number of windows of an image of this (height, width), over all scales, with mirror images."""
        return sum(len(windows.tops) * len(windows.lefts) for windows in self._windows(size)) * (2 if self.flip else 1)

    def labels(self, images: Tensor, step: Step = no_step) -> Tensor:
        """Return label maps (B, H, W) uint8 of images (B, H, W, 3) uint8 RGB, on the model's device."""
        return torch.cat([band.argmax(1).to(torch.uint8) for _, band in self._bands(images, step, probs=False)], dim=1)

    def probs(self, images: Tensor, step: Step = no_step) -> Iterator[tuple[slice, Tensor]]:
        """Yield bands of rows from the top: (slice of rows, probabilities (B, C, rows, W) float32).

        images: (B, H, W, 3) uint8 RGB, on the model's device.
        """
        return self._bands(images, step, probs=True)

    @functools.cached_property
    def _folded(self) -> nn.Module:
        return fold_batch_norm(self.model, DTYPES[self.amp])

    @torch.inference_mode()
    def _bands(self, images: Tensor, step: Step, *, probs: bool) -> Iterator[tuple[slice, Tensor]]:
        batch, height, width = images.shape[:3]
        passes = self._predict(images, step)
        # With a single map the largest logit is the largest probability, so labels need no softmax.
        softmax = probs or not (len(passes) == 1 and passes[0].is_plain and not self.flip)
        # A row of the scaled image may be wider than a row of the image.
        pixels_a_row = max(width, *(scaled.pixels_a_row for scaled in passes))
        num_bytes = min(BAND_BYTES, CPU_BAND_BYTES) if images.is_cpu else BAND_BYTES
        num_rows = max(1, int(num_bytes / (4 * batch * passes[0].logits(0).shape[3] * pixels_a_row)))
        for top in range(0, height, num_rows):
            step(0)
            bottom = min(top + num_rows, height)
            band = passes[0].rows(top, bottom, softmax=softmax)
            for other in passes[1:]:
                band += other.rows(top, bottom, softmax=softmax)
            if len(passes) > 1:
                band /= len(passes)
            yield slice(top, bottom), band

    def _windows(self, size: tuple[int, int]) -> list[Windows]:
        """Return the windows over an image of this (height, width) at each scale, without logits."""
        sizes = self.long_side, self.window, self.stride_rate, self.source
        return [Windows(size, scale, *sizes) for scale in self.scales]

    def _predict(self, images: Tensor, step: Step) -> list[Windows]:
        """Return the windows over images (B, H, W, 3) at each scale. They predict logits when these are needed."""
        out = (images.shape[1], images.shape[2])
        passes = self._windows(out)
        if 0 < self.long_side < max(out):
            images = resize(images, scaled_size(out, self.long_side))
        for windows in passes:
            windows.predicted = self._logits(images, windows, step)
            if len(passes) > 1:  # now, because a resized copy of the images is kept until the last window
                windows.logits(len(windows.tops) - 1)
        return passes

    def _logits(self, images: Tensor, windows: Windows, step: Step) -> Iterator[Tensor]:
        """Yield the logits of each row of windows: (1 or 2 with mirror images, columns, B, C, h, w).

        The logits of a mirror image are mirrored back. The dtype is float32, or float64 if the model's is.
        """
        outputs, sides = self._outputs(images, windows, step), 2 if self.flip else 1
        for _ in windows.tops:
            logits = torch.stack([next(outputs) for _ in range(len(windows.lefts) * len(images) * sides)])
            logits = logits if logits.dtype == torch.float64 else logits.float()
            by_side = list(logits.unflatten(0, (len(windows.lefts), len(images), sides)).unbind(2))
            yield torch.stack([by_side[0], *(values.flip(-1) for values in by_side[1:])])

    def _outputs(self, images: Tensor, windows: Windows, step: Step) -> Iterator[Tensor]:
        """Yield the model's logits (C, h, w) of each window; with flip, also of its mirror image."""
        size = self.batch_size
        if images.is_cpu:
            size = min(size, max(1, CPU_PASS_PIXELS // math.prod(windows.window)))
        crops = windows.crops(images, getattr(self.model, "mean", None))
        sides = (values for crop in crops for values in ((crop, crop.flip(3)) if self.flip else (crop,)))
        for batch in batched(sides, size):
            with autocast(self.amp, images.device):
                logits = self._folded(torch.cat(batch).permute(0, 2, 3, 1))["logits"]
            step(len(batch))
            yield from logits

"""An estimate of the memory that validation takes: whole photos may need more than a training step."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from config import Config
from evaluation.predictor import BAND_BYTES, CPU_BAND_BYTES, Predictor
from evaluation.windows import WindowGrid
from models.layers.fold import FoldedConv, folded
from optimization.amp import DTYPES, Convolutions
from runs.summary import Meter, Validation
from support.image_stats import ImageType

BANDS = 2.5  # bands of BAND_BYTES that are in use at once, with one scale and no mirror image
MAP_BYTES = 1 + 1  # per pixel: label and prediction
SCORING_BYTES = 24  # per pixel in evaluation.metrics.confusion_matrix(): three maps of int64
SCALED_BYTES = 4  # per value of a resized image: float32


def measure_validation(
    model: nn.Module, cfg: Config, sizes: Sequence[tuple[int, int]], device: torch.device
) -> Validation:
    """Estimate the memory that validating the batch with most pixels takes.

    model: on the meta device. sizes: (height, width) of all validation images. device: where the run validates. The
    estimate adds a copy of the weights, the images, and the peak of the rest: resized images, the logits of all windows
    and a forward pass; bands of probabilities; or the scoring.
    """
    predictor = Predictor(model.eval(), batch_size=cfg.val_batchsize, amp=cfg.amp, **cfg.sizes)
    batches = [(min(number, predictor.images_at_once), *size) for size, number in Counter(sizes).items()]
    num_images, height, width = max(batches, key=lambda batch: batch[0] * batch[1] * batch[2])
    grid = WindowGrid.over((height, width), 1.0, predictor.long_side, predictor.window, predictor.stride_rate)
    num_windows = num_images * len(grid.tops) * len(grid.lefts)
    at_once = min(num_windows, predictor.windows_at_once(grid.window, on_cpu=device.type == "cpu"))
    weights, forward, logits = _measure_pass(predictor, at_once, grid.window, cfg.image_type)

    pixels, scaled = num_images * height * width, num_images * grid.size[0] * grid.size[1]
    channels, dtype = cfg.image_type
    resized = 0 if grid.size == (height, width) else SCALED_BYTES * channels * scaled
    all_logits = num_windows * logits.nbytes // at_once
    band_bytes = CPU_BAND_BYTES if device.type == "cpu" else BAND_BYTES
    bands = round(BANDS * min(band_bytes, 4 * logits.shape[1] * max(pixels, scaled)))
    most = max(resized + all_logits + forward, all_logits + bands, SCORING_BYTES * height * width)
    if resized:
        most = max(most, SCALED_BYTES * channels * pixels + resized)
    window = f", in windows of {predictor.window}x{predictor.window}" if predictor.window else ""
    batch = f"{num_images} image{'' if num_images == 1 else 's'} of {width}x{height}{window}"
    image_bytes = channels * np.dtype(dtype).itemsize * pixels
    return Validation(weights + image_bytes + MAP_BYTES * pixels + most, batch)


def _measure_pass(
    predictor: Predictor, batch_size: int, window: tuple[int, int], kind: ImageType
) -> tuple[int, int, Tensor]:
    """Return (bytes of the folded weights, peak bytes of a forward pass beside them, its logits in float32)."""
    dtype = DTYPES[predictor.amp]
    model = folded(predictor.model, dtype)
    convolutions = [module for module in model.modules() if isinstance(module, FoldedConv)]
    meter = Meter()
    for value in (*model.parameters(), *model.buffers()):
        meter.hold(value, 0)
    with torch.inference_mode(), meter, Convolutions(dtype):
        images = torch.empty(batch_size, *window, kind.channels, dtype=getattr(torch, kind.dtype), device="meta")
        logits = model(images)["logits"]
    weights = sum(value.nbytes for module in convolutions for value in module.buffers())
    return weights, meter.peak, logits.float()

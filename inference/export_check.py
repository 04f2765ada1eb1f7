"""Check that an exported file predicts what PyTorch predicts."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from data.images.reader import ImageReader
from data.images.resize import shrink
from inference.export_graph import whole_image_logits
from inference.onnx_model import OnnxModel
from inference.predictor import Predictor
from inference.trained import TrainedModel
from models.custom import CustomNetwork
from support.errors import UserError
from support.log import log
from support.progress import progress_bar
from support.user_code import describe
from training.data import find_masks

# Images to compare on.
RANDOM_SIZES = ((7, 13), (64, 48), (17, 130), (75, 53))  # odd sizes, multiples of 8, one long side
RANDOM_BATCHES = (1, 3)
NUM_IMAGES = 4  # of the validation list

# Allowed difference of logits and probabilities, as a fraction of the largest logit. Other runtimes sum in another
# order; PyTorch rounds the inputs of convolutions to 10 bits on CUDA (TF32).
TOLERANCE = {"cpu": 2e-5, "cuda": 2e-3}


def find_images(trained: TrainedModel) -> list[Path]:
    """Return the first NUM_IMAGES image files of the checkpoint's val list; [] if its data set is not there."""
    try:
        files = find_masks(trained.cfg, trained.cfg.val_split).files
    except UserError as error:
        log.info(f"checking with random images only: {error}")
        return []
    return [item["image"] for item in files[:NUM_IMAGES]]


def load_images(files: list[Path], reader: ImageReader, long_side: int, device: torch.device) -> Iterator[Tensor]:
    """Yield batches (B, H, W, 3) uint8 on `device`: random images, then each image file as a batch of one.

    A file's image is shrunk to `long_side`, as the model gets it; 0: it is not.
    """
    generator = torch.Generator().manual_seed(0)
    for size in RANDOM_SIZES:
        for batch in RANDOM_BATCHES:
            yield torch.randint(0, 256, (batch, *size, 3), dtype=torch.uint8, generator=generator).to(device)
    for file in progress_bar(files, total=len(files), title="real images", unit="image", enabled=bool(files)):
        image = reader.read(file)
        yield torch.from_numpy(shrink({"image": image}, long_side)["image"])[None].to(device)


@torch.inference_mode()
def compare_file(model: nn.Module, exported: OnnxModel, batches: Iterable[Tensor]) -> str:
    """Compare an exported file with the PyTorch model, and return a line of text about the result.

    batches: (B, H, W, 3) uint8 RGB on the model's device. Those of a size that a network of the user's own cannot take
    are left out. Raises UserError on the first difference that rounding does not explain, or if no batch is left.
    """
    predictor, num_pixels, num_ties = Predictor(model), 0, 0
    for images in batches:
        try:
            labels, logits = predictor.labels(images), whole_image_logits(model, images)
        except Exception as error:
            if not isinstance(model.backbone, CustomNetwork):
                raise
            log.info(f"the network takes no images of {images.shape[2]}x{images.shape[1]} pixels: {describe(error)}")
            continue
        num_pixels += labels.numel()
        try:
            num_ties += compare_outputs(labels, logits, dict(zip(exported.outputs, exported.run(images), strict=True)))
        except Exception as error:  # the runtime's exceptions, such as on a size it was not traced for, have no class
            problem = " ".join(str(error).split())[:160]
            raise UserError(
                f"the ONNX file fails on images of {tuple(images.shape[1:3])} ({problem}), so it was not kept"
            ) from None
    if not num_pixels:
        raise UserError("the network takes none of the images to compare with, so the ONNX file was not kept")
    return f"{num_pixels} pixels equal PyTorch's, except {num_ties} ties"


def compare_outputs(labels: Tensor, logits: Tensor, outputs: dict[str, Tensor]) -> int:
    """Compare an exported file's outputs with PyTorch's labels (B, H, W) and logits (B, C, H, W).

    outputs: {"labels": (B, H, W), and "probs" and "logits" (B, C, H, W) if the file has them}. Returns the number of
    pixels with another class, all of them ties: their two largest logits differ by rounding only. Raises AssertionError
    on larger differences.
    """
    tolerance = TOLERANCE[logits.device.type] * float(logits.abs().max())
    first, second = logits.topk(2, dim=1).values.unbind(1)
    differs = outputs["labels"] != labels
    num_wrong = int((differs & ~(first - second <= tolerance)).sum())
    if num_wrong:
        raise AssertionError(f"{num_wrong} of {labels.numel()} pixels have another class than in PyTorch")
    for name, expected in (("probs", logits.softmax(1)), ("logits", logits)):
        if name in outputs:
            difference = float((outputs[name] - expected).abs().max())
            if not difference <= tolerance:  # nor is nan
                raise AssertionError(f"{name} differ from PyTorch's by up to {difference:.3g}")
    return int(differs.sum())

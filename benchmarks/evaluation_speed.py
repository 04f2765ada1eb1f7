r"""Multi-scale evaluation: ours against the release's way, on the same model and images, in turn.

python benchmarks/evaluation_speed.py --checkpoint log/camvid-cpu/best.pt --images ../shared/data/camvid/JPEGImages
python benchmarks/evaluation_speed.py --checkpoint log/camvid-cpu/best.pt --images ../shared/data/camvid/JPEGImages \
    --scales 1 --no_flip
python benchmarks/evaluation_speed.py --images ../shared/data/camvid/JPEGImages --scales 1 2 --num_images 3

The release works like semseg's tool/test.py: one image, one scale, and one window with its mirror at a time. OpenCV
resizes image and result; NumPy sums the probabilities in float64 on the CPU. The limit is the model alone on the same
windows.
"""

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import models
from data.images import read_image
from evaluation.predictor import Predictor, window_starts
from trained import TrainedModel

MEAN = [123.675, 116.28, 103.53]


@torch.inference_mode()
def release(model, image: np.ndarray, args) -> np.ndarray:
    """The label map (H, W) of one image."""
    height, width = image.shape[:2]
    total = np.zeros((height, width, args.classes))
    for scale in args.scales:
        longer = round(scale * args.long_side)
        new_height, new_width = (
            max(1, longer if side == max(height, width) else round(longer / max(height, width) * side))
            for side in (height, width)
        )
        scaled = cv2.resize(np.float32(image), (new_width, new_height), interpolation=cv2.INTER_LINEAR)
        pad = max(0, args.window - new_height), max(0, args.window - new_width)
        top, left = pad[0] // 2, pad[1] // 2
        padded = cv2.copyMakeBorder(scaled, top, pad[0] - top, left, pad[1] - left, cv2.BORDER_CONSTANT, value=MEAN)
        sums, count = np.zeros((*padded.shape[:2], args.classes)), np.zeros((*padded.shape[:2], 1))
        stride = math.ceil(args.window * 2 / 3)
        for y in window_starts(padded.shape[0], args.window, stride):
            for x in window_starts(padded.shape[1], args.window, stride):
                here = slice(y, y + args.window), slice(x, x + args.window)
                crop = torch.from_numpy(padded[here].copy()).to(args.device)[None]
                crops = torch.cat([crop, crop.flip(2)]) if args.flip else crop
                logits = model(crops)["logits"]
                probs = F.interpolate(logits, size=crop.shape[1:3], mode="bilinear", align_corners=True).softmax(1)
                probs = (probs[0] + probs[1].flip(2)) / 2 if args.flip else probs[0]
                sums[here] += probs.cpu().numpy().transpose(1, 2, 0)
                count[here] += 1
        probs = (sums / count)[top : top + new_height, left : left + new_width]
        total += cv2.resize(probs, (width, height), interpolation=cv2.INTER_LINEAR).reshape(total.shape)
    return (total / len(args.scales)).argmax(2)


@torch.inference_mode()
def model_alone(model, image: np.ndarray, args) -> None:
    """As many windows of noise as ours has, in the same batches."""
    num_windows = 0
    for scale in args.scales:
        sides = [
            max(args.window, round(scale * args.long_side * side / max(image.shape[:2]))) for side in image.shape[:2]
        ]
        windows = [len(window_starts(side, args.window, math.ceil(args.window * 2 / 3))) for side in sides]
        num_windows += windows[0] * windows[1]
    crops = torch.randint(0, 256, (args.batchsize, args.window, args.window, 3), dtype=torch.uint8, device=args.device)
    left = num_windows * (2 if args.flip else 1)
    while left > 0:
        model(crops[: min(left, args.batchsize)])
        left -= args.batchsize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="FILE [random weights of ResNet-18 with --classes]")
    parser.add_argument("--classes", type=int, default=120)  # OpenCV 5 resizes up to 128 channels
    parser.add_argument("--images", type=Path, required=True, help="folder")
    parser.add_argument("--num_images", type=int, default=4)
    parser.add_argument("--window", type=int, default=465)
    parser.add_argument("--long_side", type=int, default=512)
    parser.add_argument("--scales", type=float, nargs="+", default=[0.5, 0.75, 1, 1.25, 1.5, 1.75, 2])
    parser.add_argument("--no_flip", dest="flip", action="store_false")
    parser.add_argument("--batchsize", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    images = [read_image(path) for path in sorted(args.images.iterdir())[::7][: args.num_images]]
    model = trained_model(args) if args.checkpoint else random_model(args, images)
    predictor = Predictor(
        model,
        scales=tuple(args.scales),
        flip=args.flip,
        long_side=args.long_side,
        window=args.window,
        batch_size=args.batchsize,
    )

    def ours(model, image: np.ndarray, args) -> np.ndarray:
        return predictor.labels(torch.from_numpy(image).to(args.device)[None])[0].cpu().numpy()

    ways = {"release": release, "ours": ours, "model alone": model_alone}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    same = []
    ours(model, images[0], args)  # warm
    for image in images:
        labels = {}
        for name, way in ways.items():
            began = time.perf_counter()
            labels[name] = way(model, image, args)
            if args.device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
        same.append(float((labels["release"] == labels["ours"]).mean()))
    threads = torch.get_num_threads()
    print(
        f"{args.checkpoint or 'random'}, {args.classes} classes, {args.device}, {threads} threads, "
        f"torch {torch.__version__}"
    )
    for name, values in seconds.items():
        print(f"{name:12s} {spread(values)} s an image")
    print(f"release / ours: {spread(ratios(seconds['release'], seconds['ours']))}")
    print(f"ours / model alone: {spread(ratios(seconds['ours'], seconds['model alone']))}")
    print(f"equal labels: {100 * min(same):.4f} % of pixels at least")


def trained_model(args) -> torch.nn.Module:
    checkpoint = TrainedModel(args.checkpoint)
    args.classes = checkpoint.cfg.numclasses
    return checkpoint.model("auto", torch.device(args.device))


def random_model(args, images: list[np.ndarray]) -> torch.nn.Module:
    """A model whose batch norm has the statistics of these images, so that its predictions vary."""
    torch.manual_seed(0)
    model = models.build("res50_ASPP", layers=18, num_classes=args.classes)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.from_numpy(np.stack([cv2.resize(image, (240, 240)) for image in images])))
    return model.eval().to(args.device).to(memory_format=torch.channels_last)


def ratios(one: list[float], other: list[float]) -> list[float]:
    return [a / b for a, b in zip(one, other, strict=True)]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()

"""Multi-scale evaluation of one image on the CPU: the release's way against ours, in float32 and in bf16.

python benchmarks/evaluation_speed.py
python benchmarks/evaluation_speed.py --scales 1 --no_flip --classes 120 --layers 18

The release works like semseg's tool/test.py: weights in torch's default layout; one scale, and one window with its
mirror at a time. OpenCV resizes image and result; NumPy sums the probabilities in float64. The model is the release's
res50_ASPP, random, then trained for --steps to tell the image's shades of grey apart, so that it predicts all classes
and few pixels have two of nearly equal scores.
"""

import argparse
import math
import sys
import tempfile
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from measure import add_flags, measure, ratios, save, spread, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import models
from data.images import read_image
from evaluation.predictor import Predictor
from evaluation.windows import window_starts

IMAGE = Path("../shared/data/scribblesup_sample/JPEGImages/2007_000033.jpg")  # 500x366
MEAN = [123.675, 116.28, 103.53]
WINDOW, LONG_SIDE, STRIDE_RATE = 465, 512, 2 / 3


def release(args):
    model, image = load(args), read_image(args.image)
    return torch.inference_mode()(lambda: release_labels(model, image, args))


def release_labels(model, image: np.ndarray, args) -> np.ndarray:
    """The label map (H, W) of one image."""
    height, width = image.shape[:2]
    total = np.zeros((height, width, args.classes))
    for scale in args.scales:
        longer = round(scale * LONG_SIDE)
        new_height, new_width = (
            max(1, longer if side == max(height, width) else round(longer / max(height, width) * side))
            for side in (height, width)
        )
        scaled = cv2.resize(np.float32(image), (new_width, new_height), interpolation=cv2.INTER_LINEAR)
        pad = max(0, WINDOW - new_height), max(0, WINDOW - new_width)
        top, left = pad[0] // 2, pad[1] // 2
        padded = cv2.copyMakeBorder(scaled, top, pad[0] - top, left, pad[1] - left, cv2.BORDER_CONSTANT, value=MEAN)
        sums, count = np.zeros((*padded.shape[:2], args.classes)), np.zeros((*padded.shape[:2], 1))
        stride = math.ceil(WINDOW * STRIDE_RATE)
        for y in window_starts(padded.shape[0], WINDOW, stride):
            for x in window_starts(padded.shape[1], WINDOW, stride):
                here = slice(y, y + WINDOW), slice(x, x + WINDOW)
                crop = torch.from_numpy(padded[here].copy())[None]
                crops = torch.cat([crop, crop.flip(2)]) if args.flip else crop
                logits = model(crops)["logits"]  # channels last, as NumPy's images and so semseg's tensors are
                probs = F.interpolate(logits, size=crop.shape[1:3], mode="bilinear", align_corners=True).softmax(1)
                probs = (probs[0] + probs[1].flip(2)) / 2 if args.flip else probs[0]
                sums[here] += probs.numpy().transpose(1, 2, 0)
                count[here] += 1
        probs = (sums / count)[top : top + new_height, left : left + new_width]
        total += cv2.resize(probs, (width, height), interpolation=cv2.INTER_LINEAR).reshape(total.shape)
    return (total / len(args.scales)).argmax(2)


def ours(args, amp: str):
    image = torch.from_numpy(read_image(args.image))[None]
    model = load(args).to(memory_format=torch.channels_last)

    def work() -> np.ndarray:
        settings = {"scales": tuple(args.scales), "flip": args.flip, "long_side": LONG_SIDE, "window": WINDOW}
        # A new predictor folds batch norm again: the time of that is ours too.
        return Predictor(model, **settings, stride_rate=STRIDE_RATE, amp=amp).labels(image)[0].numpy()

    return work


def build(args) -> torch.nn.Module:
    return models.build("res50_ASPP", layers=args.layers, num_classes=args.classes)


def load(args) -> torch.nn.Module:
    model = build(args)
    model.load_state_dict(torch.load(args.weights))
    return model.eval()


def train(args) -> None:
    """Fit the model to random crops of the image for --steps and save its weights. Each shade of grey is a class."""
    torch.manual_seed(0)
    model = build(args).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    image = read_image(args.image)
    grey = cv2.GaussianBlur(np.float32(image).mean(2), (0, 0), 8)
    bounds = np.quantile(grey, np.linspace(0, 1, args.classes + 1)[1:-1])
    image, label = torch.from_numpy(image), torch.from_numpy(np.digitize(grey, bounds))
    side = min(193, *label.shape)
    for _ in range(args.steps):
        tops, lefts = (torch.randint(0, size - side + 1, (2,)).tolist() for size in label.shape)
        here = [(slice(top, top + side), slice(left, left + side)) for top, left in zip(tops, lefts, strict=True)]
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(torch.stack([image[place] for place in here]))["logits"]
        logits = F.interpolate(logits.float(), size=(side, side), mode="bilinear", align_corners=True)
        loss = F.cross_entropy(logits, torch.stack([label[place] for place in here]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), args.weights)
    print(f"trained for {args.steps} steps; last loss {loss:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "evaluation_speed", rounds=3)
    parser.add_argument("--image", type=Path, default=IMAGE, help="FILE [%(default)s]")
    parser.add_argument("--scales", type=float, nargs="+", default=[0.5, 0.75, 1, 1.25, 1.5, 1.75, 2])
    parser.add_argument("--no_flip", dest="flip", action="store_false")
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--classes", type=int, default=21, help="at most 128, which OpenCV can resize [%(default)s]")
    parser.add_argument("--steps", type=int, default=60, help="of training before the measurement [%(default)s]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.weights = Path(folder) / "weights.pt"
        train(args)
        ways = {"release": partial(release, args), "ours": partial(ours, args, "none")}
        ways["ours, bf16"] = partial(ours, args, "bf16")
        figures, labels = measure(ways, rounds=args.rounds, threads=args.threads, warm_up=0, memory=False)
    print(table(figures, baseline="release"))
    for name in ("ours", "ours, bf16"):
        differs = labels[name] != labels["release"]
        speed = spread(ratios(figures, "release", name))
        print(f"{name}: {speed} times as fast; {differs.sum()} of {differs.size} pixels have another class")
    print(f"classes predicted: {len(np.unique(labels['release']))}")
    save(args.out, figures)


if __name__ == "__main__":
    main()

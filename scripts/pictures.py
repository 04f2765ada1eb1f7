"""Make the pictures in docs/images from a run on CamVid.

    python train.py --config configs/camvid_lite0.yaml
    python -m scripts.pictures --checkpoint log/camvid_lite0/best.pt --data dataset/camvid

The picture of the report needs Chromium.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import evaluate
import predict
from data.classes import read_classes
from evaluation.pictures import overlay, sheet

SHOWN = ("0016E5_08001", "0016E5_08147")  # two validation images
STRIP_SIZE = 317  # pixels, longer side of an image
NUM_COLOURS = 200  # in each PNG: keeps it below 200 kB
REPORT_SIZE = (1120, 860)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, metavar="FILE", help="of a run on CamVid")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="CamVid, as configs/camvid.yaml says")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), metavar="DIR", help="folder to write to")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segtrain-pictures-") as scratch:
        draw_strip(args.checkpoint, args.data, Path(scratch), args.out / "strip.png")
        words = ["--dataset_path", str(args.data), "--report", f"{scratch}/report"]
        evaluate.main(["--checkpoint", args.checkpoint, *words])
        photograph(Path(scratch, "report/index.html"), args.out / "report.png")


def draw_strip(checkpoint: str, data: Path, scratch: Path, path: Path) -> None:
    """Write a picture of SHOWN: in each row an image, its label and its prediction."""
    images = [str(data / "JPEGImages" / f"{name}.jpg") for name in SHOWN]
    predict.main(["--checkpoint", checkpoint, "--input", *images, "--output", str(scratch)])
    colours, rows = read_classes("camvid", None).colours, []
    for name, file in zip(SHOWN, images, strict=True):
        image = np.array(Image.open(file).convert("RGB"))
        maps = [
            np.array(Image.open(folder / f"{name}.png")) for folder in (data / "SegmentationClass", scratch / "masks")
        ]
        rows.append([image, *(overlay(image, values, colours, None, opacity=0.7) for values in maps)])
    save(Image.fromarray(sheet(rows, columns=1, size=STRIP_SIZE)), path)


def photograph(page: Path, path: Path) -> None:
    """Write a picture of the top of the report by headless Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    size = f"--window-size={REPORT_SIZE[0]},{REPORT_SIZE[1]}"
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=3000", size]
    subprocess.run([browser, *options, f"--screenshot={path}", page.as_uri()], check=True, stderr=subprocess.DEVNULL)
    save(Image.open(path).convert("RGB"), path)


def save(picture: Image.Image, path: Path) -> None:
    picture.quantize(NUM_COLOURS).save(path, optimize=True)
    print(f"{path}: {picture.width}x{picture.height}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

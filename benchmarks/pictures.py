"""Make the pictures in docs/images from a run on CamVid; that of the report needs Chromium.

python train.py --config configs/camvid_lite0.yaml
python -m benchmarks.pictures log/camvid_lite0/best.pt dataset/camvid
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import evaluate
import predict
from data.classes import read_classes
from data.overlays import overlay, sheet

OUT = Path("docs/images")
SHOWN = ("0016E5_08001", "0016E5_08147")  # two validation images
STRIP_SIZE = 317  # pixels, longer side of an image
NUM_COLOURS = 200  # in each PNG: keeps it below 200 kB
REPORT_SIZE = (1120, 860)


def main(checkpoint: str, data: str) -> None:
    with tempfile.TemporaryDirectory(prefix="segtrain-pictures-") as scratch:
        draw_strip(checkpoint, Path(data), Path(scratch))
        evaluate.main(["--checkpoint", checkpoint, "--dataset_path", data, "--report", f"{scratch}/report"])
        photograph(Path(scratch, "report/index.html"))


def draw_strip(checkpoint: str, data: Path, scratch: Path) -> None:
    """Write a picture of SHOWN: in each row an image, its label and its prediction."""
    images = [str(data / "JPEGImages" / f"{name}.jpg") for name in SHOWN]
    predict.main(["--checkpoint", checkpoint, "--input", *images, "--output", str(scratch)])
    colours, rows = read_classes("camvid", None).colours, []
    for name, file in zip(SHOWN, images, strict=True):
        image, folders = np.array(Image.open(file).convert("RGB")), (data / "SegmentationClass", scratch / "masks")
        maps = [np.array(Image.open(folder / f"{name}.png")) for folder in folders]
        rows.append([image, *(overlay(image, values, colours, None, opacity=0.7) for values in maps)])
    save(Image.fromarray(sheet(rows, columns=1, size=STRIP_SIZE)), OUT / "strip.png")


def photograph(page: Path) -> None:
    """Write a picture of the top of the report by headless Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    size = f"--window-size={REPORT_SIZE[0]},{REPORT_SIZE[1]}"
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=3000", size]
    path = OUT / "report.png"
    subprocess.run([browser, *options, f"--screenshot={path}", page.as_uri()], check=True, stderr=subprocess.DEVNULL)
    save(Image.open(path).convert("RGB"), path)


def save(picture: Image.Image, path: Path) -> None:
    picture.quantize(NUM_COLOURS).save(path, optimize=True)
    print(f"{path}: {picture.width}x{picture.height}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

"""Make the pictures in docs/images from a run on CamVid.

    python train.py --config configs/camvid_lite0.yaml
    python -m scripts.pictures --checkpoint log/camvid_lite0/best.pt --data dataset/camvid

The picture of the report needs Chromium; without it the script says how to make that one by hand.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import evaluate
import predict
from data.classes import read_classes
from evaluation.pictures import overlay

REPO = Path(__file__).resolve().parents[1]
SHOWN = ("0016E5_08001", "0016E5_08147")  # two validation images
SCALE = 0.66  # screen pixels per image pixel
GAP, HEADER = 8, 26
NUM_COLOURS = 200  # in each PNG: keeps it below 200 kB
REPORT_SIZE = (1120, 860)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, metavar="FILE", help="of a run on CamVid")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="CamVid, as configs/camvid.yaml says")
    parser.add_argument("--out", type=Path, default=REPO / "docs" / "images", metavar="DIR", help="folder to write to")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segtrain-pictures-") as scratch:
        draw_strip(args.checkpoint, args.data, Path(scratch), args.out)
        evaluate.main(
            ["--checkpoint", args.checkpoint, "--dataset_path", str(args.data), "--report", f"{scratch}/report"]
        )
        photograph(Path(scratch) / "report" / "index.html", args.out / "report.png")


def draw_strip(checkpoint: str, data: Path, scratch: Path, out: Path) -> None:
    """Write strip.png: images with their labels and predictions."""
    images = [str(data / "JPEGImages" / f"{name}.jpg") for name in SHOWN]
    predict.main(["--checkpoint", checkpoint, "--input", *images, "--output", str(scratch)])
    colours = read_classes("camvid", None).colours
    rows: list[list[np.ndarray]] = []
    for name in SHOWN:
        image = np.asarray(Image.open(data / "JPEGImages" / f"{name}.jpg").convert("RGB"))
        label = np.asarray(Image.open(data / "SegmentationClass" / f"{name}.png"))
        predicted = np.asarray(Image.open(scratch / "masks" / f"{name}.png"))
        rows.append([image, *(overlay(image, values, colours, None, opacity=0.7) for values in (label, predicted))])
    save(join(rows, ["image", "label", "prediction"]), out / "strip.png")


def join(rows: list[list[np.ndarray]], titles: list[str]) -> Image.Image:
    """The pictures (H, W, 3) side by side and below each other, with a title above each column."""
    height, width = (round(side * SCALE) for side in rows[0][0].shape[:2])
    size = (len(titles) * (width + GAP) - GAP, HEADER + len(rows) * (height + GAP) - GAP)
    canvas = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=17)
    for column, title in enumerate(titles):
        draw.text((column * (width + GAP) + width // 2, HEADER // 2), title, "#1f2328", font, anchor="mm")
        for number, row in enumerate(rows):
            picture = Image.fromarray(row[column]).resize((width, height), Image.Resampling.LANCZOS)
            canvas.paste(picture, (column * (width + GAP), HEADER + number * (height + GAP)))
    return canvas


def photograph(page: Path, path: Path) -> None:
    """Write a picture of the top of the report by headless Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print(f"no Chromium found: open log/demo/report.html, take a picture of its top and save it as {path}")
        return
    size = f"--window-size={REPORT_SIZE[0]},{REPORT_SIZE[1]}"
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=3000", size]
    subprocess.run([browser, *options, f"--screenshot={path}", page.as_uri()], check=True, stderr=subprocess.DEVNULL)
    save(Image.open(path).convert("RGB"), path)


def save(picture: Image.Image, path: Path) -> None:
    picture.quantize(NUM_COLOURS).save(path, optimize=True)
    print(f"{path}: {picture.width}x{picture.height}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

"""Make the pictures in docs/images from a run on the demo data.

python train.py
python -m scripts.pictures --checkpoint log/demo/best.pt

The demo data are drawn by this project, so the pictures are free of rights. The picture of the report needs Chromium;
without it the script says how to make that one by hand.
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
from evaluation.pictures import overlay
from labels import IGNORE

REPO = Path(__file__).resolve().parents[1]
DEMO = REPO / "dataset" / "demo"
SHOWN = ("demo_0104", "demo_0113")  # two validation images with all four shapes
SCALE = 1.75  # screen pixels per image pixel
GAP, HEADER = 8, 26
NUM_COLOURS = 160  # in each PNG: keeps it below 200 kB
REPORT_SIZE = (1120, 860)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="log/demo/best.pt", metavar="FILE", help="of a run on the demo data")
    parser.add_argument("--out", type=Path, default=REPO / "docs" / "images", metavar="DIR", help="folder to write to")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segtrain-pictures-") as scratch:
        draw_strips(args.checkpoint, Path(scratch), args.out)
        evaluate.main(["--checkpoint", args.checkpoint, "--report", f"{scratch}/report"])
        photograph(Path(scratch) / "report" / "index.html", args.out / "report.png")


def draw_strips(checkpoint: str, scratch: Path, out: Path) -> None:
    """Write strip.png (what CDSP trains on, and what the model predicts) and mask.png (an image and its mask)."""
    images = [str(DEMO / "JPEGImages" / f"{name}.jpg") for name in SHOWN]
    predict.main(["--checkpoint", checkpoint, "--input", *images, "--output", str(scratch)])
    rows: list[list[np.ndarray]] = []
    for name in SHOWN:
        predicted = Image.open(scratch / "masks" / f"{name}.png")
        colours = np.array(predicted.getpalette(), np.uint8).reshape(-1, 3)
        image = np.asarray(Image.open(DEMO / "JPEGImages" / f"{name}.jpg"))
        dense, scribble, pseudo = (
            np.asarray(Image.open(DEMO / folder / f"{name}.png"))
            for folder in ("SegmentationClassAug", "pascal_2012_scribble", "bmp_pseudolabel")
        )
        faded = (image * 0.35 + 165).astype(np.uint8)
        strokes = np.where((scribble == IGNORE)[..., None], faded, colours[scribble])
        labels = [np.where((label == 0)[..., None], faded, colours[label]) for label in (pseudo, dense)]
        rows.append([image, strokes, labels[0], overlay(image, np.asarray(predicted), colours, 0), labels[1]])
    save(join([row[:4] for row in rows], ["image", "scribble", "pseudo-label", "prediction"]), out / "strip.png")
    save(join([[row[0], row[4], row[3]] for row in rows[:1]], ["image", "mask", "prediction"]), out / "mask.png")


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

"""Write pictures of a data set (--pictures): images overlaid with their labels."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from tqdm import tqdm

from data.images import decode, read_image, read_label
from data.label_map import LabelMap
from evaluation.pictures import overlay
from support.errors import UserError
from support.files import writing
from tools.check.findings import Findings
from tools.check.survey import Sample

PER_SPLIT = 8  # images of each split, spread over it
PER_FINDING = 8  # images of each kind of finding
LONG_SIDE = 1600  # pixels; larger pictures are scaled down


def check_folder(folder: Path) -> None:
    """Raise UserError if the folder of the pictures exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--pictures {folder}: exists and is not empty: name a new folder")


def write_pictures(
    folder: Path, samples: list[Sample], findings: Findings, colours: np.ndarray, label_map: LabelMap | None
) -> list[str]:
    """Write folder/SPLIT/NAME.jpg and folder/CODE/NAME.jpg, for images of each split and each finding.

    colours: (256, 3) uint8 RGB, by class. Returns a line for each picture that could not be drawn.
    """
    failed = []
    for subfolder, sample in tqdm(list(_choose(samples, findings)), unit="picture", desc="drawing"):
        names = itertools.chain([sample.image.stem], (f"{sample.image.stem}_{number}" for number in itertools.count(2)))
        files = (folder / subfolder / f"{name}.jpg" for name in names)  # images of one name may be in two folders
        try:
            picture = draw(sample, colours, label_map)
        except UserError as error:
            failed.append(str(error))
            continue
        with writing(next(file for file in files if not file.exists()), parents=True) as scratch:
            Image.fromarray(picture).save(scratch, quality=90)
    return failed


def _choose(samples: list[Sample], findings: Findings) -> Iterator[tuple[str, Sample]]:
    """Yield (subfolder, sample) of each picture to draw."""
    for split in dict.fromkeys(split for sample in samples for split in sample.splits):
        inside = [sample for sample in samples if split in sample.splits]
        count = min(PER_SPLIT, len(inside))
        for number in range(count):
            yield split, inside[number * len(inside) // count]
    by_file = {findings.show(path): sample for sample in samples for path in (sample.image, *sample.labels.values())}
    for finding in findings.sorted():
        found = dict.fromkeys(by_file[file] for file in finding.files if file in by_file)
        for sample in list(found)[:PER_FINDING]:
            yield finding.code, sample


def draw(sample: Sample, colours: np.ndarray, label_map: LabelMap | None) -> np.ndarray:
    """Return the image with its scribble, else its first label, painted over it, (H, W, 3) uint8.

    A label of another size is stretched. A label in colours keeps them. Raises UserError for an unreadable file.
    """
    image = read_image(sample.image)
    scale = min(1, LONG_SIDE / max(image.shape[:2]))
    size = tuple(max(1, round(scale * side)) for side in image.shape[1::-1])
    image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    if not sample.labels:
        return image
    path = sample.labels.get("scribble") or next(iter(sample.labels.values()))
    try:
        label = read_label(path, 255, label_map)
    except UserError:
        painted = decode(path, lambda label: label.convert("RGB"))
        return cv2.addWeighted(image, 0.5, cv2.resize(painted, size, interpolation=cv2.INTER_NEAREST), 0.5, 0)
    return overlay(image, cv2.resize(label, size, interpolation=cv2.INTER_NEAREST), colours, background=None)

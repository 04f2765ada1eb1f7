"""Damage of masks in colours, in black and white, and panoptic PNGs, as in test_convert_damage.py."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from annotated_masks import write_binary, write_colours, write_panoptic
from PIL import Image
from test_convert import drawn
from test_convert_damage import PICTURES, SMALL, check_damage, put, remove, save, truncate


def copy(path: str, target: str):
    return lambda root: shutil.copy(root / path, root / target)


def link_to_folder(path: str):
    def damage(root: Path) -> None:
        (root / path).unlink()
        (root / path).mkdir()

    return damage


RAMP = np.arange(24 * 32, dtype=np.uint32).reshape(24, 32)
MANY = np.stack([RAMP % 256, RAMP // 256, RAMP * 0 + 9], axis=2).astype(np.uint8)
WRONG = (SMALL[:, :, 0], SMALL)


def mask_faults(mask: str) -> list[tuple]:
    return [
        (remove("images/bad.png"), "a mask without an image", "skip"),
        (remove(mask), "an image without a mask: expected", "skip"),
        (truncate(mask), "not a whole, readable image", "skip"),
        (save(mask, SMALL), "12x10 pixels, but the image has 32x24", "skip"),
        (link_to_folder(mask), "an image without a mask", "skip"),
        (copy(mask, mask.replace(".png", ".bmp")), "two masks of one name", "skip"),
    ]


def jpeg(mask: str):
    def damage(root: Path) -> None:
        with Image.open(root / mask) as image:
            image.convert("RGB").save(root / mask.replace(".png", ".jpg"))
        (root / mask).unlink()

    return damage


FEW = np.zeros((24, 32, 3), np.uint8)
FEW[0, :9] = 77  # of many in another colour, the file of the classes would not fit
M, B = "masks/bad.png", "masks/bad_mask.png"
COLOURS = [
    (copy("images/good.png", "images/bad.bmp"), "two images of one name", "skip"),
    *mask_faults(M),
    (jpeg(M), "JPEG compression changes label values", "skip"),
    (save(M, MANY), "768 colours, as smoothing or JPEG leave them", "skip"),
    (save(M, FEW), "class '#4d4d4d': not in the list", "keep"),
]
BINARY = [
    *mask_faults(B),
    (jpeg(B), "JPEG compression changes label values", "skip"),
    (save(B, (RAMP % 9).astype(np.uint8)), "9 values, from 0 to 8, where 0 and 255 were expected", "skip"),
    (save(B, MANY), "it has colours: convert it with the kind 'colours'", "skip"),
    (save(B, (RAMP * 80).astype(np.uint16)), "768 values, from 0 to 61360", "skip"),
]
P = "panoptic.json"
NOTE = ("annotations", 0, "segments_info", 0)
PANOPTIC = [
    (remove("images/bad.png"), "image 'bad.png': not below", "skip"),
    (remove("panoptic/bad.png"), "no such file; the PNGs are looked for in", "skip"),
    (truncate("panoptic/bad.png"), "not a whole, readable image", "skip"),
    (save("panoptic/bad.png", SMALL), "12x10 pixels, but the image has 32x24", "skip"),
    (save("panoptic/bad.png", np.zeros((24, 32), np.uint8)), "not an RGB image", "skip"),
    (truncate(P), "not JSON", "stop"),
    (put(P, ..., "annotations"), "'annotations' is missing", "stop"),
    (put(P, 77, "annotations", 0, "image_id"), "image_id 77 is not in 'images'", "skip"),
    (put(P, 999, *NOTE, "id"), "segment 70300 is not in segments_info", "skip"),
    (put(P, [{"id": 5, "category_id": 3}], "annotations", 0, "segments_info"), "is not in segments_info", "skip"),
    (put(P, ..., "annotations", 0, "segments_info"), "'segments_info' is missing", "skip"),
    (put(P, 55, *NOTE, "category_id"), "class 'category_id 55': not in the list", "keep"),
    (put(P, "x", *NOTE, "category_id"), "'category_id' is missing or invalid", "skip"),
]
WRITERS = {
    "colours": (write_colours, COLOURS),
    "binary": (write_binary, BINARY),
    "panoptic": (write_panoptic, PANOPTIC),
}


@pytest.mark.parametrize(
    ("kind", "damage", "message", "fate"), [(kind, *case) for kind, (_, cases) in WRITERS.items() for case in cases]
)
def test_damage_is_named_and_the_rest_is_written(tmp_path, kind, damage, message, fate, capsys):
    source = WRITERS[kind][0](tmp_path / "in", PICTURES, drawn)
    damage(tmp_path / "in")
    (tmp_path / "classes.txt").write_text("background #000000\ncat #c8000a\ndog #00dc1e\n")
    words = {"colours": ("--classes", str(tmp_path / "classes.txt")), "binary": ("--label_suffix", "_mask")}
    label = drawn(PICTURES[1])
    good = {"colours": label, "binary": label > 0, "panoptic": np.where(label == 0, 255, label - 1)}[kind]
    check_damage(kind, source, tmp_path / "out", message, fate, good, capsys, words.get(kind, ()))

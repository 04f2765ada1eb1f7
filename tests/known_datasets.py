"""Copies of well-known data sets as they are released: the real folders and names, and drawn pictures."""

import json
from pathlib import Path

import numpy as np
from faulty_data import Drawn, label, picture, put
from PIL import Image

# Released number: class, from the authors' own tables (helpers/labels.py of cityscapesScripts; the 11 unused things of
# COCO-Stuff's README, minus 1).
CITYSCAPES = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13}
CITYSCAPES |= {27: 14, 28: 15, 31: 16, 32: 17, 33: 18}
UNUSED = {11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90}
COCO = [value for value in range(182) if value not in UNUSED]
HEIGHT = 40


def stripes(*values: int, columns: int = 2) -> np.ndarray:
    """A label with `columns` columns of each value."""
    return label(*values, height=HEIGHT, width=columns * len(values))


def with_palette(values: np.ndarray) -> Image.Image:
    image = Image.fromarray(values)
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    return image


def draw_cityscapes(root: Path) -> Path:
    """All 34 ids, two columns each, in every image."""
    for name in (
        "train/aachen/aachen_000000_000019",
        "train/ulm/ulm_000001_000019",
        "val/munster/munster_000002_000019",
    ):
        ids = stripes(*range(34))
        put(root / f"leftImg8bit/{name}_leftImg8bit.png", picture(name, *ids.shape))
        put(root / f"gtFine/{name}_gtFine_labelIds.png", ids)
        put(root / f"gtFine/{name}_gtFine_instanceIds.png", ids.astype(np.uint16) * 1000)
        put(root / f"gtFine/{name}_gtFine_color.png", picture(name, *ids.shape))
        (root / f"gtFine/{name}_gtFine_polygons.json").write_text(json.dumps({"imgHeight": 1024, "objects": []}))
    return root


def draw_ade20k(root: Path) -> Path:
    """0 ("other") and the 150 classes, two columns each, in every image."""
    for name in ("training/ADE_train_00000001", "training/ADE_train_00000002", "validation/ADE_val_00000001"):
        put(root / f"images/{name}.jpg", picture(name, HEIGHT, 302))
        put(root / f"annotations/{name}.png", stripes(*range(151)))
    return root


def draw_cocostuff(root: Path) -> Path:
    """The 171 numbers that are used and 255, two columns each, in every image."""
    for name in ("train2017/000000000009", "train2017/000000000025", "val2017/000000000139"):
        values = stripes(*COCO, 255)
        put(root / f"images/{name}.jpg", picture(name, *values.shape))
        put(root / f"annotations/{name}.png", values)
    return root


def draw_voc_sbd(root: Path) -> Path:
    """VOC with 21 classes and 255, three columns each; SBD has one more image, and no 255."""
    own = {"train": ["2007_000032", "2007_000039"], "val": ["2007_000033"]}
    more = {"trainval": own["train"] + own["val"], "trainaug": [*own["train"], "2008_000002"]}
    Drawn(root).write_lists(**own, **more)
    for name in (*own["train"], *own["val"], "2008_000002"):
        put(root / f"JPEGImages/{name}.jpg", picture(name, HEIGHT, 66))
        (root / "Annotations").mkdir(exist_ok=True)
        (root / f"Annotations/{name}.xml").write_text(f"<annotation><filename>{name}.jpg</filename></annotation>\n")
        if name != "2008_000002":
            put(root / f"SegmentationClass/{name}.png", with_palette(stripes(*range(21), 255, columns=3)))
            put(root / f"SegmentationObject/{name}.png", with_palette(stripes(*range(22), columns=3)))
        values = stripes(*range(21), 0 if name == "2008_000002" else 255, columns=3)
        put(root / f"SegmentationClassAug/{name}.png", values)
    return root

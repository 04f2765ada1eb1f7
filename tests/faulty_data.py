"""Data sets with every fault that the data check knows, and the files that it should name."""

from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

HEIGHT, WIDTH = 48, 64


def picture(seed: str, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Coarse coloured clouds, their own for each seed, (H, W, 3) uint8."""
    rng = np.random.default_rng(list(seed.encode()))
    return cv2.resize(rng.integers(0, 256, (8, 9, 3), dtype=np.uint8), (width, height), interpolation=cv2.INTER_LINEAR)


def label(*values: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Vertical stripes of the values, (H, W) uint8."""
    return np.repeat(np.array(values, np.uint8)[np.arange(width) * len(values) // width][None], height, axis=0)


def put(path: Path, values: np.ndarray | Image.Image, **options) -> Path:
    """Save an image, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (values if isinstance(values, Image.Image) else Image.fromarray(values)).save(path, **options)
    return path


# Damages of a folder's files
def remove(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).unlink()


def truncate(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[: (root / path).stat().st_size // 2])


def save(path: str, pixels: np.ndarray) -> Callable[[Path], Path]:
    return lambda root: put(root / path, pixels)


def write(path: str, text: str, encoding: str = "utf-8") -> Callable[[Path], int]:
    return lambda root: (root / path).write_text(text, encoding)


class Drawn:
    """A data set that is drawn file by file, in plain folders or the layout of ScribbleSup."""

    def __init__(self, root: Path, **folders: str):
        self.root = root
        self.folders = {"image": "images", "mask": "masks"} | folders

    def put(self, kind: str, file: str, values: np.ndarray | Image.Image, **options) -> Path:
        return put(self.root / self.folders[kind] / file, values, **options)

    def pair(self, name: str, image=None, mask=None, *, suffix: str = ".png", **options) -> None:
        self.put("image", name + suffix, picture(name) if image is None else image, **options)
        self.put("mask", name + ".png", label(0, 1, 2) if mask is None else mask)

    def pairs(self, masks: dict[str, np.ndarray | Image.Image | None]) -> None:
        for name, mask in masks.items():
            self.pair(name, mask=mask)

    def write_lists(self, **names: Iterable[str]) -> None:
        """Lists in VOC's layout, for each split the names of its images."""
        folder = self.root / "ImageSets/Segmentation"
        folder.mkdir(parents=True, exist_ok=True)
        for split, lines in names.items():
            (folder / f"{split}.txt").write_text("\n".join(lines))


def scribblesup_like(root: Path) -> Drawn:
    return Drawn(
        root, image="JPEGImages", mask="SegmentationClass", scribble="pascal_2012_scribble", pseudo="bmp_pseudolabel"
    )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def exif(orientation: int) -> Image.Exif:
    """The tag that tells how to turn an image: 6 means by 90 degrees clockwise."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def turned(name: str, orientation: int) -> dict:
    return {"image": picture(name), "suffix": ".jpg", "exif": exif(orientation)}


def draw_clean(root: Path) -> Path:
    drawn = Drawn(root)
    drawn.pairs(dict.fromkeys(("train/a", "train/b", "train/sub/c d", "val/a")))
    return drawn.root


def draw_faulty(root: Path) -> Path:
    """Plain folders with one of each fault that a file there can have."""
    drawn = Drawn(root)
    drawn.pair("train/good")
    drawn.pair("val/good", mask=label(0, 1, 2, 4))  # class 4 only here, class 3 nowhere
    drawn.put("image", "train/no_label.png", picture("no_label"))
    drawn.pair("train/twice")
    drawn.put("image", "train/twice.jpg", picture("twice"))
    for name, kind in (("cut_image", "image"), ("cut_label", "mask")):
        drawn.pair(f"train/{name}")
        cut(drawn.root / drawn.folders[kind] / f"train/{name}.png")
    drawn.pair("train/deep_label")
    cv2.imwrite(str(drawn.root / "masks/train/deep_label.png"), np.ones((HEIGHT, WIDTH, 3), np.uint16))
    drawn.put("mask", "train/no_label.gif", label(0, 1, 2))
    drawn.pair("train/size", mask=label(0, 1, 2, width=WIDTH - 1))
    drawn.pair("train/rotated", **turned("rotated", 6))
    drawn.pair("train/deep", picture("deep")[..., 0].astype(np.uint16) * 200)
    colours = np.array([[0, 0, 0], [128, 0, 0], [1, 2, 3]], np.uint8)[label(0, 1, 2)]
    drawn.pair("train/colour", mask=colours)
    drawn.pair("train/mode", mask=Image.fromarray(label(0, 1)).convert("LA"))
    for name in ("jpeg", "webp", "tiff", "stack"):
        drawn.put("image", f"train/{name}.png", picture(name))
    drawn.put("mask", "train/jpeg.jpg", label(0, 1, 2))
    drawn.put("mask", "train/webp.webp", label(0, 1, 2), quality=80)
    drawn.put("mask", "train/tiff.tif", label(0, 1, 2), compression="jpeg")
    pages = [Image.fromarray(label(*values)) for values in ((0, 1), (0, 2))]
    drawn.put("mask", "train/stack.tif", pages[0], save_all=True, append_images=pages[1:])
    pages = [Image.fromarray(picture(f"page {number}")) for number in range(2)]
    drawn.put("image", "train/pages.tif", pages[0], save_all=True, append_images=pages[1:])
    drawn.put("mask", "train/pages.png", label(0, 1, 2))
    drawn.pair("train/upside_down", **turned("upside_down", 3))
    drawn.pair("train/hurt", picture("hurt"), suffix=".jpg")
    hurt = drawn.root / "images/train/hurt.jpg"
    data = hurt.read_bytes()
    hurt.write_bytes(data[: len(data) * 2 // 3] + data[len(data) * 2 // 3 + 99 :])
    (drawn.root / "images/train/phone.heic").write_bytes(b"")
    (drawn.root / "images/train/loop").symlink_to(drawn.root)
    drawn.pair("train/odd", mask=label(0, 1, 254))
    drawn.pair("train/void", mask=label(255))
    edge = np.array([0, 1, 2, 255], np.uint8)[np.clip(np.arange(WIDTH) - 20, 0, 3)]  # 1 and 2 are one pixel wide
    drawn.pair("train/smooth", mask=edge[None].repeat(HEIGHT, axis=0))
    drawn.put("mask", "train/no_image.png", label(0, 1, 2))
    drawn.pair("train/leak", picture("leak"))
    drawn.pair("val/leak", picture("leak"))
    return drawn.root


FAULTY = {
    "image-without-label": ["images/train/no_label.png"],
    "two-files-of-one-name": ["images/train/twice.jpg"],
    "image-unreadable": ["images/train/cut_image.png"],
    "label-unreadable": ["masks/train/cut_label.png", "masks/train/deep_label.png"],
    "size-mismatch": ["masks/train/rotated.png", "masks/train/size.png"],
    "mask-mixed": ["masks/train/colour.png"],
    "mask-mode": ["masks/train/mode.png"],
    "mask-lossy": ["masks/train/jpeg.jpg", "masks/train/tiff.tif", "masks/train/webp.webp"],
    "mask-frames": ["masks/train/stack.tif"],
    "label-out-of-range": ["masks/train/odd.png"],
    "duplicate-across-splits": ["images/train/leak.png"],
    "image-damaged": ["images/train/hurt.jpg"],
    "image-frames": ["images/train/pages.tif"],
    "left-out": ["images/train/loop", "images/train", "masks/train"],
    "exif-turns-one": ["masks/train/upside_down.png"],
    "mask-smoothed": ["masks/train/smooth.png"],
    "class-absent": ["class 3"],
    "class-only-in-val": ["class 4"],
    "label-without-image": ["masks/train/no_image.png"],
    "label-empty": ["masks/train/void.png"],
}


def draw_faulty_lists(root: Path) -> Path:
    """The layout of ScribbleSup with one of each fault of lists, and an empty scribble and pseudo-label."""
    drawn = scribblesup_like(root)
    scribble = np.where(np.arange(HEIGHT)[:, None] % 12 == 0, label(0, 1, 2), 255).astype(np.uint8)
    changed = {"no_stroke": {"scribble": label(255)}, "no_pseudo": {"pseudo": label(255)}}
    for name in ("a", "both", "v", *changed):
        files = {"mask": label(0, 1, 2), "scribble": scribble, "pseudo": label(0, 1, 2)} | changed.get(name, {})
        drawn.put("image", f"{name}.jpg", picture(name))
        for kind, values in files.items():
            drawn.put(kind, f"{name}.png", values)
    drawn.write_lists(train=["a", "both", "gone", *changed], val=["v", "both", "v.jpg"])
    return drawn.root


FAULTY_LISTS = {
    "listed-image-missing": ["train: gone"],
    "in-two-splits": ["JPEGImages/both.jpg"],
    "listed-twice": ["val: v"],
    "label-empty": ["pascal_2012_scribble/no_stroke.png", "bmp_pseudolabel/no_pseudo.png"],
}

"""Images and their label maps from folders, every file checked when it is read."""

import contextlib
import os
import struct
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps
from torch.utils.data import Dataset

from errors import UserError
from labels import IGNORE

# In the order in which they are looked for, and each in any letter case.
IMAGE_SUFFIXES = (".jpg", ".png", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".webp")
LABEL_MODES = ("P", "L", "1", "I", "I;16")  # of PIL: one channel of numbers
NO_JPEG = "a JPEG changes the label values that are saved in it: save the mask as PNG"


def read_list(path: Path) -> list[str]:
    """The names in a list file, one a line; empty lines are skipped."""
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the list cannot be read ({getattr(error, 'strerror', error)})") from None
    if not names:
        raise UserError(f"{path}: the list is empty; expected one image name a line, without suffix")
    for line, name in enumerate(names, 1):
        if "/" in name or len(name.split()) > 1:
            raise UserError(
                f"{path} line {line}: {name!r}: expected one image name a line, without folder, space or suffix"
            )
    return names


def list_folder(folder: Path, suffixes: tuple[str, ...]) -> dict[str, list[str]]:
    """The files below a folder by name, the best suffix first: {"sub/x": ["sub/x.jpg", ...]}, sorted.

    Names are in Unicode's form NFC, since macOS writes another than a list or another system has. Hidden files and
    folders, and those that systems leave behind (._x, .DS_Store, __MACOSX), are skipped.
    """

    def stop(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be listed ({error.strerror})")

    found: dict[str, list[tuple[bool, int, str]]] = {}
    for parent, folders, files in os.walk(folder, onerror=stop, followlinks=True):
        above = os.path.realpath(parent)
        folders[:] = [
            name for name in folders
            if not name.startswith((".", "__MACOSX", "@eaDir"))
            and not f"{above}/".startswith(os.path.realpath(os.path.join(parent, name)) + "/")  # a link to above itself
        ]  # fmt: skip
        inside = Path(parent).relative_to(folder).as_posix() + "/"
        for file in files:
            suffix = os.path.splitext(file)[1]
            if suffix.lower() in suffixes and not file.startswith("."):
                path = (inside + file).removeprefix("./")
                name = unicodedata.normalize("NFC", path.removesuffix(suffix))
                found.setdefault(name, []).append((suffix != suffix.lower(), suffixes.index(suffix.lower()), path))
    return {name: [path for *_, path in sorted(paths)] for name, paths in sorted(found.items())}


@contextlib.contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn what PIL raises on a file into a UserError that names it."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise UserError(
            f"{path}: has more than {limit} million pixels, too many for Pillow: cut it into tiles"
        ) from None
    except (OSError, EOFError, LookupError, SyntaxError, TypeError, ValueError, struct.error) as error:
        raise UserError(f"{path}: not a whole, readable image ({' '.join(str(error).split())}): replace it") from None


def decode(path: Path, convert: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    """The pixels of a whole image file, converted. PIL, unlike OpenCV, refuses truncated files and keeps palette indices."""
    with decoding(path), Image.open(path) as image:
        return np.array(convert(image))


def read_image(path: Path) -> np.ndarray:
    """An image as RGB, shape (H, W, 3), uint8, turned as its EXIF orientation says."""

    def to_rgb(image: Image.Image) -> Image.Image:
        if image.mode.startswith(("I", "F")):
            raise UserError(f"{path}: more than 8 bits a channel (mode {image.mode}): convert it to 8 bits")
        return ImageOps.exif_transpose(image).convert("RGB")

    return decode(path, to_rgb)


def image_size(path: Path) -> tuple[int, int]:
    """Height and width of an image as read_image gives it, from its header unless EXIF may turn it."""
    with decoding(path), Image.open(path) as image:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image.height, image.width
    return read_image(path).shape[:2]


def read_label(path: Path, num_classes: int) -> np.ndarray:
    """A label map, shape (H, W), uint8: 0..num_classes-1, and 255 = ignore. Palette images give their indices."""

    def check_mode(image: Image.Image) -> Image.Image:
        if image.format in ("JPEG", "MPO"):  # whatever its name ends in
            raise UserError(f"{path}: {NO_JPEG}")
        if image.mode == "RGB":  # lossless WebP and some BMP have no grey mode
            red, green, blue = image.split()
            if red.tobytes() == green.tobytes() == blue.tobytes():
                return red
        if image.mode not in LABEL_MODES:
            raise UserError(
                f"{path}: a {image.mode} image: labels must be class numbers in one channel (grey or palette PNG)"
            )
        return image

    label = decode(path, check_mode)
    bad = label[(label != IGNORE) & ((label < 0) | (label >= num_classes))]
    if bad.size:
        raise UserError(
            f"{path}: label {bad.flat[0]} in {bad.size} pixel(s): with --numclasses {num_classes} labels are "
            f"0..{num_classes - 1}, and 255 = ignore"
        )
    return label.astype(np.uint8)


def read_distance(path: Path) -> np.ndarray:
    """A distance map, shape (H, W), uint8; of several equal channels, the first."""
    values = decode(path, lambda image: image)
    values = values[..., 0] if values.ndim == 3 else values
    if values.dtype != np.uint8:
        raise UserError(f"{path}: a distance map must be an 8-bit image, found {values.dtype}")
    return values


class SegmentationDataset(Dataset):
    """Samples of named images and label maps in folders.

    folders: {"image": folder, and any of "label", "pseudo", "distance_s", "distance_c": folder of NAME.png}.
    transform: augmentation of a training sample, see data.transforms; None for evaluation.
    compute: {"distance_s" or "distance_c": (source map, function)}: maps to compute from a label at the
    image's own size, instead of reading them. The transform then treats them like maps that are read.

    dataset[epoch, index] is a sample whose augmentation depends on (seed, epoch, index) only;
    dataset[index] is one at the image's own size, with "index". Both are dicts of uint8 arrays: "image" (H, W, 3),
    the others (H, W). Raises UserError that names the file at fault.
    """

    def __init__(
        self,
        names: list[str],
        folders: dict[str, Path],
        num_classes: int,
        *,
        transform: Callable | None = None,
        compute: Mapping[str, tuple[str, Callable]] | None = None,
        seed: int = 0,
    ):
        self.num_classes, self.transform, self.compute, self.seed = num_classes, transform, compute or {}, seed
        self.names, self.folders, self.files = names, folders, _find_files(names, folders)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def listing(self) -> list[str]:
        """The files of each sample without their folders, to compare with those of another machine or an earlier run."""
        return [
            " ".join(f"{kind}={path.relative_to(self.folders[kind]).as_posix()}" for kind, path in files.items())
            for files in self.files
        ]

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, np.ndarray]:
        if isinstance(key, int):
            return self._read(key) | {"index": np.array(key)}
        epoch, index = key
        assert self.transform is not None
        maps = self._read(index)
        for name, (source, distance) in self.compute.items():
            maps[name] = distance(maps[source])
        return self.transform(maps, np.random.default_rng((self.seed, epoch, index)))

    def _read(self, index: int) -> dict[str, np.ndarray]:
        files = self.files[index]
        maps = {"image": read_image(files["image"])}
        for name, path in files.items():
            if name == "image":
                continue
            maps[name] = read_distance(path) if name.startswith("distance") else read_label(path, self.num_classes)
            if maps[name].shape != maps["image"].shape[:2]:
                (height, width), (image_height, image_width) = maps[name].shape, maps["image"].shape[:2]
                raise UserError(
                    f"{path}: {width}x{height} pixels, but its image {files['image']} has {image_width}x{image_height}"
                )
        return maps


def _find_files(names: list[str], folders: dict[str, Path]) -> list[dict[str, Path]]:
    """The file of every name in every folder, found by listing each folder once."""
    present = {}
    for kind, folder in folders.items():
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder (for the {kind} files)")
        present[kind] = list_folder(folder, IMAGE_SUFFIXES if kind == "image" else LABEL_SUFFIXES)
    files = []
    for name in names:
        found = {}
        for kind, folder in folders.items():
            match = present[kind].get(unicodedata.normalize("NFC", name))
            if match is None:
                suffix = (IMAGE_SUFFIXES if kind == "image" else LABEL_SUFFIXES)[0]
                raise UserError(f"{folder / (name + suffix)}: no such file, but the list names {name!r}")
            found[kind] = folder / match[0]
        files.append(found)
    return files

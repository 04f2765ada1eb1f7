"""Read files within bounds, and write them atomically: a file is whole or absent, whatever happens to the process."""

import contextlib
import errno
import json
import mmap
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from support.errors import InputError, UserError, WriteError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Suffixes that the name of a new folder cannot have: the user expects one file.
NO_FOLDER = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".npy", ".json", ".html", ".zip", ".txt"}
NO_FOLDER |= {".pt", ".pth", ".ckpt", ".onnx", ".engine", ".yaml"}
# Folders of a data set, if another one is beside them: what is written there would be read as an image or a mask.
DATA_FOLDERS = {"images", "masks", "JPEGImages", "SegmentationClass", "SegmentationClassAug"}
NUMBERS = ("step", "epoch", "loss", "lr", "miou", "pixel_acc", "images_per_s")  # of a line of metrics.jsonl
LARGEST = 1e300  # of a number there: an integer of JSON may have more digits than a float can hold
SCRATCH = re.compile(r"\.[0-9a-f]{16}\.part(\.\w+)?")  # the name of a temporary file of writing()


def write_atomic(path: Path, data: bytes | memoryview | str, *, sync: bool = False, parents: bool = False) -> None:
    """Write bytes, or text as UTF-8, to a temporary file and rename that file to `path`.

    sync, parents and errors: as in writing().
    """
    with writing(path, sync=sync, parents=parents) as scratch:
        scratch.write_bytes(data.encode(errors="surrogateescape") if isinstance(data, str) else data)  # names of files


@contextlib.contextmanager
def writing(path: Path, *, sync: bool = False, parents: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to `path` if the body succeeds and removed if not.

    The temporary path has the suffix of `path`. sync: flush the file to the disk first, so that a power cut leaves the
    new file or the old one, whole. parents: create missing folders. Raises UserError if the file cannot be written,
    with the OSError as its cause; InputError if its name is too long.
    """
    scratch = path.with_name(f".{os.urandom(8).hex()}.part{path.suffix}")
    try:
        with write_errors(path):
            if parents:
                path.parent.mkdir(parents=True, exist_ok=True)
            with scratch.open("xb") as file:
                _lock(file)
                yield scratch
                if sync:
                    os.fsync(file.fileno())
            os.replace(scratch, path)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the body, which writes `path`, into a WriteError (InputError if the name is too long)."""
    try:
        yield
    except OSError as error:
        kind = InputError if error.errno == errno.ENAMETOOLONG else WriteError
        raise kind(f"{path}: cannot be written ({error.strerror})") from error


def json_lines(path: Path) -> list[dict | None]:
    """Return the lines of a metrics.jsonl as objects, None for a damaged line. NaN becomes None: JSON has none.

    An object has a "kind", a str, and a "step", an int. Values that programs read have the types that a run writes,
    or are None. Return [] without a file.
    """
    lines = path.read_bytes().decode("utf-8", "replace").split("\n") if path.is_file() else []
    return [_json_object(text) for text in lines if text]


def _json_object(text: str) -> dict | None:
    try:
        line = json.loads(text, parse_constant=lambda _: None)
        iou, share, losses = (line.get(name) or () for name in ("iou", "share", "losses"))
        values = [*iou, *share, *(losses and losses.values()), *map(line.get, NUMBERS)]
        whole = isinstance(line["kind"], str) and type(line["step"]) is int and len(share) in (0, len(iou))
        whole &= all(value is None or (type(value) in (int, float) and abs(value) < LARGEST) for value in values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return line if whole else None


def remove_scratch(paths: Iterable[Path]) -> None:
    """Remove those paths that are temporary files of writing() and that no process is writing."""
    for path in filter(lambda path: SCRATCH.fullmatch(path.name), paths):
        with contextlib.suppress(OSError), path.open("rb+") as file:
            if _lock(file):
                path.unlink()


def lock_file(path: Path) -> BinaryIO | None:
    """Open a file, and create it if needed. Lock it until it is closed; Windows and some network disks cannot.

    Return None if another process holds the lock. Raises UserError if the file cannot be written.
    """
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    if _lock(file) is False:
        file.close()
        return None
    return file


def _lock(file: BinaryIO) -> bool | None:
    """Lock an open file until it is closed or the process killed.

    Return False if another process holds the lock, and None if this disk cannot lock.
    """
    if fcntl:  # Windows removes no file that is open
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
    return True


def check_place(path: Path, flag: str, inputs: Iterable[Path] = (), *, is_folder: bool = True) -> None:
    """Raise UserError, naming `flag`, if an output is one of the inputs, in one, in a data set's folder, or in a file.

    inputs: files and folders that the program reads. is_folder: whether the output is a folder.
    """
    for place in (path, *path.parents)[not is_folder :]:
        if os.path.lexists(place) and not os.path.isdir(place):
            kind = "a file" if os.path.exists(place) else "a link to nothing"
            raise UserError(f"{flag} {path}: {'' if place == path else f'{place} '}is {kind}: name a folder")
    around = [Path(os.path.realpath(path)), *Path(os.path.realpath(path)).parents]
    for place in (place for place in around if place.name in DATA_FOLDERS):
        if any(os.path.isdir(place.with_name(name)) for name in DATA_FOLDERS - {place.name}):
            inputs = [*inputs, place]
    for item in inputs:
        if Path(os.path.realpath(item)) in around:
            raise UserError(f"{flag} {path}: lies in {item}, which programs read as input: name another place")


def check_file(path: Path, flag: str, mark: str, inputs: Iterable[Path] = (), *, suffix: str = "") -> None:
    """Raise UserError, naming `flag`, unless a program may write the file `path`. Creates missing folders.

    mark: text in all files that the program writes: an existing file has it, or is empty. inputs: as in check_place().
    suffix: of the file, if it must not be .txt or .yaml, which programs read as lists, class names and flags.
    """
    if os.path.isdir(path):
        raise UserError(f"{flag} {path}: is a folder: name a file")
    if suffix and path.suffix.lower() in (".txt", ".yaml", ".yml"):
        raise UserError(f"{flag} {path}: programs read such files as lists, class names or flags: name a {suffix} file")
    check_place(path, flag, inputs, is_folder=False)
    check_writable(path.parent, flag)
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise UserError(f"{flag} {path}: a link or a device, which would be replaced: name a file")
    if path.exists() and path.stat().st_size:
        with write_errors(path), path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(mark.encode()) < 0:
                raise UserError(f"{flag} {path}: exists, and is not an earlier result: remove it, or name another file")


def check_writable(folder: Path, flag: str) -> None:
    """Create a folder, and make and remove a file in it.

    Raises UserError, naming `flag`, if that fails, or if a new folder would have the name of a file.
    """
    import tempfile  # imported here because it would slow down --help

    if folder.suffix.lower() in NO_FOLDER and not folder.is_dir():
        raise UserError(f"{flag} {folder}: ends like a file, but the output is a folder: use {folder.stem}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{flag} {folder}: cannot be written to ({error.strerror}): name another folder") from None


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file. Raises InputError if it cannot be read or has more than `most` bytes."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # opening a pipe would wait for a writer, and a device may have no end
            raise InputError(f"{path}: not a regular file")
        if size > most:
            raise InputError(f"{path}: {size} bytes, but at most {most} are read")
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def read_text(path: Path, most: int) -> str:
    """Return the content of a file of UTF-8 text, without its byte order mark. Raises InputError as read_bytes()."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal. Raises InputError if the file cannot be read."""
    import hashlib  # loads OpenSSL, which --help need not wait for

    return hashlib.sha256(read_bytes(path, sys.maxsize)).hexdigest()

"""List the files in a folder and below it: all programs walk through a user's folders in this module."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data.images.files import IMAGE_SUFFIXES
from support.errors import UserError

Files = dict[str, list[Path]]

# Suffixes of unread image formats; messages count their files.
UNREAD = (
    *(".jfif", ".jpe", ".jif", ".heic", ".heif", ".hif", ".avif", ".jxl", ".jp2", ".j2k", ".jpx", ".gif", ".ppm"),
    *(".pgm", ".pbm", ".pnm", ".tga", ".psd", ".ico", ".svg", ".exr", ".hdr", ".dng", ".cr2", ".cr3", ".nef", ".arw"),
    *(".orf", ".rw2", ".raf", ".raw", ".dcm", ".nii", ".mha", ".nrrd", ".npy", ".npz", ".mat", ".svs", ".czi"),
)
MAX_FOLDERS = 2000  # without an image, below a link that leaves the folder: that is no data set


def walk(folder: Path, links: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, names of its files) of a folder and all below it, also through links to folders.

    Skips hidden files and folders, what systems leave behind (._x, .DS_Store, __MACOSX), and links to a folder around
    them, which lead round in circles, such as "/": links gets {link: target} of these. Raises UserError if a folder
    cannot be listed, or if a link out of `folder` leads to a large tree with hardly an image.
    """

    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be listed ({error.strerror})")

    empty: dict[Path, int] = {}  # {first link on a way: folders without an image, less ten for each with one}
    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX", "@eaDir"))]
        linked = [name for name in folders if os.path.islink(os.path.join(place, name))]
        here = Path(place)
        # This folder and those around it, up to `folder`; only links make a difference.
        way = [here, *here.parents][: len(here.parts) - len(folder.parts) + 1] if linked or empty else []
        if first := next((path for path in way if path in empty), None):
            has_image = any(name.lower().endswith(IMAGE_SUFFIXES) for name in names)
            empty[first] += -10 if has_image else 1
            if empty[first] > MAX_FOLDERS:
                raise UserError(f"{first}: a link to a tree with {MAX_FOLDERS} folders without an image: remove it")
        around = [Path(os.path.realpath(path)) for path in way if linked]
        for name in linked:
            target = os.path.realpath(here / name)
            if any(other.is_relative_to(target) for other in around):
                links[os.path.join(place, name)] = target
                folders.remove(name)
            elif not first:
                empty[here / name] = 0
        yield place, [name for name in names if not name.startswith(".")]


def list_folder(folder: Path, suffixes: tuple[str, ...], links: dict[str, str] | None = None) -> Files:
    """Return all files below a folder by name, sorted: {"sub/x": [folder/sub/x.jpg, folder/sub/x.png], ...}.

    A name has no suffix and is in Unicode form NFC, because macOS stores another form than lists and other systems.
    suffixes: lower-case suffixes of the files to list; files of one name are in the order of `suffixes`. links and what
    is skipped: as in walk(). Returns {} for a missing folder. Raises UserError as walk() does.
    """
    files: dict[str, list[tuple[bool, int, str]]] = {}
    for place, names in walk(folder, {} if links is None else links) if folder.is_dir() else ():
        subfolder = Path(place).relative_to(folder).as_posix()
        for file in names:
            stem, suffix = os.path.splitext(file)
            if suffix.lower() in suffixes:
                name = unicodedata.normalize("NFC", f"{subfolder}/{stem}".removeprefix("./"))
                rank = suffix != suffix.lower(), suffixes.index(suffix.lower())
                files.setdefault(name, []).append((*rank, os.path.join(place, file)))
    return {name: [Path(path) for *_, path in sorted(paths)] for name, paths in sorted(files.items())}


def list_files(folder: Path, suffixes: tuple[str, ...], links: dict[str, str] | None = None) -> list[Path]:
    """Return all files below a folder as list_folder() finds them, in the order of their names."""
    return [path for paths in list_folder(folder, suffixes, links).values() for path in paths]


def left_out(folder: Path, suffix: str = ".jpg") -> dict[str, str]:
    """Return {path: what is left out of a folder}: files of formats that are not read, and links as in walk().

    suffix: names the format to convert them to.
    """
    links: dict[str, str] = {}
    suffixes = Counter(path.suffix.lower() for path in list_files(folder, UNREAD, links))
    kinds = [f"{number} {suffix}" for suffix, number in sorted(suffixes.items())]
    lines = {link: f"not followed: it links to its parent folder {target}" for link, target in links.items()}
    return lines | ({str(folder): f"left out, convert them to {suffix}: {', '.join(kinds)}"} if kinds else {})

"""List what is in a folder and below it: the one walk through folders of users."""

import contextlib
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data.images import IMAGE_SUFFIXES
from support.errors import UserError

Files = dict[str, list[Path]]

# Pictures of formats that are not read: the suffixes are named, as their images are left out.
UNREAD = """ .jfif .jpe .jif .heic .heif .hif .avif .jxl .jp2 .j2k .jpx .gif .ppm .pgm .pbm .pnm .tga .psd .ico .svg \
.exr .hdr .dng .cr2 .cr3 .nef .arw .orf .rw2 .raf .raw .dcm .nii .mha .nrrd .npy .npz .mat .svs .ndpi .czi .img """
MAX_FOLDERS = 2000  # below a link that leaves the folder: so many without an image are no data set


class Look(NamedTuple):
    """What is in a folder.

    files: {name without suffix: files}, as list_folder() returns them. unread: {suffix: pictures that are not read}.
    links: those that are not followed, with their targets.
    """

    files: Files
    unread: Files
    links: list[tuple[str, str]]


def list_folder(folder: Path, suffixes: tuple[str, ...]) -> Files:
    """Return all files below a folder by name, sorted: {"sub/x": [folder/sub/x.jpg, folder/sub/x.png], ...}.

    A name has no suffix and is in Unicode form NFC, because macOS stores another form than lists and other systems.
    suffixes: lower-case suffixes of the files to list; files of one name are in the order of `suffixes`. Skips what
    walk() skips. Returns {} for a missing folder. Raises UserError if a folder cannot be listed, or one of the files is
    not a regular file.
    """
    return look(folder, suffixes).files


def look(folder: Path, suffixes: tuple[str, ...]) -> Look:
    """Return the Look at a folder. The arguments are those of list_folder()."""
    found: dict[str, list[tuple[bool, int, str]]] = {}
    unread: Files = {}
    links: list[tuple[str, str]] = []
    base = os.path.join(folder, "")
    for entry in walk(folder, links) if folder.is_dir() else ():
        stem, suffix = os.path.splitext(entry.path)
        lower = suffix.lower()
        if lower in suffixes:
            if not _ask(entry.is_file) and os.path.exists(entry.path):
                raise UserError(f"{entry.path}: not a regular file: remove it")
            name = stem[len(base) :].replace(os.sep, "/")
            rank = suffix != lower, suffixes.index(lower)
            found.setdefault(unicodedata.normalize("NFC", name), []).append((*rank, entry.path))
        elif f" {lower} " in UNREAD:
            unread.setdefault(lower, []).append(Path(entry.path))
    files = {name: [Path(path) for *_, path in sorted(paths)] for name, paths in sorted(found.items())}
    return Look(files, dict(sorted(unread.items())), sorted(links))


def walk(folder: Path, links: list[tuple[str, str]] | None = None) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder in any order, also through links to folders.

    Skips hidden files and folders, what systems leave behind (._x, .DS_Store, __MACOSX), and links to a folder around
    them, such as "/": these would lead round in circles. links: gets (link, target) of each link that is skipped.
    Raises UserError if a folder cannot be listed, or if a link leads to a large tree with hardly any image.
    """
    # Of each folder: the real folders of the links on the way to it, and the link that left `folder`, "" for none.
    top = _real(folder)
    waiting: list[tuple[str, tuple[str, ...], str]] = [(os.fspath(folder), (), "")]
    counts: dict[str, int] = {}  # of each link that left `folder`: folders without an image minus ten times the others
    while waiting:
        place, above, origin = waiting.pop()
        try:
            with os.scandir(place) as entries:
                inside = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be listed ({error.strerror})") from None
        if origin:
            has_image = any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in inside)
            counts[origin] = counts.get(origin, 0) + (-10 if has_image else 1)
            if counts[origin] > MAX_FOLDERS:
                problem = f"a link to {os.path.realpath(origin)}, where {MAX_FOLDERS} folders have no image"
                raise UserError(f"{origin}: {problem}: remove it, or make it a link to the images' own folder")
        for entry in inside:
            if not _ask(entry.is_dir):
                yield entry
            elif entry.name.startswith(("__MACOSX", "@eaDir")):
                continue
            elif not entry.is_symlink():
                waiting.append((entry.path, above, origin))
            else:
                target, here = _real(entry.path), (*above, _real(place))
                if any(other.startswith(target) for other in here):
                    if links is not None:
                        links.append((entry.path, os.path.realpath(entry.path)))
                else:
                    waiting.append((entry.path, here, origin or ("" if target.startswith(top) else entry.path)))


def _real(path: str | Path) -> str:
    """Return the real path of a folder, with a separator at its end."""
    return os.path.join(os.path.realpath(path), "")


def _ask(question) -> bool:
    with contextlib.suppress(OSError):  # a link to itself
        return question()
    return False


def left_out(folder: Path) -> list[str]:
    """Return lines about what is left out of a folder of images: pictures of other formats, and links."""
    seen = look(folder, IMAGE_SUFFIXES)
    lines = [f"{link}: a link to {target}, a folder around it: not followed" for link, target in seen.links]
    kinds = ", ".join(f"{len(paths)} {suffix}" for suffix, paths in seen.unread.items())
    if kinds:
        lines.append(f"{folder}: images of other formats are left out ({kinds}): convert them to .jpg or .png")
    return lines

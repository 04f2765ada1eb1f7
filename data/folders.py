"""List the files in a folder and below it: the only walk through users' folders."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data.images import IMAGE_SUFFIXES
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
    """Yield (folder, names of its files) for a folder and all folders below it, also through links.

    Skips hidden and system files (._x, .DS_Store, __MACOSX), and links to a folder that contains them, such as "/":
    following these would never end, so links gets {link: target}. Raises UserError if a folder cannot be listed, or if
    a link out of `folder` leads to a large tree with hardly an image.
    """

    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be listed ({error.strerror})")

    # Per folder: the real folders that contain the links on the path to it, and the first of these links; "": none.
    routes: dict[str, tuple[tuple[str, ...], str]] = {os.fspath(folder): ((), "")}
    empty: dict[str, int] = {}  # per first link: its folders without an image, less ten for each folder with one
    for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        parents, first_link = routes.pop(parent)
        if first_link:
            has_image = any(name.lower().endswith(IMAGE_SUFFIXES) for name in names)
            empty[first_link] = empty.get(first_link, 0) + (-10 if has_image else 1)
            if empty[first_link] > MAX_FOLDERS:
                problem = f"a link to a tree with {MAX_FOLDERS} folders without an image"
                raise UserError(f"{first_link}: {problem}: remove it")
        kept = []
        for name in (name for name in folders if not name.startswith((".", "__MACOSX", "@eaDir"))):
            path, route = os.path.join(parent, name), (parents, first_link)
            if os.path.islink(path):
                target, parents_here = os.path.realpath(path), (*parents, os.path.join(os.path.realpath(parent), ""))
                if any(other.startswith(os.path.join(target, "")) for other in parents_here):
                    links[path] = target
                    continue
                route = (parents_here, first_link or path)
            kept.append(name)
            routes[path] = route
        folders[:] = kept  # os.walk() visits what is left in its list
        yield parent, [name for name in names if not name.startswith(".")]


def list_folder(folder: Path, suffixes: tuple[str, ...], links: dict[str, str] | None = None) -> Files:
    """Return all files below a folder by name, sorted: {"sub/x": [folder/sub/x.jpg, folder/sub/x.png], ...}.

    A name has no suffix and is in Unicode form NFC, because macOS stores another form than lists and other systems.
    suffixes: lower-case suffixes of the files to list; files of one name are in the order of `suffixes`. links:
    as in walk(), which also skips files. Returns {} for a missing folder. Raises UserError as walk() does.
    """
    files: dict[str, list[tuple[bool, int, str]]] = {}
    for parent, names in walk(folder, {} if links is None else links) if folder.is_dir() else ():
        subfolder = Path(parent).relative_to(folder).as_posix()
        for file in names:
            stem, suffix = os.path.splitext(file)
            if suffix.lower() in suffixes:
                name = unicodedata.normalize("NFC", f"{subfolder}/{stem}".removeprefix("./"))
                rank = suffix != suffix.lower(), suffixes.index(suffix.lower())
                files.setdefault(name, []).append((*rank, os.path.join(parent, file)))
    return {name: [Path(path) for *_, path in sorted(paths)] for name, paths in sorted(files.items())}


def left_out(folder: Path, suffix: str = ".jpg") -> dict[str, str]:
    """Return {path: note} for skipped links and unread formats in a folder. suffix: the format to convert them to."""
    links: dict[str, str] = {}
    paths = [path for files in list_folder(folder, UNREAD, links).values() for path in files]
    kinds = [f"{number} {kind}" for kind, number in sorted(Counter(path.suffix.lower() for path in paths).items())]
    lines = {link: f"not followed: it links to its parent folder {target}" for link, target in links.items()}
    return lines | ({str(folder): f"left out, convert them to {suffix}: {', '.join(kinds)}"} if kinds else {})

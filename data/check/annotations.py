"""Recognise the files of annotation tools, which python -m data.convert draws as masks."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

MAX_FILES = 2000  # JSON and XML files to look into
MAX_BYTES = 65536  # of the head and of the tail of each; large files are not read whole

# {kind of data.convert: (tool, what its files hold)}, the more special ones first.
KINDS = {
    "labelme": ("LabelMe", (r'"shapes"', r'"imagePath"')),
    "panoptic": ("COCO panoptic", (r'"segments_info"', r'"categories"')),
    "coco": ("COCO", (r'"annotations"', r'"categories"', r'"images"')),
    "labelstudio": ("Label Studio", (r"^\s*\[", r'"(annotations|completions)"', r'"result"')),
    "supervisely": ("Supervisely", (r'"objects"', r'"size"', r'"(classTitle|classId)"')),
    "cvat": ("CVAT", (r"<annotations", r"<image\s")),
}
PER_IMAGE = ("labelme", "supervisely")  # a file for each image


def find_annotations(root: Path) -> dict[str, list[Path]]:
    """Return {kind of data.convert: its files} below a folder, without kinds that have none."""
    found: dict[str, list[Path]] = {}
    for number, path in enumerate(_files(root)):
        if number == MAX_FILES:
            break
        text = _ends_of(path)
        for kind, (_, patterns) in KINDS.items():
            if all(re.search(pattern, text) for pattern in patterns):
                found.setdefault(kind, []).append(path)
                break
    return found


def by_split(files: list[Path], root: Path) -> dict[str, Path]:
    """Return {"train" or "val": file} if the files are one of each by their names or folders, else {}."""
    found: dict[str, Path] = {}
    for path in files:
        roles = re.findall(r"(?<![a-z])(train|val)", path.relative_to(root).as_posix().lower())
        if len(set(roles)) != 1 or roles[0] in found:
            return {}
        found[roles[0]] = path
    return found


def _files(root: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(root):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(files) if name.lower().endswith((".json", ".xml")))


def _ends_of(path: Path) -> str:
    """Return the first and the last MAX_BYTES of a text file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(MAX_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(len(head), size - MAX_BYTES))
            return (head + file.read()).decode("utf-8", errors="replace")
    except OSError:
        return ""

"""Find which kinds of labels a folder holds."""

import re
from pathlib import Path

from data.folders import list_files
from data.images import LABEL_MODES
from data.images.files import LABEL_SUFFIXES, MASK, label_values, opened
from support import shell
from support.errors import InputError, UserError
from support.files import read_bytes
from support.terminal import say
from tools.convert.formats import KINDS
from tools.convert.formats.colours import MASK_FOLDERS, check_hint
from tools.convert.formats.labelstudio import find_brushes
from tools.convert.reading import MAX_BYTES, read_json, read_xml

MAX_FILES, MAX_TEXTS = 2000, 200  # files to look into
MAX_MASKS = 8
HEAD = 65536  # bytes that are looked at in a .csv or .txt file; in others, all

# (kind, suffix of its files, patterns that they have), the more special ones first.
PATTERNS = (
    ("labelme", ".json", (rb'"shapes"', rb'"imagePath"')),
    ("coco", ".json", (rb'"annotations"', rb'"categories"', rb'"images"')),
    ("labelstudio", ".json", (rb"\A\s*\[", rb'"(annotations|annotation_id)"')),
    ("supervisely", ".json", (rb'"objects"', rb'"size"', rb'"class(Title|Id)"')),
    ("via", ".json", (rb'"regions"', rb'"shape_attributes"')),
    ("csv", ".csv", (rb"(?i)\A[^\n]*(encod|rle|segmentation|polygon|mask|bbox|xmin|region_|shape)",)),
    ("cvat", ".xml", (rb"<annotations", rb"<image\s")),
    ("boxes", ".xml", (rb"<annotation", rb"<bndbox>")),
    ("scribblesup", ".xml", (rb"<annotation>", rb"<polygon>", rb"<tag>")),
    ("yolo", ".txt", (rb"^\d+(\.0*|\.\d+e\+\d+)?([ \t]+[-+.\de]+){4,}\s*$",)),
)
READERS = {".json": read_json, ".xml": read_xml}
REFUSED = {  # kinds that are known but not read
    "supervisely": "Supervisely's own format is not read: export COCO there",
    "csv": "annotations in CSV are not read: write them as COCO's JSON, which may hold RLE, or as PNG masks",
    "boxes": "PASCAL VOC's XML files hold boxes, which are no masks: draw outlines, such as polygons in LabelMe",
    "via": "VIA's JSON is not read: in VIA, choose Annotation, Export Annotations (COCO format)",
}
NUMBERS = "numbers"  # masks of class numbers or of 0 and 255, which need no conversion


def find_kinds(source: Path) -> dict[str, Path]:
    """Return {kind: an example file} for the labels in a file or folder. Masks without colours are of kind NUMBERS."""
    examples: dict[str, Path] = {}
    for path in _files(source):
        kind = _kind_of(path)
        if kind and (kind not in examples or path.name.startswith("instances")):  # not COCO's key points
            examples[kind] = path
    refused = {kind: examples.pop(kind) for kind in REFUSED if kind in examples}
    for brushes in find_brushes(source).values():
        examples.setdefault("labelstudio", brushes[max(brushes)][0].data)
    examples |= _find_masks(source)
    for kind, path in refused.items() if not examples else ():
        raise UserError(f"{path}: {REFUSED[kind]}, and convert that")
    return examples


def find_kind(source: Path, out: Path) -> str:
    """Return the kind of the labels in a file or folder, and print it.

    Raises UserError, with the commands to choose from, if there are several kinds or none, or if a file is damaged.
    """
    examples = find_kinds(source)
    numbers = examples.pop(NUMBERS, None)
    if len(examples) == 1:
        ((kind, path),) = examples.items()
        say(f"{source}: {KINDS[kind].about} ({path}), converted as {kind}")
        return kind
    if examples:
        kinds, commands = describe(examples, source, out)
        raise UserError(f"{source}: has {kinds}: choose one: {commands}")
    if numbers:
        check = shell.python_command("-m", "tools.check", source)
        raise UserError(f"{numbers}: masks of class numbers need no conversion: to check them: {check}")
    for path in _files(source):  # a file that was cut off does not match its kind's patterns
        if path.suffix.lower() in READERS:
            READERS[path.suffix.lower()](path)
    problem = f"{source}: no labels of a known kind in it: unpack .zip files, or name the kind: {', '.join(KINDS)}"
    raise UserError(problem + (check_hint(source) if source.is_dir() else ""))


def describe(examples: dict[str, Path], source: Path, out: Path) -> tuple[str, str]:
    """Return what find_kinds() found as text, and the commands that convert it."""
    kinds = " and ".join(f"{KINDS[kind].about} ({path})" for kind, path in examples.items())
    return kinds, " or ".join(shell.python_command("-m", "tools.convert", kind, source, out) for kind in examples)


def _find_masks(source: Path) -> dict[str, Path]:
    """Return {"colours" or NUMBERS: an example mask} for an export's mask folder; {} if it has none."""
    folder = next((source / name for name in MASK_FOLDERS if (source / name).is_dir()), None)
    paths = list_files(folder, LABEL_SUFFIXES) if folder else []
    examples: dict[str, Path] = {}
    for path in paths[:: max(1, len(paths) // MAX_MASKS)]:
        try:
            with opened(path, MASK) as image:
                has_colours = label_values(image)[1] not in LABEL_MODES
        except InputError:
            continue  # the conversion names it
        examples.setdefault("colours" if has_colours else NUMBERS, path)
    if "colours" in examples:  # a single one of these masks may have only grey
        examples.pop(NUMBERS, None)
    return examples


def _files(source: Path) -> list[Path]:
    """Return JSON, XML and CSV files below a folder, and text files in its subfolders; or the file itself."""
    if source.is_file():
        return [source]
    paths = list_files(source, (".json", ".xml", ".csv", ".txt"))
    annotations = [path for path in paths if path.suffix.lower() != ".txt"]
    texts = [path for path in paths if path.suffix.lower() == ".txt" and path.parent != source]
    return annotations[:MAX_FILES] + texts[:MAX_TEXTS]


def _kind_of(path: Path) -> str:
    """Return the kind of the labels in a file; "" if it is unknown, or the file cannot be read."""
    try:
        text = read_bytes(path, MAX_BYTES)[: HEAD if path.suffix.lower() in (".csv", ".txt") else None]
    except InputError:
        return ""
    for kind, suffix, patterns in PATTERNS:
        if path.suffix.lower() == suffix and all(re.search(pattern, text, re.MULTILINE) for pattern in patterns):
            return kind
    return ""

"""Choose the commands that the data check prints: what to run next, ready to be pasted."""

from pathlib import Path
from typing import Any

import torch

from data.images.resize import suggest_long_side
from data.layout import SCRIBBLES, first_folder
from data.plain import IMAGES, MASKS, Folders, find_places, find_whole
from flags import Config, as_dict, as_words
from flags.auto_recipe import CPU, CUDA, Recipe
from support import shell
from support.labels import DENSE
from tools.check.counts import Counts
from tools.check.files import Paths
from tools.check.rules import Findings
from tools.convert.find import NUMBERS, describe, find_kinds
from tools.convert.formats.colours import has_colours, plain_lists


def training_lines(counts: Counts) -> list[str]:
    """Return lines of text that say how to train on data without errors; the last line ends with the command.

    If the training or the validation split was not checked, the command checks both splits instead.
    """
    if not set(counts.splits) <= set(counts.images):
        command = shell.python_command(*_check_again(counts))
        return [f"training needs the splits {' and '.join(counts.splits)}; to check both: {command}"]
    choices = _choices(counts)
    program = ["train.py", "--dataset_path", counts.root, *as_words(counts.given)]
    if counts.dataset == "ScribbleOnly" and "train_path" not in counts.flags:
        program = ["-m", "tools.scribbles.pipeline", counts.root, "log/scribbles"]
        program += as_words({"numclasses": counts.num_classes})
        program += ["--classes", counts.class_file] if counts.class_file else []
        program += as_words(counts.flags)
        # The pipeline also trains from pseudo-labels, for which the recipe may choose another --lr.
        choices = {name: choice for name, choice in choices.items() if name != "lr"}
    width = max(len(f"{name} {value}") for name, (value, _) in choices.items())
    lines = ["settings for these images and this machine (train.py chooses the same if you set no length):"]
    lines += [f"  --{f'{name} {value}':{width}}  {reason}" for name, (value, reason) in choices.items()]
    lines.append("training downloads its start weights once; without a network, add --pretrained none to the command")
    return [*lines, f"to train: {shell.python_command(*program)}"]


def _choices(counts: Counts) -> dict[str, tuple[Any, str]]:
    """Return what the recipe chooses for a data set, on a GPU of this machine or on its CPU."""
    device, memory = CPU, 0.0
    if torch.cuda.is_available():
        device, memory = CUDA, torch.cuda.get_device_properties(0).total_memory / 2**30
    num_train, sizes = counts.images[counts.splits[0]] + counts.repeats, list[tuple[int, int]]()
    for size, number in counts.train_sizes.items():
        width, height = map(int, size.split("x"))
        sizes += [(height, width)] * number
    large, _ = suggest_long_side(sizes, device.crop_size)
    options: dict = {"memory": memory, "large": large}
    options["class_names"] = [row.name for row in counts.classes] if counts.class_file else []
    if counts.dataset in DENSE:
        pixels = [row.pixels.get(counts.splits[0], 0) for row in counts.classes]
        options["shares"] = [number / max(sum(pixels), 1) for number in pixels]
    label_map = counts.flags.get("label_map", "")
    flags = as_dict(Config(dataset=counts.dataset, label_map=label_map, numclasses=counts.num_classes))
    return Recipe(flags, frozenset(), device, num_train, sizes, **options).choose_flags()


def fix_lines(counts: Counts, findings: Findings) -> list[str]:
    """Return lines that end with the command for the first finding that a command can fix, or no line."""
    codes, again, lines = {finding.code for finding in findings.sorted()}, _check_again(counts), list[str]()
    if codes & {"mask-lossy", "mask-mixed"}:
        return []  # no command mends them
    if codes & {"mask-colour", "palette-differs"}:
        commands = _convert_colours(counts, findings)
        if commands and counts.class_file and not _class_flags(counts):
            problem = f"{counts.class_file}: has no colours, which would say which class a colour is, so it is not used"
            remedy = "to use its names, write a FILE of lines 'name #RRGGBB', and check with --classes FILE"
            lines = [f"{problem}: {remedy}"]
    elif "label-binary-255" in codes and not (_has_class_2(counts) or counts.has_strokes):
        commands = [[*again, "--label_map", "binary", *([] if counts.class_file else ["--numclasses", 2])]]
    elif "no-split" in codes and codes.isdisjoint(("image-without-label", "two-files-of-one-name")):
        commands = [_split(counts)]
    else:
        return []
    text = " && ".join(shell.python_command(*words) for words in commands)
    return [*lines, f"to fix: {text}"] if text else []


def _has_class_2(counts: Counts) -> bool:
    """Return whether a label has a class above 1, or the file of class names does."""
    return bool(counts.class_file and counts.classes[2:]) or any(any(row.pixels.values()) for row in counts.classes[2:])


def _class_flags(counts: Counts) -> list[str]:
    """Return --classes of a preset, or of a file with colours: names alone do not say which class a colour is."""
    file = Path(counts.class_file)
    return ["--classes", counts.class_file] if counts.class_file and (not file.is_file() or has_colours(file)) else []


def _check_again(counts: Counts) -> list[object]:
    return ["-m", "tools.check", counts.root, "--dataset", counts.dataset, *as_words(counts.flags)]


def _split(counts: Counts) -> list[object]:
    """Return the words of the command that splits a data set in plain folders."""
    root, paths = Path(counts.root), Paths(**counts.flags)
    images, masks, _ = find_whole(root, images=paths.image_path, masks=paths.val_path)
    usual = {"image_path": (images, IMAGES), "label_path": (masks, MASKS[0])}
    flags = {name: folder.relative_to(root).as_posix() for name, (folder, end) in usual.items() if folder != root / end}
    return ["-m", "tools.split", root, "--val", "0.2", *as_words(flags), *_endings(counts, "label_map")]


def _endings(counts: Counts, *more: str) -> list[str]:
    names = ("image_suffix", "label_suffix", *more)
    return as_words({name: counts.flags[name] for name in names if name in counts.flags})


def _convert_colours(counts: Counts, findings: Findings) -> list[list[object]]:
    """Return the words of the commands that convert labels in colours: one, or one for each split of plain folders."""
    root, paths = Path(counts.root), Paths(**counts.flags)
    start, out, ends = ["-m", "tools.convert", "colours"], new_folder(root), _endings(counts)
    classes = _class_flags(counts)
    if counts.dataset != "Folder":
        strokes = first_folder(root, paths.train_path, SCRIBBLES)
        files = [root / file for item in findings.sorted() if item.code == "mask-colour" for file in item.files]
        if not (counts.has_strokes and any(file.is_relative_to(strokes) for file in files)):
            return [[*start, root, out, *ends]]
        images = first_folder(root, paths.image_path, "JPEGImages")
        return [[*start, strokes, out, "--scribbles", "--images", images, *classes, *ends]]
    ends += classes
    places: dict[str, Folders] = {}
    masks = paths.train_path, paths.val_path
    for role, split, folder in zip(("train", "val"), paths.split_names, masks, strict=True):
        for place in find_places(root, split, paths.image_path, folder, paths.list_path):
            places[role] = place
    whole = find_whole(root, images=paths.image_path, masks=paths.val_path)
    is_one_folder = all((place.images.parent, place.masks.parent) == whole[:2] for place in places.values())
    if lists := {place.list_file for place in places.values() if place.list_file}:
        is_kept = all(place.masks == whole.masks for place in places.values())
        is_kept &= lists <= {*plain_lists(whole.images, whole.masks)}
        return [[*start, whole.masks, out, "--images", whole.images, *ends]] if is_kept else []
    if is_one_folder and paths.split_names == ("train", "val"):
        return [[*start, whole.masks, out, "--images", whole.images, *ends]]
    return [
        [*start, place.masks, out, "--images", place.images, "--split", role, *ends] for role, place in places.items()
    ]


def conversion(root: Path) -> str:
    """Return a text that ends with the command to convert the labels below root; "" if they need no conversion."""
    examples = {kind: path for kind, path in find_kinds(root).items() if kind != NUMBERS}
    if not examples:
        return ""
    kinds, commands = describe(examples, root, new_folder(root))
    remedy = "choose one" if len(examples) > 1 else "convert them"
    return f"no masks of class numbers, but {kinds}: {remedy}: {commands}"


def new_folder(root: Path) -> Path:
    """Return a folder beside root that does not exist."""
    root = root if root.name not in ("", "..") else root.resolve()
    names = (f"{root.name}_masks", *(f"{root.name}_masks{number}" for number in range(2, 100)))
    return next(folder for folder in map(root.with_name, names) if not folder.exists())

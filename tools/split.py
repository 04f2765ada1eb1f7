"""Divide a data set in plain folders into train.txt and val.txt, which --dataset Folder reads.

    python -m tools.split MyPhotos --val 0.2
    python -m tools.split MyPhotos --val 0.2 --group 'photo_(..)'

Classes are balanced by iterative stratification, rare classes first (Sechidis, Tsoumakas, Vlahavas: On the
Stratification of Multi-Label Data, ECML PKDD 2011, section 3), here of groups of images.
"""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

if not __package__:  # started as a file from another folder: python PATH/tools/split.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data.images import read_label
from data.label_check import holds_only_255
from data.label_map import LabelMap, read_label_map
from data.layout import MAX_LIST, Split
from flags import as_words
from flags.declare import flag
from flags.reader import FlagReader
from support import program, shell
from support.errors import UserError
from support.files import read_bytes, write_atomic
from support.labels import IGNORE
from support.progress import counted, progress_bar
from support.terminal import say

PARTS = ("train", "val")
NUMBER = r"([\W_]*\d+\D*)?$"  # the last number of a name, if it has one; what is before it may name a film
FILE, PATH = rf"([^/]*?){NUMBER}", rf"^(.*?){NUMBER}"  # --group by the beginnings of file names, or with their folders
FRAMES = 4  # images of a film, at least, on average


@dataclass(frozen=True)
class SplitFlags:
    """Division."""

    root: Path = flag(None, "root of the data set, train.py's --dataset_path", is_argument=True)
    val: float = flag(0.2, "share of the images for validation", gt=0, lt=1)
    group: str = flag(
        "",
        "regular expression; images stay together if it matches the same text in their names [each image alone]",
    )
    seed: int = flag(0, "another number gives another split", ge=0)
    image_path: str = flag("images", "folder of the images, relative to ROOT")
    image_suffix: str = flag("", "end of the images' names, as in train.py")
    label_suffix: str = flag("", "end of the masks' names, such as _mask, as in train.py")
    label_map: str = flag("", "map of the masks' values to class numbers, as in train.py")
    label_path: str = flag("masks", "folder of the masks, relative to ROOT")


ABOUT = "Divide images and masks in plain folders into train.txt and val.txt."
READER = FlagReader(SplitFlags, "-m tools.split", ABOUT, has_config=False)


def stratify(counts: np.ndarray, shares: tuple[float, ...], rng: np.random.Generator) -> np.ndarray:
    """Return the part of each group, (groups,) int, such that each part gets its share of each class and of the images.

    counts: (groups, 1 + classes): images of the group, then its images with each class. shares: the parts' shares, with
    the sum 1. The class with the fewest images left is next. Its groups go, the largest first, to the part where they
    reduce chi-square most: the sum, over parts and classes, of (images lacking)**2 / (images wanted). The paper looks
    at this class only, which leaves frequent classes to chance. Ties are broken at random.
    """
    part = np.full(len(counts), -1)
    wanted = np.maximum(np.outer(shares, counts.sum(axis=0)), 1e-9)  # (parts, 1 + classes)
    lacking = wanted.copy()
    order = rng.permutation(len(counts))
    while (part < 0).any():
        left = counts[part < 0].sum(axis=0)
        present = np.flatnonzero(left[1:]) + 1
        column = int(present[np.argmin(left[present])]) if len(present) else 0
        groups = [group for group in order if part[group] < 0 and (counts[group, column] or not column)]
        for group in sorted(groups, key=lambda group: -counts[group, column]):
            gain = ((lacking**2 - (lacking - counts[group]) ** 2) / wanted).sum(axis=1)
            best = np.lexsort((rng.random(len(shares)), gain))[-1]
            part[group] = best
            lacking[best] -= counts[group]
    return part


def group_names(names: list[str], pattern: str) -> list[str]:
    """Return the group of each image name: the pattern's first group in it or, without one, the whole match.

    pattern: regular expression; "" makes each image a group. Raises UserError if it is invalid or does not match.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--group {pattern}: not a regular expression ({error})") from None
    if not pattern:
        return names
    matches = [compiled.search(name) for name in names]
    unmatched = [name for name, match in zip(names, matches, strict=True) if not match]
    if unmatched:
        raise UserError(f"--group {pattern}: not in {len(unmatched)} of {len(names)} names, such as {unmatched[0]!r}")
    return [match[1 if compiled.groups else 0] or "" for match in matches if match]


def film_pattern(names: list[str]) -> tuple[str, set[str]]:
    """Return the --group that keeps films together, and the beginnings that name films; no beginnings: names show none.

    Folders may be of exports that share films. They are films themselves if they have files of the same names, or if
    the file names have a single beginning.
    """
    found = {pattern: {*group_names(names, pattern)} for pattern in (FILE, PATH)}
    are_exports = len({name.rpartition("/")[2] for name in names}) == len(names)
    pattern = FILE if are_exports and 1 < len(found[FILE]) < len(found[PATH]) else PATH
    return pattern, found[pattern] if 1 < len(found[pattern]) <= len(names) / FRAMES else set()


def presence(masks: list[Path], label_map: LabelMap | None = None) -> np.ndarray:
    """Return (masks, classes) bool: whether a mask, read through label_map, has a pixel of the class.

    Without label_map, 255 is class 1 if the masks hold 0 and 255 only, as train.py reads them.
    """
    bar = progress_bar(masks, total=len(masks), title="reading", unit="mask")
    found = [set(np.unique(read_label(path, IGNORE, label_map)).tolist()) for path in bar]
    if label_map is None and holds_only_255(found):
        found = [{value // IGNORE for value in values} for values in found]
    highest = max(set().union(*found) - {IGNORE}, default=0)
    return np.array([[number in values for number in range(highest + 1)] for values in found])


def split(names: list[str], groups: list[str], classes: np.ndarray, val: float, seed: int) -> np.ndarray:
    """Return (images,) bool: whether each image belongs to val. Each part has at least one group.

    groups: the group of each image. classes: as presence() returns it. val: share of the images. Raises UserError if
    there is only one group or image. The same arguments give the same result.
    """
    if len(names) < 2:
        raise UserError(f"{names[0]!r} is the only image: a split needs at least 2")
    keys, group = np.unique(groups, return_inverse=True)
    if len(keys) < 2:
        raise UserError(f"--group: all {len(names)} images are in one group, {groups[0]!r}: a split needs at least 2")
    counts = np.zeros((len(keys), 1 + classes.shape[1]), np.int64)
    np.add.at(counts, group, np.concatenate([np.ones((len(names), 1), np.int64), classes], axis=1))
    part = stratify(counts, (1 - val, val), np.random.default_rng(seed))
    for number in range(2):
        if not (part == number).any():
            part[np.argmin(counts[:, 0])] = number
    return part[group] == 1


def main(argv: list[str] | None = None) -> None:
    args = SplitFlags(**READER.command_line(argv).values)
    root, lists = args.root, [args.root / f"{name}.txt" for name in PARTS]
    folders = {"image": root / args.image_path, "label": root / args.label_path}
    if all(path.is_file() for path in lists):
        raise UserError(f"{lists[0]}: exists: remove both lists to split the data again")
    if present := [name for name in PARTS if (folders["image"] / name).is_dir()]:
        one = f"--image_path {args.image_path}/{present[0]} --label_path {args.label_path}/{present[0]}"
        raise UserError(f"{folders['image'] / present[0]}: there are splits already; to divide this one: add {one}")
    for kind, folder in folders.items():
        if not folder.is_dir():
            raise UserError(f"--{kind}_path {getattr(args, f'{kind}_path')}: no such folder below {root}")
    endings = {"image": args.image_suffix, "label": args.label_suffix}
    names, files = Split(folders, endings=endings).pairs
    if unlisted := [name for name in names if name != name.strip() or not {*name}.isdisjoint("\n\\")]:
        raise UserError(f"{folders['image'] / unlisted[0]}: a list cannot hold this name: rename the file")
    groups = group_names(names, args.group)
    classes = presence([paths["label"] for paths in files], read_label_map(args.label_map))
    in_val = split(names, groups, classes, args.val, args.seed)
    texts = ["".join(f"{name}\n" for name in np.array(names)[in_val == part]) for part in (False, True)]
    for path, text in zip(lists, texts, strict=True):
        content = text.encode(errors="surrogateescape")
        is_same = path.is_file() and read_bytes(path, MAX_LIST) == content  # left by a kill
        if os.path.lexists(path) and not is_same:  # also a folder, a pipe, or a link to nothing
            raise UserError(f"{path}: exists: remove it to split the data again")
    for path, text in zip(lists, texts, strict=True):
        write_atomic(path, text)
    for path, chosen in zip(lists, (~in_val, in_val), strict=True):
        by_group = f" of {counted(len(set(np.array(groups)[chosen])), 'group')}" if args.group else ""
        say(f"{path}: {counted(chosen.sum(), 'image')}{by_group}")
    pattern, beginnings = film_pattern(names)
    if beginnings and not args.group:
        example = shell.quoted(["--group", pattern])
        what = f"names have {len(beginnings)} beginnings, such as {min(beginnings)!r}: if each is a film or a place"
        say(f"{what}, keep its images together: remove both lists, and add {example}")
    flags = [("image_path", args.image_path, "images"), ("train_path", args.label_path, "masks")]
    flags += [("val_path", args.label_path, "masks"), ("image_suffix", args.image_suffix, "")]
    flags += [("label_suffix", args.label_suffix, ""), ("label_map", args.label_map, "")]
    words = as_words({name: value for name, value, default in flags if value != default})
    words = ["--dataset", "Folder", *words] if words else []  # JPEGImages alone would mean VOC's lists
    say(f"to check it: {shell.python_command('-m', 'tools.check', root, *words)}")


if __name__ == "__main__":
    program.run_and_exit(main)

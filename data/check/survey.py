"""Find the splits of a data set and the files of each image, without opening an image."""

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data import layout
from data.check.findings import Findings
from data.layout import Split
from errors import UserError
from labels import MAPS

# Cityscapes has several label files for an image. Training reads a link to one, so the others are no finding.
CITYSCAPES_LABEL = re.compile(r"_gt(Fine|Coarse)_\w+$")

list_folder = functools.cache(layout.list_folder)


@dataclass(frozen=True)
class Paths:
    """The folder flags of the same names, relative to the data set's root; "" for the default folder."""

    list_path: str = ""
    image_path: str = ""
    train_path: str = ""
    val_path: str = ""
    pseudo_path: str = ""


@dataclass(frozen=True)
class Sample:
    """The files of one image and its labels.

    splits: names of the splits that contain the image. labels: {"mask", "scribble" or "pseudo": file}.
    """

    splits: tuple[str, ...]
    image: Path
    labels: dict[str, Path]


def required_labels(dataset: str, split: str) -> tuple[str, ...]:
    """Return the kinds of label that each image of a split must have: some of "mask", "scribble" and "pseudo".

    dataset: value of --dataset. split: name, such as "train".
    """
    if split != "train" or dataset in ("Folder", "Dense"):
        return ("mask",)
    kinds = {"label": "scribble", "pseudo": "pseudo"}
    return tuple(kinds[name] for name in MAPS[dataset] if name in kinds)


def guess_dataset(root: Path, paths: Paths) -> str:
    """Return the value of --dataset that fits the folders below root. Raises UserError if no value fits."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    if (root / layout.SCRIBBLES).is_dir():
        return "ScribblePseudo" if (root / (paths.pseudo_path or layout.PSEUDO)).is_dir() else "ScribbleOnly"
    if (root / layout.PSEUDO).is_dir():
        return "PseudoOnly"
    if (root / "ImageSets").is_dir() or (root / "JPEGImages").is_dir():
        return "Dense"
    if (root / (paths.image_path or "images")).is_dir():
        return "Folder"
    layout.check_released(root)
    present = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
    raise UserError(
        f"{root}: no data set: it has neither images and masks (plain folders) nor JPEGImages and ImageSets (VOC's "
        f"layout), but {present}; give its root, or name the folders with --dataset and --image_path"
    )


def find_split(root: Path, dataset: str, paths: Paths, name: str) -> Split:
    """Return a Split whose folders are "image", "mask" and the label kinds that training reads, "scribble" or "pseudo".

    name: of the split. The folder of masks is included even if training does not read masks. Raises UserError if the
    split is missing.
    """
    kinds = {"pseudo" if kind == "pseudo" else "label": kind for kind in required_labels(dataset, name)}
    chosen = {"label": paths.train_path if name == "train" else paths.val_path, "pseudo": paths.pseudo_path}
    maps = {map_name: chosen[map_name] for map_name in kinds}
    split = layout.find_split(root, dataset, name, maps, list_path=paths.list_path, image_path=paths.image_path)
    folders = {"image": split.folders["image"], "mask": layout.first_folder(root, paths.val_path, *layout.MASKS)}
    return replace(split, folders=folders | {kind: split.folders[map_name] for map_name, kind in kinds.items()})


def find_samples(name: str, split: Split, required: tuple[str, ...], findings: Findings) -> list[Sample]:
    """Return one Sample per image of a split, and add findings about missing, ambiguous and repeatedly listed files.

    required: kinds of label that each image must have.
    """
    matches = layout.match_files(split, list_folder)
    if not matches:
        findings.add("split-missing", name, f"no images in {split.folders['image']}")
    for key, times in Counter(key for key, _ in matches).items():
        if times > 1:
            findings.add("listed-twice", f"{name}: {key}", f"{times} times")
    samples = []
    for key, files in dict(matches).items():
        if not files["image"]:
            findings.add("listed-image-missing", f"{name}: {key}", f"not in {findings.show(split.folders['image'])}")
            continue
        for kind, paths in files.items():
            if len(paths) > 1:
                findings.add("two-files-of-one-name", paths[0], f"and {', '.join(path.name for path in paths[1:])}")
            elif not paths and kind in required:
                missing = split.folders[kind] / f"{key}.png"
                code = "cityscapes-names" if layout.is_cityscapes(missing) else "image-without-label"
                findings.add(code, files["image"][0], f"no {findings.show(missing)}")
        labels = {kind: paths[0] for kind, paths in files.items() if kind != "image" and paths}
        samples.append(Sample((name,), files["image"][0], labels))
    return samples


def merge_samples(samples: list[Sample], findings: Findings) -> list[Sample]:
    """Return one Sample per image file, with all its splits and labels; add findings for images in two splits."""
    merged: dict[Path, Sample] = {}
    for sample in samples:
        other = merged.get(sample.image)
        if other is not None:
            findings.add("in-two-splits", sample.image, f"{', '.join(other.splits)} and {sample.splits[0]}")
            sample = Sample(other.splits + sample.splits, sample.image, sample.labels | other.labels)
        merged[sample.image] = sample
    return list(merged.values())


def find_unused(root: Path, dataset: str, paths: Paths, splits: list[Split], findings: Findings) -> None:
    """Add findings for labels without an image and, for splits with lists, for labelled images that no list names."""
    lists = layout.first_folder(root, paths.list_path, *(["."] if dataset == "Folder" else layout.LISTS))
    listed: set[str] = set()  # in any list, also of a test split
    for path in lists.glob("*.txt"):
        with contextlib.suppress(UserError):  # a text file that is not a list
            listed.update(layout.read_list(path, plain=True))
    unused: dict[Path, list[str]] = {}
    label_folders = {
        (kind, folder): split for split in splits for kind, folder in split.folders.items() if kind != "image"
    }
    for (kind, folder), split in label_folders.items():
        images = list_folder(split.folders["image"], layout.IMAGE_SUFFIXES)
        used = images if split.listed is None else {layout.without_suffix(name, images) for name in listed}
        for key, files in list_folder(folder, layout.ANY_SUFFIXES).items():
            if key not in images and not CITYSCAPES_LABEL.search(key):
                findings.add("label-without-image", files[0], kind)
            elif key in images and key not in used:
                unused.setdefault(images[key][0], []).append(kind)
    for image, kinds in unused.items():
        findings.add("not-listed", image, f"has {', '.join(kinds)}")


def survey(
    root: Path, dataset: str, paths: Paths, names: Sequence[str], findings: Findings
) -> tuple[list[str], list[Sample]]:
    """Return the names of the splits that exist, and one Sample per image; add findings for missing or unused files.

    names: splits to look for.
    """
    list_folder.cache_clear()
    splits: dict[str, Split] = {}
    for name in names:
        try:
            splits[name] = find_split(root, dataset, paths, name)
        except UserError as error:
            findings.add("split-missing", name, str(error))
    samples = [
        sample
        for name, split in splits.items()
        for sample in find_samples(name, split, required_labels(dataset, name), findings)
    ]
    find_unused(root, dataset, paths, list(splits.values()), findings)
    return list(splits), merge_samples(samples, findings)

"""Which layout a folder has, and which files its splits should have: what the doctor finds without opening an image."""

import contextlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from data.check.findings import Findings
from data.check.measure import Sample
from data.dataset import IMAGE_SUFFIXES, list_folder, read_list
from data.layout import (
    ANY_SUFFIXES,
    DENSE,
    LISTS,
    PSEUDO,
    SCRIBBLES,
    check_released,
    first_folder,
    is_cityscapes,
    plain_list,
    read_names,
    without_suffix,
)
from errors import UserError

# Cityscapes has several label files for an image. Training reads a link to one, so the others are no finding.
CITYSCAPES_LABEL = re.compile(r"_gt(Fine|Coarse)_\w+$")

Index = dict[str, list[str]]  # of list_folder: {name: [files below the folder]}


@dataclass(frozen=True)
class Paths:
    """Folders that flags name, relative to the root; "" for the usual one."""

    list_path: str = ""
    image_path: str = ""
    train_path: str = ""
    val_path: str = ""
    pseudo_path: str = ""


@dataclass
class Split:
    """listed: the names in its list, or None where the split is a folder. labels: {kind: folder}; those needed must be whole."""

    listed: list[str] | None
    images: Path
    labels: dict[str, Path]
    needed: tuple[str, ...]


@dataclass
class Survey:
    """layout: "Folder", "VOC" or "ScribbleSup". kind: of the label that training reads: "mask", "scribble" or "pseudo"."""

    root: Path
    layout: str
    dataset: str
    kind: str
    splits: dict[str, Split]
    samples: list[Sample]


def survey(root: Path, dataset: str, paths: Paths, names: list[str], findings: Findings) -> Survey:
    """Find the splits `names` of a data set and the files of each; what is missing goes to findings."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    if not dataset:
        dataset = _guess_dataset(root, paths)
    layout = {"Folder": "Folder", "Dense": "VOC"}.get(dataset, "ScribbleSup")
    kind = {"Folder": "mask", "Dense": "mask", "PseudoOnly": "pseudo"}.get(dataset, "scribble")
    splits = {}
    for name in names:
        try:
            splits[name] = (_plain_split if layout == "Folder" else _voc_split)(root, name, dataset, paths)
        except UserError as error:
            findings.add("split-missing", name, str(error))
    lists = root / paths.list_path if layout == "Folder" else first_folder(root, paths.list_path, *LISTS)
    samples = _Pairing(root, lists, findings).samples(splits)
    return Survey(root, layout, dataset, kind, splits, samples)


def _guess_dataset(root: Path, paths: Paths) -> str:
    """The --dataset that the folders are there for."""
    if (root / SCRIBBLES).is_dir():
        return "ScribblePseudo" if (root / (paths.pseudo_path or PSEUDO)).is_dir() else "ScribbleOnly"
    if (root / PSEUDO).is_dir():
        return "PseudoOnly"
    if (root / "ImageSets").is_dir() or (root / "JPEGImages").is_dir():
        return "Dense"
    if (root / (paths.image_path or "images")).is_dir():
        return "Folder"
    check_released(root)
    there = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
    raise UserError(
        f"{root}: no data set: neither images and masks (plain folders) nor JPEGImages and ImageSets (VOC's layout) are in "
        f"it, but {there}; give its root, or name the folders by --dataset and --image_path"
    )


def _plain_split(root: Path, name: str, dataset: str, paths: Paths) -> Split:
    images = paths.image_path or "images"
    masks = root / ((paths.train_path if name == "train" else paths.val_path) or "masks")
    names_file = plain_list(root, name, images, paths.list_path)
    if names_file is None:
        return Split(None, root / images / name, {"mask": masks / name}, ("mask",))
    return Split(read_names(names_file), root / images, {"mask": masks}, ("mask",))


def _voc_split(root: Path, name: str, dataset: str, paths: Paths) -> Split:
    listed = [
        unicodedata.normalize("NFC", word)
        for word in read_list(first_folder(root, paths.list_path, *LISTS) / f"{name}.txt")
    ]
    images = first_folder(root, paths.image_path, "JPEGImages")
    masks = first_folder(root, paths.val_path, *DENSE)
    if name != "train" or dataset == "Dense":
        chosen = paths.train_path if name == "train" else paths.val_path
        return Split(listed, images, {"mask": first_folder(root, chosen, *DENSE)}, ("mask",))
    labels = {"pseudo": first_folder(root, paths.pseudo_path, PSEUDO)} if "Pseudo" in dataset else {}
    if "Scribble" in dataset:
        labels["scribble"] = first_folder(root, paths.train_path, SCRIBBLES)
    return Split(listed, images, {"mask": masks} | labels, tuple(labels))


class _Pairing:
    """Brings together the files of each name, listing each folder once."""

    def __init__(self, root: Path, lists: Path, findings: Findings):
        self.root, self.lists, self.findings = root, lists, findings
        self.listed: dict[tuple[Path, bool], Index] = {}

    def samples(self, splits: dict[str, Split]) -> list[Sample]:
        """One sample an image, however many splits have it."""
        found: dict[Path, Sample] = {}
        for name, split in splits.items():
            images = self._index(split.images, is_image=True)
            names = self._names(name, split, images)
            for sample in filter(None, (self._sample(name, key, split, images) for key in names)):
                other = found.get(sample.image)
                if other is not None:
                    self.findings.add(
                        "in-two-splits", self._show(sample.image), f"{', '.join(other.splits)} and {name}"
                    )
                    sample = Sample(sample.name, (*other.splits, name), sample.image, sample.labels | other.labels)
                found[sample.image] = sample
        self._unused(splits.values())
        return list(found.values())

    def _names(self, name: str, split: Split, images: Index) -> list[str]:
        if split.listed is None:
            if not images:
                self.findings.add("split-missing", name, f"no images in {split.images}")
            return list(images)
        names = Counter(without_suffix(listed, images) for listed in split.listed)
        for key, times in names.items():
            if times > 1:
                self.findings.add("listed-twice", f"{name}: {key}", f"{times} times")
        return list(names)

    def _sample(self, split_name: str, key: str, split: Split, images: Index) -> Sample | None:
        if key not in images:
            self.findings.add("listed-image-missing", f"{split_name}: {key}", f"not in {self._show(split.images)}")
            return None
        image = split.images / images[key][0]
        self._only_one(split.images, images[key])
        labels = {}
        for kind, folder in split.labels.items():
            present = self._index(folder, is_image=False)
            files = present.get(key, [])
            if not files:
                if kind in split.needed and is_cityscapes(key, present):
                    self.findings.add("cityscapes-names", self._show(image), f"no {self._show(folder / key)}.png")
                elif kind in split.needed:
                    self.findings.add("image-without-label", self._show(image), f"no {self._show(folder / key)}.png")
                continue
            self._only_one(folder, files)
            labels[kind] = folder / files[0]
        return Sample(key, (split_name,), image, labels)

    def _only_one(self, folder: Path, files: list[str]) -> None:
        if len(files) > 1:
            self.findings.add("two-files-of-one-name", self._show(folder / files[0]), f"and {', '.join(files[1:])}")

    def _unused(self, splits: Iterable[Split]) -> None:
        """Labels without an image and, where splits are lists, labelled images that no list names."""
        forgotten: dict[Path, list[str]] = {}
        for folder, kind, labels, is_listed in dict.fromkeys(
            (split.images, kind, labels, split.listed is not None)
            for split in splits for kind, labels in split.labels.items()
        ):  # fmt: skip
            images = self._index(folder, is_image=True)
            names = {without_suffix(name, images) for name in self._all_lists()} if is_listed else set(images)
            for key, files in self._index(labels, is_image=False).items():
                if key not in images and not CITYSCAPES_LABEL.search(key):
                    self.findings.add("label-without-image", self._show(labels / files[0]), kind)
                elif key in images and key not in names:
                    forgotten.setdefault(folder / images[key][0], []).append(kind)
        for image, kinds in forgotten.items():
            self.findings.add("not-listed", self._show(image), f"has {', '.join(kinds)}")

    def _all_lists(self) -> set[str]:
        """The names in every list there, of test sets, too."""
        names: set[str] = set()
        for path in self.lists.glob("*.txt"):
            with contextlib.suppress(UserError):  # a text of another kind
                names.update(read_names(path))
        return names

    def _index(self, folder: Path, is_image: bool) -> Index:
        if (folder, is_image) not in self.listed:
            suffixes = IMAGE_SUFFIXES if is_image else ANY_SUFFIXES
            self.listed[folder, is_image] = list_folder(folder, suffixes) if folder.is_dir() else {}
        return self.listed[folder, is_image]

    def _show(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

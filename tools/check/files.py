"""Find the splits of a data set and the files of each image, without opening an image."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data import layout
from data.folders import left_out
from data.guess import list_folder
from data.layout import Split
from data.plain import ListError, find_flags, find_whole
from flags.declare import flag
from flags.shared import check_reading
from support.errors import UserError
from support.labels import MAPS
from tools.check.facts import FileFacts, LabelFacts, Sample
from tools.check.rules import Findings

WHOLE = "all"  # the images of a data set that has no splits


AS_TRAIN = "as in train.py [guessed from the folders]"


@dataclass(frozen=True)
class Paths:
    """Data set."""

    list_path: str = flag("", AS_TRAIN)
    image_path: str = flag("", AS_TRAIN)
    train_path: str = flag("", AS_TRAIN)
    val_path: str = flag("", AS_TRAIN)
    pseudo_path: str = flag("", AS_TRAIN)
    train_split: str = flag("", AS_TRAIN)
    val_split: str = flag("", AS_TRAIN)
    image_suffix: str = flag("", AS_TRAIN)
    label_suffix: str = flag("", AS_TRAIN)
    label_map: str = flag("", AS_TRAIN)
    bands: tuple[int, ...] = flag((), "bands for red, green and blue, as in train.py [chosen from the images]", ge=1)
    stretch: tuple[float, ...] = flag(
        (), "percentiles that become 0 and 255, as in train.py [2 98 if images have more than 8 bits]", ge=0, le=100
    )
    value_range: tuple[float, ...] = flag((), "values that become 0 and 255, as in train.py [measured by --stretch]")

    def __post_init__(self) -> None:
        check_reading(self.bands, self.value_range, self.stretch)

    @property
    def split_names(self) -> tuple[str, str]:
        """Return the names of the training and the validation split."""
        return self.train_split or "train", self.val_split or "val"


def required_labels(dataset: str, *, is_train: bool) -> tuple[str, ...]:
    """Return the kinds of label that each image of a split must have: some of "mask", "scribble" and "pseudo".

    dataset: value of --dataset. is_train: whether it is the training split.
    """
    if not is_train or dataset in ("Folder", "Dense"):
        return ("mask",)
    kinds = {"label": "scribble", "pseudo": "pseudo"}
    return tuple(kinds[name] for name in MAPS[dataset] if name in kinds)


def find_split(root: Path, dataset: str, paths: Paths, name: str) -> Split:
    """Return a Split whose folders are "image", "mask" and the label kinds that training reads, "scribble" or "pseudo".

    name: the split's name. "mask" is there even if training does not read masks. Raises UserError if the split is
    missing.
    """
    is_train = name == paths.split_names[0]
    folders = {"mask": paths.train_path if is_train else paths.val_path}
    folders |= {"scribble": paths.train_path, "pseudo": paths.pseudo_path}
    maps = {"mask": paths.val_path} | {kind: folders[kind] for kind in required_labels(dataset, is_train=is_train)}
    reads = dataset if is_train or dataset == "Folder" else "Dense"
    names = ("list_path", "image_path", "image_suffix", "label_suffix")
    return layout.find_split(root, reads, name, maps, **{flag: getattr(paths, flag) for flag in names})


def find_samples(
    name: str, split: Split, dataset: str, samples: dict[Path, Sample], findings: Findings, *, is_train: bool
) -> None:
    """Add a split to `samples`, {image: its Sample}, and findings about missing, ambiguous and shared files.

    dataset, is_train: as in required_labels().
    """
    required = required_labels(dataset, is_train=is_train)
    matches = layout.match_files(split, list_folder)
    for key, number in Counter(key for key, _ in matches).items():
        if number > 1 and not is_train:  # allowed in training: it weights an image
            findings.add("listed-twice", f"{name}: {key}", f"{number} times")
    if is_train:
        findings.repeats = len(matches) - len(dict(matches))
    if not matches:
        findings.add("split-missing", name, f"no images in {split.folders['image']}")
    for path, note in left_out(split.folders["image"]).items() if split.listed is None else ():
        findings.add("left-out", Path(path), note)
    images = {key for key, files in matches if files["image"]}
    for kind in required if split.listed is None else ():
        present = layout.select(list_folder(split.folders[kind], layout.ANY_SUFFIXES), split.endings[kind])
        for key in sorted(present.keys() - images):
            findings.add("label-without-image", present[key][0])
    for kind in required:
        for file, ending in _other_labels(split, kind, images):
            findings.add("label-other-ending", file, f"ends in {ending}, not in {split.endings[kind]}")
    shared, lacking = split.in_images, set()
    for key, files in dict(matches).items():
        if not files["image"]:
            findings.add("listed-image-missing", f"{name}: {key}", f"not in {findings.show(split.folders['image'])}")
            continue
        for kind, paths in files.items():
            if kind in shared and paths and paths[0].name == files["image"][0].name:
                findings.add("image-without-label", paths.pop(0), layout.ITSELF)
            elif len(paths) > 1:
                findings.add("two-files-of-one-name", paths[0], f"and {', '.join(path.name for path in paths[1:])}")
            elif not paths and kind in required:
                missing = split.folders[kind] / f"{key}{split.endings[kind]}.png"
                findings.add("image-without-label", files["image"][0], f"no {findings.show(missing)}")
                lacking.add(split.folders[kind])
        image = files["image"][0]
        labels = {kind: LabelFacts(paths[0]) for kind, paths in files.items() if kind != "image" and paths}
        sample = samples.setdefault(image, Sample((), FileFacts(image), {}))
        if sample.splits:
            findings.add("in-two-splits", image, f"{', '.join(sample.splits)} and {name}")
        sample.splits, sample.labels = (*sample.splits, name), sample.labels | labels
    for folder in sorted(lacking - {split.folders["image"]}):
        for path, note in left_out(folder, ".png").items():
            findings.add("left-out", Path(path), note)


def _other_labels(split: Split, kind: str, images: set[str]) -> list[tuple[Path, str]]:
    """Return (file, ending) of labels that only some of a split's images have, beside those with --label_suffix.

    An ending that all of them have is that of another kind of label, such as Cityscapes' colours.
    """
    chosen = split.endings[kind]
    if not chosen or kind in split.in_images:  # there, the rules for images name them
        return []
    found: dict[str, list[Path]] = {}
    for name, paths in list_folder(split.folders[kind], layout.ANY_SUFFIXES).items():
        starts = () if name.endswith(chosen) else reversed([*re.finditer(r"[\W_]", name)])
        if image := next((name[: start.start()] for start in starts if name[: start.start()] in images), ""):
            found.setdefault(name.removeprefix(image), []).append(paths[0])
    return [(path, end) for end, paths in found.items() if len(paths) < len(images) for path in paths]


def find_files(
    root: Path, dataset: str, paths: Paths, names: Sequence[str], findings: Findings
) -> tuple[list[str], list[Sample]]:
    """Return the names of the splits that exist, and one Sample per image; add findings for missing files.

    names: splits to look for. Plain folders without any of them are one split, WHOLE.
    """
    splits: dict[str, Split] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            splits[name] = find_split(root, dataset, paths, name)
        except ListError:
            raise
        except UserError as error:
            missing[name] = str(error).removesuffix(find_flags(root))  # that is this command
    if dataset == "Folder" and not splits and not paths.list_path:
        place = find_whole(root, images=paths.image_path, masks=paths.val_path)
        if list_folder(place.images, layout.IMAGE_SUFFIXES):
            folders = {"image": place.images, "mask": place.masks}
            splits[WHOLE] = Split(folders, endings={"image": paths.image_suffix, "mask": paths.label_suffix})
            findings.add("no-split", place.images, f"no {' and no '.join(names)}")
            missing = {}
        elif place.images.is_dir():
            missing = dict.fromkeys(missing, f"{place.images}: no images in it ({', '.join(layout.IMAGE_SUFFIXES)})")
    for name, problem in missing.items():
        findings.add("split-missing", name, problem)
    samples: dict[Path, Sample] = {}
    for name, split in splits.items():
        find_samples(name, split, dataset, samples, findings, is_train=name == paths.split_names[0])
    return list(splits), list(samples.values())

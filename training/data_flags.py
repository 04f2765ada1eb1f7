"""Choose the flags that follow from the data set: its layout, its classes and their names. Flags that are set stay."""

import dataclasses
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data.classes import Classes, read_classes
from data.guess import GUESSED, class_file, guess_flags
from data.images.stretch import READING, choose_reading
from data.label_check import holds_only_255, infer_num_classes, objects_as_255, seems_soft
from data.label_map import read_label_map
from data.layout import Split
from distributed.group import Group
from flags import Config, describe, usual_model
from support.errors import UserError
from support.labels import BACKGROUND, DENSE, IGNORE, OBJECT_MAPS
from support.log import log
from support.processes import ThreadPool
from support.progress import progress_bar
from training.checkpoint_content import Checkpoint
from training.data import count_labels

NUM_THREADS = 4  # to read images
CLASS_FLAGS = ("classes", "numclasses", "label_map")


def choose_layout(cfg: Config, group: Group) -> Config:
    """Return the flags with --dataset and the folders as they are found in --dataset_path. Collective.

    All flags stay if --dataset or a flag of pseudo-labels is set. Raises UserError if there is no data set, or if it
    could be read in two ways.
    """
    if not cfg.leaves_layout_open:
        return cfg

    def guess() -> dict[str, str]:
        flags = {name: getattr(cfg, name) if name in cfg.given else "" for name in GUESSED}
        dataset, guessed = guess_flags(Path(cfg.dataset_path), "", flags)
        return {"dataset": dataset} | {name: value for name, value in guessed.items() if value != flags[name]}

    choices = group.broadcast(group.run_on_rank_0(guess, "looking through --dataset_path"))
    log.info(f"found in {cfg.dataset_path}: {', '.join(f'--{name} {value}' for name, value in choices.items())}")
    cfg = dataclasses.replace(cfg, **choices)
    return cfg if "model_type" in cfg.given else dataclasses.replace(cfg, model_type=usual_model(cfg))


def choose_image_reading(cfg: Config, group: Group, files: dict[str, Split], resumed: Checkpoint | None) -> Config:
    """Return the flags with --bands, --stretch and --value_range as the training images need them. Collective.

    A resumed run keeps the checkpoint's values, but measures again if --bands or --stretch changes. Raises UserError
    as choose_reading().
    """
    if resumed:
        kept = {name: resumed.config[name] for name in READING if name in resumed.config and name not in cfg.given}
        cfg = dataclasses.replace(cfg, **kept)
        if all(getattr(cfg, name) == resumed.config.get(name, ()) for name in ("bands", "stretch")):
            return cfg
        if "value_range" in kept:
            cfg = dataclasses.replace(cfg, value_range=())
    values = {name: getattr(cfg, name) for name in READING}

    def choose() -> tuple[dict[str, tuple[Any, str]], list[str]]:
        with ThreadPool(NUM_THREADS) as pool:
            train, val = ([item["image"] for item in files[split].files] for split in ("train", "val"))
            return choose_reading(train, val, values, partial(_with_bar, pool.map))

    choices, warnings = group.broadcast(group.run_on_rank_0(choose, "reading images"))
    if choices:
        log.info(f"chosen from the images: {describe(choices)}")
    for line in warnings:
        log.warning(line)
    return dataclasses.replace(cfg, **{name: value for name, (value, _) in choices.items()})


def _with_bar(mapper: Callable, work: Callable, paths: list[Path]) -> Iterable:
    return progress_bar(mapper(work, paths), total=len(paths), title="reading images", unit="image")


def choose_classes(
    cfg: Config, group: Group, files: dict[str, Split], resumed: Checkpoint | None
) -> tuple[Config, np.ndarray]:
    """Return the flags with --classes, --numclasses and --label_map as the data says, and the share of each class.

    files: the Split of "train" and of "val". A resumed run keeps the checkpoint's values. The shares are of the pixels
    in dense training masks, (numclasses,) float64; (0,) if they are not counted. Collective. Raises UserError if a
    label cannot be read, or if --numclasses and the file of class names contradict each other.
    """
    given = cfg.given
    if resumed:
        kept = {name: resumed.config[name] for name in CLASS_FLAGS if name in resumed.config and name not in given}
        return dataclasses.replace(cfg, **kept), np.zeros(0)
    # 1. Without reading labels: the names of the classes, or a label map.
    choices = _choose_by_files(cfg, group)
    label_map = read_label_map(cfg.label_map, cfg.numclasses if "numclasses" in given else None)
    if label_map:
        choices.setdefault("numclasses", (max(label_map.num_classes, 2), f"classes of --label_map {cfg.label_map}"))
    num_classes = cfg.numclasses if "numclasses" in given else choices.get("numclasses", (0, ""))[0]

    # 2. By the labels, all of them: if the number of classes is unknown, or if there may be one object.
    is_dense = cfg.dataset in DENSE
    may_be_object = is_dense and num_classes in (0, 2) and not {"loss", "label_map"} <= given
    train: list[dict[int, int]] = []
    if not num_classes or may_be_object:
        paths = [image[kind] for image in files["train"].files for kind in ("label", "pseudo") if kind in image]
        train = count_labels(paths, group, label_map)
        val = count_labels([image["label"] for image in files["val"].files], group, label_map)
        if may_be_object and "label_map" not in given:
            if seems_soft(train):
                path = next(path for path, row in zip(paths, train, strict=True) if {*row} - {0, IGNORE})
                problem = (
                    f"the masks look like one object with soft edges: 0, 255 and some pixels between, such as {path}"
                )
                raise UserError(f"{problem}: add --label_map threshold; if the values are classes, add --label_map ''")
            _check_objects_as_255(train, val, paths)
            if holds_only_255(train):
                choices["label_map"] = "binary", "masks hold only 0 and 255"
                choices.setdefault("numclasses", (2, "the object and the rest"))
                choices.setdefault("classes", ("binary", "background and object"))
                train = [{int(value == IGNORE): number for value, number in row.items()} for row in train]
        values = {value for row in (*train, *val) for value in row} - {IGNORE}
        choices.setdefault("numclasses", (infer_num_classes(values), "from the highest label"))

    choices = {name: choice for name, choice in choices.items() if name not in given}
    if choices:
        log.info(f"chosen from the data set: {describe(choices)}")
    cfg = dataclasses.replace(cfg, **{name: value for name, (value, _) in choices.items()})
    pixels = np.array([sum(row.get(number, 0) for row in train) for number in range(cfg.numclasses)], np.float64)
    return cfg, pixels / max(pixels.sum(), 1) if is_dense and train else np.zeros(0)


def warn_of_other_class_names(cfg: Config, classes: Classes, before: dict, otherwise: str) -> None:
    """Log a warning if a checkpoint's `classes` are used on a data set whose file has other names.

    before: the flags in the checkpoint. otherwise: the remedy if the data set's classes are not the model's. Flags that
    the user sets, --classes or a --label_map to the model's classes, are no mistake.
    """
    file = class_file(Path(cfg.dataset_path)) if cfg.dataset_path else ""
    is_same = os.path.realpath(cfg.dataset_path) == os.path.realpath(before.get("dataset_path") or "")
    is_chosen = is_same and os.path.realpath(cfg.classes) != os.path.realpath(file)  # by the run
    is_mapped = cfg.label_map not in ("", *OBJECT_MAPS)  # the file may name the labels before
    if not file or not cfg.classes or is_chosen or is_mapped or cfg.classes != before.get("classes"):
        return
    try:
        names = read_classes(file, None).names
    except UserError:  # no file of names, which this program does not need
        return
    if names == classes.names:
        return
    is_renaming = len(names) == len(classes.names)
    same = f"if they only rename the model's, add --classes {file}; if not, " if is_renaming else ""
    log.warning(f"{file}: has other class names than the checkpoint, whose names stay in use: {same}{otherwise}")


def _choose_by_files(cfg: Config, group: Group) -> dict[str, tuple[Any, str]]:
    """Return {flag: (value, reason)} of --classes and --numclasses as the data set's file of class names says, if any.

    Collective. Raises UserError if the file is invalid, or contradicts --numclasses.
    """
    # Broadcast rank 0's answer: ranks that see different files would call different collectives, and hang.
    file = group.broadcast("" if "classes" in cfg.given else class_file(Path(cfg.dataset_path)))
    choices: dict[str, tuple[Any, str]] = {"classes": (file, "found in --dataset_path")} if file else {}
    try:
        names = read_classes(file or cfg.classes, cfg.numclasses if "numclasses" in cfg.given else None).names
    except UserError as error:
        raise UserError(f"{error}; to ignore the file: --classes ''" if file else str(error)) from None
    if len(names) == 2 and names[1].lower() in BACKGROUND:
        raise UserError(f"--classes {file or cfg.classes}: {names[1]} is class 1: it must be the first line")
    if number := group.broadcast(len(names)):
        choices["numclasses"] = number, f"names in {Path(file or cfg.classes).name}"
    return choices


def _check_objects_as_255(train: list[dict[int, int]], val: list[dict[int, int]], paths: list[Path]) -> None:
    """Raise UserError if 255 seems to be the object in some masks, and another class in others.

    train, val: {value: pixels} of each mask. paths: the files of `train`.
    """
    masks = [*train, *val]
    number, values = sum(objects_as_255(masks)), set().union(*masks) - {IGNORE}
    if holds_only_255(train) or not number:
        return
    problem = f"{number} of {len(masks)} masks hold only 0 and 255"
    ignored = "if 255 is to be ignored, add --label_map ''"
    if values == {0, 1}:
        remedy = "add --label_map binary"
        raise UserError(f"{problem}, others have class 1: if 255 is the object, too, {remedy}; {ignored}")
    if 2 * number > len(masks):  # with fewer, label_check logs a warning
        labels = zip(paths, (max(row.keys() - {IGNORE}, default=0) for row in train), strict=True)
        path, label = max(labels, key=lambda pair: pair[1])
        raise UserError(f"{problem}, but {path} has class {label}: if 255 is the object, correct such masks; {ignored}")

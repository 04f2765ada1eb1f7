"""Choose the flags that the data set decides, unless they are set: its layout, its classes and their names."""

import dataclasses
import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data.classes import read_classes
from data.guess import GUESSED, class_file, guess_flags
from data.histogram import count_values
from data.label_check import holds_only_255, infer_num_classes, spread
from data.label_map import read_label_map
from data.layout import Split
from distributed.group import Group
from flags import Config
from support.labels import DENSE, IGNORE, MAPS
from support.progress import progress_bar
from training.checkpoint_content import Checkpoint

NUM_COUNTED = 200  # training labels whose pixels are counted, if only the classes' shares are needed
CLASS_FLAGS = ("classes", "numclasses", "label_map")

log = logging.getLogger("segtrain")


def choose_layout(cfg: Config, group: Group) -> Config:
    """Return the flags with --dataset and the folders as they are found in --dataset_path. Collective.

    If --dataset is set, all flags stay. Raises UserError if there is no data set, or if it could be read in two ways.
    """
    if not cfg.leaves_layout_open:
        return cfg
    given = cfg.given or frozenset()

    def guess() -> dict[str, str]:
        flags = {name: getattr(cfg, name) if name in given else "" for name in GUESSED}
        dataset, guessed = guess_flags(Path(cfg.dataset_path), "", flags)
        return {"dataset": dataset} | {name: value for name, value in guessed.items() if value != flags[name]}

    choices = group.broadcast(group.run_on_rank_0(guess, "looking through --dataset_path"))
    log.info(f"found in {cfg.dataset_path}: {', '.join(f'--{name} {value}' for name, value in choices.items())}")
    if "model_type" not in given and "pseudo" not in MAPS[choices["dataset"]]:
        choices["model_type"] = "res50_ASPP"  # LoRM needs pseudo-labels
    return dataclasses.replace(cfg, **choices)


def choose_classes(
    cfg: Config, group: Group, files: dict[str, Split], resumed: Checkpoint | None
) -> tuple[Config, np.ndarray]:
    """Return the flags with --classes, --numclasses and --label_map as the data says, and the share of each class.

    files: the Split of "train" and of "val". A resumed run keeps the checkpoint's values. The shares are of the pixels
    in dense training masks, (numclasses,) float64; (0,) for other labels or a resumed run. Collective. Raises UserError
    if a label cannot be read, or if --numclasses and the file of class names contradict each other.
    """
    given = cfg.given
    if given is None or resumed:
        kept = {name: resumed.config[name] for name in CLASS_FLAGS if name not in (given or ())} if resumed else {}
        return dataclasses.replace(cfg, **kept) if given is not None else cfg, np.zeros(0)
    choices: dict[str, tuple[Any, str]] = {}
    # Rank 0 decides: ranks that saw other files would call other collectives.
    file = group.broadcast("" if "classes" in given else class_file(Path(cfg.dataset_path)))
    if file:
        choices["classes"] = file, "found there"
    known = cfg.numclasses if "numclasses" in given else None
    if names := group.broadcast(read_classes(file or cfg.classes, known).names):
        choices["numclasses"] = len(names), "as many names"
    label_map = read_label_map(cfg.label_map, known)
    if label_map:
        choices.setdefault("numclasses", (max(label_map.num_classes, 2), "as --label_map gives"))
    num_classes = known or choices.get("numclasses", (0, ""))[0]

    def count(paths: list[Path]) -> list[dict[int, int]]:
        bar = partial(progress_bar, total=len(paths[group.rank :: group.world_size]), title="counting labels")
        bar = partial(bar, unit="file", enabled=group.is_main)
        return [counts or {} for counts in group.share_work(partial(count_values, label_map=label_map), paths, bar)]

    kinds = [kind for kind in ("label", "pseudo") if kind in MAPS[cfg.dataset]]
    train = [[paths[kind] for paths in files["train"].files] for kind in kinds]
    is_dense = cfg.dataset in DENSE
    if num_classes and not is_dense:
        counts: list[dict[int, int]] = []
    elif num_classes:
        counts = count(spread(train[0], NUM_COUNTED))
    else:
        counts = count([path for paths in train for path in paths])
    may_be_binary = is_dense and "label_map" not in given and num_classes in (0, 2)
    if may_be_binary and num_classes and holds_only_255(counts):
        counts = count(train[0])  # the sample may lack class 1
    if may_be_binary and holds_only_255(counts):
        choices["label_map"] = "binary", "masks hold only 0 and 255"
        choices.setdefault("numclasses", (2, "the object and the rest"))
        counts = [{int(value == IGNORE): number for value, number in row.items()} for row in counts]
    elif not num_classes:
        others = count([paths["label"] for paths in files["val"].files])
        values = {value for row in (*counts, *others) for value in row} - {IGNORE}
        choices["numclasses"] = infer_num_classes(values), "one more than the highest label"
    choices = {name: choice for name, choice in choices.items() if name not in given}
    if choices:
        text = ", ".join(f"--{name} {value} ({reason})" for name, (value, reason) in choices.items())
        log.info(f"chosen from the labels: {text}")
    cfg = dataclasses.replace(cfg, **{name: value for name, (value, _) in choices.items()})
    pixels = np.array([sum(row.get(number, 0) for row in counts) for number in range(cfg.numclasses)], np.float64)
    return cfg, pixels / max(pixels.sum(), 1) if is_dense else np.zeros(0)

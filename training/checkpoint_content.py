"""The content of a checkpoint, checked once, on reading: a file may come from a stranger."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import models
from data.classes import MAX_TEXT, read_classes
from data.label_map import read_label_map
from flags import FLAGS, Config
from flags.conflicts import check_backbone
from flags.declare import Flag
from flags.shared import BACKBONE_FLAGS, HEAD_FLAGS
from models.custom import WEIGHT_TYPES
from models.pretrained import weights_in
from support.errors import UserError
from support.labels import single_object
from support.user_code import is_own_network

FORMAT = 3  # of a Checkpoint

MOST = 2**20  # entries of a list
MOST_WORDS = 100  # of a flag that is a list of any length
OTHERS = "other entries"  # key in a dict of kinds: the kind of all entries that it does not list

COUNT, FINITE, TEXT = Flag(0, "", ge=0, le=2**53, kind=int), Flag(0.0, "", kind=float), Flag("", "")
FACTOR = Flag(1.0, "", gt=0, le=1e6, kind=float)
POSITIVE, ABOVE_0 = Flag(1, "", ge=1, le=2**53, kind=int), Flag(1.0, "", gt=0, kind=float)


@dataclass
class Checkpoint:
    """Everything that a new process needs to continue a run. The file has an entry for each field.

    config: {flag: value}, as flags.as_dict() returns it. texts: {"classes", "label_map": the text of its file}.
    model: the weights, with batch norm's statistics averaged over ranks. ema: likewise, the average of the weights, or
    None. ranks: each rank's own batch-norm statistics. origin: Schedule.origin. listing: digest of the training list.
    run: Metrics.state_dict(). The other fields are those of TrainState.
    """

    config: dict[str, Any]
    texts: dict[str, str]
    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    epoch: int
    samples: int
    step: int
    validated: int
    best_score: float
    validations_since_best: int
    origin: dict[str, float]
    listing: str
    ranks: list[dict[str, dict[str, Tensor]]]
    run: dict[str, Any]
    format: int = FORMAT


@dataclass
class ModelFile:
    """The content of a file on a model: a Checkpoint's, or another project's weights.

    config: the flags that it was trained with, or None if the file has none. texts: see Checkpoint. step: the run's
    step, or None. weights, averaged: {name: tensor}; averaged is None without an average.
    """

    config: dict[str, Any] | None
    texts: dict[str, str]
    step: int | None
    weights: dict[str, Tensor]
    averaged: dict[str, Tensor] | None

    @property
    def best_weights(self) -> dict[str, Tensor]:
        """Return the averaged weights, which validation scored, if there are any, else the weights."""
        return self.weights if self.averaged is None else self.averaged


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in a UserError of the body, which may quote an entry of any length."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {str(error)[:300]}") from None


@contextlib.contextmanager
def naming_flag(flag: str, path: Path, remedy: str) -> Iterator[None]:
    """Add the flag to a UserError of the body, which reads the file `path`; also the remedy if there is no file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{flag} {error}{'' if path.is_file() else f': {remedy}'}") from None


def check_weights(content: dict) -> None:
    """Raise UserError unless the weights in a file, ours or another's, are dense tensors of usual types."""
    for name, value in (*weights_in(content).items(), *weights_in(content, averaged=False).items()):
        _check_tensor(value, name)


def check_model(content: dict) -> ModelFile:
    """Return a file's content after checking what its model needs; flags are converted, unknown ones left out.

    Raises UserError for a wrong entry.
    """
    averaged = weights_in(content) if content.get("ema") is not None else None
    weights = weights_in(content, averaged=False)
    if content.get("config") is None:
        return ModelFile(None, {}, None, weights, averaged)
    content = {"texts": None, "step": None} | _checked(content, MODEL, "")
    texts = content["texts"] or {}  # checkpoints of earlier versions have none
    cfg = Config(**content["config"])
    check_backbone(cfg)
    for name, read in (("classes", read_classes), ("label_map", read_label_map)):
        if name in texts:
            read(getattr(cfg, name), cfg.numclasses, texts[name])
    return ModelFile(content["config"], texts, content["step"], weights, averaged)


def check_run(content: dict) -> Checkpoint:
    """Return a checkpoint's content after checking what resuming its run needs, as check_model() does."""
    model = check_model(content)
    if model.config is None:
        raise UserError("config is missing")
    cfg, older = Config(**model.config), {}
    if "best_miou" in content:  # of an earlier version, which judged a single object by the mIoU, too
        is_other = single_object(cfg.numclasses, cfg.background_class) is not None
        older["best_score"] = -1.0 if is_other else content["best_miou"]
    content = _checked({"ema": None} | older | content | {"config": model.config, "texts": model.texts}, RUN, "")
    return Checkpoint(**{item.name: content[item.name] for item in fields(Checkpoint)})


def _flags(value: Any, where: str) -> dict:
    # Earlier versions saved flags that no longer exist; those concerned training only.
    known = {name: value for name, value in _dict(value, where).items() if name in FLAGS}
    kind = known.get("model_type")
    if isinstance(kind, str) and kind not in FLAGS["model_type"].choices and not is_own_network(kind):
        raise UserError(
            f"--model_type {kind[:40]} is not in this version: use the version that trained it, or train another model "
            "from its weights by --pretrained FILE"
        )
    return {name: _convert(FLAGS[name], value, name) for name, value in known.items()}


def saved_network(content: dict) -> dict[str, Any]:
    """Return {flag: value} of the network of a file of ours, and its --numclasses and --long_side.

    Of another project's file, those of its entries that we can use.
    """
    saved, found = content.get("config"), {}
    if not isinstance(saved, dict):
        return {}
    for name in (*BACKBONE_FLAGS, *HEAD_FLAGS, "numclasses", "long_side"):
        if name in saved:
            with contextlib.suppress(UserError):  # another project's, or a head of another version
                found[name] = _convert(FLAGS[name], saved[name], name)
    backbone = found.get("backbone", models.RESNET)
    if backbone != models.RESNET and not backbone.startswith("timm:"):
        return {}
    return {name: value for name, value in found.items() if name != "layers" or backbone == models.RESNET}


def _convert(flag: Flag, value: Any, where: str) -> Any:
    value = list(value) if isinstance(value, tuple) else value
    items = value if flag.is_list and isinstance(value, list) else [value]
    longest = 20 if flag.kind is int else MAX_TEXT
    too_many = flag.is_list and len(items) > (len(flag.default) or MOST_WORDS)
    for item in items:
        fits = len(item) <= longest if isinstance(item, str) else item is None or isinstance(item, int | float)
        if too_many or not fits or (flag.kind is int and isinstance(item, int | float) and abs(item) >= 2**64):
            raise UserError(f"{where}: cannot be this {type(value).__name__}")
    return flag.convert(value, where)


def _check_tensor(value: Any, where: str) -> None:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        raise UserError(f"{where}: must be a dense tensor")
    if value.dtype not in WEIGHT_TYPES:
        raise UserError(f"{where}: has the type {value.dtype}, which weights cannot have: float32 is usual")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise UserError(f"{where}: its shape {tuple(value.shape)} needs more values than the file has")


def _finite(value: Any, where: str) -> Tensor:
    _check_tensor(value, where)
    if not value.isfinite().all():
        raise UserError(f"{where} is not finite: use an earlier checkpoint")
    return value


def _optimizer(value: Any, where: str) -> dict:
    value = _checked(value, OPTIMIZER, where)
    numbers = [number for group in value["param_groups"] for number in group["params"]]
    if numbers != list(range(len(numbers))) or not numbers or not set(value["state"]) <= set(numbers):
        raise UserError(f"{where}: its parameters are not numbered 0, 1, 2 and so on")
    return value


def _scaler(value: Any, where: str) -> dict:
    return _checked(value, SCALER if _dict(value, where) else {}, where)  # it has no entries without --amp fp16


def _measured(value: Any, where: str) -> Any:
    """Return what a step measured, a number or two counts: the labelled pixels, and those predicted right."""
    if isinstance(value, list) and len(value) != 2:
        raise UserError(f"{where}: must be two numbers")
    number = COUNT if type(value) is int else FINITE  # a resumed run writes it to metrics.jsonl as it was
    return _checked(value, [COUNT] if isinstance(value, list) else number, where)


def _dict(value: Any, where: str) -> dict:
    keys = value if isinstance(value, dict) else [None]
    if not all(isinstance(key, str) or (type(key) is int and 0 <= key < MOST) for key in keys):
        raise UserError(f"{where}: must be a dict of named entries, but is a {type(value).__name__}")
    return value


def _checked(value: Any, kind: Any, where: str) -> Any:
    """Return an entry of this kind, converted. where: its name.

    kind: a Flag, [kind of each entry] of a list, {name: kind} of a dict, (kind,) of what may be None or missing, or a
    function of value and name.
    """
    if isinstance(kind, Flag):
        return _convert(kind, value, where)
    if isinstance(kind, tuple):
        return None if value is None else _checked(value, kind[0], where)
    if isinstance(kind, list):
        if not isinstance(value, list) or len(value) > MOST:
            raise UserError(f"{where}: must be a list of at most {MOST} entries")
        return [_checked(item, kind[0], f"{where}[{number}]") for number, item in enumerate(value)]
    if not isinstance(kind, dict):
        return kind(value, where)
    value = _dict(value, where or "the file")
    kinds = dict.fromkeys(value, kind[OTHERS]) if OTHERS in kind else {}
    kinds |= {name: own for name, own in kind.items() if name != OTHERS}
    names = {name: f"{where}.{name}"[-100:].lstrip(".") for name in kinds}
    if missing := [names[name] for name, own in kinds.items() if name not in value and not isinstance(own, tuple)]:
        raise UserError(f"{missing[0]} is missing")
    return value | {name: _checked(value[name], own, names[name]) for name, own in kinds.items() if name in value}


# The fields of Checkpoint, and what is in them.
WEIGHTS = {OTHERS: _finite}
MODEL: dict = {"config": _flags, "texts": ({OTHERS: TEXT},), "step": (COUNT,), "model": {}, "ema": ({},)}
RUN: dict = dict.fromkeys(("epoch", "samples", "step", "validated", "validations_since_best"), COUNT)
RUN |= {"best_score": Flag(0.0, "", ge=-1, le=1, kind=float), "listing": TEXT, "scaler": _scaler}
RUN |= {"model": WEIGHTS, "ema": (WEIGHTS,), "ranks": [{"buffers": WEIGHTS}], "optimizer": _optimizer}
RUN["config"] = {"amp": Flag("", "", choices=("none", "bf16", "fp16"))}
RUN["config"] |= {name: FLAGS[name] for name in ("stride_in_1x1", "seed", "repeat")}
RUN["origin"] = dict.fromkeys(("world_size", "global_batch", "steps_per_epoch"), POSITIVE) | {"lr_factor": FACTOR}
STEP = {OTHERS: _measured} | dict.fromkeys(("epoch", "step"), COUNT) | dict.fromkeys(("loss", "lr"), FINITE)
RUN["run"] = {"lines": COUNT, "window": [STEP], "wandb_id": (TEXT,)}
SCALER = dict.fromkeys(("scale", "growth_factor", "backoff_factor"), ABOVE_0) | {"growth_interval": POSITIVE}
SCALER |= dict.fromkeys(("_growth_tracker", "skipped", "skipped_in_a_row"), COUNT)
OPTIMIZER = {"state": {OTHERS: {OTHERS: (_finite,)}}, "param_groups": [{"params": [COUNT], "lr": FINITE}]}

"""Read the weights that a new run starts from (--pretrained)."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
from data.classes import read_classes
from distributed.group import Group
from flags import Config, as_words
from flags.conflicts import OF_TORCHVISION
from models import pretrained
from models.custom import in_own_network
from models.pretrained import StartWeights
from support.errors import UserError
from support.log import log
from support.shell import quoted
from support.user_code import is_own_network
from training import checkpoint
from training.checkpoint_content import naming_flag


def read_start_weights(cfg: Config, group: Group) -> StartWeights | None:
    """Return the weights of --pretrained on rank 0, None on other ranks. Collective.

    Raises UserError if they cannot be read or downloaded.
    """
    if cfg.freeze_backbone and cfg.pretrained == "none":
        log.warning(f"--freeze_backbone {cfg.freeze_backbone} with --pretrained none: frozen weights stay random")
    saved: dict[str, Any] = {}  # the flags of a checkpoint of ours
    names: list[str] = []  # of its classes, if it has any

    @naming_flag("--pretrained", Path(cfg.pretrained), "name a FILE, imagenet or none")
    def read_file(path: Path) -> dict:
        content = checkpoint.read(path)
        saved.update(content["config"] if isinstance(content.get("config"), dict) else {})
        names.extend(_class_names(content.get("texts")))
        return content

    def read() -> StartWeights:
        weights = _read_weights(cfg, read_file)
        other_names = [(old, new) for old, new in zip(names, _class_names(cfg.texts), strict=False) if old != new]
        if other_names and (len(names), saved.get("model_type")) == (cfg.numclasses, cfg.model_type):
            old, new = other_names[0]
            problem = f"its head was trained for classes of other names: {old!r} is {new!r} now"
            log.warning(f"--pretrained {cfg.pretrained}: {problem}")
        keys = "model_type", "backbone", "layers" if saved.get("backbone") == models.RESNET else "output_stride"
        other = {name: saved[name] for name in keys if saved.get(name, "") not in ("", getattr(cfg, name))}
        return weights._replace(other_flags=quoted(as_words(other)))

    return group.run_on_rank_0(read, f"loading --pretrained {cfg.pretrained}")


def _class_names(texts: Any) -> list[str]:
    """Return the names of classes in the texts of a checkpoint of ours, or of the flags; [] if they have none."""
    text = texts.get("classes") if isinstance(texts, dict) else None
    if not (isinstance(text, str) and text):
        return []
    with contextlib.suppress(UserError):  # of an earlier version
        return read_classes("classes", None, text).names
    return []


def _read_weights(cfg: Config, read_file: Callable[[Path], dict]) -> StartWeights:
    if is_own_network(cfg.model_type):
        if cfg.pretrained in (*OF_TORCHVISION, "none"):  # by default; the network's function may load weights
            return StartWeights("none", {})
        weights = pretrained.weights_in(read_file(Path(cfg.pretrained)))
        return StartWeights(cfg.pretrained, {in_own_network(name): value for name, value in weights.items()})
    if cfg.backbone == models.RESNET:
        return pretrained.read_start_weights(cfg.pretrained, cfg.layers, read_file)
    from models.timm_weights import read_timm_weights  # imported here, as timm is an extra

    backbone = models.build(cfg.model_type, **cfg.architecture).backbone
    return read_timm_weights(backbone, cfg.pretrained, read_file)

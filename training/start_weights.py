"""Read the weights that a new run starts from (--pretrained)."""

import contextlib
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
from training.checkpoint_content import check_model, naming_flag

BACKBONE_FLAGS = ("backbone", "layers", "output_stride", "stride_in_1x1")
HEAD_FLAGS = ("model_type", "model_args", "head_channels")


def read_start_file(cfg: Config, group: Group) -> dict[str, Any]:
    """Return the content of --pretrained FILE on rank 0; {} on other ranks, or if the flag names no file. Collective.

    Raises UserError if the file cannot be read.
    """
    if not _names_file(cfg):
        return {}
    path = Path(cfg.pretrained)

    def read() -> dict[str, Any]:
        with naming_flag("--pretrained", path, "name a FILE, imagenet or none"):
            if path.suffix == ".safetensors" and cfg.backbone != models.RESNET:
                from models.timm_weights import read_safetensors  # imported here, as timm is an extra

                return read_safetensors(path)
            return checkpoint.read(path)

    return group.run_on_rank_0(read, f"loading --pretrained {path}") or {}


def _names_file(cfg: Config) -> bool:
    return cfg.pretrained not in (*OF_TORCHVISION, "none")


def network_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return {flag: value} of the network that a file's weights belong to, as far as the file tells."""
    with contextlib.suppress(UserError):  # of an earlier version or another project: the names of its weights tell
        if content and (saved := check_model(content).config):
            unused = {"layers"} if saved.get("backbone", models.RESNET) != models.RESNET else set()
            return {name: saved[name] for name in (*BACKBONE_FLAGS, *HEAD_FLAGS) if name in {*saved} - unused}
    weights = pretrained.weights_in(content)
    depth = pretrained.resnet_depth(weights)
    network: dict[str, Any] = {"backbone": models.RESNET, "layers": depth} if depth else {}
    network |= {"stride_in_1x1": True} if pretrained.is_cdsp_file(weights) else {}
    is_torchvision = pretrained.released_type(weights) == pretrained.TORCHVISION_TYPE
    return network | ({"model_type": pretrained.TORCHVISION_TYPE} if is_torchvision else {})


def read_start_weights(cfg: Config, group: Group, content: dict[str, Any]) -> StartWeights | None:
    """Return the weights of --pretrained on rank 0, None on other ranks. Collective.

    content: from read_start_file(). Raises UserError if weights cannot be downloaded, do not fit a timm network, or are
    torchvision's DeepLabV3 and --model_type is not.
    """
    if cfg.freeze_backbone and cfg.pretrained == "none":
        log.warning(f"--freeze_backbone {cfg.freeze_backbone} with --pretrained none: frozen weights stay random")

    def read() -> StartWeights:
        weights, network = _read_weights(cfg, content), network_of(content)
        names = _class_names(content.get("texts"))
        other_names = [(old, new) for old, new in zip(names, _class_names(cfg.texts), strict=False) if old != new]
        if other_names and (len(names), network.get("model_type")) == (cfg.numclasses, cfg.model_type):
            old, new = other_names[0]
            problem = f"its head was trained for classes of other names: {old!r} is {new!r} now"
            log.warning(f"--pretrained {cfg.pretrained}: {problem}")
        # (): the file's network has no --model_args.
        other = {name: value for name, value in network.items() if value not in ((), getattr(cfg, name))}
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


def _read_weights(cfg: Config, content: dict[str, Any]) -> StartWeights:
    if is_own_network(cfg.model_type):  # without a file, its function may load weights itself
        weights = {in_own_network(name): value for name, value in pretrained.weights_in(content).items()}
        return StartWeights(cfg.pretrained if _names_file(cfg) else "none", weights)
    if cfg.backbone == models.RESNET:
        pretrained.refuse_other_head(pretrained.weights_in(content), f"--pretrained {cfg.pretrained}", cfg.model_type)
        return pretrained.resnet_weights(cfg.pretrained, cfg.layers, content)
    from models.timm_weights import read_timm_weights  # imported here, as timm is an extra

    backbone = models.build(cfg.model_type, **cfg.architecture).backbone
    return read_timm_weights(backbone, cfg.pretrained, content)

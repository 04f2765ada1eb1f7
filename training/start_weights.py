"""Read the weights that a new run starts from (--pretrained)."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import models
from data.classes import read_classes
from distributed.group import Group
from flags import Config, as_words, fit_lorm, without_lorm
from models import pretrained
from models.custom import in_own_network
from models.pretrained import StartWeights
from support.errors import UserError, in_one_line
from support.log import log
from support.shell import import_extra, quoted
from support.user_code import is_code, is_own_network
from training import checkpoint
from training.checkpoint_content import naming_flag, saved_network
from training.network_flags import differing


def read_start_file(cfg: Config, group: Group) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of --pretrained FILE, on rank 0 alone, and {flag: value} of its network, as far as it tells.

    Both are empty if the flag names no file. Collective. Raises UserError if the file cannot be read.
    """
    if not cfg.start_file:
        return {}, {}
    path = Path(cfg.start_file)

    def read() -> dict[str, Any]:
        if "://" in cfg.start_file:
            raise UserError(f"--pretrained {cfg.start_file}: download the file, and give its path")
        with naming_flag("--pretrained", path, "name a FILE, imagenet or none"):
            return _read_safetensors(path) if path.suffix == ".safetensors" else checkpoint.read(path)

    content = group.run_on_rank_0(read, f"loading --pretrained {path}") or {}
    return content, group.broadcast(network_of(content))


def _read_safetensors(path: Path) -> dict[str, Any]:
    need = partial(import_extra, extra="timm", feature=f"{path}: reading it")
    safetensors, loader = need("safetensors"), need("safetensors.torch")
    try:
        return loader.load_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or in_one_line(error)})") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: not an intact safetensors file ({in_one_line(error)})") from None


def network_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return {flag: value} of the network that a file's weights belong to, as far as their names and its flags tell.

    A file of ours also tells --numclasses and --long_side.
    """
    weights = pretrained.weights_in(content)
    depth, model_type = pretrained.resnet_depth(weights), pretrained.released_type(weights)
    network: dict[str, Any] = {"backbone": models.RESNET, "layers": depth} if depth else {}
    network |= {"model_type": model_type} if model_type else {}
    network |= {"stride_in_1x1": True} if pretrained.is_cdsp_file(weights) else {}
    saved = saved_network(content)
    if saved.get("backbone", models.RESNET) != models.RESNET:
        network.pop("layers", None)
    return saved | network if "layers" in network else network | saved


def read_start_weights(
    cfg: Config, group: Group, content: dict[str, Any], network: dict[str, Any]
) -> StartWeights | None:
    """Return the weights of --pretrained on rank 0, None on other ranks. Collective.

    content, network: from read_start_file(). Raises UserError if weights cannot be downloaded, do not fit a timm
    network, or are torchvision's DeepLabV3 and --model_type is not.
    """
    if cfg.freeze_backbone and cfg.pretrained == "none":
        log.warning(f"--freeze_backbone {cfg.freeze_backbone} with --pretrained none: frozen weights stay random")

    def read() -> StartWeights:
        weights = _read_weights(cfg, content)
        names = _class_names(content.get("texts"))
        other_names = [(old, new) for old, new in zip(names, _class_names(cfg.texts), strict=False) if old != new]
        is_same_head = without_lorm(network.get("model_type", "")) == without_lorm(cfg.model_type)
        if other_names and is_same_head and len(names) == cfg.numclasses:
            old, new = other_names[0]
            problem = f"its head was trained for classes of other names: {old!r} is {new!r} now"
            log.warning(f"--pretrained {cfg.pretrained}: {problem}")
        long_side = network.get("long_side", 0)
        if long_side and long_side != cfg.long_side:
            now = f"now {cfg.long_side}" if cfg.long_side else "not set now"
            log.info(f"--pretrained {cfg.pretrained} was trained with --long_side {long_side} ({now})")
        other = differing(cfg, network)
        if "model_type" in other:
            other["model_type"] = fit_lorm(other["model_type"], cfg.dataset)
        # FILE.py:NAME builds its own backbone. (): it has no --model_args.
        useful = {"model_args"} if is_code(cfg.model_type) else {*other}
        other = {name: value for name, value in other.items() if name in useful and value != ()}
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
        return StartWeights(cfg.start_file or "none", weights)
    if cfg.backbone == models.RESNET:
        pretrained.refuse_other_head(pretrained.weights_in(content), f"--pretrained {cfg.pretrained}", cfg.model_type)
        return pretrained.resnet_weights(cfg.pretrained, cfg.layers, content)
    from models.timm_weights import read_timm_weights  # imported here, as timm is an extra

    backbone = models.build(cfg.model_type, **cfg.architecture).backbone
    return read_timm_weights(backbone, cfg.pretrained, content)

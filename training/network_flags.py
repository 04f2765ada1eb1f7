"""Set the network's flags to those of a resumed run, or of a file of start weights."""

import dataclasses
from typing import Any

import models
from flags import Config, as_words, fit_lorm, own_code, without_lorm
from flags.shared import BACKBONE_FLAGS, HEAD_FLAGS
from support.log import log
from support.shell import quoted
from support.user_code import is_code, is_own_network
from training.checkpoint_content import Checkpoint


def keep_network(cfg: Config, resumed: Checkpoint) -> Config:
    """Return the flags with the resumed run's network and the name of its start weights. Logs what changes.

    Flags that are set stay, except --stride_in_1x1: with the wrong one all weights fit, and the results are wrong.
    Raises UserError if the network or the loss, which take_recipe() keeps, is code that no flag names.
    """
    given = cfg.given - {"stride_in_1x1"}
    code = {name: resumed.config.get(name, "") for name in ("model_type", "loss") if name not in given}
    own_code.refuse_unnamed(code, {}, f"--resume {cfg.resume}")
    unused = {"layers"} if resumed.config.get("backbone", models.RESNET) != models.RESNET else set()
    kept = {*resumed.config} - given - unused
    network = {name: resumed.config[name] for name in (*BACKBONE_FLAGS, *HEAD_FLAGS) if name in kept}
    changed = {name: value for name, value in network.items() if value != getattr(cfg, name)}
    if changed:
        log.info(f"set to fit --resume {cfg.resume}: {quoted(as_words(changed))}")
    started = resumed.config.get("pretrained", cfg.pretrained)
    if started != cfg.pretrained and "pretrained" in cfg.typed:
        log.info(f"--pretrained {cfg.pretrained} is not used: --resume brings the weights")
    return dataclasses.replace(cfg, **network, pretrained=started, typed=cfg.typed - {"pretrained"})


def fit_network(cfg: Config, found: dict[str, Any]) -> Config:
    """Return the flags with the network of the start weights, where the user's flags leave it open. Logs what changes.

    found: {flag: value}, from read_start_file(). With the wrong --stride_in_1x1 all weights fit, and the results are
    wrong: so the file's replaces the user's. A head fits only its own backbone: if another --backbone or --layers is
    set, nothing else is taken; if another head is set, no flag of the head. A network of one's own fits only if
    --model_type names it as the file does; FILE.py:NAME takes only --model_args.
    """
    given = cfg.given

    others = differing(cfg, found).keys() & given
    is_timm = found.get("backbone", models.RESNET) != models.RESNET
    is_own = is_own_network(cfg.model_type) or is_own_network(found.get("model_type", ""))
    if is_own:
        names = ["model_args"] + ([] if is_code(cfg.model_type) else [*BACKBONE_FLAGS])
        names = names if found.get("model_type") == cfg.model_type else []
    else:
        names = [*BACKBONE_FLAGS] + ([] if others & {*HEAD_FLAGS} else [*HEAD_FLAGS])
    if others & {"backbone", "layers"} or (is_timm and "layers" in given and "backbone" not in given):
        names = []
    network = {name: found[name] for name in names if name in found and name not in given}
    if "model_type" in network:
        network["model_type"] = fit_lorm(network["model_type"], cfg.dataset)
    fitted = dataclasses.replace(cfg, **network)
    if not is_own and not is_timm and fitted.backbone == models.RESNET and fitted.layers >= 50:
        network["stride_in_1x1"] = found.get("stride_in_1x1", cfg.stride_in_1x1)
    changed = {name: value for name, value in network.items() if value != getattr(cfg, name)}
    if changed:
        is_replaced = "stride_in_1x1" in changed.keys() & given
        lost = "; --stride_in_1x1 is not as you set it, because these weights need it" if is_replaced else ""
        log.info(f"set to fit --pretrained {cfg.pretrained}: {quoted(as_words(changed))}{lost}")
    return dataclasses.replace(cfg, **network)


def new_part(cfg: Config, found: dict[str, Any]) -> str:
    """Return the name of what the start weights leave random in the head; "" for nothing. found: see fit_network()."""
    if "model_type" not in found or differing(cfg, found):
        return "the head"
    return "" if found.get("numclasses") == cfg.numclasses else "the head's last layer"


def differing(cfg: Config, found: dict[str, Any]) -> dict[str, Any]:
    """Return {flag: value} of the start weights' network where this run has another. found: see fit_network().

    Weights fit at any --output_stride, and LoRM is no part of the head: neither counts.
    """
    names = [name for name in (*BACKBONE_FLAGS, *HEAD_FLAGS) if name in found and name != "output_stride"]
    ours = {name: without_lorm(str(getattr(cfg, name))) for name in names}
    return {name: found[name] for name in names if without_lorm(str(found[name])) != ours[name]}

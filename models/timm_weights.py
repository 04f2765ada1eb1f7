"""Read start weights for timm networks, from timm itself or from a file."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.pretrained import StartWeights, remedy, weights_in
from models.timm_backbone import TimmBackbone, create
from support.errors import UserError

PREFIX = "backbone.body."  # of the network's names in a Segmenter
BACKBONE = "backbone."  # of names in a Segmenter's checkpoint


def read_timm_weights(backbone: nn.Module, pretrained: str, content: dict[str, Any]) -> StartWeights:
    """Return the start weights of a timm network.

    pretrained: "none" (no weights), "imagenet", or a file's name; `content` is then what the file holds.
    "imagenet": the weights that timm offers under the network's name, downloaded or from timm's cache. A file contains
    one of our checkpoints, or the timm network's weights (.pth, .bin or .safetensors). If another library wrote it, so
    that no name is known, weights are assigned in order, provided that all shapes agree. timm adapts position
    embeddings to the size. Raises UserError if that fails.
    """
    assert isinstance(backbone, TimmBackbone)
    if pretrained == "none":
        return StartWeights("none", {})
    source, weights = pretrained, None
    if pretrained == "imagenet":
        source = f"timm ({backbone.name})"
    elif pretrained == "imagenet_v1":
        raise UserError(
            "--pretrained imagenet_v1: only torchvision's ResNet has these weights: use imagenet, or a FILE"
        )
    else:
        weights = weights_in(content)
        if any(name.startswith(BACKBONE) for name in weights):
            return StartWeights(source, weights)
        weights = _renamed(weights, backbone.body)
    options: dict[str, Any] = {"pretrained": True}
    if weights is not None:
        options["pretrained_cfg_overlay"] = {"state_dict": weights, "custom_load": False}
    elif not backbone.body.pretrained_cfg.get("hf_hub_id") and not backbone.body.pretrained_cfg.get("url"):
        raise UserError(f"--pretrained imagenet: timm has no weights of {backbone.name}: give a FILE, or use none")
    try:
        body, random = _seeded(backbone, **options), _seeded(backbone).state_dict()
    except (OSError, RuntimeError, ValueError, LookupError, AttributeError) as error:  # no network; weights do not fit
        problem = " ".join(str(error).split())[:160]
        download = f"{remedy(error, 'HF_HOME')}, give a FILE, or use --pretrained none"
        advice = download if weights is None else "give a file of this network"
        raise UserError(
            f"--pretrained {pretrained}: no weights for timm:{backbone.name} ({problem}): {advice}"
        ) from None
    # Weights that timm does not find stay random, so they equal those of a second network with the same seed.
    loaded = body.state_dict()
    missing = {name for name, value in loaded.items() if value.ndim > 1 and torch.equal(value, random[name])}
    if len(missing) == sum(value.ndim > 1 for value in loaded.values()):
        raise UserError(
            f"--pretrained {pretrained}: has no weights of timm:{backbone.name}: give a file of this network"
        )
    return StartWeights(source, {PREFIX + name: value for name, value in loaded.items() if name not in missing})


def _seeded(backbone: TimmBackbone, **options) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return create(backbone.name, backbone.facts, **options)


def _renamed(content: Mapping[str, Tensor], body: nn.Module) -> dict[str, Tensor]:
    """Return the content under the names of `body` if no name of it is known but all shapes agree in order."""
    ours = body.state_dict()
    pairs = zip(ours.values(), content.values(), strict=False)
    fits = len(content) >= len(ours) and all(mine.shape == value.shape for mine, value in pairs)
    is_known = any(name in ours for name in content)
    return dict(zip(ours, content.values(), strict=False)) if fits and not is_known else dict(content)

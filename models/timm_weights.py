"""Start weights of timm networks, from timm itself or from a file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from errors import UserError
from models.pretrained import StartWeights, weights_in
from models.timm_backbone import TimmBackbone, create

PREFIX = "backbone.body."  # of the names in a Segmenter
OURS = "backbone."  # how names begin in a checkpoint of a Segmenter


def read_timm_weights(backbone: nn.Module, pretrained: str, read: Callable[[Path], dict]) -> StartWeights:
    """Return the weights of --pretrained for a timm network: "none" (empty), "imagenet", or a file, read by `read`.

    "imagenet" are the weights that timm offers under the network's name, from its download or timm's cache. A file is
    one of ours, or one of timm's network (.pth, .bin or .safetensors); one with other names, such as another library's,
    is used if all its tensors have the shapes of timm's, in timm's order. timm adapts the first convolution to the
    number of channels, and position embeddings to the size. Raises UserError if that fails.
    """
    assert isinstance(backbone, TimmBackbone)
    if pretrained.lower() == "none":
        return StartWeights("none", {})
    source, content = pretrained, None
    if pretrained == "imagenet":
        source = f"timm ({backbone.name})"
    elif pretrained == "imagenet_v1":
        raise UserError(
            "--pretrained imagenet_v1: only torchvision's ResNet has these weights: use imagenet, or a FILE"
        )
    else:
        content = _read(Path(pretrained), read)
        if any(name.removeprefix("module.").startswith(OURS) for name in content):
            return StartWeights(source, content)
        content = _renamed(content, backbone.body)
    options: dict[str, Any] = {"pretrained": True}
    if content is not None:
        options["pretrained_cfg_overlay"] = {"state_dict": content, "custom_load": False}
    elif not backbone.body.pretrained_cfg.get("hf_hub_id") and not backbone.body.pretrained_cfg.get("url"):
        raise UserError(f"--pretrained imagenet: timm has no weights of {backbone.name}: give a FILE, or use none")
    try:
        body = create(backbone.name, backbone.facts, **options)
    except (OSError, RuntimeError, ValueError, LookupError, AttributeError) as error:  # no network; weights do not fit
        problem = " ".join(str(error).split())[:160]
        remedy = "connect, give a FILE, or use --pretrained none" if content is None else "give a file of this network"
        raise UserError(
            f"--pretrained {pretrained}: no weights for timm:{backbone.name} ({problem}): {remedy}"
        ) from None
    return StartWeights(source, {PREFIX + name: value for name, value in body.state_dict().items()})


def _read(path: Path, read: Callable[[Path], dict]) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return weights_in(read(path))
    import safetensors.torch  # timm needs the package, segtrain does not

    if not path.is_file():
        raise UserError(f"--pretrained {path}: no such file")
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise UserError(f"--pretrained {path}: not a whole safetensors file ({error})") from None


def _renamed(content: Mapping[str, Tensor], body: nn.Module) -> dict[str, Tensor]:
    """Return the content under the names of `body` if no name of it is known but all shapes agree in order."""
    names = body.state_dict()
    if any(name.removeprefix("module.") in names for name in content):
        return dict(content)
    pairs = list(zip(names.items(), content.values(), strict=False))
    if len(content) < len(names) or any(ours.shape != value.shape for (_, ours), value in pairs):
        return dict(content)
    return {name: value for (name, _), value in pairs}

"""Weights from elsewhere: ours, torchvision's, or a released CDSP checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from errors import UserError
from models.backbone import imagenet_weights

IMAGENET_VERSIONS = {"imagenet": "DEFAULT", "imagenet_v1": "IMAGENET1K_V1"}

# {prefix of names in a released CDSP file: our prefix}, of which the first match counts. Its ResNet has no prefix.
CDSP_PARTS = {
    "layer_pred0.prject.0.": "head.aspp.conv1.", "layer_pred0.prject.1.": "head.aspp.bn1.",
    "layer_pred0.": "head.aspp.", "layer5.": "head.aspp.",
    "reduce.": "head.reduce.", "fuse.": "head.fuse.", "classifier.": "head.classifier.",
    "layer_camatt.": "lorm.", "layer_lorm.": "lorm.",
}  # fmt: skip
CDSP_HEADS = ("layer_pred0.aspp1.", "layer5.aspp1.")  # every released file has one of them, and no other file
RESNET_PARTS = ("conv1.", "bn1.", "layer1.", "layer2.", "layer3.", "layer4.")
STRIDE_IS_SET = "{path} has the weight names of a released CDSP file: --stride_in_1x1 is set"


class StartWeights(NamedTuple):
    """Weights that a new run starts from, and where they come from: torchvision's name for them, a file, or "none"."""

    source: str
    state_dict: dict[str, Tensor]


def read_start_weights(pretrained: str, layers: int, read: Callable[[Path], dict]) -> StartWeights:
    """The weights of --pretrained: "none", "imagenet", "imagenet_v1", or a file, read by `read`.

    Raises UserError where they cannot be read or downloaded.
    """
    if pretrained.lower() == "none":
        return StartWeights("none", {})
    if pretrained not in IMAGENET_VERSIONS:
        return StartWeights(pretrained, weights_in(read(Path(pretrained))))
    try:
        return StartWeights(*imagenet_weights(layers, IMAGENET_VERSIONS[pretrained]))
    except (OSError, RuntimeError) as error:  # no network, no space, a broken download
        raise UserError(
            f"--pretrained {pretrained}: ResNet-{layers}'s weights cannot be downloaded ({str(error).splitlines()[0]}): "
            "connect, give a FILE, or use --pretrained none"
        ) from None


def load_start_weights(model: nn.Module, start: StartWeights, layers: int) -> str:
    """Copy the weights that fit, and return a line about them. Raises UserError where none fits."""
    if start.source == "none":
        return "start weights: random (--pretrained none)"
    num_copied, missing, unused = load_weights(model, start.state_dict)
    if num_copied == 0:
        raise UserError(f"--pretrained {start.source}: none of its weights fits --model_type and --layers {layers}")
    return (
        f"start weights: {num_copied} from {start.source}; left random: {_summary(missing)}; "
        f"in the file but not used: {_summary(unused)}"
    )


def released_type(state_dict: dict[str, Tensor]) -> str | None:
    """The --model_type of a released CDSP file, from its weight names; None for any other file."""
    names = [name.removeprefix("module.") for name in state_dict]
    if not any(name.startswith(CDSP_HEADS) for name in names):
        return None
    head = "deeplabv3p_cdsp" if any(name.startswith("layer_pred0.prject.") for name in names) else "res50_ASPP"
    return head + ("_lorm" if any(name.startswith(("layer_camatt.", "layer_lorm.")) for name in names) else "")


def needs_stride_in_1x1(state_dict: dict[str, Tensor], path: str) -> bool:
    """Whether the weights of a file belong to a backbone with --stride_in_1x1: those of a released CDSP file do.

    Raises UserError on a released ResNet-18 or 34: there the first convolution of a block is not dilated; ours is.
    """
    if released_type(state_dict) is None:
        return False
    if not any(name.endswith("layer1.0.conv3.weight") for name in state_dict):
        raise UserError(
            f"{path}: a released CDSP file of ResNet-18 or 34, whose blocks are dilated differently from ours; use one of "
            "ResNet-50, 101 or 152"
        )
    return True


def weights_in(content: dict, *, averaged: bool = True) -> dict[str, Tensor]:
    """The weights in a file's content: ours, CDSP's or torchvision's.

    averaged: of ours rather the average than the weights themselves, where there is one: it is what was validated.
    """
    parts = [content.get(name) for name in (["ema"] if averaged else []) + ["model", "state_dict"]]
    weights = next((part for part in parts if isinstance(part, dict)), content)
    return {name: value for name, value in weights.items() if isinstance(value, Tensor) and isinstance(name, str)}


def _summary(names: list[str]) -> str:
    """All names if few, else how many of each part of the model."""
    if len(names) <= 6:
        return ", ".join(names) or "none"
    parts = [".".join(name.split(".")[:2]) if name.startswith("backbone.") else name.split(".")[0] for name in names]
    return ", ".join(f"{part} ({parts.count(part)})" for part in dict.fromkeys(parts))


def load_weights(model: nn.Module, state_dict: dict[str, Tensor]) -> tuple[int, list[str], list[str]]:
    """Copy all weights whose name and shape fit; `module.` in front of a name is dropped.

    Returns how many were copied, and what did not match: the model's names that got no value, and the
    file's names that were not used. torchvision's classifier (fc.*), no part of a segmentation model, is neither.
    """
    ours = model.state_dict()
    parts = CDSP_PARTS if released_type(state_dict) else {}
    given = {_our_name(name.removeprefix("module."), parts): value for name, value in state_dict.items()}
    given = {name: value for name, value in given.items() if not name.startswith("fc.")}
    fitting = {name: value for name, value in given.items() if name in ours and ours[name].shape == value.shape}
    model.load_state_dict(fitting, strict=False)
    # Some files were saved without the batch counters, which nothing depends on.
    missing = [name for name in ours if name not in fitting and not name.endswith("num_batches_tracked")]
    return len(fitting), missing, [name for name in given if name not in fitting]


def _our_name(name: str, parts: dict[str, str]) -> str:
    for theirs, part in parts.items():
        if name.startswith(theirs):
            return part + name.removeprefix(theirs)
    return f"backbone.{name}" if name.startswith(RESNET_PARTS) else name

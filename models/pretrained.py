"""Weights from elsewhere: ours, torchvision's, or a released CDSP checkpoint."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from errors import UserError
from models.backbone import imagenet_weights

# Names of the parts in a released CDSP file, and ours. There, the ResNet's layers have no part's name in front.
CDSP_PARTS = {"layer_pred0.": "head.aspp.", "layer_camatt.": "lorm."}
RESNET_PARTS = ("conv1.", "bn1.", "layer1.", "layer2.", "layer3.", "layer4.")


def load_start_weights(model: nn.Module, source: str, layers: int, read: Callable[[Path], dict]) -> str:
    """Give the model the weights of --pretrained: "none", "imagenet", or a file, read by `read`.

    Returns a line on what was copied. Raises UserError where nothing fits or nothing can be had.
    """
    if source.lower() == "none":
        return "start weights: random (--pretrained none)"
    if source == "imagenet":
        try:
            state_dict = imagenet_weights(layers)
        except (OSError, RuntimeError) as error:  # no network, no space, a broken download
            raise UserError(
                f"--pretrained imagenet: ResNet-{layers}'s weights cannot be downloaded ({str(error).splitlines()[0]}): "
                "connect, give a FILE, or use --pretrained none"
            ) from None
    else:
        state_dict = weights_in(read(Path(source)))
    num_copied, missing, unused = load_weights(model, state_dict)
    if num_copied == 0:
        raise UserError(f"--pretrained {source}: none of its weights fits --model_type and --layers {layers}")
    return (
        f"start weights: {num_copied} from {source}; left random: {_summary(missing)}; "
        f"in the file but not used: {_summary(unused)}"
    )


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
    given = {_our_name(name.removeprefix("module.")): value for name, value in state_dict.items()}
    given = {name: value for name, value in given.items() if not name.startswith("fc.")}
    fitting = {name: value for name, value in given.items() if name in ours and ours[name].shape == value.shape}
    model.load_state_dict(fitting, strict=False)
    # Some files were saved without the batch counters, which nothing depends on.
    missing = [name for name in ours if name not in fitting and not name.endswith("num_batches_tracked")]
    return len(fitting), missing, [name for name in given if name not in fitting]


def _our_name(name: str) -> str:
    for theirs, part in CDSP_PARTS.items():
        if name.startswith(theirs):
            return part + name.removeprefix(theirs)
    return f"backbone.{name}" if name.startswith(RESNET_PARTS) else name

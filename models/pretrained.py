"""Weights from elsewhere: ours, torchvision's, or a released CDSP checkpoint."""

from torch import Tensor, nn

# Names of the parts in a released CDSP file, and ours. There, the ResNet's layers have no part's name in front.
CDSP_PARTS = {"layer_pred0.": "head.aspp.", "layer_camatt.": "lorm."}
RESNET_PARTS = ("conv1.", "bn1.", "layer1.", "layer2.", "layer3.", "layer4.")


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

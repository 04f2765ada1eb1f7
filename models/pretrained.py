"""Read start weights from our checkpoints, torchvision's, or released CDSP checkpoints."""

import errno
import re
import socket
from collections import Counter
from typing import Any, NamedTuple
from urllib.error import URLError

import torch
from torch import Tensor, nn

from support.errors import UserError
from support.log import log

# {--pretrained: (torchvision's network, its weights)}
DOWNLOADS = {
    "imagenet": ("resnet", "DEFAULT"),
    "imagenet_v1": ("resnet", "IMAGENET1K_V1"),
    "coco": ("deeplabv3_resnet", "COCO_WITH_VOC_LABELS_V1"),
}
STALL_SECONDS = 60.0  # a download fails after this long without data

# {prefix in a released CDSP file: our prefix}; the first match counts. The file's ResNet has no prefix.
CDSP_PARTS = {"layer_pred0.prject.0.": "head.aspp.conv1.", "layer_pred0.prject.1.": "head.aspp.bn1."}
CDSP_PARTS |= {"layer_pred0.": "head.aspp.", "layer5.": "head.aspp.", "layer_camatt.": "lorm.", "layer_lorm.": "lorm."}
CDSP_PARTS |= {part: f"head.{part}" for part in ("reduce.", "fuse.", "classifier.")}
CDSP_HEADS = ("layer_pred0.aspp1.", "layer5.aspp1.")  # every released file has one of these, and no other file
# The same for torchvision's DeepLabV3. In its ASPP, each of the branches 0 to 3 has parts 0 (convolution) and 1 (norm).
TORCHVISION_TYPE, TORCHVISION_ASPP = "deeplabv3_torchvision", "classifier.0.convs."
TORCHVISION_PARTS = {f"{TORCHVISION_ASPP}{n}.0.": f"head.aspp.aspp{n + 1}.atrous_conv." for n in range(4)}
TORCHVISION_PARTS |= {f"{TORCHVISION_ASPP}{n}.1.": f"head.aspp.aspp{n + 1}.bn." for n in range(4)}
TORCHVISION_PARTS |= {f"{TORCHVISION_ASPP}4.": "head.aspp.global_avg_pool."}
TORCHVISION_PARTS |= {"classifier.0.project.0.": "head.aspp.conv1.", "classifier.0.project.1.": "head.aspp.bn1."}
TORCHVISION_PARTS |= {"classifier.1.": "head.classifier.2.0.", "classifier.2.": "head.classifier.2.1."}
TORCHVISION_PARTS |= {"classifier.4.": "head.classifier.3."}
WRAPPERS = ("module", "_orig_mod", "model")  # by DistributedDataParallel, torch.compile and most Lightning modules
AUXILIARY = "aux_classifier."  # torchvision's second head, which only helps to train
RESNET_PARTS = {part: f"backbone.{part}" for part in ("conv1.", "bn1.", "layer1.", "layer2.", "layer3.", "layer4.")}
# {(the last block of a ResNet's layer3, whether blocks have three convolutions): --layers}
DEPTHS = {(1, False): 18, (5, False): 34, (5, True): 50, (22, True): 101, (35, True): 152}


class StartWeights(NamedTuple):
    """The weights that a new run starts from, and their source. An empty state_dict means random weights.

    other_flags: the flags of the weights' network whose values differ from this run's, as words of a command line.
    """

    source: str
    state_dict: dict[str, Tensor]
    other_flags: str = ""


def resnet_weights(pretrained: str, layers: int, content: dict[str, Any]) -> StartWeights:
    """Return the start weights of a ResNet. Raises UserError if downloading fails.

    pretrained: "none" (no weights), a key of DOWNLOADS, or a file's name; `content` is then what the file holds.
    """
    if pretrained == "none":
        return StartWeights("none", {})
    if pretrained not in DOWNLOADS:
        return StartWeights(pretrained, weights_in(content))
    import torchvision  # imported here because it takes more than a second

    network, version = DOWNLOADS[pretrained]
    weights = torchvision.models.get_model_weights(f"{network}{layers}")[version]
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)  # torch.hub sets no timeout and would wait forever
    try:
        download = torch.hub.load_state_dict_from_url  # once, to torch's cache
        return StartWeights(str(weights), download(weights.url, map_location="cpu", weights_only=True, check_hash=True))
    except (OSError, RuntimeError) as error:  # no network, no space, a broken download
        raise UserError(
            f"--pretrained {pretrained}: its weights cannot be downloaded ({str(error).splitlines()[0]}): "
            f"{remedy(error, 'TORCH_HOME')}, give the FILE {weights.url}, or use --pretrained none"
        ) from None
    finally:
        socket.setdefaulttimeout(timeout)


def remedy(error: Exception, variable: str) -> str:
    """Return the remedy for a failed download. variable: environment variable that names the cache's folder."""
    is_disk = isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT))
    if is_disk and not isinstance(error, URLError):
        return f"set the environment variable {variable} to a folder that can be written"
    return "connect to the network"


def load_start_weights(model: nn.Module, start: StartWeights, network: str) -> str:
    """Copy the start weights that fit into the model, and return a line for the log. network: its name for people.

    Log a warning if only a part of the backbone's weights fits. Raises UserError if none fits.
    """
    if start.source == "none":
        return "start weights: random (--pretrained none)"
    num_copied, missing, unused = load_weights(model, start.state_dict)
    backbone = [name for name, _ in model.named_parameters() if name.startswith("backbone.")]
    advice = f"use {start.other_flags}" if start.other_flags else "check --backbone (resnet or timm:NAME) and --layers"
    such = f" (the file's names are such as {next(iter(start.state_dict))})" if start.state_dict else ""
    if num_copied == 0 or (backbone and set(backbone) <= set(missing)):
        raise UserError(f"--pretrained {start.source}: none of its backbone's weights fits: {advice}{such}")
    if odd := sum(name.startswith("backbone.") for name in (*missing, *unused)):
        problem = f"{odd} backbone weights are missing, of other shapes or not used"
        log.warning(f"--pretrained {start.source} does not fit {network} ({problem}): {advice}")
    return (
        f"start weights: {num_copied} from {start.source}; left random: {_summarise(missing)}; "
        f"in the file but not used: {_summarise(unused)}"
    )


def resnet_depth(state_dict: dict[str, Tensor]) -> int | None:
    """Return the --layers of a torchvision ResNet, from its weight names; None for other networks."""
    blocks = [int(match[1]) for name in state_dict if (match := re.search(r"\blayer3\.(\d{1,3})\.conv1\.", name))]
    return DEPTHS.get((max(blocks, default=0), any("layer3.0.conv3." in name for name in state_dict)))


def released_type(state_dict: dict[str, Tensor]) -> str | None:
    """Return the --model_type of a file that CDSP or torchvision released, from its weight names; None for others."""
    names = list(state_dict)
    if any(name.startswith(TORCHVISION_ASPP) for name in names):
        return TORCHVISION_TYPE
    if not any(name.startswith(CDSP_HEADS) for name in names):
        return None
    head = "deeplabv3p_cdsp" if any(name.startswith("layer_pred0.prject.") for name in names) else "res50_ASPP"
    return head + ("_lorm" if any(name.startswith(("layer_camatt.", "layer_lorm.")) for name in names) else "")


def is_cdsp_file(state_dict: dict[str, Tensor]) -> bool:
    """Return whether the weights are of a released CDSP file, whose backbone needs --stride_in_1x1."""
    return released_type(state_dict) not in (None, TORCHVISION_TYPE)


def refuse_other_head(state_dict: dict[str, Tensor], path: str, model_type: str) -> None:
    """Raise UserError if the weights are torchvision's DeepLabV3 and model_type is not, as its dilations differ.

    path: for the message.
    """
    if released_type(state_dict) == TORCHVISION_TYPE != model_type:
        raise UserError(
            f"{path}: a file of torchvision's DeepLabV3: use --model_type {TORCHVISION_TYPE}, with --layers 50 or 101"
        )


def weights_in(content: dict, *, averaged: bool = True) -> dict[str, Tensor]:
    """Return {name: tensor} from our checkpoints, CDSP's or torchvision's. averaged: prefer EMA weights, if any."""
    parts = [content.get(name) for name in (["ema"] if averaged else []) + ["model", "state_dict"]]
    weights = next((part for part in parts if isinstance(part, dict)), content)
    tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor) and isinstance(name, str)}
    return tensors if "config" in content else unwrapped(tensors)  # our checkpoints have the model's own names


def unwrapped(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights without the names of wrapping modules, such as Lightning's `model.`, in front of theirs.

    Wrappers are WRAPPERS, and any other name that most weights begin with and that a part of our models follows.
    """
    modules = Counter(name.partition(".")[0] for name in weights if "." in name)
    first, number = modules.most_common(1)[0] if modules else ("", 0)
    inner = re.compile(rf"{re.escape(first)}\.(\w+\.)*(backbone|layer4)\.")
    is_wrapper = first in WRAPPERS or any(map(inner.match, weights))
    if first == "backbone" or not is_wrapper or 2 * number < len(weights):
        return weights
    return unwrapped({name.removeprefix(f"{first}."): value for name, value in weights.items()})


def load_weights(model: nn.Module, state_dict: dict[str, Tensor]) -> tuple[int, list[str], list[str]]:
    """Copy all weights with a matching name and shape into the model. No integer is copied to a float.

    Return (number copied, the model's names without a value, the file's unused names but torchvision's classifiers).
    """
    wanted = {name: (value.shape, value.is_floating_point()) for name, value in model.state_dict().items()}
    prefixes = {None: {}, TORCHVISION_TYPE: TORCHVISION_PARTS}.get(released_type(state_dict), CDSP_PARTS) | RESNET_PARTS
    renamed = {_our_name(name, prefixes): value for name, value in state_dict.items()}
    fitting = {
        name: value for name, value in renamed.items() if wanted.get(name) == (value.shape, value.is_floating_point())
    }
    model.load_state_dict(fitting, strict=False)
    # Some files were saved without the batch counters; nothing depends on them.
    missing = [name for name in wanted if name not in fitting and not name.endswith("num_batches_tracked")]
    ignored = ("fc.", AUXILIARY)
    return len(fitting), missing, [name for name in renamed if name not in fitting and not name.startswith(ignored)]


def _our_name(name: str, prefixes: dict[str, str]) -> str:
    prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
    return prefixes.get(prefix, "") + name.removeprefix(prefix)


def _summarise(names: list[str]) -> str:
    """Return all names, comma-separated, if there are at most 6, else their number in each part of the model."""
    if len(names) <= 6:
        return ", ".join(names) or "none"
    parts = [".".join(name.split(".")[:2]) if name.startswith("backbone.") else name.split(".")[0] for name in names]
    return ", ".join(f"{part} ({parts.count(part)})" for part in dict.fromkeys(parts))

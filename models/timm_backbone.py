"""timm's networks (github.com/huggingface/pytorch-image-models) as backbones, by --backbone timm:NAME."""

import copy
import difflib
import functools
import itertools
import math
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.backbone import Backbone, cut_padding, pad_to_multiple
from models.layers.blocks import use_our_layers
from support import shell
from support.errors import UserError

OLDEST = "1.0.31"  # in earlier versions of timm, some networks lack forward_intermediates(), or have a wrong one
FINEST = 4  # stride of the finest features that heads take
# Options that make a network accept images of any size, the most general first.
ANY_SIZE: tuple[dict[str, Any], ...] = ({"dynamic_img_size": True}, {"strict_img_size": False}, {})
PROBES = ((224, 224), (225, 161), (97, 353))  # (height, width) of images that tell what a network can do
# Exceptions that timm and its networks raise on an option or an image that they do not support.
REFUSED = (TypeError, AssertionError, NotImplementedError, RuntimeError, ValueError)


class TimmBackbone(Backbone):
    """A timm network without its classifier, with random weights. Its parameters are named body.NAME, with timm's NAME.

    name: timm's, such as "resnet50" or "vit_small_patch14_dinov2.lvd142m". output_stride: 8, 16 or 32; 0 means 16 if
    the network supports it, else its own. A network with one stride, such as a ViT, has one map of features; its
    position embeddings are resized to the image. Raises UserError if timm is missing or lacks the name, or if the
    network does not support the output stride or images of any size.
    """

    def __init__(self, name: str, *, output_stride: int = 0):
        super().__init__()
        self.name, self.output_stride = name, output_stride
        self.facts = _find_facts(name, output_stride)
        self.body: Any = create(name, self.facts)
        self.channels, self.strides = self.facts.channels, self.facts.strides
        settings: Any = self.body.pretrained_cfg
        self.mean, self.std = (tuple(settings[key]) for key in ("mean", "std"))
        use_our_layers(self.body)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return features from the finest (stride 4, or the network's finest if coarser) to the deepest.

        images: normalised, (B, 3, H, W); padded at the bottom and right with 0, the mean colour, to sizes that fit.
        """
        return _features(self.body, images, self.facts)

    def depths(self) -> dict[str, int]:
        # timm's stages, or a ViT's blocks
        try:
            groups = _timm().models.group_parameters(self.body, self.body.group_matcher(coarse=True))
        except (AttributeError, AssertionError):  # a few networks define no groups
            return super().depths()
        return {f"body.{name}": depth for depth, names in groups.items() for name in names}

    def freeze_unused(self, head: nn.Module) -> None:
        backbone, head = (copy.deepcopy(part).to("meta").train() for part in (self, head))
        head(backbone(torch.empty(2, 3, *PROBES[0], device="meta"))).sum().backward()
        for parameter, copied in zip(self.parameters(), backbone.parameters(), strict=True):
            if copied.grad is None:
                parameter.requires_grad_(False)


class NetworkFacts(NamedTuple):
    """How to build a network, and what its features are.

    options: for timm.create_model. indices: the features to take. channels, strides: one per index. norm: whether the
    network can normalise them. multiple: image sides must be multiples of this.
    """

    options: dict[str, Any]
    indices: list[int]
    channels: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    norm: bool = True
    multiple: int = 1


def create(name: str, facts: NetworkFacts, **options) -> nn.Module:
    """Return the timm network without its classifier and what the features of `facts` do not need."""
    body: Any = _timm().create_model(name, num_classes=0, **facts.options, **options)
    body.prune_intermediate_layers(facts.indices, prune_norm=not facts.norm)
    return body


@functools.cache
def _find_facts(name: str, output_stride: int) -> NetworkFacts:
    """Find a network's facts by trying images on the meta device. Raises UserError as TimmBackbone does."""
    body, options = _whole_on_meta(name, output_stride)
    if any(parameter.dim() > 4 for parameter in body.parameters()):  # LambdaResNets
        raise UserError(f"--backbone timm:{name}: has 3-D convolutions, which cannot be channels-last: choose another")
    number = len(body.feature_info)
    multiples = 1, *sorted({info["reduction"] for info in body.feature_info})
    for norm, multiple in itertools.product((True, False), multiples):
        facts = NetworkFacts(options, list(range(number)), norm=norm, multiple=multiple)
        shapes = [_shapes(body, facts, size) for size in PROBES]
        if all(shapes) and shapes[0] != shapes[1]:  # CrossViT resizes all images to one size
            strides = [2 ** round(math.log2(PROBES[0][0] / shape[2])) for shape in shapes[0]]
            # Of the features with one stride, heads take the last, and none finer than FINEST.
            by_stride = {
                stride: index for index, stride in enumerate(strides) if stride >= FINEST or index == number - 1
            }
            indices = sorted(by_stride.values())
            channels = tuple(shapes[0][index][1] for index in indices)
            return facts._replace(indices=indices, channels=channels, strides=tuple(strides[i] for i in indices))
    raise UserError(f"--backbone timm:{name}: takes images of one size only: choose a network that takes any size")


def _whole_on_meta(name: str, output_stride: int) -> tuple[Any, dict[str, Any]]:
    """Return the network without its classifier on the meta device, and the options that make it."""
    timm = _timm()
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3) or ["resnet50", "convnext_tiny"]
        raise UserError(f"--backbone timm:{name}: timm {timm.__version__} has no such network: try {', '.join(near)}")
    dilations = [{"output_stride": output_stride}] if output_stride else [{"output_stride": 16}, {}]
    for dilation, size in itertools.product(dilations, ANY_SIZE):
        options = {**dilation, **size}
        try:
            with torch.device("meta"):
                return timm.create_model(name, num_classes=0, **options), options
        except REFUSED as error:
            problem = " ".join(str(error).split())
    if not output_stride:
        raise UserError(f"--backbone timm:{name}: timm cannot build it ({problem}): choose another network or tag")
    raise UserError(
        f"--output_stride {output_stride}: timm:{name} has a stride of its own, which cannot be changed: drop the flag"
    )


def _shapes(body: Any, facts: NetworkFacts, size: tuple[int, int]) -> list[torch.Size]:
    """Return the shapes of the features of an image of `size`; [] if the network does not support the size."""
    try:
        # In evaluation, because batch norm refuses to train on one position, which stride 32 leaves of 32 pixels.
        return [x.shape for x in _features(body.eval(), torch.empty(1, 3, *size, device="meta"), facts)]
    except REFUSED:
        return []


def _features(body: Any, images: Tensor, facts: NetworkFacts) -> tuple[Tensor, ...]:
    padded = pad_to_multiple(images, facts.multiple)
    features = body.forward_intermediates(
        padded, indices=facts.indices, norm=facts.norm, output_fmt="NCHW", intermediates_only=True
    )
    return tuple(cut_padding(x, images, padded) for x in features)


def _timm() -> Any:
    timm = shell.import_extra("timm", "timm", "--backbone timm:NAME")  # imported here, as it takes a second
    installed, oldest = ([int(part) for part in re.findall(r"\d+", text)[:3]] for text in (timm.__version__, OLDEST))
    if installed < oldest:
        remedy = shell.install_command("timm")
        raise UserError(f"--backbone timm:NAME needs timm {OLDEST} or newer, not {timm.__version__}: {remedy}")
    return timm

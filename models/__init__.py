"""Models by their --model_type."""

import copy
from typing import NamedTuple

import torch
from torch import nn

from models.backbone import MULTI_GRID, Backbone, Dilations, ResNetBackbone
from models.heads import (
    ASPPHead,
    CDSPDeepLabV3PlusHead,
    DeepLabV2Head,
    DeepLabV3Head,
    DeepLabV3PlusHead,
    DeepLabV3PlusMultiHead,
)
from models.segmenter import Segmenter
from models.timm_backbone import PROBES, TimmBackbone

RESNET, TIMM = "resnet", "timm:"  # --backbone resnet, or timm:NAME


class ModelType(NamedTuple):
    """The head of a --model_type, and what it needs of its backbone.

    has_lorm: the model has LoRM. dilations, ceil_mode: as in ResNetBackbone.
    """

    head: type[nn.Module]
    has_lorm: bool = False
    dilations: Dilations = MULTI_GRID
    ceil_mode: bool = True


MODELS = {
    "res50_ASPP_lorm": ModelType(ASPPHead, has_lorm=True),
    "res50_ASPP": ModelType(ASPPHead),
    "deeplabv3": ModelType(DeepLabV3Head),
    "deeplabv3_torchvision": ModelType(DeepLabV3Head, dilations=((1, 2), (2, 4)), ceil_mode=False),
    "deeplabv3p": ModelType(DeepLabV3PlusHead),
    "deeplabv3p_lorm": ModelType(DeepLabV3PlusHead, has_lorm=True),
    "deeplabv3p_cdsp": ModelType(CDSPDeepLabV3PlusHead),
    "deeplabv3p_cdsp_lorm": ModelType(CDSPDeepLabV3PlusHead, has_lorm=True),
    "deeplabv2": ModelType(DeepLabV2Head, dilations=((2,), (4,))),
    "deeplabv3p_multi": ModelType(DeepLabV3PlusMultiHead),
    "deeplabv3p_multi_lorm": ModelType(DeepLabV3PlusMultiHead, has_lorm=True),
}


def build(
    name: str,
    *,
    num_classes: int,
    backbone: str = RESNET,
    layers: int = 50,
    output_stride: int = 0,
    stride_in_1x1: bool = False,
    grad_checkpointing: bool = False,
    lorm_scope: str = "foreground",
    head_init: str = "default",
    **options,
) -> Segmenter:
    """Return a Segmenter with random weights. name: a key of MODELS. backbone: RESNET, or TIMM and a name of timm.

    layers: depth of the ResNet: 18, 34, 50, 101 or 152. output_stride: as in TimmBackbone. head_init: initialisation of
    the head and LoRM, "default" (torch's) or "release" (init_as_released()). stride_in_1x1 and
    grad_checkpointing: as in ResNetBackbone. lorm_scope: as in LoRM. options: head_channels, freeze_bn and
    freeze_backbone, as in Segmenter. Raises UserError as TimmBackbone does.
    """
    kind = MODELS[name]
    common: dict = {"grad_checkpointing": grad_checkpointing}
    features: Backbone
    if backbone == RESNET:
        common |= {"dilations": kind.dilations, "ceil_mode": kind.ceil_mode, "stride_in_1x1": stride_in_1x1}
        features = ResNetBackbone(layers, **common)
    else:
        features = TimmBackbone(backbone.removeprefix(TIMM), output_stride=output_stride, **common)
    model = Segmenter(features, kind.head, num_classes, lorm_scope=lorm_scope if kind.has_lorm else None, **options)
    if head_init == "release":
        init_as_released(model)
    return model


def freeze_unused(model: Segmenter) -> None:
    """Turn off the gradients of a timm network's parameters that the logits do not depend on.

    DistributedDataParallel would wait for them.
    """
    if isinstance(model.backbone, TimmBackbone):
        copied = copy.deepcopy(model).to("meta").train()
        copied(torch.empty(2, *PROBES[0], 3, device="meta"))["logits"].sum().backward()
        used = {name for name, parameter in copied.backbone.named_parameters() if parameter.grad is not None}
        for name, parameter in model.backbone.named_parameters():
            if name not in used:
                parameter.requires_grad_(False)


def init_as_released(model: Segmenter) -> None:
    """Initialise the convolutions of the head and LoRM again, as the released CDSP code does.

    A k x k convolution's weights come from N(0, 2 / (k^2 C_out)): Kaiming's normal distribution over fan-out. LoRM's
    biases are 0. Batch norm and the classifier's bias keep torch's initialisation, as in the release.
    """
    for part in filter(None, (model.head, model.lorm)):
        for module in part.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if part is model.lorm and module.bias is not None:
                    nn.init.zeros_(module.bias)

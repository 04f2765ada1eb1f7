"""Models by their --model_type."""

from typing import NamedTuple

from torch import nn

from models.aspp import ASPPHead, CDSPDeepLabV3PlusHead, DeepLabV2Head, DeepLabV3Head, DeepLabV3PlusHead
from models.backbone import MULTI_GRID, ResNetBackbone
from models.segmenter import Segmenter


class ModelType(NamedTuple):
    """The head of a --model_type, whether it has LoRM, and `multi_grid`, the dilations of layer4's blocks."""

    head: type[nn.Module]
    has_lorm: bool = False
    multi_grid: tuple[int, ...] = MULTI_GRID


MODELS = {
    "res50_ASPP_lorm": ModelType(ASPPHead, has_lorm=True),
    "res50_ASPP": ModelType(ASPPHead),
    "deeplabv3": ModelType(DeepLabV3Head),
    "deeplabv3p": ModelType(DeepLabV3PlusHead),
    "deeplabv3p_lorm": ModelType(DeepLabV3PlusHead, has_lorm=True),
    "deeplabv3p_cdsp": ModelType(CDSPDeepLabV3PlusHead),
    "deeplabv3p_cdsp_lorm": ModelType(CDSPDeepLabV3PlusHead, has_lorm=True),
    "deeplabv2": ModelType(DeepLabV2Head, multi_grid=(4, 4, 4)),
}


def build(
    name: str,
    *,
    layers: int,
    num_classes: int,
    in_channels: int = 3,
    stride_in_1x1: bool = False,
    grad_checkpointing: bool = False,
    lorm_scope: str = "foreground",
    head_init: str = "default",
    **options,
) -> Segmenter:
    """Return a Segmenter with random weights. name: a key of MODELS. layers: 18, 34, 50, 101 or 152.

    head_init: initialisation of the head and LoRM, "default" (torch's) or "release" (init_as_released()). in_channels,
    stride_in_1x1 and grad_checkpointing: as in ResNetBackbone. lorm_scope: as in LoRM. options: background,
    freeze_bn and freeze_backbone, as in Segmenter.
    """
    kind = MODELS[name]
    backbone = ResNetBackbone(
        layers,
        in_channels=in_channels,
        multi_grid=kind.multi_grid,
        stride_in_1x1=stride_in_1x1,
        grad_checkpointing=grad_checkpointing,
    )
    model = Segmenter(backbone, kind.head, num_classes, lorm_scope=lorm_scope if kind.has_lorm else None, **options)
    if head_init == "release":
        init_as_released(model)
    return model


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

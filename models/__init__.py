"""Models by their name in --model_type."""

from models.aspp import ASPPHead, DeepLabV2Head, DeepLabV3Head, DeepLabV3PlusHead
from models.backbone import MULTI_GRID, ResNetBackbone
from models.segmenter import Segmenter

# name: head, whether it has LoRM, dilations of layer4's blocks
MODELS = {
    "res50_ASPP_lorm": (ASPPHead, True, MULTI_GRID),
    "res50_ASPP": (ASPPHead, False, MULTI_GRID),
    "deeplabv3": (DeepLabV3Head, False, MULTI_GRID),
    "deeplabv3p": (DeepLabV3PlusHead, False, MULTI_GRID),
    "deeplabv3p_lorm": (DeepLabV3PlusHead, True, MULTI_GRID),
    "deeplabv2": (DeepLabV2Head, False, (4, 4, 4)),
}


def build(
    name: str,
    *,
    layers: int,
    num_classes: int,
    stride_in_1x1: bool = False,
    freeze_bn: bool = False,
    grad_checkpointing: bool = False,
) -> Segmenter:
    """A model with random weights; name from MODELS, layers 18, 34, 50, 101 or 152."""
    head, lorm, multi_grid = MODELS[name]
    backbone = ResNetBackbone(
        layers, multi_grid=multi_grid, stride_in_1x1=stride_in_1x1, grad_checkpointing=grad_checkpointing
    )
    return Segmenter(backbone, head, num_classes, lorm=lorm, freeze_bn=freeze_bn)

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
    lorm_scope: str = "foreground",
    background: int | None = 0,
) -> Segmenter:
    """A model with random weights; name from MODELS, layers 18, 34, 50, 101 or 152. The rest is as in Segmenter."""
    head, has_lorm, multi_grid = MODELS[name]
    backbone = ResNetBackbone(
        layers, multi_grid=multi_grid, stride_in_1x1=stride_in_1x1, grad_checkpointing=grad_checkpointing
    )
    scope = lorm_scope if has_lorm else None
    return Segmenter(backbone, head, num_classes, lorm_scope=scope, background=background, freeze_bn=freeze_bn)

"""Models by their name in --model_type."""

from torch import nn

from models.aspp import ASPPHead, CDSPDeepLabV3PlusHead, DeepLabV2Head, DeepLabV3Head, DeepLabV3PlusHead
from models.backbone import MULTI_GRID, ResNetBackbone
from models.segmenter import Segmenter

# name: head, whether it has LoRM, dilations of layer4's blocks
MODELS = {
    "res50_ASPP_lorm": (ASPPHead, True, MULTI_GRID),
    "res50_ASPP": (ASPPHead, False, MULTI_GRID),
    "deeplabv3": (DeepLabV3Head, False, MULTI_GRID),
    "deeplabv3p": (DeepLabV3PlusHead, False, MULTI_GRID),
    "deeplabv3p_lorm": (DeepLabV3PlusHead, True, MULTI_GRID),
    "deeplabv3p_cdsp": (CDSPDeepLabV3PlusHead, False, MULTI_GRID),
    "deeplabv3p_cdsp_lorm": (CDSPDeepLabV3PlusHead, True, MULTI_GRID),
    "deeplabv2": (DeepLabV2Head, False, (4, 4, 4)),
}


def build(
    name: str,
    *,
    layers: int,
    num_classes: int,
    stride_in_1x1: bool = False,
    head_init: str = "default",
    freeze_bn: bool = False,
    grad_checkpointing: bool = False,
    lorm_scope: str = "foreground",
    background: int | None = 0,
) -> Segmenter:
    """A model with random weights; name from MODELS, layers 18, 34, 50, 101 or 152. The rest is as in Segmenter.

    head_init: how the head and LoRM are initialised, "default" (torch's) or "release" (`draw_as_released`).
    """
    head, has_lorm, multi_grid = MODELS[name]
    backbone = ResNetBackbone(
        layers, multi_grid=multi_grid, stride_in_1x1=stride_in_1x1, grad_checkpointing=grad_checkpointing
    )
    scope = lorm_scope if has_lorm else None
    model = Segmenter(backbone, head, num_classes, lorm_scope=scope, background=background, freeze_bn=freeze_bn)
    if head_init == "release":
        draw_as_released(model)
    return model


def draw_as_released(model: Segmenter) -> None:
    """Initialise the convolutions of the head and LoRM again, as the released CDSP code does.

    Weights come from N(0, 2 / (k^2 C_out)) for a k x k convolution, which is Kaiming's normal distribution over fan-out.
    LoRM's biases are 0. Batch norm and the classifier's bias keep torch's initialisation, as in the release.
    """
    parts = nn.ModuleDict({"head": model.head} | ({"lorm": model.lorm} if model.lorm is not None else {}))
    for module in parts.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    for name, parameter in parts.named_parameters():
        if name.startswith("lorm.") and name.endswith(".bias"):
            nn.init.zeros_(parameter)

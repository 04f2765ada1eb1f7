"""Build a model by its --model_type."""

from collections.abc import Sequence

from torch import nn

from models.backbone import Backbone, Recomputed, ResNetBackbone
from models.custom import CustomNetwork, LogitsHead
from models.heads import HEADS
from models.segmenter import Segmenter
from models.timm_backbone import TimmBackbone

RESNET, TIMM = "resnet", "timm:"  # --backbone resnet, or timm:NAME


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
    model_args: Sequence[str] = (),
    **options,
) -> Segmenter:
    """Return a Segmenter with random weights. Raises UserError as TimmBackbone and CustomNetwork do.

    name: a key of HEADS, or the source of a CustomNetwork, whose arguments model_args are. backbone: RESNET, or TIMM
    followed by timm's name. layers: depth of the ResNet: 18, 34, 50, 101 or 152. head_init: initialisation of the head
    and LoRM, "default" (torch's) or "release" (init_as_released()). output_stride: as in TimmBackbone. stride_in_1x1:
    as in ResNetBackbone. lorm_scope: as in LoRM. grad_checkpointing: in training, keep only the input of each of the
    backbone's blocks, and recompute the rest in the backward pass (arXiv:1604.06174). options: head_channels, freeze_bn
    and freeze_backbone, as in Segmenter.
    """
    head = HEADS.get(name, LogitsHead)
    if head is LogitsHead:
        encoder = str(layers) if backbone == RESNET else backbone
        features: Backbone = CustomNetwork(name, num_classes, model_args, encoder)
    elif backbone == RESNET:
        geometry: dict = {"dilations": head.dilations, "ceil_mode": head.ceil_mode, "stride_in_1x1": stride_in_1x1}
        features = ResNetBackbone(layers, **geometry)
    else:
        features = TimmBackbone(backbone.removeprefix(TIMM), output_stride=output_stride)
    for block in features.blocks() if grad_checkpointing else ():
        block.forward = Recomputed(block, draws=not isinstance(features, ResNetBackbone))
    has_lorm = head is not LogitsHead and name.endswith("_lorm")
    model = Segmenter(features, head, num_classes, lorm_scope=lorm_scope if has_lorm else None, **options)
    if head_init == "release":
        init_as_released(model)
    return model


def init_as_released(model: Segmenter) -> None:
    """Initialise the convolutions of the head and LoRM again, as the released CDSP code does.

    A k x k convolution's weights are drawn from N(0, 2 / (k^2 C_out)): Kaiming's normal distribution over fan-out.
    LoRM's biases are 0. Batch norm and the classifier's bias keep torch's initialisation, as in the release.
    """
    for part in filter(None, (model.head, model.lorm)):
        for module in part.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if part is model.lorm and module.bias is not None:
                    nn.init.zeros_(module.bias)

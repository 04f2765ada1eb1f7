"""Segmentation heads. Each maps a backbone's features, from the finest to the deepest, to logits (B, classes, h, w).

Dilations are given for stride 8. At other strides they scale, so that they cover as many pixels (arXiv:1706.05587).
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.backbone import MULTI_GRID, Dilations
from models.layers.blocks import ConvNormReLU
from models.layers.convolution import Conv2d
from models.layers.fused import is_fusable, norm_relu_conv
from models.layers.norm import BatchNorm2d

CDSP_RATES = (12, 18, 24)
CDSP_V3PLUS_RATES = (6, 12, 18)
DEEPLABV3_RATES = (12, 24, 36)  # arXiv:1706.05587 at output stride 8
DEEPLABV2_RATES = (6, 12, 18, 24)  # ASPP-L of arXiv:1606.00915


def _conv(in_channels: int, out_channels: int, kernel_size: int, dilation: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps height and width (odd kernel sizes)."""
    padding = dilation * (kernel_size // 2)
    return Conv2d(in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, bias=False)


def _conv_bn_relu(
    in_channels: int, out_channels: int, kernel_size: int, dilation: int = 1, names: Sequence[str] = ("0", "1", "2")
) -> nn.Sequential:
    """Return a convolution as _conv() makes it, batch norm and ReLU, under these names."""
    conv = _conv(in_channels, out_channels, kernel_size, dilation)
    parts = conv, BatchNorm2d(out_channels), nn.ReLU(inplace=True)
    return ConvNormReLU(OrderedDict(zip(names, parts, strict=True)))


class PooledBatchNorm(BatchNorm2d):
    """Batch norm of a 1x1 map (B, C, 1, 1), which uses its running statistics in training on a single image.

    One value per channel has no variance, so torch raises. Synchronised norms also have other ranks' values.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.synchronized and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling (arXiv:1706.05587), without an activation at the end.

    It maps (B, in_channels, h, w) to (B, out_channels, h, w). A 1x1 convolution and batch norm join a 1x1 branch, three
    dilated 3x3 branches and image pooling, each `out_channels` wide. rates: dilations at stride 8. stride: the input's.
    """

    def __init__(self, in_channels: int, out_channels: int, rates: tuple[int, int, int], stride: int = 8):
        super().__init__()
        branch = partial(_conv_bn_relu, in_channels, out_channels, names=("atrous_conv", "bn", "relu"))  # as released
        self.aspp1 = branch(1)
        self.aspp2, self.aspp3, self.aspp4 = (branch(3, max(1, round(8 * rate / stride))) for rate in rates)
        self.global_avg_pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), _conv(in_channels, out_channels, 1), PooledBatchNorm(out_channels), nn.ReLU()
        )
        self.conv1 = _conv(5 * out_channels, out_channels, 1)
        self.bn1 = BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        branches, pooled = [self.aspp1, self.aspp2, self.aspp3, self.aspp4], self.global_avg_pool(x)
        if not is_fusable(*(norm for _, norm, _ in branches)):
            pooled = F.interpolate(pooled, size=x.shape[2:], mode="bilinear", align_corners=True)
            return self.bn1(self.conv1(torch.cat([*(branch(x) for branch in branches), pooled], dim=1)))
        # Apply conv1 branch by branch, so that autograd need not keep their results. The pooled one is constant.
        *kernels, kernel = self.conv1.weight.split(self.conv1.out_channels, dim=1)
        result = F.conv2d(pooled, kernel.to(pooled.dtype))
        for (conv, norm, _), kernel in zip(branches, kernels, strict=True):
            assert isinstance(norm, BatchNorm2d)
            result = result + norm_relu_conv(conv(x), norm, self.conv1, kernel)
        return self.bn1(result)


class Head(nn.Module):
    """A head. Its arguments are the channels of all features, the number of classes, and the deepest features' stride.

    names: the values of --model_type that select this head; *_lorm adds LoRM. A class with names registers itself in
    HEADS. has_width: the head also takes `width`, set by --head_channels. dilations, ceil_mode: for ResNetBackbone.
    """

    names: tuple[str, ...]
    has_width = False
    dilations: Dilations = MULTI_GRID
    ceil_mode = True

    def __init_subclass__(cls) -> None:
        HEADS.update(dict.fromkeys(vars(cls).get("names", ()), cls))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return logits. By default, the head's parts follow each other, on the deepest features."""
        x = features[-1]
        for part in self.children():
            x = part(x)
        return x


HEADS: dict[str, type[Head]] = {}  # by --model_type


class ASPPHead(Head):
    """CDSP's head: an ASPP whose output channels are the classes. Logits at stride 8."""

    names = ("res50_ASPP_lorm", "res50_ASPP")

    def __init__(self, channels: Sequence[int], num_classes: int, *, stride: int = 8):
        super().__init__()
        self.aspp = ASPP(channels[-1], num_classes, CDSP_RATES, stride)


class LinearHead(Head):
    """Batch norm and a 1x1 convolution, for a frozen ViT (arXiv:2304.07193). Logits at stride 8 of a ResNet."""

    names = ("linear",)

    def __init__(self, channels: Sequence[int], num_classes: int, *, stride: int = 8):
        super().__init__()
        self.norm = BatchNorm2d(channels[-1])
        self.classifier = nn.Conv2d(channels[-1], num_classes, 1)


class DeepLabV2Head(Head):
    """DeepLabV2's head: the sum of four dilated 3x3 classifiers (arXiv:1606.00915). Logits at stride 8."""

    names = ("deeplabv2",)
    dilations = (2,), (4,)

    def __init__(self, channels: Sequence[int], num_classes: int, *, stride: int = 8):
        super().__init__()
        self.classifiers = nn.ModuleList(
            nn.Conv2d(channels[-1], num_classes, 3, padding=rate, dilation=rate)
            for rate in (round(8 * rate / stride) for rate in DEEPLABV2_RATES)
        )

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return torch.stack([classifier(features[-1]) for classifier in self.classifiers]).sum(0)


class DeepLabV3Head(Head):
    """DeepLabV3's head (arXiv:1706.05587): ASPP with 256 channels, 3x3 convolution, classifier. Logits at stride 8."""

    names = ("deeplabv3",)
    has_width = True

    def __init__(self, channels: Sequence[int], num_classes: int, *, stride: int = 8, width: int = 256):
        super().__init__()
        self.aspp = ASPP(channels[-1], width, DEEPLABV3_RATES, stride)
        self.classifier = nn.Sequential(
            nn.ReLU(), nn.Dropout(0.1), _conv_bn_relu(width, width, 3), nn.Conv2d(width, num_classes, 1)
        )


class TorchvisionDeepLabV3Head(DeepLabV3Head):
    """DeepLabV3's head on torchvision's variant of the backbone, for torchvision's weights. Logits at stride 8."""

    names = ("deeplabv3_torchvision",)
    dilations = (1, 2), (2, 4)
    ceil_mode = False


class DeepLabV3PlusHead(Head):
    """DeepLabV3+'s head: ASPP, joined with layer1's features (arXiv:1802.02611). Logits at stride 4."""

    names = ("deeplabv3p", "deeplabv3p_lorm")
    has_width = True

    def __init__(self, channels: Sequence[int], num_classes: int, *, stride: int = 8, width: int = 256):
        super().__init__()
        self.aspp = ASPP(channels[-1], width, DEEPLABV3_RATES, stride)
        self.low = _conv_bn_relu(channels[0], 48, 1)
        self.classifier = nn.Sequential(
            _conv_bn_relu(width + 48, width, 3),
            _conv_bn_relu(width, width, 3),
            nn.Dropout(0.1),
            nn.Conv2d(width, num_classes, 1),
        )

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return _merge(F.relu(self.aspp(features[-1])), [self.low(features[0])], [self.classifier])


class CDSPDeepLabV3PlusHead(Head):
    """DeepLabV3+'s head as CDSP's authors released it. Logits at stride 4.

    ASPP has rates 6, 12, 18, and dropout follows it; layer1's features come first in the concatenation. So weights have
    DeepLabV3PlusHead's shapes but another meaning, which is why the parts have other names.
    """

    names = ("deeplabv3p_cdsp", "deeplabv3p_cdsp_lorm")

    def __init__(self, channels: Sequence[int], num_classes: int, *, stride: int = 8):
        super().__init__()
        self.aspp = ASPP(channels[-1], 256, CDSP_V3PLUS_RATES, stride)
        self.dropout = nn.Dropout(0.5)
        self.reduce = _conv_bn_relu(channels[0], 48, 1)
        self.fuse = nn.Sequential(*_conv_bn_relu(48 + 256, 256, 3), *_conv_bn_relu(256, 256, 3))
        self.classifier = nn.Conv2d(256, num_classes, 1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        low = features[0]
        x = self.dropout(F.relu(self.aspp(features[-1])))
        x = F.interpolate(x, size=low.shape[2:], mode="bilinear", align_corners=True)
        return self.classifier(self.fuse(torch.cat([self.reduce(low), x], dim=1)))


class DeepLabV3PlusMultiHead(Head):
    """DeepLabV3+'s head, joined with the features of every finer stride in turn, as in Panoptic-DeepLab.

    ASPP processes the deepest features. Then each finer stride adds three steps: upsampling, concatenation with a 1x1
    convolution of its features (64 channels, or 32 at the finest), and a 3x3 convolution. This follows
    arXiv:1911.10194, section 3.1, but with full convolutions. No dropout. Logits at the finest stride.
    """

    names = ("deeplabv3p_multi", "deeplabv3p_multi_lorm")
    has_width = True

    def __init__(self, channels: Sequence[int], num_classes: int, *, stride: int = 8, width: int = 256):
        super().__init__()
        self.aspp = ASPP(channels[-1], width, DEEPLABV3_RATES, stride)
        reduced = [32, *[64] * (len(channels) - 2)][: len(channels) - 1]
        self.reduce = nn.ModuleList(_conv_bn_relu(*pair, 1) for pair in zip(channels, reduced, strict=False))
        self.fuse = nn.ModuleList(_conv_bn_relu(width + extra, width, 3) for extra in reduced)
        self.classifier = nn.Conv2d(width, num_classes, 1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        reduced = [reduce(x) for reduce, x in zip(self.reduce, features, strict=False)]
        return self.classifier(_merge(F.relu(self.aspp(features[-1])), reduced[::-1], self.fuse[::-1]))


def _merge(x: Tensor, finer: Iterable[Tensor], fuse: Iterable[nn.Module]) -> Tensor:
    """Merge x with the finer maps in turn: upsample it to their size, concatenate them, and fuse both."""
    for skip, layer in zip(finer, fuse, strict=True):
        x = F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=True)
        x = layer(torch.cat([x, skip], dim=1))
    return x

"""Segmentation heads. Each maps (layer1's, layer4's features) to logits (B, num_classes, h, w)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CDSP_RATES = (12, 18, 24)
CDSP_V3PLUS_RATES = (6, 12, 18)
DEEPLABV3_RATES = (12, 24, 36)  # arXiv:1706.05587 at output stride 8
DEEPLABV2_RATES = (6, 12, 18, 24)  # ASPP-L of arXiv:1606.00915


def _conv_bn_relu(in_channels: int, out_channels: int, kernel_size: int, dilation: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(
            in_channels, out_channels, kernel_size, padding=dilation * (kernel_size // 2), dilation=dilation, bias=False
        ),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class Branch(nn.Module):
    """One branch of ASPP: a 1x1 or a dilated 3x3 convolution, batch norm, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, dilation: int):
        super().__init__()
        padding = dilation * (kernel_size // 2)
        self.atrous_conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, bias=False
        )
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.atrous_conv(x)))


class PooledBatchNorm(nn.BatchNorm2d):
    """Batch norm of a 1x1 map: with a single value a channel it uses its stored statistics.

    A batch of one has no variance to normalise by, and torch raises. SyncBatchNorm conversion replaces this class
    by torch's, which has the other ranks' values.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: a 1x1 branch, three dilated 3x3 ones and image pooling, joined by a 1x1
    convolution and batch norm (arXiv:1706.05587), all `out_channels` wide; no activation at the end.
    """

    def __init__(self, in_channels: int, out_channels: int, rates: tuple[int, int, int]):
        super().__init__()
        self.aspp1 = Branch(in_channels, out_channels, 1, 1)
        self.aspp2 = Branch(in_channels, out_channels, 3, rates[0])
        self.aspp3 = Branch(in_channels, out_channels, 3, rates[1])
        self.aspp4 = Branch(in_channels, out_channels, 3, rates[2])
        self.global_avg_pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
            PooledBatchNorm(out_channels),
            nn.ReLU(),
        )
        self.conv1 = nn.Conv2d(5 * out_channels, out_channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.interpolate(self.global_avg_pool(x), size=x.shape[2:], mode="bilinear", align_corners=True)
        branches = [self.aspp1(x), self.aspp2(x), self.aspp3(x), self.aspp4(x), pooled]
        return self.bn1(self.conv1(torch.cat(branches, dim=1)))


class ASPPHead(nn.Module):
    """CDSP's head: ASPP directly on classes. Stride 8."""

    def __init__(self, in_channels: int, low_channels: int, num_classes: int):
        super().__init__()
        self.aspp = ASPP(in_channels, num_classes, CDSP_RATES)

    def forward(self, low: Tensor, x: Tensor) -> Tensor:
        return self.aspp(x)


class DeepLabV2Head(nn.Module):
    """The sum of four dilated 3x3 classifiers (arXiv:1606.00915). Stride 8."""

    def __init__(self, in_channels: int, low_channels: int, num_classes: int):
        super().__init__()
        self.classifiers = nn.ModuleList(
            nn.Conv2d(in_channels, num_classes, 3, padding=rate, dilation=rate) for rate in DEEPLABV2_RATES
        )

    def forward(self, low: Tensor, x: Tensor) -> Tensor:
        return torch.stack([classifier(x) for classifier in self.classifiers]).sum(0)


class DeepLabV3Head(nn.Module):
    """ASPP of 256 channels, a 3x3 convolution, a classifier (arXiv:1706.05587). Stride 8."""

    def __init__(self, in_channels: int, low_channels: int, num_classes: int):
        super().__init__()
        self.aspp = ASPP(in_channels, 256, DEEPLABV3_RATES)
        self.classifier = nn.Sequential(
            nn.ReLU(), nn.Dropout(0.1), _conv_bn_relu(256, 256, 3), nn.Conv2d(256, num_classes, 1)
        )

    def forward(self, low: Tensor, x: Tensor) -> Tensor:
        return self.classifier(self.aspp(x))


class DeepLabV3PlusHead(nn.Module):
    """ASPP, joined at stride 4 by layer1's features (arXiv:1802.02611)."""

    def __init__(self, in_channels: int, low_channels: int, num_classes: int):
        super().__init__()
        self.aspp = ASPP(in_channels, 256, DEEPLABV3_RATES)
        self.low = _conv_bn_relu(low_channels, 48, 1)
        self.classifier = nn.Sequential(
            _conv_bn_relu(256 + 48, 256, 3), _conv_bn_relu(256, 256, 3), nn.Dropout(0.1), nn.Conv2d(256, num_classes, 1)
        )

    def forward(self, low: Tensor, x: Tensor) -> Tensor:
        x = F.interpolate(F.relu(self.aspp(x)), size=low.shape[2:], mode="bilinear", align_corners=True)
        return self.classifier(torch.cat([x, self.low(low)], dim=1))


class CDSPDeepLabV3PlusHead(nn.Module):
    """DeepLabV3+ as CDSP's authors released it: rates 6, 12, 18, dropout after ASPP, layer1's features first.

    Its weights have the shapes of DeepLabV3PlusHead's but another meaning, so its parts have other names.
    """

    def __init__(self, in_channels: int, low_channels: int, num_classes: int):
        super().__init__()
        self.aspp = ASPP(in_channels, 256, CDSP_V3PLUS_RATES)
        self.dropout = nn.Dropout(0.5)
        self.reduce = _conv_bn_relu(low_channels, 48, 1)
        self.fuse = nn.Sequential(*_conv_bn_relu(48 + 256, 256, 3), *_conv_bn_relu(256, 256, 3))
        self.classifier = nn.Conv2d(256, num_classes, 1)

    def forward(self, low: Tensor, x: Tensor) -> Tensor:
        x = self.dropout(F.relu(self.aspp(x)))
        x = F.interpolate(x, size=low.shape[2:], mode="bilinear", align_corners=True)
        return self.classifier(self.fuse(torch.cat([self.reduce(low), x], dim=1)))

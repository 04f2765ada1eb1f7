"""torchvision's residual blocks and conv-norm-ReLU, which keep less for the backward pass (models.layers.fused)."""

from typing import Any

from torch import Tensor, nn

from models.layers.conv_norm import conv_norm, norm_relu_conv_norm_add_relu, saves_time
from models.layers.convolution import Conv2d, Conv2dSame
from models.layers.fused import is_fusable, norm_relu, norm_relu_conv
from models.layers.norm import BatchNorm2d, BatchNormAct2d


class ConvNormReLU(nn.Sequential):
    """Convolution, batch norm and ReLU, under any names."""

    def forward(self, x: Tensor) -> Tensor:
        conv, norm, relu = self
        if not is_fusable(norm):
            return relu(norm(conv(x)))
        assert isinstance(norm, BatchNorm2d)
        return norm_relu(conv(x), norm)


class BasicBlock(nn.Module):
    """torchvision's BasicBlock. Instances come from use_our_layers()."""

    conv1: nn.Conv2d
    conv2: nn.Conv2d
    bn1: BatchNorm2d
    bn2: BatchNorm2d
    relu: nn.ReLU
    downsample: Any  # nn.Sequential of a 1x1 convolution and a batch norm, or None

    def shortcut(self, x: Tensor) -> Tensor:
        """Return what the block adds to its result: x, or its 1x1 convolution and batch norm."""
        if self.downsample is None:
            return x
        conv, norm = self.downsample
        if not is_fusable(norm) or not saves_time(x, conv):
            return self.downsample(x)
        return conv_norm(x, conv, norm)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        x = self.conv1(x)
        x = norm_relu_conv(x, self.bn1, self.conv2) if is_fusable(self.bn1) else self.conv2(self.relu(self.bn1(x)))
        return self.relu(self.bn2(x).add_(shortcut))


class Bottleneck(BasicBlock):
    """torchvision's Bottleneck."""

    conv3: nn.Conv2d
    bn3: BatchNorm2d

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        x = self.conv1(x)
        if is_fusable(self.bn1, self.bn2, self.bn3):
            x = norm_relu_conv(x, self.bn1, self.conv2)
            if saves_time(x, self.conv3):
                return norm_relu_conv_norm_add_relu(x, self.bn2, self.conv3, self.bn3, shortcut)
            x = norm_relu_conv(x, self.bn2, self.conv3)
        else:
            x = self.conv3(self.relu(self.bn2(self.conv2(self.relu(self.bn1(x))))))
        return self.relu(self.bn3(x).add_(shortcut))


# {(package, class): ours}. By name, because importing torchvision or timm takes more than a second.
OURS: dict[tuple[str, str], type[nn.Module]] = {
    ("torch", "Conv2d"): Conv2d,
    ("torch", "BatchNorm2d"): BatchNorm2d,
    ("torchvision", "BasicBlock"): BasicBlock,
    ("torchvision", "Bottleneck"): Bottleneck,
    ("timm", "Conv2dSame"): Conv2dSame,
    ("timm", "BatchNormAct2d"): BatchNormAct2d,
}


def use_our_layers(model: nn.Module) -> nn.Module:
    """Turn the modules that OURS lists, in place, into our classes, which have the same parameters. Return the model.

    The other libraries construct their networks themselves, so their modules change class only afterwards.
    """
    for module in model.modules():
        kind = type(module)
        module.__class__ = OURS.get((kind.__module__.partition(".")[0], kind.__name__), kind)
    return model

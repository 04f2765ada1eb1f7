"""torchvision's residual blocks and conv-norm-ReLU, which keep less for the backward pass (models.layers.fused)."""

from torch import Tensor, nn

from models.layers.conv_norm import conv_norm, norm_relu_conv_norm_add_relu, saves_time
from models.layers.convolution import Conv2d
from models.layers.fused import is_fusable, norm_relu, norm_relu_conv
from models.layers.norm import BatchNorm2d


class ConvNormReLU(nn.Sequential):
    """Convolution, batch norm and ReLU, under any names."""

    def forward(self, x: Tensor) -> Tensor:
        conv, norm, relu = self
        x = conv(x)
        if not is_fusable(norm):
            return relu(norm(x))
        assert isinstance(norm, BatchNorm2d)
        return norm_relu(x, norm)


class BasicBlock(nn.Module):
    """torchvision's BasicBlock; use_fused_forward() turns one into this."""

    conv1: nn.Conv2d
    conv2: nn.Conv2d
    bn1: BatchNorm2d
    bn2: BatchNorm2d
    relu: nn.ReLU
    downsample: nn.Sequential | None

    def shortcut(self, x: Tensor) -> Tensor:
        """Return what the block adds to its result: x, or its 1x1 convolution and batch norm."""
        if self.downsample is None:
            return x
        conv, norm = self.downsample
        if not is_fusable(norm):
            return self.downsample(x)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, BatchNorm2d)
        return conv_norm(x, conv, norm) if saves_time(x, conv) else self.downsample(x)

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


def use_fused_forward(block: nn.Module) -> nn.Module:
    """Turn torchvision's block, in place, into ours, and return it."""
    block.__class__ = Bottleneck if hasattr(block, "conv3") else BasicBlock
    return block


def use_our_layers(model: nn.Module) -> None:
    """Turn torch's convolutions and batch norms in the model, in place, into ours, with the same parameters."""
    ours: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: Conv2d, nn.BatchNorm2d: BatchNorm2d}
    for module in model.modules():
        module.__class__ = ours.get(type(module), type(module))

"""ResNets that train in a fraction of the time, for tests that ask what is computed with, not how well."""

import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet


class ThinResNet(ResNet):
    """torchvision's ResNet, but for the numbers of its blocks and channels."""

    def __init__(self, depth: int):
        block = Bottleneck if depth >= 50 else BasicBlock
        super().__init__(block, [1, 1, 1, 1])
        self.fc = nn.Linear(self.inplanes, 1)

    def _make_layer(self, block, planes, *args, **kwargs):
        return super()._make_layer(block, planes // 8, *args, **kwargs)


def use() -> None:
    """From now on, in this process."""
    torchvision.models.get_model = lambda name, **_: ThinResNet(int(name.removeprefix("resnet")))

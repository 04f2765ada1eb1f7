"""ResNets that train in a fraction of the time, for tests that ask what is computed with, not how well."""

import os
from collections.abc import Sequence

import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

get_model = torchvision.models.get_model


class ThinResNet(ResNet):
    """torchvision's ResNet with an eighth of the channels. blocks: of each layer."""

    def __init__(self, depth: int, blocks: Sequence[int] = (1, 1, 1, 1)):
        super().__init__(Bottleneck if depth >= 50 else BasicBlock, list(blocks))
        self.fc = nn.Linear(self.inplanes, 1)

    def _make_layer(self, block, planes, *args, **kwargs):
        return super()._make_layer(block, planes // 8, *args, **kwargs)


def use(thin: bool = True) -> None:
    """Build thin networks from now on, or full ones, here and in processes that start() starts."""
    torchvision.models.get_model = (
        (lambda name, **_: ThinResNet(int(name.removeprefix("resnet")))) if thin else get_model
    )
    os.environ["THIN_NETWORKS"] = "1" if thin else "0"


def in_use() -> bool:
    return os.environ.get("THIN_NETWORKS") == "1"

"""ResNet at output stride 8, from torchvision's."""

import contextlib
import socket
from collections.abc import Iterator

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

STALL_SECONDS = 60.0  # how long a download may receive nothing
LAYER3_DILATION = 2
MULTI_GRID = (4, 8, 16)  # dilations of layer4's blocks, CDSP and DeepLabV3 (arXiv:1706.05587, section 3.2.1)


class ResNetBackbone(nn.Module):
    """torchvision's ResNet without its classifier, dilated to output stride 8, with a ceil-mode max pool.

    depth: 18, 34, 50, 101 or 152. multi_grid: dilations of layer4's blocks in turn. stride_in_1x1: put the
    stride of layer2's first block on its first 1x1 convolution, where released CDSP weights have it, not
    on its 3x3. grad_checkpointing: in training, keep only what goes into each residual block, and compute the rest
    again in the backward pass (arXiv:1604.06174). Parameters carry torchvision's names.
    """

    def __init__(
        self,
        depth: int,
        *,
        multi_grid: tuple[int, ...] = MULTI_GRID,
        stride_in_1x1: bool = False,
        grad_checkpointing: bool = False,
    ):
        super().__init__()
        self.grad_checkpointing = grad_checkpointing
        resnet = torchvision.models.get_model(f"resnet{depth}", weights=None)
        self.conv1, self.bn1, self.relu = resnet.conv1, resnet.bn1, resnet.relu
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1, ceil_mode=True)
        self.layer1, self.layer2 = resnet.layer1, resnet.layer2
        self.layer3, self.layer4 = resnet.layer3, resnet.layer4
        self.out_channels: int = resnet.fc.in_features
        self.low_channels: int = self.out_channels // 8  # of layer1, for DeepLabV3+

        for block in self.layer3:
            _dilate(block, LAYER3_DILATION)
        for number, block in enumerate(self.layer4):
            _dilate(block, multi_grid[min(number, len(multi_grid) - 1)])
        if stride_in_1x1:
            first = self.layer2[0]
            first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, 3, H, W), normalised. Returns layer1's features, stride 4, and layer4's, stride 8."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        low = self._blocks(self.layer1, x)
        return low, self._blocks(self.layer4, self._blocks(self.layer3, self._blocks(self.layer2, low)))

    def _blocks(self, layer: nn.Sequential, x: Tensor) -> Tensor:
        if not (self.grad_checkpointing and self.training and torch.is_grad_enabled()):
            return layer(x)
        for block in layer:
            x = recomputed(block, x)
        return x


def recomputed(block: nn.Module, x: Tensor) -> Tensor:
    """block(x), of which only x is kept: the backward pass computes it a second time. The block draws no random numbers."""

    def contexts() -> tuple[contextlib.AbstractContextManager, contextlib.AbstractContextManager]:
        return contextlib.nullcontext(), _own_statistics(block)

    return checkpoint(block, x, use_reentrant=False, context_fn=contexts, preserve_rng_state=False)


@contextlib.contextmanager
def _own_statistics(block: nn.Module) -> Iterator[None]:
    """Batch norm in training updates copies of its running statistics, which are forgotten at the end.

    Without any (track_running_stats=False) it would keep fewer tensors than the first time, which `checkpoint` refuses.
    """
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm) and module.training]
    kept = [dict(norm.named_buffers(recurse=False)) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        norm._buffers.update({name: buffer.clone() for name, buffer in buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)


def feature_size(size: int) -> int:
    """Height or width of layer4's features for an input of that height or width, in pixels."""
    size = (size + 1) // 2  # conv1
    size = size // 2 + 1  # max pool, ceil mode
    return (size + 1) // 2  # layer2


def _dilate(block: nn.Module, dilation: int) -> None:
    """Give every 3x3 convolution of a residual block the dilation, and every convolution stride 1."""
    for module in block.modules():
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
            if module.kernel_size == (3, 3):
                module.dilation = module.padding = (dilation, dilation)


def imagenet_weights(depth: int, version: str = "DEFAULT") -> tuple[str, dict[str, Tensor]]:
    """torchvision's name of its ImageNet weights, and the weights, downloaded once to torch's cache.

    version: "DEFAULT", the newest, or a name such as "IMAGENET1K_V1". Raises OSError where the download fails.
    """
    weights = torchvision.models.get_model_weights(f"resnet{depth}")[version]
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)  # torch.hub sets none, and would wait for ever
    try:
        state_dict = torch.hub.load_state_dict_from_url(
            weights.url, map_location="cpu", weights_only=True, check_hash=True
        )
    finally:
        socket.setdefaulttimeout(before)
    return str(weights), state_dict

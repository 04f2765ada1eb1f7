"""What a backbone is, and torchvision's ResNet, dilated to output stride 8."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.layers.blocks import use_our_layers
from models.layers.fused import is_fusable, norm_relu_pool
from models.layers.norm import BATCH_NORMS

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
Dilations = tuple[tuple[int, ...], tuple[int, ...]]  # of the blocks of layer3 and layer4; the last one repeats
MULTI_GRID: Dilations = ((2,), (4, 8, 16))  # CDSP and DeepLabV3 (arXiv:1706.05587, section 3.2.1)


class Backbone(nn.Module):
    """A network that maps normalised images (B, 3, H, W) to features, from the finest to the deepest.

    channels, strides: one per map of features. mean, std: the normalisation, one per colour, in units of 0..1.
    """

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def blocks(self) -> list[nn.Module]:
        """Return the repeated blocks, in order, which are recomputed and compiled one by one.

        By default, elements of the network's sequences that hold no further sequence.
        """
        sequences = [part for part in self.modules() if isinstance(part, nn.Sequential | nn.ModuleList)]
        return [block for part in sequences for block in part if _is_composite(block) and not _has_sequence(block)]

    def depths(self) -> dict[str, int]:
        """Return {parameter: number of its part}, from 0 at the input.

        By default, for a backbone that holds another network: that network's parts, in the order of registration.
        """
        parts = {
            f"{name}.{part}": number
            for name, network in self.named_children()
            for number, (part, _) in enumerate(network.named_children())
        }
        return {name: parts.get(".".join(name.split(".")[:2]), 0) for name, _ in self.named_parameters()}

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters, such as position embeddings, that the network's authors do not decay."""
        networks = self.named_children()
        return {f"{name}.{own}" for name, network in networks for own in getattr(network, "no_weight_decay", set)()}

    def is_head(self, name: str) -> bool:
        """Return whether --head_lr_factor counts this parameter of the backbone to the head. Default: none."""
        return False

    def freeze_unused(self, head: nn.Module) -> None:
        """Freeze parameters that the head's logits do not depend on, because DDP would wait for them. Default: none."""

    @torch.no_grad()
    def feature_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) of the deepest features for an image of height x width pixels."""
        network = copy.deepcopy(self).to("meta").eval()
        deepest = network(torch.empty(1, 3, height, width, device="meta"))[-1]
        return deepest.shape[2], deepest.shape[3]


def pad_to_multiple(images: Tensor, multiple: int) -> Tensor:
    """Return images (B, 3, H, W) padded at the bottom and right with 0, the mean colour, to multiples of `multiple`."""
    if multiple == 1:  # no condition on image sizes, because torch.export would specialise on it
        return images
    below, right = ((multiple - size % multiple) % multiple for size in images.shape[2:])
    return F.pad(images, (0, right, 0, below))


def cut_padding(x: Tensor, images: Tensor, padded: Tensor) -> Tensor:
    """Cut a map (B, C, h, w) of padded images at the bottom and right, to the part that shows the images."""
    if padded is images:
        return x
    # Keep ceil(length * part / whole), without dividing a negative number: ONNX rounds the quotient towards 0.
    sizes = zip(x.shape[2:], images.shape[2:], padded.shape[2:], strict=True)
    rows, columns = (length - length * (whole - part) // whole for length, part, whole in sizes)
    return x[:, :, :rows, :columns]


class ResNetBackbone(Backbone):
    """torchvision's ResNet without its classifier, dilated to output stride 8. Parameters have torchvision's names.

    depth: 18, 34, 50, 101 or 152. dilations: one per block of layer3 and layer4. ceil_mode: the max pool's.
    stride_in_1x1: put the stride of layer2's first block on its first 1x1 convolution, as in released CDSP weights, not
    on its 3x3.
    """

    def __init__(
        self, depth: int, *, dilations: Dilations = MULTI_GRID, ceil_mode: bool = True, stride_in_1x1: bool = False
    ):
        super().__init__()
        import torchvision  # imported here because it takes more than a second

        resnet = torchvision.models.get_model(f"resnet{depth}", weights=None)
        self.conv1, self.bn1, self.relu = resnet.conv1, resnet.bn1, resnet.relu
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1, ceil_mode=ceil_mode)
        self.layer1, self.layer2 = resnet.layer1, resnet.layer2
        self.layer3, self.layer4 = resnet.layer3, resnet.layer4
        width: int = resnet.fc.in_features
        self.channels, self.strides = (width // 8, width // 4, width), (4, 8, 8)

        for layer, rates in zip((self.layer3, self.layer4), dilations, strict=True):
            for number, block in enumerate(layer):
                _dilate(block, rates[min(number, len(rates) - 1)])
        if stride_in_1x1:
            first = self.layer2[0]
            first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
        use_our_layers(self)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return features of normalised images (B, C, H, W): layer1's (stride 4), layer2's and layer4's (stride 8)."""
        x = self.conv1(images)
        fused = is_fusable(self.bn1)
        x = norm_relu_pool(x, self.bn1, self.maxpool) if fused else self.maxpool(self.relu(self.bn1(x)))
        low = self.layer1(x)
        middle = self.layer2(low)
        return low, middle, self.layer4(self.layer3(middle))

    def depths(self) -> dict[str, int]:
        # 0 for the convolution at the input, 1..4 for layer1 to layer4
        return {name: int(name[len("layer")]) if name.startswith("layer") else 0 for name, _ in self.named_parameters()}


class Recomputed:
    """A block's forward pass that, in training, keeps only its inputs and recomputes the rest in the backward pass.

    draws: whether the block may draw random numbers, for example for dropout. If so, the recomputation draws the same
    ones. False saves the time to keep and restore the generators' states.
    """

    def __init__(self, block: nn.Module, *, draws: bool = True):
        self.block, self.draws = block, draws
        # Not bound to the block, so that a copy of the block runs with the copy's weights, compiled or not.
        self.forward: Callable[..., Tensor] = type(block).forward

    def __call__(self, *args, **kwargs) -> Tensor:
        forward = partial(self.forward, self.block, **kwargs)
        if not (self.block.training and torch.is_grad_enabled()):
            return forward(*args)

        def contexts() -> tuple[contextlib.AbstractContextManager, contextlib.AbstractContextManager]:
            return contextlib.nullcontext(), _own_statistics(self.block)

        # RDNet appends to the list of features that its blocks take: the recomputation needs the list of this moment.
        args = tuple(list(value) if isinstance(value, list) else value for value in args)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, preserve_rng_state=self.draws)

    def compile(self, **options) -> None:
        """Compile the block's forward pass with torch.compile's options. The recomputation runs the compiled code."""
        self.forward = torch.compile(self.forward, **options)


@contextlib.contextmanager
def _own_statistics(block: nn.Module) -> Iterator[None]:
    """Let batch norm update copies of its running statistics: the first forward pass has updated its own already.

    torch's `checkpoint` refuses a second pass without statistics, which would keep fewer tensors than the first.
    """
    norms = [module for module in block.modules() if isinstance(module, BATCH_NORMS) and module.training]
    buffers = [(norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)]
    for norm, name, buffer in buffers:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in buffers:
            setattr(norm, name, buffer)


def _is_composite(module: nn.Module) -> bool:
    """Return whether parts of the module have parameters."""
    return any(True for child in module.children() for _ in child.parameters())


def _has_sequence(module: nn.Module) -> bool:
    """Return whether the module is, or holds, a sequence of composite modules."""
    return any(
        isinstance(part, nn.Sequential | nn.ModuleList) and any(map(_is_composite, part)) for part in module.modules()
    )


def _dilate(block: nn.Module, dilation: int) -> None:
    """Set the dilation of each 3x3 convolution of a residual block, and stride 1 for all convolutions of the block."""
    for module in block.modules():
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
            if module.kernel_size == (3, 3):
                module.dilation = module.padding = (dilation, dilation)

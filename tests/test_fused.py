"""Fused batch norm, ReLU and convolution, and depthwise convolution: values and gradients of the modules, less kept."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torchvision.models.resnet import BasicBlock, Bottleneck

from models.layers import blocks, convolution
from models.layers.blocks import use_our_layers
from models.layers.convolution import Conv2d

CHANNELS_LAST = {"memory_format": torch.channels_last}


@pytest.mark.parametrize(
    ("size", "dilation", "options"),
    [
        *itertools.product([1, 3, 5], [1, 9], [{}, {"stride": 2}]),  # with 9, a tap of a 7x8 map reads padding alone
        *itertools.product([1, 3], [1], [{"padding": 1}]),
        *itertools.product([4, (1, 3)], [2], [{}]),
    ],
)
def test_convolution_is_torchs(size, dilation, options, monkeypatch):
    monkeypatch.setattr("models.layers.convolution.taps_are_faster", lambda *args: True)
    torch.manual_seed(0)
    options = {"dilation": dilation, "bias": False, "dtype": torch.float64} | options
    if options.setdefault("padding", "same") == "same":  # in pairs: our class leaves the word to torch
        sides = size if isinstance(size, tuple) else (size, size)
        options["padding"] = tuple(dilation * (side // 2) for side in sides)
    ours = Conv2d(2, 3, size, **options)
    theirs = nn.Conv2d(2, 3, size, **options)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 2, 7, 8, dtype=torch.float64, requires_grad=True)
    for conv in (ours, theirs):
        conv(x).square().sum().backward()
        conv.x_grad, x.grad = x.grad, None
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.x_grad, theirs.x_grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def make(kind: type[nn.Module], *, shortcut: bool, frozen: bool, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return torchvision's block, with weights and statistics that are not the neutral ones of a new block."""
    torch.manual_seed(0)
    inputs, width = (6, 4) if shortcut else (4 * kind.expansion, 4)
    downsample = None
    if shortcut:
        outputs = width * kind.expansion
        downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))
    block = kind(inputs, width, stride=2 if shortcut else 1, downsample=downsample).to(dtype)
    for norm in block.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, -1, 2)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            norm.train(not frozen)
    return block.to(**CHANNELS_LAST)


def ours_of(block: nn.Module) -> nn.Module:
    """Return a copy of torchvision's block as ours."""
    return use_our_layers(copy.deepcopy(block))


def trained(block: nn.Module, amp: bool = False) -> dict[str, torch.Tensor]:
    """Return the block's result, the gradients of its input and parameters, and its buffers."""
    dtype = block.conv1.weight.dtype
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, block.conv1.in_channels, 9, 8, dtype=torch.float64, generator=generator).to(dtype)
    x = x.to(**CHANNELS_LAST).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        result = block(x)
    (result.to(dtype) * torch.linspace(-1, 1, result.numel(), dtype=dtype).view_as(result)).sum().backward()
    values = {"result": result.detach(), "x": x.grad} | dict(block.named_buffers())
    return values | {name: parameter.grad for name, parameter in block.named_parameters()}


@pytest.mark.parametrize("kind", [BasicBlock, Bottleneck])
@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("many_pixels", [False, True])
def test_block_is_torchvisions(kind, shortcut, frozen, many_pixels, monkeypatch):
    monkeypatch.setattr(blocks, "saves_time", lambda *args: many_pixels)
    theirs = make(kind, shortcut=shortcut, frozen=frozen)
    ours = ours_of(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    torch.testing.assert_close(trained(ours), trained(theirs), rtol=1e-10, atol=1e-10)
    assert ours.bn1.num_batches_tracked == (0 if frozen else 1)


def test_fp16_takes_the_module_whose_sums_cannot_overflow():
    """The sum of z^2 over 90,000 pixels is about 90,000; fp16 ends at 65,504."""
    torch.manual_seed(0)
    block = ours_of(Bottleneck(8, 2, downsample=nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8))))
    with torch.autocast("cpu", dtype=torch.float16):
        result = block(torch.randn(1, 8, 300, 300).to(torch.float16))
    (1e-4 * result.float().sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in block.parameters())


def kept_channels(block: nn.Module) -> float:
    """Return how many channels of a map a forward pass keeps, the block's input included."""
    parameters = {value.untyped_storage()._cdata for value in (*block.parameters(), *block.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storages[value.untyped_storage()._cdata] = value.untyped_storage()
        return value.detach()

    with saved_tensors_hooks(keep, lambda value: value):
        block(torch.randn(4, 32, 16, 16, device="meta", requires_grad=True))
    maps = [storage.nbytes() for key, storage in storages.items() if key not in parameters and storage.nbytes() > 512]
    return sum(maps) / (4 * 4 * 16 * 16)


def test_a_bottleneck_keeps_half():
    with torch.device("meta"):
        block = Bottleneck(32, 8)
    # Width C = 8, 4 C = 32 in and out. torchvision keeps its input, what both 3x3 and 1x1 read and return, conv3's
    # result and its own: 32 + 4 * 8 + 2 * 32. Ours keeps its input, two results of convolutions and its own.
    assert kept_channels(block) == 32 + 32 + 64
    assert kept_channels(ours_of(block)) == 32 + 16 + 32


@pytest.mark.parametrize("amp", [False, True])
def test_gradients_have_the_strides_of_the_weights(amp):
    """Else DDP warns, and copies them in each step."""
    block = ours_of(make(Bottleneck, shortcut=True, frozen=False, dtype=torch.float32))
    trained(block, amp)
    for parameter in block.parameters():
        assert parameter.grad.stride() == parameter.stride()


# kernel, stride, dilation, padding, height, width
GEOMETRIES = [
    (3, 1, 1, 1, 9, 8),
    (3, 2, 1, 0, 11, 12),
    (5, 1, 2, 4, 9, 8),
    (5, 2, 1, 2, 11, 8),
    (5, 2, 2, 4, 13, 12),
    (5, 4, 1, 2, 14, 15),
    (1, 1, 1, 1, 5, 6),
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_gradients_are_those_of_torch(geometry, dtype, tolerance):
    size, stride, dilation, padding, height, width = geometry
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((3, 6, height, width), (6, 1, size, size))
    )
    conv = Conv2d(6, 6, size, stride, padding, dilation, groups=6, bias=False)
    conv.weight = torch.nn.Parameter(weight.detach())
    ours, weight = conv(x), conv.weight
    exact = [value.detach().double().requires_grad_() for value in (x, weight)]
    theirs = F.conv2d(*exact, None, stride, padding, dilation, 6)
    grad = torch.randn(theirs.shape, generator=generator, dtype=torch.float64).to(dtype)
    expected = torch.autograd.grad(theirs, exact, grad.double())
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance * float(theirs.abs().max()))
    for one, other in zip(torch.autograd.grad(ours, (x, weight), grad), expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance * float(other.abs().max()))


def test_our_convolution_uses_it_for_depthwise_kernels_on_the_cpu(monkeypatch):
    used = []

    def watch(name):
        gradients = getattr(convolution, name)
        monkeypatch.setattr(
            convolution, name, lambda *args, **options: used.append(name) or gradients(*args, **options)
        )

    watch("depthwise_gradients")
    watch("convolution_gradients")
    for groups in (6, 1, 2):  # torch computes the gradients of 2 groups
        conv = Conv2d(6, 6, 5, padding=2, groups=groups, bias=False)
        conv(torch.randn(1, 6, 9, 9, requires_grad=True)).sum().backward()
    assert used == ["depthwise_gradients", "convolution_gradients"]

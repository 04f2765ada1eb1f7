"""Fused batch norm, ReLU and convolution, and depthwise convolution: values and gradients of the modules, less kept."""

import copy
import itertools
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from conftest import bytes_kept
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from models.layers import blocks, convolution
from models.layers.blocks import use_our_layers
from models.layers.convolution import Conv2d

CHANNELS_LAST = {"memory_format": torch.channels_last}


# kernel, stride, dilation, padding, height, width
WHOLE = [(1, 1, 1, 1, 7, 8), (4, 1, 2, 4, 7, 8), ((1, 3), 1, 2, (0, 2), 7, 8)]
for size, stride, dilation in itertools.product((1, 3, 5), (1, 2), (1, 9)):  # with 9, a tap of the map reads padding
    WHOLE.append((size, stride, dilation, dilation * (size // 2), 7, 8))
DEPTHWISE = [
    (3, 1, 1, 1, 9, 8),
    (3, 2, 1, 0, 11, 12),
    (5, 1, 2, 4, 9, 8),
    (5, 2, 1, 2, 11, 8),
    (5, 2, 2, 4, 13, 12),
    (5, 4, 1, 2, 14, 15),
    (1, 1, 1, 1, 5, 6),
]
PRECISIONS = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]


@pytest.mark.parametrize(
    ("groups", "geometry", "dtype", "tolerance"),
    [
        *((1, geometry, *PRECISIONS[0]) for geometry in WHOLE),
        *((6, geometry, *precision) for geometry in DEPTHWISE for precision in PRECISIONS),
    ],
)
def test_convolution_is_torchs(groups, geometry, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(convolution, "taps_are_faster", lambda *args: True)
    size, stride, dilation, padding, height, width = geometry
    torch.manual_seed(0)
    conv = Conv2d(6, 6 if groups == 6 else 4, size, stride, padding, dilation, groups, bias=False, dtype=dtype)
    x = torch.randn(3, 6, height, width, dtype=dtype, requires_grad=True)
    exact = [value.detach().double().requires_grad_() for value in (x, conv.weight)]
    ours, theirs = conv(x), F.conv2d(*exact, None, stride, padding, dilation, groups)
    grad = torch.randn_like(ours)
    found = [ours, *torch.autograd.grad(ours, (x, conv.weight), grad)]
    expected = [theirs, *torch.autograd.grad(theirs, exact, grad.double())]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance * other.abs().max().item())


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
    kept = bytes_kept(block, torch.randn(4, 32, 16, 16, device="meta", requires_grad=True))
    return sum(size for size in kept if size > 512) / (4 * 4 * 16 * 16)


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


def test_our_convolution_uses_it_for_depthwise_kernels_on_the_cpu(monkeypatch):
    used = mock.Mock()
    for name in ("depthwise_gradients", "convolution_gradients"):
        used.attach_mock(mock.Mock(wraps=getattr(convolution, name)), name)
        monkeypatch.setattr(convolution, name, getattr(used, name))
    for groups in (6, 1, 2):  # torch computes the gradients of 2 groups
        conv = Conv2d(6, 6, 5, padding=2, groups=groups, bias=False)
        conv(torch.randn(1, 6, 9, 9, requires_grad=True)).sum().backward()
    assert [name for name, *_ in used.method_calls] == ["depthwise_gradients", "convolution_gradients"]

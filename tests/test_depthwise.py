"""Depthwise convolutions: gradients as torch's, whatever the kernel, the stride, the dilation and the size."""

import pytest
import torch
import torch.nn.functional as F

from models.layers import convolution
from models.layers.convolution import Conv2d

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

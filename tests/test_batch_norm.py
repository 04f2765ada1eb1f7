"""Batch norm over all processes, here in a group of one: equal to BatchNorm2d. tests/test_distributed.py has more."""

from types import SimpleNamespace

import pytest
import torch
from test_fused import make, ours_of, trained
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from distributed.group import Group
from distributed.process_group import process_group
from distributed.rank_checks import check_weights
from models.layers import blocks
from models.layers import norm as batch_norm
from models.layers.fused import norm_relu
from models.layers.norm import BatchNorm2d
from support.errors import DivergedError, UserError

C = 6


@pytest.fixture
def alone():
    with process_group(distributed=True, device="cpu") as group:
        yield group


@pytest.fixture(params=["plain", "cuda"])
def kernels(request, monkeypatch) -> None:
    """Those that torch has for CUDA only, as formulas, with their layouts: (world_size, C) and (world_size,)."""

    def channels(values: Tensor) -> Tensor:
        return values.view(1, -1, 1, 1)

    def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        var, mean = torch.var_mean(x.to(torch.float32 if x.itemsize < 4 else x.dtype), (0, 2, 3), correction=0)
        return mean, (var + eps).rsqrt()

    def gather(x, means, invstds, running_mean, running_var, momentum, eps, counts):
        assert means.shape == invstds.shape == (len(counts), x.shape[1])
        assert counts.dim() == 1
        assert counts.dtype == means.dtype == running_mean.dtype
        counts = counts[:, None]
        mean, squares = (counts * means).sum(0) / counts.sum(), invstds**-2 - eps + means.square()
        var = (counts * squares).sum(0) / counts.sum() - mean.square()
        running_mean.mul_(1 - momentum).add_(momentum * mean)
        running_var.mul_(1 - momentum).add_(momentum * var * counts.sum() / (counts.sum() - 1))
        return mean, (var + eps).rsqrt()

    def normalize(x, weight, bias, mean, invstd, eps):
        return ((x - channels(mean)) * channels(invstd * weight) + channels(bias)).to(x.dtype)

    def reduce(grad, x, mean, invstd, weight, *_):
        total, product = grad.sum((0, 2, 3)), (grad * (x - channels(mean))).sum((0, 2, 3))
        return total, product, product * invstd, total.clone()

    def backward(grad, x, mean, invstd, weight, total, product, counts):
        assert counts.dtype == torch.int32
        centred = grad - channels(total / counts.sum())
        slope = channels(product / counts.sum() * invstd.square())
        return (centred - (x - channels(mean)) * slope) * channels(invstd * weight)

    kernels = {"stats": stats, "gather_stats_with_counts": gather, "elemt": normalize}
    for name, kernel in (kernels | {"backward_reduce": reduce, "backward_elemt": backward}).items():
        monkeypatch.setattr(torch, f"batch_norm_{name}", kernel)
    if request.param == "cuda":
        monkeypatch.setattr(batch_norm, "_has_kernels", lambda x: True)


def synchronised() -> BatchNorm2d:
    norm = BatchNorm2d(C)
    norm.synchronized = True
    return norm


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(4, 5), (1, 1)])
def test_it_is_batch_norm(alone, kernels, size, memory_format):
    """Two steps have the same outputs, gradients and running statistics."""
    torch.manual_seed(0)
    plain, ours = nn.BatchNorm2d(C).double(), synchronised().double()
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    ours.load_state_dict(plain.state_dict())
    x = 2 * torch.randn(3, C, *size, dtype=torch.float64).to(memory_format=memory_format) + 1
    for factor in (1.0, 3.0):
        inputs = [(factor * x).detach().requires_grad_() for _ in "ab"]
        outputs = [norm(value) for norm, value in zip((plain, ours), inputs, strict=True)]
        torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
        for output in outputs:
            (output * torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape)).sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-9, atol=1e-12)
    gradients = [[parameter.grad for parameter in norm.parameters()] for norm in (ours, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=1e-12, atol=1e-12)
    assert torch.equal(ours.eval()(x), plain.eval().load_state_dict(ours.state_dict()) and plain(x))


@pytest.mark.parametrize("kind", [BasicBlock, Bottleneck])
def test_a_fused_block_is_torchvisions(alone, kernels, monkeypatch, kind):
    monkeypatch.setattr(blocks, "saves_time", lambda *args: True)
    theirs = make(kind, shortcut=True, frozen=False)
    ours = ours_of(theirs)
    batch_norm.synchronize_batch_norm(ours, "on", torch.device("cpu"))
    torch.testing.assert_close(trained(ours), trained(theirs), rtol=1e-9, atol=1e-9)


def test_one_value_a_channel_is_refused_and_statistics_that_are_not_finite_are_seen():
    """nn.BatchNorm2d raises, too; torch.native_batch_norm() divides by 0 values and makes the running variance nan."""
    norm, x = BatchNorm2d(C).train(), torch.ones(1, C, 1, 1)
    for function in (norm, norm.normalise, lambda x: norm_relu(x, norm)):
        with pytest.raises(UserError, match="one value a channel: raise --batchsize or --crop_size"):
            function(x)
    group = Group(torch.device("cpu"))
    norm.register_buffer("cache", torch.empty(0))  # a network of the user's own may have one without elements
    check_weights(group, norm, compare_batch_norm=True)
    for value in (torch.nan, torch.inf, -torch.inf):
        norm.running_var[1] = value
        with pytest.raises(DivergedError, match=r"no longer finite \(running_var\)"):
            check_weights(group, norm, compare_batch_norm=True)


def test_in_mid_epoch_the_statistics_of_synchronised_norms_must_be_equal_on_all_ranks():
    """Those of plain norms differ, as each rank has seen other images."""

    def gather(sums: dict[str, int]) -> list[dict[str, int]]:
        return [sums, {name: value + name.endswith("running_mean") for name, value in sums.items()}]

    group = SimpleNamespace(world_size=2, gather=gather)
    check_weights(group, nn.Sequential(BatchNorm2d(C)), compare_batch_norm=False)
    with pytest.raises(UserError, match=r"0\.running_mean differs between rank 0 and rank 1"):
        check_weights(group, nn.Sequential(synchronised()), compare_batch_norm=False)

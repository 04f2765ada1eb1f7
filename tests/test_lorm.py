"""LoRM against autograd of its plain form, and the positions of its queries."""

import pytest
import torch
import torch.nn.functional as F
from conftest import bytes_kept

from models import lorm
from models.lorm import LoRM, find_foreground, foreground_mask
from support.batch import Foreground

SHARES = {"some": (0.4, 0.6), "one image without": (0.0, 0.5), "none": (0.0, 0.0), "all": (1.0, 1.0)}


def plain_lorm(module: LoRM, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The release's form: attention of all positions, (B, H*W, H*W), and a mask. The sum and its non-zero terms."""
    query, key = (F.normalize(conv(x).flatten(2), dim=1) for conv in (module.query_conv, module.key_conv))
    values = x.flatten(2).transpose(1, 2)
    rectified = module.gamma * torch.bmm(torch.bmm(query.transpose(1, 2), key).softmax(-1), values)
    inside = mask.flatten(1).unsqueeze(-1)
    squares = (values - rectified * inside).square() * (inside if module.scope == "foreground" else 1)
    return squares.sum(), torch.count_nonzero(squares)


def with_gradients(module: LoRM, x: torch.Tensor, total: torch.Tensor) -> list[torch.Tensor]:
    """A loss and its gradients, by x and by gamma, weights and biases."""
    return [total.detach(), *torch.autograd.grad(0.3 * total, (x, *module.parameters()))]


def drawn(
    shares, scope: str, dtype: torch.dtype, channels: int = 12, size=(7, 5)
) -> tuple[LoRM, torch.Tensor, torch.Tensor]:
    """A LoRM, features that have 0s and a common part as a backbone's have, and a mask with these shares."""
    torch.manual_seed(0)
    module = LoRM(channels, scope).to(dtype)
    torch.nn.init.constant_(module.gamma, 0.7)
    x = (torch.randn(2, channels, *size) + torch.rand(channels, 1, 1)).relu()
    x = x.to(dtype, memory_format=torch.channels_last)
    mask = torch.rand(2, *size) < torch.tensor(shares).view(2, 1, 1)
    return module, x.requires_grad_(), mask


def queries(mask: torch.Tensor) -> Foreground:
    return Foreground(mask.flatten(1).nonzero()[:, 1], mask.flatten(1).sum(1).tolist())


@pytest.mark.parametrize("scope", ["foreground", "all"])
@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("block", [60, 10**6])  # 1 query of 48 keys at a time, and all at once
@pytest.mark.parametrize(("size", "positions"), [((7, 5), 4096), ((4, 4), 16)])  # padded, both images at once; neither
def test_value_and_gradients_are_those_of_the_plain_form(
    monkeypatch, scope, shares, dtype, tolerance, block, size, positions
):
    monkeypatch.setattr(lorm, "BLOCK_SCORES", block)
    monkeypatch.setattr(lorm, "GROUP_POSITIONS", positions)
    module, x, mask = drawn(shares, scope, dtype, size=size)
    if positions == 16:
        x = x.detach().contiguous().requires_grad_()
    total, num_terms = plain_lorm(module, x, mask)
    expected = with_gradients(module, x, total)
    outputs = module(x, queries(mask))
    for ours, theirs in zip(with_gradients(module, x, outputs["lorm"]), expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
    assert outputs.get("lorm_count", num_terms) == num_terms


@pytest.mark.parametrize("x_type", [torch.float32, torch.bfloat16])
def test_bf16_is_close(x_type):
    module, x, mask = drawn((0.4, 0.6), "foreground", torch.float32, channels=64)
    exact = with_gradients(module, x, plain_lorm(module, x, mask)[0])
    rounded = x.detach().to(x_type).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        total = module(rounded, queries(mask))["lorm"]
    assert total.dtype == torch.float32
    for ours, theirs in zip(with_gradients(module, rounded, total), exact, strict=True):
        assert (ours - theirs).norm() <= 1e-2 * theirs.norm()  # bf16 has 8 bits: a rounding is up to 4e-3


def test_what_is_kept_does_not_grow_with_the_number_of_positions_squared():
    torch.manual_seed(0)
    module = LoRM(4)
    x = torch.randn(1, 4, 40, 40, requires_grad=True)
    kept = bytes_kept(module, x, queries(torch.ones(1, 40, 40, dtype=torch.bool)))
    assert max(kept) == x.nbytes  # 6400 elements; the attention has 1600 * 1600


@pytest.mark.parametrize("background", [0, 3, None])
def test_positions_are_those_of_the_mask(background):
    generator = torch.Generator().manual_seed(0)
    pseudo = torch.randint(0, 5, (3, 33, 47), generator=generator, dtype=torch.uint8)
    pseudo[torch.rand(3, 33, 47, generator=generator) < 0.5] = 255
    pseudo[1] = 255  # no foreground
    size = 5, 6
    mask = foreground_mask(pseudo, size, background)
    positions, counts = find_foreground(pseudo, size=size, background=background)
    found = torch.zeros_like(mask.flatten(1))
    for row, here in zip(found, positions.split(counts), strict=True):
        row[here] = True
    assert torch.equal(found, mask.flatten(1))
    assert counts == mask.flatten(1).sum(1).tolist()
    assert counts[1] == 0
    assert 0 < counts[0] < mask[0].numel() or background is None


def test_large_features_stay_finite_in_half_precision():
    torch.manual_seed(0)
    x = torch.randn(1, 64, 4, 4) * 300  # the sum of 64 products of such numbers is above 65504, fp16's largest
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = LoRM(64)(x, queries(torch.ones(1, 4, 4, dtype=torch.bool)))["lorm"]
    loss.backward()
    assert 0 < loss < torch.inf
    assert x.grad.isfinite().all()

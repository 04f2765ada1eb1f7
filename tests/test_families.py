"""Thin networks of timm, of many kinds: they compute what timm's layers do, also recomputed, frozen and folded."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import models
from models.fold import fold_batch_norm

timm = pytest.importorskip("timm")

EXACT = 1e-6  # in float64: rounding, and batch norm of the few places that a deep network leaves
SIZE = (65, 97)
QUICK = ("test_convnext", "test_efficientnet", "test_vit")
VIT = {"depth": 2, "embed_dim": 48, "num_heads": 3}
PYRAMID = {"embed_dims": (16, 32, 48, 64), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 3, 4)}
SWIN = {"embed_dim": 24, "depths": (2, 1, 1, 2), "num_heads": (1, 2, 4, 8)}
# {network: arguments that make it thin}
NETWORKS: dict[str, dict] = {name: {} for name in QUICK} | {
    "davit_tiny": PYRAMID,
    "hrnet_w18_small": {},
    "mobilenetv3_small_050": {},
    "rdnet_tiny": {"num_init_features": 16, "growth_rates": [8] * 7, "num_blocks_list": [1] * 7},
    "regnetx_002": {},
    "swin_tiny_patch4_window7_224": SWIN,
    "test_mambaout": {},
    "test_nfnet": {},
    "test_vit": {"depth": 2},
    "tiny_vit_5m_224": PYRAMID,
    "vgg11_bn": {"mlp_ratio": 0.01},
    "vit_tiny_r_s16_p8_224": VIT,
}


@functools.cache
def thin(network: str) -> str:
    """Make the thin network known to timm, and return its name."""
    entry = timm.models.model_entrypoint(network)

    def build_thin(pretrained: bool = False, **others) -> nn.Module:
        return entry(pretrained, **NETWORKS[network] | others)

    build_thin.__name__, build_thin.__module__ = f"thin_{network}", entry.__module__
    return timm.models.register_model(build_thin).__name__


def build(network: str, **options) -> models.Segmenter:
    """Return the model as train.py builds it, in float64, with random batch norms and no weight that starts at 0."""
    torch.manual_seed(0)
    name = f"timm:{thin(network)}"
    model = models.build("deeplabv3p_multi", backbone=name, num_classes=4, head_channels=8, **options)
    model.backbone.freeze_unused(model.head)
    for module in model.double().modules():
        for value in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if isinstance(module, _BatchNorm) and value.is_floating_point():
                value.data.uniform_(0.5, 1.5)
            elif isinstance(value, nn.Parameter) and value.abs().max() < 1e-3:
                value.data.normal_(std=0.5)
    return model.to(memory_format=torch.channels_last).train()


def gradients(module: nn.Module, run: Callable[[nn.Module], list[Tensor]]) -> dict[str, Tensor]:
    torch.manual_seed(1)  # of stochastic depth
    sum(values.square().mean() for values in run(module)).backward()
    return {name: value.grad for name, value in module.named_parameters() if value.grad is not None}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Norms below a millionth of the largest count as that."""
    floor = 1e-6 * max(float(value.norm()) for value in expected.values())
    for name, value in found.items():
        assert (value - expected[name]).norm() <= EXACT * max(float(expected[name].norm()), floor), name


@pytest.mark.parametrize(
    "network", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in NETWORKS]
)
def test_network_is_that_of_timm(network):
    model, images = build(network), torch.randint(0, 256, (2, *SIZE, 3), dtype=torch.uint8)
    body, facts, x = model.backbone.body, model.backbone.facts, torch.randn(2, 3, *SIZE, dtype=torch.float64)
    plain = timm.create_model(thin(network), num_classes=0, **facts.options).double().train()
    plain.to(memory_format=torch.channels_last)  # stochastic depth fills its mask in this order
    plain.load_state_dict(body.state_dict(), strict=False)
    below, right = (-side % facts.multiple for side in SIZE)
    inputs = {"indices": facts.indices, "norm": facts.norm, "intermediates_only": True, "output_fmt": "NCHW"}
    padded = nn.functional.pad(x, (0, right, 0, below))
    own, theirs = (gradients(net, lambda part: part.forward_intermediates(padded, **inputs)) for net in (body, plain))
    assert_close(own, theirs)

    # Each trained parameter has a finite gradient, the same if blocks are recomputed.
    model, recomputing = build(network), build(network, grad_checkpointing=True)
    found, expected = (gradients(each, lambda part: [part(images)["logits"]]) for each in (recomputing, model))
    assert set(expected) == {name for name, value in model.named_parameters() if value.requires_grad}
    assert all(value.isfinite().all() for value in expected.values())
    assert_close(found, expected)
    for (name, value), other in zip(model.named_buffers(), recomputing.buffers(), strict=True):
        assert torch.equal(value, other), name

    # Half of the parts are frozen, and no other.
    depths = model.backbone.depths()
    frozen = build(network, freeze_backbone=(1 + max(depths.values())) // 2)
    trained = gradients(frozen, lambda part: [part(images)["logits"]])
    assert 0 < sum(name.startswith("backbone") for name in trained) < len(depths)

    with torch.no_grad():
        logits, copied = model.eval()(images)["logits"], fold_batch_norm(model)(images)["logits"]
    assert (copied - logits).norm() <= EXACT * logits.norm()

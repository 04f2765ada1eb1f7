"""Gradient checkpointing: every result is the same, bit for bit on the CPU; on two ranks in tests/test_freezing.py."""

import copy

import pytest
import torch
from chaos import unequal
from conftest import flags
from test_models import foreground
from torch import nn

import models
import utils
from distributed.group import Group
from distributed.precision import autocast
from flags import parse_flags

CPU = torch.device("cpu")


def build(layers: int = 18, **options) -> models.Segmenter:
    torch.manual_seed(0)
    return models.build("res50_ASPP_lorm", layers=layers, num_classes=4, **options).train()


def trained(model: nn.Module, *, steps: int = 2, accum_steps: int = 1, amp: str = "none") -> list[torch.Tensor]:
    """Train `model` on drawn noise, as train.py does. Returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        for _ in range(accum_steps):
            images = torch.randint(0, 256, (2, 33, 47, 3), dtype=torch.uint8, generator=generator)
            pseudo = torch.randint(0, 4, (2, 33, 47), dtype=torch.uint8, generator=generator)
            with autocast(amp, CPU):
                outputs = model(images, foreground(model, pseudo))
            loss = outputs["logits"].float().square().mean() + 1e-4 * outputs.get("lorm", 0)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize(("layers", "settings"), [(18, {}), (50, {"amp": "bf16"}), (18, {"accum_steps": 3})])
@pytest.mark.parametrize("freeze_bn", [False, True])
def test_same_weights_statistics_and_losses(layers, settings, freeze_bn):
    plain, checkpointed = (build(layers, freeze_bn=freeze_bn, grad_checkpointing=switch) for switch in (False, True))
    before = copy.deepcopy(plain).backbone
    losses = trained(plain, **settings)
    assert all(map(torch.equal, trained(checkpointed, **settings), losses))
    assert not unequal(checkpointed.state_dict(), plain.state_dict())
    assert not torch.equal(plain.backbone.conv1.weight, before.conv1.weight)
    norm, passes = plain.backbone.layer4[0].bn2, 0 if freeze_bn else 2 * settings.get("accum_steps", 1)
    assert norm.num_batches_tracked == passes
    assert torch.equal(norm.running_mean, before.layer4[0].bn2.running_mean) == freeze_bn


@pytest.mark.parametrize("name", ["dla46x_c", "test_resnet"])
def test_a_network_without_blocks_to_recompute_or_compile_is_said(demo_root, caplog, monkeypatch, name):
    pytest.importorskip("timm")
    monkeypatch.setattr(utils, "compiles_everywhere", lambda group: False)
    given = {"backbone": f"timm:{name}", "model_type": "deeplabv2", "layers": None, "l_lorm": None}
    words = flags(**given, dataset_path=demo_root, grad_checkpointing=True, compile=True)
    utils.get_model(parse_flags(words), Group(CPU))
    said = [
        f"--grad_checkpointing saves no memory: timm:{name} has no sequence of blocks to recompute",
        f"--compile does not compile timm:{name}: it has no sequence of blocks",
    ]
    assert caplog.messages == (said if name == "dla46x_c" else [])

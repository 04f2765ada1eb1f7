"""Parameter groups: each trained parameter's learning rate and weight decay."""

import pytest
import torch
from torch import nn

import models
from distributed.precision import LossScaler
from training.optimizers import parameter_groups
from training.state import TrainState


def build(**options) -> models.Segmenter:
    return models.build("res50_ASPP_lorm", layers=50, num_classes=4, **options)


def settings(model: models.Segmenter, **options) -> dict[str, tuple[float, float]]:
    """{trained parameter: (factor on its learning rate, weight decay)}. Each is in one group only."""
    groups = parameter_groups(model, weight_decay=0.05, **options)
    by_id = {id(value): (group["lr_factor"], group["weight_decay"]) for group in groups for value in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(by_id)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[key]: values for key, values in by_id.items()}


def test_default_is_one_group_in_the_models_order():
    """As in checkpoints from before there were groups: the optimizer's state is saved by position."""
    model = build()
    [group] = parameter_groups(model, weight_decay=0.05)
    assert [id(value) for value in group["params"]] == [id(value) for value in model.parameters()]
    assert (group["lr_factor"], group["weight_decay"]) == (1.0, 0.05)


def test_head_norms_biases_and_what_the_backbone_exempts():
    model = build(freeze_backbone=2)
    model.backbone.no_weight_decay = lambda: {"layer3.0.conv1.weight"}
    norms = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for name, _ in module.named_parameters()
    }
    exempt = norms | {name for name, _ in model.named_parameters() if name.endswith(".bias")} | {"lorm.gamma"}
    exempt |= {"backbone.layer3.0.conv1.weight"}
    frozen = ("backbone.conv1", "backbone.bn1", "backbone.layer1")
    trained = [name for name, _ in model.named_parameters() if not name.startswith(frozen)]
    for decay_norm_bias in (True, False):
        found = settings(model, decay_norm_bias=decay_norm_bias, head_lr_factor=10.0)
        assert found == {
            name: (
                1.0 if name.startswith("backbone.") else 10.0,
                0.0 if name in exempt and not decay_norm_bias else 0.05,
            )
            for name in trained
        }


def test_update_gives_each_group_its_learning_rate():
    model = build()
    optimizer = torch.optim.SGD(parameter_groups(model, weight_decay=0.0, head_lr_factor=3.0), lr=9.0)
    state = TrainState(model, model, optimizer, LossScaler(torch.device("cpu"), enabled=False))
    before = {name: value.clone() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.update(0.25, 1)
    after = dict(model.named_parameters())
    for name, change in {"head.aspp.conv1.weight": 0.75, "backbone.conv1.weight": 0.25}.items():
        torch.testing.assert_close(before[name] - after[name], torch.full_like(before[name], change))


def test_a_vits_embeddings_and_tokens_have_no_decay():
    pytest.importorskip("timm", reason="timm is not installed")
    model = models.build("deeplabv2", num_classes=4, backbone="timm:test_vit")
    found = settings(model, decay_norm_bias=False)
    assert found["backbone.body.pos_embed"][1] == found["backbone.body.cls_token"][1] == 0
    assert settings(model)["backbone.body.pos_embed"][1] == 0.05

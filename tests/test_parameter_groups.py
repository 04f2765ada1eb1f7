"""Parameter groups: each trained parameter's learning rate and weight decay, by formula."""

import pytest
import torch
from torch import nn

import models
from optimization.amp import LossScaler
from optimization.parameter_groups import parameter_groups
from runs.state import TrainState


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


@pytest.mark.parametrize("head_lr_factor", [1.0, 10.0])
def test_learning_rate_falls_by_part_from_the_head_to_the_input(head_lr_factor):
    model = build()
    found = settings(model, layer_decay=0.5, head_lr_factor=head_lr_factor)
    # Above layer4 there is the head; above layer1 there are layer2, layer3, layer4 and the head.
    powers = {"layer4": 1, "layer3": 2, "layer2": 3, "layer1": 4, "conv1": 5, "bn1": 5}
    assert len(found) == len(list(model.parameters()))
    for name, (factor, decay) in found.items():
        room, part, *_ = name.split(".")
        assert factor == (0.5 ** powers[part] if room == "backbone" else head_lr_factor), name
        assert decay == 0.05


def test_norms_and_biases_have_no_decay_where_it_is_chosen():
    model = build()
    norms = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for name, _ in module.named_parameters()
    }
    without = norms | {name for name, _ in model.named_parameters() if name.endswith(".bias")} | {"lorm.gamma"}
    found = settings(model, decay_norm_bias=False)
    assert {name for name, (_, decay) in found.items() if decay == 0} == without
    assert all(values in ((1.0, 0.0), (1.0, 0.05)) for values in found.values())


def test_what_the_backbone_exempts_has_no_decay():
    model = build()
    model.backbone.no_weight_decay = lambda: {"conv1.weight"}
    assert settings(model, decay_norm_bias=False)["backbone.conv1.weight"] == (1.0, 0.0)
    assert settings(model)["backbone.conv1.weight"] == (1.0, 0.05)


def test_vits_groups_are_timms():
    """timm's own groups, for its network with its own head: layer-wise decay by block, and no decay on embeddings."""
    timm = pytest.importorskip("timm", reason="timm is not installed")
    optim = pytest.importorskip("timm.optim")
    name = "vit_tiny_patch16_224"
    theirs = timm.create_model(name, num_classes=4)
    names = {id(parameter): name for name, parameter in theirs.named_parameters()}
    expected = {
        names[id(parameter)]: (group["lr_scale"], group["weight_decay"])
        for group in optim.param_groups_layer_decay(
            theirs, weight_decay=0.05, layer_decay=0.75, no_weight_decay_list=theirs.no_weight_decay()
        )
        for parameter in group["params"]
    }
    model = models.build("deeplabv2", num_classes=4, backbone=f"timm:{name}")
    found = settings(model, layer_decay=0.75, decay_norm_bias=False)
    assert len(found) == len(list(model.parameters()))
    for name, values in found.items():
        ours = name.removeprefix("backbone.body.")
        assert values == pytest.approx(expected[ours] if ours in expected else (1.0, values[1])), name
    assert found["backbone.body.pos_embed"] == pytest.approx((0.75**13, 0.0))  # below 12 blocks and the head


def test_frozen_parameters_are_in_no_group():
    found = settings(build(freeze_backbone=2), layer_decay=0.5)
    assert "backbone.conv1.weight" not in found
    assert not any(name.startswith("backbone.layer1") for name in found)
    assert found["backbone.layer2.0.conv1.weight"] == (0.5**3, 0.05)  # the factors do not depend on what is frozen


def test_update_gives_each_group_its_learning_rate():
    model = build()
    optimizer = torch.optim.SGD(parameter_groups(model, weight_decay=0.0, layer_decay=0.5, head_lr_factor=3.0), lr=9.0)
    state = TrainState(model, model, optimizer, LossScaler(torch.device("cpu"), enabled=False))
    before = {name: value.clone() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.update(0.25, 1)
    after = dict(model.named_parameters())
    expected = {"head.aspp.conv1.weight": 0.75, "backbone.layer4.0.conv1.weight": 0.125, "backbone.conv1.weight": 2**-7}
    for name, change in expected.items():
        torch.testing.assert_close(before[name] - after[name], torch.full_like(before[name], change))

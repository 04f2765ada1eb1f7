"""SGD and AdamW in one kernel, as on CUDA: steps of the plain ones, exchangeable states; and groups of parameters."""

import copy

import pytest
import torch
from conftest import flags
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import models
import utils
from distributed.group import Group
from distributed.precision import LossScaler
from flags import parse_flags
from training.optimizers import FusedSGD, make_optimizer, parameter_groups
from training.state import _restore_optimizer

OPTIONS = {"lr": 0.5, "weight_decay": 0.125}


def steps(optimizer: Optimizer, weight: nn.Parameter, gradients: list[float], scale: bool = False) -> list[float]:
    """The weight after a step with each gradient."""
    scaler = LossScaler(torch.device("cpu"), enabled=scale)
    values = []
    for gradient in gradients:
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        [value] = weight.unique().tolist()
        values.append(value)
    return values


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_of_one_kernel_are_the_plain_ones(name, scale):
    options = OPTIONS | ({"momentum": 0.5} if name == "sgd" else {})
    results = []
    for fused in (False, True):
        weight = nn.Parameter(torch.tensor(8.0))
        optimizer = make_optimizer(name, [{"params": [weight]}], fused=fused, **options)
        results.append(steps(optimizer, weight, [2.0, float("inf") if scale else 3.0, -4.0], scale))
    # SGD: the gradient with weight decay is 2 + 8 / 8 = 3, so the weight becomes 8 - 0.5 * 3. AdamW: 8 - 0.5 / 8 * 8,
    # and the first averages, without their bias, are 2 and 2^2: the step is 0.5 * 2 / 2.
    assert results[0][0] == pytest.approx({"sgd": 6.5, "adamw": 7.0}[name], rel=1e-6)
    assert results[1] == pytest.approx(results[0], rel=1e-6)
    assert not scale or results[1][1] == results[1][0]  # skipped


def test_a_first_step_that_is_skipped_leaves_no_momentum(monkeypatch):
    """torch's own fused SGD then begins with whatever was in the memory."""
    monkeypatch.setattr(torch, "empty_like", lambda values: torch.full_like(values, 1e9))
    weight = nn.Parameter(torch.full((1000,), 8.0))
    assert steps(FusedSGD([weight], momentum=0.5, **OPTIONS), weight, [float("inf"), 2.0], scale=True)[1] == 6.5


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_states_are_exchanged_and_a_parameter_may_join_late(name):
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    options = OPTIONS | ({"momentum": 0.5} if name == "sgd" else {})

    def make(parameters, *, fused: bool) -> Optimizer:
        return make_optimizer(name, [{"params": list(parameters)}], fused=fused, **options)

    whole = make(copy.deepcopy(layers).parameters(), fused=False)
    optimizers = [make(layers.parameters(), fused=fused) for fused in (False, True, False)]
    state = optimizers[0].state_dict()
    for number, optimizer in enumerate(optimizers):
        _restore_optimizer(optimizer, state)
        for one in (optimizer, whole):
            for index, parameter in enumerate(one.param_groups[0]["params"]):
                parameter.grad = None if number == 0 and index > 1 else parameter.detach().cos() + number
            one.step()
        state = optimizer.state_dict()
    for ours, expected in zip(layers.parameters(), whole.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(ours, expected)


def test_step_counts_move_to_the_device_of_their_parameter():
    """AdamW on the CPU has them there, and the kernel of CUDA needs them on the device."""
    counts = []
    for device in ("cpu", "meta"):
        weight = nn.Parameter(torch.ones(2, device=device))
        optimizer = make_optimizer("adamw", [{"params": [weight]}], fused=False, **OPTIONS)
        if device == "cpu":
            weight.grad = torch.ones(2)
            optimizer.step()
            saved = optimizer.state_dict()
        else:
            optimizer.param_groups[0]["fused"] = True  # which torch refuses to set up for "meta"
            _restore_optimizer(optimizer, saved)
        counts.append(optimizer.state[weight]["step"].device.type)
    assert counts == ["cpu", "meta"]


@pytest.mark.parametrize(
    ("name", "device", "kind"),
    [("sgd", "cpu", SGD), ("sgd", "cuda", FusedSGD), ("adamw", "cpu", AdamW), ("adamw", "cuda", AdamW)],
)
def test_the_optimizer_follows_its_flags_and_is_fused_on_cuda(tmp_path, name, device, kind):
    given, own = ({"momentum": 0.7},) * 2 if name == "sgd" else ({}, {"betas": (0.9, 0.999)})
    cfg = parse_flags(flags(dataset_path=tmp_path, optimizer=name, wdecay=0.03, **given))
    model = models.build(cfg.model_type, layers=18, num_classes=5)
    optimizer = utils.get_optimizer(cfg, Group(torch.device(device)), model, 0.5)
    assert type(optimizer) is kind
    [group] = optimizer.param_groups  # in the model's order: the optimizer's state is saved by position
    assert [id(value) for value in group["params"]] == [id(value) for value in model.parameters()]
    assert (own | {"lr": 0.5, "weight_decay": 0.03, "lr_factor": 1.0}).items() <= group.items()
    assert bool(optimizer.defaults["fused"]) == (device == "cuda")


def test_head_norms_biases_and_what_the_backbone_exempts():
    model = models.build("res50_ASPP_lorm", layers=50, num_classes=4, freeze_backbone=2)
    model.backbone.no_weight_decay = lambda: {"layer3.0.conv1.weight"}
    norms = {f"{prefix}.weight" for prefix, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    exempt = norms | {name for name, _ in model.named_parameters() if name.endswith(".bias")} | {"lorm.gamma"}
    exempt |= {"backbone.layer3.0.conv1.weight"}
    frozen = ("backbone.conv1", "backbone.bn1", "backbone.layer1")
    trained = [name for name, _ in model.named_parameters() if not name.startswith(frozen)]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for decay_norm_bias in (True, False):
        factors = {name: 1.0 if name.startswith("backbone.") else 10.0 for name in trained}
        decays = {name: 0.05 if decay_norm_bias or name not in exempt else 0.0 for name in trained}
        groups = parameter_groups(model, weight_decay=0.05, decay_norm_bias=decay_norm_bias, head_lr_factor=10.0)
        found = [(names[id(value)], group) for group in groups for value in group["params"]]
        assert len(found) == len(trained)  # each is in one group only
        assert {name: group["lr_factor"] for name, group in found} == factors
        assert {name: group["weight_decay"] for name, group in found} == decays

"""SGD and AdamW in one kernel, as on CUDA: steps of the plain ones, also with a loss scale, and exchangeable states."""

import copy

import pytest
import torch
from conftest import flags
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import SGD, AdamW, Optimizer

import config
import models
import utils
from distributed.group import Group
from distributed.join import process_group
from optimization.amp import LossScaler
from optimization.optimizers import FusedAdamW, FusedSGD

OPTIONS = {"lr": 0.5, "weight_decay": 0.125}


def steps(optimizer: Optimizer, weight: nn.Parameter, gradients: list[float], scale: bool = False) -> list[float]:
    """The weight after a step with each gradient."""
    scaler = LossScaler(torch.device("cpu"), enabled=scale)
    values = []
    for gradient in gradients:
        scaler.scale(weight * gradient).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        values.append(weight.item())
    return values


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_are_those_of_sgd(momentum, scale):
    results = []
    for kind in (SGD, FusedSGD):
        weight = nn.Parameter(torch.tensor(8.0))
        results.append(steps(kind([weight], momentum=momentum, **OPTIONS), weight, [2.0, -4.0, 0.0], scale))
    # The gradient with weight decay is 2 + 8 / 8 = 3, so the weight becomes 8 - 0.5 * 3 = 6.5.
    assert results[1][0] == 6.5
    assert results[0] == results[1]  # few digits, so nothing is rounded


@pytest.mark.parametrize("scale", [False, True])
def test_steps_are_those_of_adamw(scale):
    results = []
    for kind in (AdamW, FusedAdamW):
        weight = nn.Parameter(torch.tensor(8.0))
        results.append(steps(kind([weight], **OPTIONS), weight, [2.0, float("inf") if scale else 3.0, -4.0], scale))
    # Decay: 8 - 0.5 / 8 * 8 = 7.5. The first averages, without their bias, are 2 and 2^2: the step is 0.5 * 2 / 2.
    assert results[0][0] == pytest.approx(7.0, rel=1e-6)
    assert results[1] == pytest.approx(results[0], rel=1e-6)
    assert not scale or results[1][1] == results[1][0]  # skipped


def test_step_counts_move_to_the_device_of_their_parameter():
    """ZeroRedundancyOptimizer loads them into CPU memory, and AdamW on the CPU has them there."""
    optimizer = FusedAdamW([nn.Parameter(torch.empty(2, device="meta"))])
    [weight] = optimizer.param_groups[0]["params"]
    optimizer.state[weight]["step"] = torch.tensor(3.0)
    for hook in optimizer._optimizer_step_pre_hooks.values():
        hook(optimizer, (), {})
    assert optimizer.state[weight]["step"].is_meta


def test_a_first_step_that_is_skipped_leaves_no_momentum(monkeypatch):
    """torch's own fused SGD then begins with whatever was in the memory."""
    monkeypatch.setattr(torch, "empty_like", lambda values: torch.full_like(values, 1e9))
    weight = nn.Parameter(torch.full((1000,), 8.0))
    optimizer = FusedSGD([weight], momentum=0.5, **OPTIONS)
    scaler = LossScaler(torch.device("cpu"), enabled=True)
    for gradient in (float("inf"), 2.0):
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert weight.unique().tolist() == [6.5]
    assert scaler.counts[1] == 1


def test_states_are_exchanged_and_a_parameter_may_join_late():
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    kinds = [SGD, FusedSGD, SGD]
    whole = SGD(copy.deepcopy(layers).parameters(), momentum=0.5, **OPTIONS)
    optimizers = [kind(layers.parameters(), momentum=0.5, **OPTIONS) for kind in kinds]
    state = optimizers[0].state_dict()
    for number, optimizer in enumerate(optimizers):
        optimizer.load_state_dict({"state": state["state"], "param_groups": optimizer.state_dict()["param_groups"]})
        for one in (optimizer, whole):
            for index, parameter in enumerate(one.param_groups[0]["params"]):
                parameter.grad = None if number == 0 and index > 1 else parameter.detach().cos() + number
            one.step()
        state = optimizer.state_dict()
    for ours, expected in zip(layers.parameters(), whole.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(ours, expected)


def test_shards_of_the_state_are_fused_too():
    weight = nn.Parameter(torch.tensor(8.0))
    with process_group(distributed=True, device="cpu"):
        optimizer = ZeroRedundancyOptimizer([weight], optimizer_class=FusedSGD, momentum=0.5, **OPTIONS)
        values = steps(optimizer, weight, [2.0, float("inf"), -4.0], scale=True)
        optimizer.consolidate_state_dict()
        # 8 - 0.5 * 3; skipped; then the momentum is 0.5 * 3 + (-4 + 6.5 / 8) = -1.6875
        assert values == [6.5, 6.5, 6.5 + 0.5 * 1.6875]
        assert optimizer.state_dict()["state"][0]["momentum_buffer"] == -1.6875


KINDS = [("sgd", "cpu", SGD), ("sgd", "cuda", FusedSGD), ("adamw", "cpu", AdamW), ("adamw", "cuda", FusedAdamW)]


@pytest.mark.parametrize(("name", "device", "kind"), KINDS)
def test_cuda_gets_the_fused_one(tmp_path, name, device, kind):
    cfg = config.parse(flags(dataset_path=tmp_path, optimizer=name))
    model = models.build(cfg.model_type, layers=18, num_classes=5)
    optimizer = utils.get_optimizer(cfg, model, Group(torch.device(device)), 0.5)
    assert type(optimizer) is kind

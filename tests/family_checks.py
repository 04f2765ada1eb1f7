"""What every family of timm's networks must do; test_families.py asserts it, backbone_table.py prints it.

family: a key of tests.families.FAMILIES. A check that fails raises AssertionError with the reason.
"""

import copy
import io

import timm
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.chaos import unequal
from distributed.group import Group
from models.layers.fold import folded
from optimization.amp import LossScaler, autocast
from runs.state import TrainState
from tests.families import SIZE, SIZES, build, built, thin

CPU = torch.device("cpu")


def step(family: str, model: nn.Module, number: int, amp: str = "none", micro_batches: int = 1) -> list[Tensor]:
    """Pass micro-batches, drawn from `number`, forward, and in training also backward. Returns the logits."""
    generator = torch.Generator().manual_seed(number)
    found = []
    for _ in range(micro_batches):
        images = torch.randint(0, 256, (2, *SIZES.get(family, SIZE), 3), dtype=torch.uint8, generator=generator)
        with autocast(amp, CPU), torch.set_grad_enabled(model.training):
            logits = model(images)["logits"]
        if model.training:
            logits.float().square().mean().backward()
        found.append(logits.detach())
    return found


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=1e-3, momentum=0.9)


def check_gradients(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, f"{name} has no gradient"
        assert parameter.grad is None or parameter.grad.isfinite().all(), f"{name} has a gradient that is not finite"


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest |found - expected| / max(|found|, |expected|), which is at most 2.

    Norms below a millionth of the largest count as that.
    """
    norms = {name: max(float(value.norm()), float(found[name].norm())) for name, value in expected.items()}
    floor = max(1e-6 * max(norms.values()), 1e-300)
    return max(float((found[name] - value).norm()) / max(norms[name], floor) for name, value in expected.items())


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def train(family: str) -> str:
    """Train two steps of two micro-batches: each trained parameter gets a finite gradient, and the weights change.

    The features have the sizes that feature_size() says, and each parameter has its part.
    """
    model = build(family)
    size = SIZES.get(family, SIZE)
    with torch.no_grad():
        features = model.backbone(torch.randn(2, 3, *size))
    assert tuple(features[-1].shape[2:]) == model.backbone.feature_size(*size), "feature_size() differs"
    for x, stride in zip(features, model.backbone.strides, strict=True):
        for length, side in zip(x.shape[2:], size, strict=True):  # Inception's convolutions lose the margins
            assert abs(length - side / stride) <= max(3, 32 / stride), (
                f"{length} positions, {side} pixels, stride {stride}"
            )
    parts = set(model.backbone.depths())
    assert parts == {name for name, _ in model.backbone.named_parameters()}, "a parameter is in no part"
    optimizer, before = optimizer_of(model), copy.deepcopy(model.state_dict())
    for number in range(2):
        step(family, model, number, micro_batches=2)
        check_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    assert all(value.isfinite().all() for value in model.state_dict().values()), "a weight is not finite"
    trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    same = [name for name, value in trained if torch.equal(value, before[name])]
    assert len(same) < len(trained) / 2, f"{len(same)} of {len(trained)} parameters did not change, such as {same[0]}"
    return "yes"


def equal_timm(family: str) -> float:
    """Return the largest relative difference of a gradient from that of timm's own layers, in float64."""
    ours = build(family).backbone.double()
    theirs = timm.create_model(thin(family), num_classes=0, **ours.facts.options).double().train()
    theirs.to(memory_format=torch.channels_last)  # dropout fills its mask in this order
    theirs.load_state_dict(ours.body.state_dict(), strict=False)
    images = torch.randn(2, 3, *SIZES.get(family, SIZE), dtype=torch.float64)
    below, right = (-side % ours.facts.multiple for side in images.shape[2:])
    inputs = {"indices": ours.facts.indices, "norm": ours.facts.norm, "intermediates_only": True, "output_fmt": "NCHW"}
    for body in (ours.body, theirs):
        torch.manual_seed(1)
        found = body.forward_intermediates(nn.functional.pad(images, (0, right, 0, below)), **inputs)
        sum(values.square().mean() for values in found).backward()
    expected = gradients(theirs)
    return difference(gradients(ours.body), {name: expected[name] for name in gradients(ours.body)})


def freeze(family: str) -> str:
    """Train a step with the first half of the parts frozen: no value of theirs changes, and the others train."""
    depths = built(family).backbone.depths()
    num_parts = (1 + max(depths.values())) // 2
    model = build(family, freeze_backbone=num_parts, grad_checkpointing=True)
    before = copy.deepcopy(model.state_dict())
    step(family, model, 0)
    check_gradients(model)
    optimizer_of(model).step()
    frozen = {f"backbone.{name}" for name, depth in depths.items() if depth < num_parts}
    for module in model.frozen:
        frozen |= {name for name, value in model.named_buffers() if any(value is own for own in module.buffers())}
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert not changed & frozen, f"frozen, but changed: {sorted(changed & frozen)[0]}"
    assert {name for name, _ in model.backbone.named_parameters(prefix="backbone")} & changed, "nothing trains"
    return f"{num_parts} of {1 + max(depths.values())}"


def checkpoint_gradients(family: str) -> tuple[float, bool]:
    """Return (the largest relative difference of a gradient with --grad_checkpointing, whether the network draws).

    In float64, from the same seed. Buffers, such as batch norm's statistics, and the random numbers that follow must
    be equal.
    """
    plain, recomputing = (awake(build(family, grad_checkpointing=on)) for on in (False, True))
    states = []
    for model in (plain, recomputing):
        torch.manual_seed(1)
        step(family, model, 0)
        states.append(torch.get_rng_state())
    for (name, value), (_, other) in zip(plain.named_buffers(), recomputing.named_buffers(), strict=True):
        assert torch.equal(value, other), f"{name} differs"
    assert torch.equal(*states), "other random numbers follow"
    zero = [name for name, value in gradients(plain).items() if not value.any()]
    assert len(zero) < len(gradients(plain)) / 2, f"{len(zero)} gradients are 0, such as {zero[0]}"
    torch.manual_seed(1)
    return difference(gradients(recomputing), gradients(plain)), not torch.equal(states[0], torch.get_rng_state())


def bf16(family: str) -> float:
    """Train a step with --amp bf16 and --grad_checkpointing. Returns the logits' relative difference in evaluation."""
    model = build(family, grad_checkpointing=True)
    step(family, model, 0, amp="bf16")
    check_gradients(model)
    model.eval()
    found, expected = step(family, model, 1, amp="bf16"), step(family, model, 1)
    assert found[0].dtype == torch.bfloat16, f"logits of {found[0].dtype}"
    return float((torch.cat(found) - torch.cat(expected)).norm() / torch.cat(expected).norm())


def resume(family: str) -> str:
    """Save after a step, load into a model of other weights, and go on: the same bits as without."""

    def state_of(model: nn.Module) -> TrainState:
        optimizer = optimizer_of(model)
        return TrainState(model, model, optimizer, LossScaler(CPU, enabled=False), clip_grad=1.0)

    def go_on(model: nn.Module, state: TrainState) -> dict:
        state.seed_forward(0, 0, CPU)
        step(family, model, state.step)
        state.update(1e-3, 4)
        return state.capture(group)

    model, group, file = build(family), Group(CPU), io.BytesIO()
    state = state_of(model)
    torch.save(go_on(model, state), file)
    expected = go_on(model, state)
    other = build(family)
    with torch.no_grad():
        for value in other.parameters():
            value.add_(1)
    state = state_of(other)
    state.restore(torch.load(io.BytesIO(file.getvalue()), weights_only=True), group)
    found = go_on(other, state)
    for name, value in expected["model"].items():
        assert torch.equal(found["model"][name], value), f"{name} differs"
    differing = unequal(expected, found)
    assert not differing, f"{differing[0]} differs"
    return "yes"


def awake(model: nn.Module) -> nn.Module:
    """Return the model in float64, with random batch norms, and random weights where it starts at 0 or next to it.

    Such weights hide what comes before them.
    """
    generator = torch.Generator().manual_seed(0)
    for module in model.double().modules():
        for value in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if isinstance(module, _BatchNorm) and value.is_floating_point():
                value.data = torch.rand(value.shape, generator=generator, dtype=value.dtype) + 0.5
            elif isinstance(value, nn.Parameter) and value.abs().max() < 1e-3:
                value.data = torch.randn(value.shape, generator=generator, dtype=value.dtype) / 2
    return model


def fold(family: str) -> tuple[float, int, int]:
    """Return (largest relative difference of the logits of the folded copy, norms in the copy, norms), in float64."""
    model = awake(build(family)).eval()
    images = torch.randint(0, 256, (2, *SIZES.get(family, SIZE), 3), dtype=torch.uint8)
    with torch.no_grad():
        copied, expected = folded(model), model(images)["logits"]
        found = copied(images)["logits"]
    counts = [sum(isinstance(part, _BatchNorm) for part in each.backbone.modules()) for each in (copied, model)]
    return float((found - expected).norm() / expected.norm()), *counts

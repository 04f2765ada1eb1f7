"""configs/cdsp_release.yaml against a plain implementation of the released recipe."""

from collections import Counter

import numpy as np
import pytest
import torch
import torchvision
from conftest import ALONE, REPO
from released import Plain, released_state_dict
from thin_networks import ThinResNet

import train
import utils
from distributed.group import Stopped
from flags import parse_flags
from support.errors import STOPPED
from training.settle import split_batchsize
from training.state import TrainState

NUM_CLASSES, NUM_STEPS, BATCH, STEPS_PER_EPOCH = 5, 3, 4, 2
OUR_NAMES = {"layer_pred0.": "head.aspp.", "layer_camatt.": "lorm."}


def three_plain_steps(weights: dict[str, torch.Tensor], batches: list, frozen: bool) -> dict[str, torch.Tensor]:
    """The weights after steps of SGD with momentum 0.9 and weight decay 5e-4, in the warm-up to lr 1e-3."""
    weights = {name: value.clone() for name, value in weights.items()}
    trained = [name for name in weights if "running" not in name]
    velocity = {name: torch.zeros_like(weights[name]) for name in trained}
    for step, batch in enumerate(batches):
        lr = 1e-3 * (step + 1) / (5 * STEPS_PER_EPOCH)  # 5 epochs of warm-up
        leaves = weights | {name: weights[name].detach().requires_grad_() for name in trained}
        gradients = torch.autograd.grad(Plain(leaves, frozen).loss(batch), [leaves[name] for name in trained])
        for name, gradient in zip(trained, gradients, strict=True):
            velocity[name] = 0.9 * velocity[name] + gradient + 5e-4 * weights[name]
            weights[name] = weights[name] - lr * velocity[name]
    return weights


def our_name(name: str) -> str:
    part = next((part for part in OUR_NAMES if name.startswith(part)), "")
    return OUR_NAMES[part] + name.removeprefix(part) if part else f"backbone.{name}"


@pytest.mark.parametrize("frozen", [False, True], ids=["training", "frozen"])
def test_three_steps_of_the_release_config_are_the_released_ones(demo_root, tmp_path, monkeypatch, frozen):
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **_: ThinResNet(50, [1, 2, 1, 3]))
    update = TrainState.optimizer_step

    def update_and_stop(state, *args):
        update(state, *args)
        if state.step == NUM_STEPS:
            raise Stopped("SIGTERM")

    monkeypatch.setattr(TrainState, "optimizer_step", update_and_stop)
    words = ["--config", str(REPO / "configs/cdsp_release.yaml"), "--dataset_path", str(demo_root), "--classes", ""]
    words += f"--numclasses {NUM_CLASSES} --crop_size 97 --total_batchsize {BATCH} --amp none --device cpu".split()
    words += f"--pretrained {tmp_path / 'start.pth'} --logdir {tmp_path} --name ours --workers 0".split()
    words += ["--freeze_bn"] if frozen else []
    torch.set_default_dtype(torch.float64)
    try:
        start = released_state_dict("res50_ASPP_lorm", num_classes=NUM_CLASSES)
        start = {name: value for name, value in start.items() if value.is_floating_point()}  # no batch counters
        torch.save({"state_dict": {f"module.{name}": value for name, value in start.items()}}, tmp_path / "start.pth")
        assert train.main(words) == STOPPED
        cfg = split_batchsize(parse_flags(words), ALONE)
        loader = utils.get_loader(cfg, "train", ALONE)
        batches = [*loader]
        loader.sampler.set_position(1, 0)
        batches += [*loader]
        assert len(batches) == 2 * STEPS_PER_EPOCH
        expected = three_plain_steps(start, batches[:NUM_STEPS], frozen)
    finally:
        torch.set_default_dtype(torch.float32)

    ours = torch.load(tmp_path / "ours" / "last.pt", weights_only=True)["model"]
    square = Counter()
    for name, value in expected.items():
        mine = ours[our_name(name)]
        assert mine.dtype == torch.float64
        if "running" in name:
            torch.testing.assert_close(mine, value, rtol=1e-12, atol=1e-14)
            continue
        square["update"] += (value - start[name]).square().sum().item()
        square["difference"] += (mine - value).square().sum().item()
        assert not torch.equal(value, start[name]), name
    assert np.sqrt(square["difference"]) <= 1e-12 * np.sqrt(square["update"])

"""--cuda_graph: the same run, bit for bit, by a network that replays recorded operations (recorded_graphs.py)."""

import copy

import pytest
import recorded_graphs
import torch
from conftest import FAULTS, finish, flags, start_group, succeed

import models
from models.captured import capture_network
from support.errors import STOPPED
from training import checkpoint

CASES = [
    (2, {"accum_steps": 2, "freeze_backbone": 2, "clip_grad": 1}),
    (1, {"dataset": "Dense", "model_type": "deeplabv3", "ema": 0.5, "amp": "bf16"}),  # with dropout
    (1, {"fused_blocks": "off", "lorm_scope": "all"}),
]


@pytest.mark.parametrize(("world_size", "case"), CASES)
def test_same_run_with_and_without(demo_root, tmp_path, world_size, case):
    """The run with graphs stops in step 1 of 3, and goes on."""
    words = flags(dataset_path=demo_root, logdir=tmp_path, layers=50, max_steps=3, **case)
    words = ["graphs", "all", *words, "--sync_bn", "off", "--deterministic", "--resume", "auto"]
    succeed(start_group(world_size, [*words, "--name", "without"], tmp_path, FAULTS))
    words += ["--cuda_graph", "--name", "with"]
    stopped = start_group(world_size, ["graphs+signal_in_first_step", *words[1:]], tmp_path, FAULTS)
    finish(stopped, status=STOPPED)
    for stdout in succeed(start_group(world_size, words, tmp_path, FAULTS)):
        # The forward and the backward pass of each micro-batch in steps 2 and 3; none in validation.
        assert f"{2 * 2 * case.get('accum_steps', 1)} replays" in stdout
    one, other = (checkpoint.read_run(tmp_path / name / "last.pt") for name in ("with", "without"))
    for part in ("model", "ema", "optimizer", "ranks"):
        torch.testing.assert_close(getattr(one, part), getattr(other, part), rtol=0, atol=0)


def test_evaluation_and_copies_do_not_replay(monkeypatch):
    recorded_graphs.install(monkeypatch)
    model, images = models.build("res50_ASPP", layers=50, num_classes=3), torch.zeros(2, 33, 33, 3, dtype=torch.uint8)
    names = list(model.state_dict())
    capture_network(model, images, None)
    assert list(model.state_dict()) == names
    for one in (model.eval(), copy.deepcopy(model).train()):
        one(images[:, :17])
    assert recorded_graphs.Graph.replays == 0
    model.train()(images)
    assert recorded_graphs.Graph.replays == 1


@pytest.mark.parametrize(
    ("world_size", "faults", "said"),
    [(1, "has_bf16", "it needs a GPU"), (2, "graphs", "batch norm over processes cannot be captured")],
)
def test_a_network_that_cannot_be_captured_trains_without(demo_flags, tmp_path, world_size, faults, said):
    """Without a GPU, and with batch norm over processes: one warning."""
    words = [faults, "all", *demo_flags(max_steps=1, sync_bn="on"), "--cuda_graph"]
    for stdout in succeed(start_group(world_size, words, tmp_path, FAULTS))[:1]:
        assert stdout.count(f"--cuda_graph is ignored: {said}") == 1

"""--amp fp16: skipped steps are counted, logged and kept, and a run that only skips is stopped."""

import pytest
import torch
from conftest import finish, one_line_each, read_metrics, run_train, start_group
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from distributed.precision import MAX_SKIPPED, LossScaler
from training import checkpoint
from training.optimizers import FusedSGD
from training.state import TrainState

CPU = torch.device("cpu")


def state_of(model: nn.Module, scaler: LossScaler, kind: type[torch.optim.SGD] = torch.optim.SGD) -> TrainState:
    return TrainState(model, model, kind(model.parameters(), lr=0.1), scaler)


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
def test_scaler_counts_the_steps_that_it_skips(kind):
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    scaler = LossScaler(CPU, enabled=True)
    state = state_of(model, scaler, kind)
    # The gradient is `value`: an infinite one skips the step and halves the scale, which starts at 2 ** 16.
    expected = [
        (1.0, 2**16, 0, 0),
        (float("inf"), 2**15, 1, 1),
        (float("inf"), 2**14, 2, 2),
        (1.0, 2**14, 2, 0),
        (float("inf"), 2**13, 3, 1),
    ]
    for value, *counts in expected:
        before = model.weight.item()
        scaler.scale(model(torch.tensor([[value]])).sum()).backward()
        state.update(0.5, 1)
        assert scaler.counts.tolist() == counts
        assert scaler.get_scale() == counts[0]
        assert model.weight.item() == (before if value > 1 else before - 0.5)
    resumed = LossScaler(CPU, enabled=True)
    resumed.load_state_dict(scaler.state_dict())
    assert resumed.counts.tolist() == [2**13, 3, 1]


def test_ordinary_run_logs_its_scale_and_skipped_steps(demo_root, tmp_path):
    words = {"dataset_path": demo_root, "logdir": tmp_path, "dataset": "Dense", "model_type": "res50_ASPP"}
    words |= {"crop_size": 17}
    folder = run_train(**words, amp="fp16", log_interval=2)
    lines = read_metrics(folder, "train")
    assert [line["step"] for line in lines] == [2, 4]
    for line in lines:
        # Nothing grows the scale in 4 steps, so it is what the skipped ones left of it.
        assert line["loss_scale"] == 2 ** (16 - line["skipped_steps"])
        assert set(line["losses"]) == {"seg"}
    board = EventAccumulator(str(folder))
    board.Reload()
    for name in ("loss_scale", "skipped_steps"):
        assert [event.value for event in board.Scalars(f"train/{name}")] == [line[name] for line in lines]
    assert "loss_scale" not in read_metrics(run_train(**words, name="plain"), "train")[0]


def test_run_that_only_skips_is_stopped_on_every_rank(demo_flags, tmp_path):
    """Gradients of 1e30 times their size overflow fp16 at any scale; the loss itself, in float32, does not."""
    words = demo_flags(
        dataset="Dense", model_type="res50_ASPP", crop_size=17, amp="fp16", l_seg=1e30, batchsize=1, epochs=18,
        name="x", val_epoch_frequency=0,
    )  # fmt: skip
    results = finish(start_group(2, words, tmp_path))
    one_line_each(
        results, f"--amp fp16: gradients overflow; the last {MAX_SKIPPED} steps, up to step {MAX_SKIPPED}, were skipped"
    )
    assert "the loss scale fell to 0.0625: use --amp bf16 or none" in results[0][2]  # 2 ** (16 - 20)
    assert "to resume" not in results[0][2]  # it would fail again
    lines = read_metrics(tmp_path / "x", "train")
    skipped = [line["skipped_steps"] for line in lines]
    assert skipped == [*range(1, len(skipped) + 1)]
    assert MAX_SKIPPED - 2 <= len(skipped) < MAX_SKIPPED  # rank 1 may end the run before rank 0 has read the last one
    assert checkpoint.read_run(tmp_path / "x" / "last.pt").scaler["skipped"] > 0

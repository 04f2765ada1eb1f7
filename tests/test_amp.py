"""--amp: auto is one precision for all ranks and is kept; fp16 counts skipped steps and stops a run that only skips."""

import shutil
from functools import partial
from types import SimpleNamespace

import chaos
import pytest
import torch
from conftest import FAULTS, assert_same_run, finish, flags, one_line_each, read_metrics, start, start_group, succeed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from distributed import precision as amp
from distributed.group import Group
from distributed.precision import MAX_SKIPPED, LossScaler, resolve_amp
from inference.trained import TrainedModel
from training import checkpoint
from training.optimizers import FusedSGD
from training.state import TrainState

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.mark.parametrize(("capability", "value"), [((7, 5), "none"), ((8, 0), "bf16"), ((12, 1), "bf16")])
def test_auto_is_bf16_on_gpus_that_compute_it(monkeypatch, capability, value):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: {GPU: capability}[device])
    assert amp.resolve("auto", GPU) == value
    assert amp.resolve("fp16", GPU) == "fp16"


@pytest.mark.parametrize(
    ("amx", "avx512", "slowdown", "value"),
    [
        (True, False, 2.0, "bf16"),
        (False, True, 0.5, "bf16"),
        (False, True, 1.5, "none"),  # as on Intel's CPUs in a virtual machine that hides AMX
        (False, False, 0.5, "none"),
    ],
)
def test_auto_is_bf16_on_cpus_that_compute_it_faster(monkeypatch, amx, avx512, slowdown, value):
    """slowdown: the time of a convolution in bf16 over that in float32, by a clock that the convolutions move."""
    clock = [0.0]

    def conv2d(x: torch.Tensor, weight: torch.Tensor, padding: int) -> None:
        clock[0] += slowdown if x.dtype == torch.bfloat16 else 1.0

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": amx, "avx512_bf16": avx512})
    monkeypatch.setattr(amp, "F", SimpleNamespace(conv2d=conv2d))
    monkeypatch.setattr(amp.timeit, "repeat", partial(amp.timeit.repeat, timer=lambda: clock[0]))
    amp._bf16_is_faster.cache_clear()
    assert amp.resolve("auto", CPU) == value
    amp._bf16_is_faster.cache_clear()
    assert amp.resolve("bf16", CPU) == "bf16"
    assert amp.resolve("none", CPU) == amp.resolve("auto", torch.device("mps")) == "none"


def run(tmp_path, fault: str, words: list[str], *more: str) -> str:
    [stdout] = succeed([start([fault, "all", *words, *more], tmp_path, FAULTS)])
    return stdout


WORDS = {"amp": None, "epochs": 2, "crop_size": 17, "save_step_frequency": 6}


@pytest.fixture(scope="module")
def runs(demo_root, tmp_path_factory):
    """The folder of the runs "bf16" and "none", both with --amp auto, on a device that has bf16 and on one without."""
    folder = tmp_path_factory.mktemp("runs")
    words = flags(dataset_path=demo_root, logdir=folder, **WORDS)
    for name, fault in (("bf16", "has_bf16"), ("none", "no_bf16")):
        assert f" parameters, --amp {name}\n" in run(folder, fault, words, "--name", name)
    return folder


def test_auto_is_saved_as_what_it_was_and_the_run_repeats_bit_for_bit(runs, demo_flags, tmp_path):
    run(tmp_path, "no_bf16", demo_flags(**WORDS), "--amp", "bf16", "--name", "x")
    assert_same_run(tmp_path / "x", runs / "bf16")
    assert read_metrics(runs / "bf16", "train")[0]["loss"] != read_metrics(runs / "none", "train")[0]["loss"]
    assert checkpoint.read_run(runs / "bf16" / "last.pt").config["amp"] == "bf16"
    assert "\namp: bf16\n" in (runs / "bf16" / "config.yaml").read_text()
    assert TrainedModel(runs / "bf16" / "last.pt").predictor().amp == "bf16"


@pytest.mark.parametrize(("began", "resumed"), [("bf16", "no_bf16"), ("none", "has_bf16"), ("bf16", "has_bf16")])
def test_a_resumed_run_keeps_its_precision_unless_told(runs, demo_flags, tmp_path, began, resumed):
    words = demo_flags(**WORDS)
    (tmp_path / "x").mkdir()
    for file in ("step_00000006.pt", "metrics.jsonl"):
        shutil.copy(runs / began / file, tmp_path / "x")
    # A fresh --config, as a scheduler starts the same command again: auto, not config.yaml's bf16 or none.
    stdout = run(tmp_path, resumed, words, "--name", "x", "--resume", "auto")
    same = (began, resumed) == ("bf16", "has_bf16")
    assert (f"--amp {began}, as in the checkpoint" in stdout) != same
    assert "amp:" not in stdout.partition("flags changed since the checkpoint: ")[2].partition("\n")[0]
    expected = vars(checkpoint.read_run(runs / began / "last.pt"))
    content = vars(checkpoint.read_run(tmp_path / "x" / "last.pt"))
    assert content["step"] == expected["step"] == 8
    assert content["config"]["amp"] == began
    assert chaos.unequal(content["model"], expected["model"]) == []
    if same:
        stdout = run(tmp_path, resumed, words, "--name", "x", "--resume", "auto", "--amp", "none", "--epochs", "3")
        assert "amp: bf16 -> none" in stdout
        assert "parameters, --amp none\n" in stdout


def test_one_rank_without_bf16_means_none_for_all(demo_flags, tmp_path):
    words = demo_flags(amp=None, crop_size=17, name="x")
    both = [["has_bf16", "0", *words], ["no_bf16", "1", *words]]
    stdout, _ = succeed(start_group(2, both, tmp_path, FAULTS))
    assert "--amp auto: none, because devices of rank(s) [1] have no native bf16" in stdout
    assert checkpoint.read_run(tmp_path / "x" / "last.pt").config["amp"] == "none"


def test_a_gpu_without_bf16_trains_in_float32_and_one_warning_names_fp16(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert resolve_amp("auto", Group(torch.device("cuda"))) == "none"
    assert ["--amp fp16" in line for line in caplog.messages] == [True]


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
def test_scaler_counts_the_steps_that_it_skips(kind):
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    scaler = LossScaler(CPU, enabled=True)
    state = TrainState(model, model, kind(model.parameters(), lr=0.1), scaler)
    # The gradient is `value`: an infinite one skips the step and halves the scale, which starts at 2 ** 16.
    inf = float("inf")
    expected = [(1.0, 2**16, 0, 0), (inf, 2**15, 1, 1), (inf, 2**14, 2, 2), (1.0, 2**14, 2, 0), (inf, 2**13, 3, 1)]
    for value, *counts in expected:
        before = model.weight.item()
        scaler.scale(model(torch.tensor([[value]])).sum()).backward()
        state.optimizer_step(0.5, 1)
        assert scaler.counts.tolist() == counts
        assert scaler.get_scale() == counts[0]
        assert model.weight.item() == (before if value > 1 else before - 0.5)
    resumed = LossScaler(CPU, enabled=True)
    resumed.load_state_dict(scaler.state_dict())
    assert resumed.counts.tolist() == [2**13, 3, 1]


def test_ordinary_run_logs_its_scale_and_skipped_steps(demo_run):
    folder = demo_run(dataset="Dense", crop_size=17, amp="fp16", log_interval=2)
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


def test_run_that_only_skips_is_stopped_on_every_rank(demo_flags, tmp_path):
    """Gradients of 1e30 times their size overflow fp16 at any scale; the loss itself, in float32, does not."""
    values = {"dataset": "Dense", "crop_size": 17, "amp": "fp16", "l_seg": 1e30}
    words = demo_flags(**values, batchsize=1, epochs=18, name="x", val_epoch_frequency=0)
    results = finish(start_group(2, words, tmp_path))
    said = f"--amp fp16: gradients overflow; the last {MAX_SKIPPED} steps, up to step {MAX_SKIPPED}, were skipped"
    one_line_each(results, said)
    assert "the loss scale fell to 0.0625: use --amp bf16 or none" in results[0][2]  # 2 ** (16 - 20)
    assert "to resume" not in results[0][2]  # it would fail again
    lines = read_metrics(tmp_path / "x", "train")
    skipped = [line["skipped_steps"] for line in lines]
    assert skipped == [*range(1, len(skipped) + 1)]
    assert MAX_SKIPPED - 2 <= len(skipped) < MAX_SKIPPED  # rank 1 may end the run before rank 0 has read the last one
    assert checkpoint.read_run(tmp_path / "x" / "last.pt").scaler["skipped"] > 0

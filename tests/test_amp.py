"""--amp auto: one precision for all ranks, saved with the run and kept when it is resumed."""

import shutil

import chaos
import pytest
import torch
from conftest import assert_same_run, read_metrics, start, start_group, succeed

from distributed import precision as amp
from distributed.group import Group
from distributed.precision import resolve_amp
from inference.trained import TrainedModel
from training import checkpoint

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
FAULTS = "tests/train_with_fault.py"


@pytest.mark.parametrize(("capability", "value"), [((7, 5), "none"), ((8, 0), "bf16"), ((12, 1), "bf16")])
def test_auto_is_bf16_on_gpus_that_compute_it(monkeypatch, capability, value):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: {GPU: capability}[device])
    assert amp.resolve("auto", GPU) == value
    assert amp.resolve("fp16", GPU) == "fp16"


@pytest.mark.parametrize(
    ("amx", "avx512", "value"), [(True, False, "bf16"), (False, True, "bf16"), (False, False, "none")]
)
def test_auto_is_bf16_on_cpus_that_compute_it(monkeypatch, amx, avx512, value):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": amx, "avx512_bf16": avx512})
    assert amp.resolve("auto", CPU) == value
    assert amp.resolve("bf16", CPU) == "bf16"
    assert amp.resolve("none", CPU) == amp.resolve("auto", torch.device("mps")) == "none"


def run(tmp_path, fault: str, words: list[str], *more: str) -> str:
    [stdout] = succeed([start([fault, "all", *words, *more], tmp_path, FAULTS)])
    return stdout


def test_auto_is_saved_as_what_it_was_and_the_run_repeats_bit_for_bit(demo_flags, tmp_path):
    words = demo_flags(amp=None, crop_size=17)
    for name in ("auto", "again"):
        assert " parameters, --amp bf16\n" in run(tmp_path, "has_bf16", words, "--name", name)
    run(tmp_path, "no_bf16", words, "--amp", "bf16", "--name", "bf16")
    run(tmp_path, "no_bf16", words, "--name", "none")
    assert_same_run(tmp_path / "auto", tmp_path / "again")
    assert_same_run(tmp_path / "auto", tmp_path / "bf16")
    assert read_metrics(tmp_path / "auto", "train")[0] != read_metrics(tmp_path / "none", "train")[0]
    assert checkpoint.read_run(tmp_path / "auto" / "last.pt").config["amp"] == "bf16"
    assert "\namp: bf16\n" in (tmp_path / "auto" / "config.yaml").read_text()
    assert TrainedModel(tmp_path / "auto" / "last.pt").predictor().amp == "bf16"


@pytest.mark.parametrize(("began", "resumed"), [("bf16", "no_bf16"), ("none", "has_bf16"), ("bf16", "has_bf16")])
def test_a_resumed_run_keeps_its_precision_unless_told(demo_flags, tmp_path, began, resumed):
    words = demo_flags(amp=None, epochs=2, crop_size=17, save_step_frequency=6)
    run(tmp_path, "has_bf16", words, "--amp", began, "--name", "whole")
    (tmp_path / "x").mkdir()
    for file in ("step_00000006.pt", "metrics.jsonl"):
        shutil.copy(tmp_path / "whole" / file, tmp_path / "x")
    # A fresh --config, as a scheduler starts the same command again: auto, not config.yaml's bf16 or none.
    stdout = run(tmp_path, resumed, words, "--name", "x", "--resume", "auto")
    same = (began, resumed) == ("bf16", "has_bf16")
    assert (f"--amp {began}, as in the checkpoint" in stdout) != same
    assert "amp:" not in stdout.partition("flags changed since the checkpoint: ")[2].partition("\n")[0]
    expected = vars(checkpoint.read_run(tmp_path / "whole" / "last.pt"))
    content = vars(checkpoint.read_run(tmp_path / "x" / "last.pt"))
    assert content["step"] == expected["step"] == 8
    assert content["config"]["amp"] == began
    assert chaos.unequal(content["model"], expected["model"]) == []
    other = {"none": "bf16", "bf16": "none"}[began]
    stdout = run(tmp_path, resumed, words, "--name", "x", "--resume", "auto", "--amp", other, "--epochs", "3")
    assert f"amp: {began} -> {other}" in stdout
    assert f"parameters, --amp {other}\n" in stdout


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

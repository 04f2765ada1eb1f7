"""benchmarks/gpu_check.py on the CPU: it finds faults that are planted in copies of the product, and names the part."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check

ROOT = Path(__file__).parent.parent
# {part: (file, text, the text with a fault)}
FAULTS = {
    "kernel": ("losses/pixel_kernel.py", "mean[:, None] - z", "mean[:, None] + z"),
    "fused_blocks": ("models/layers/fused.py", "aten.threshold_backward(grad_value, value, 0)", "grad_value"),
    "batch_norm": ("models/layers/norm.py", "(means - mean).square()", "0 * means"),
    "lorm": ("models/lorm.py", "grad.mul_(scale) for grad", "grad.mul_(2 * scale) for grad"),
    "loader": ("data/transforms.py", "math.floor(pixels) for", "math.floor(pixels) + 1 for"),
}


def check(root: Path, *words: str) -> tuple[subprocess.CompletedProcess, dict]:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--out", "check.json", *words]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    file = root / "check.json"
    return result, json.loads(file.read_text())["parts"] if file.is_file() else {}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("copy") / "segtrain"
    skip = shutil.ignore_patterns(".*", "tests", "docs", "log", "dataset", "raw", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(ROOT, root, ignore=skip))


@pytest.mark.slow
def test_parts_pass_without_a_fault(copy):
    result, parts = check(copy, "--parts", *FAULTS, "block_choice", "compiled", "speed")
    statuses = {name: part["status"] for name, part in parts.items()}
    assert statuses == dict.fromkeys((*FAULTS, "block_choice"), "ok") | {"compiled": "skipped", "speed": "ok"}, (
        result.stdout
    )
    assert result.returncode == 0
    (amp,) = (name for name in parts["speed"]["figures"] if name.startswith("--amp"))  # the faster type, as measured
    assert parts["speed"]["figures"][amp]["deeplabv3"]["ms"] > 0
    assert f"| torchvision, channels-last, {amp} | " in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("part", FAULTS)
def test_a_planted_fault_is_found(copy, tmp_path, monkeypatch, part):
    name, text, fault = FAULTS[part]
    whole = (copy / name).read_text()
    assert whole.count(text) == 1
    (copy / name).write_text(whole.replace(text, fault))
    monkeypatch.setattr(gpu_check.runs, "ROOT", copy)
    try:
        result = gpu_check.run_apart(part, "cpu", tmp_path, left=240)
    finally:
        (copy / name).write_text(whole)
    assert result["status"] == "FAILED", result
    assert "Traceback" in result["output"]


def run_main(monkeypatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_check", *map(str, words)])
    return gpu_check.main()


def test_the_parts_after_one_that_failed_run(tmp_path, monkeypatch, capsys):
    parts = {"lorm": {"status": "FAILED", "text": "wrong", "seconds": 1.0, "figures": {}, "output": "why"}}
    parts["compiled"] = {"status": "skipped", "text": "no GPU", "seconds": 1.0, "figures": {}}
    monkeypatch.setattr(gpu_check, "run_apart", lambda name, *_: parts[name])
    monkeypatch.setattr(gpu_check.signal, "signal", lambda *_: None)
    assert run_main(monkeypatch, "--device", "cpu", "--out", tmp_path / "x.json", "--parts", *parts) == 1
    said = capsys.readouterr().out
    assert "FAILED   lorm" in said
    assert "1 of 2 parts failed: lorm" in said
    assert json.loads((tmp_path / "x.json").read_text())["parts"] == parts


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    assert run_main(monkeypatch) == 2
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "finds no GPU" in said


def test_a_file_that_cannot_be_written_is_refused_before_the_first_part(tmp_path, monkeypatch, capsys):
    assert run_main(monkeypatch, "--device", "cpu", "--out", tmp_path / "none/x.json") == 2
    assert "none/x.json: cannot be written (No such file or directory)" in capsys.readouterr().err


def test_a_part_that_takes_too_long_is_killed_with_its_processes(tmp_path):
    result = gpu_check.run_apart("ranks", "cpu", tmp_path, left=4)
    assert result["status"] == "FAILED"
    assert result["text"] == "status 1: did not end within 4 s"
    assert str(tmp_path) not in subprocess.run(["ps", "-ef"], capture_output=True, text=True).stdout
    assert gpu_check.run_apart("ranks", "cpu", tmp_path, left=0)["status"] == "skipped"

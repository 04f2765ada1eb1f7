"""What a machine lacks costs time, not the run: one warning, and the weights of a run that did not ask for it."""

import pytest
import torch
from conftest import flags, start, succeed

from training import checkpoint

FAULTS = {  # of train_with_fault.py: flags, what the warning says
    "no_triton": ("--amp none", "the losses run without their Triton kernel, slower: "),
    "kernel_fails": ("--amp none", "the losses run without their Triton kernel, slower: Failed to find C compiler"),
    "no_fused_update": (
        "--amp none",
        "--optimizer sgd: the fused update fails here, so the slower one is used: RuntimeError: no",
    ),
    "gpu_without_bf16": ("--amp auto", "--amp none: this GPU has no bf16"),
    "no_compiler": ("--amp none --compile", "--compile: torch.compile does not work here"),
}


@pytest.fixture(scope="module")
def plain(demo_root, tmp_path_factory):
    """Flags of a run, and its weights."""
    folder = tmp_path_factory.mktemp("plain")
    words = flags(dataset_path=demo_root, logdir=folder, optimizer="sgd", max_steps=2)
    succeed([start([*words, "--amp", "none", "--name", "plain"], folder)])
    return words, checkpoint.read_run(folder / "plain/last.pt").model


@pytest.mark.parametrize(
    "fault", [name if name == "no_compiler" else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_the_run_ends_as_without_it(plain, tmp_path, fault):
    (words, weights), (more, warning) = plain, FAULTS[fault]
    words = [fault, "all", *words, *more.split(), "--logdir", str(tmp_path), "--name", "x"]
    env = {"CXX": str(tmp_path / "nonesuch"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    stdout = succeed([start(words, tmp_path, "tests/train_with_fault.py", **env)])[0]
    assert stdout.count(warning) == 1, stdout
    found = checkpoint.read_run(tmp_path / "x/last.pt").model
    assert all(torch.equal(value, found[name]) for name, value in weights.items())

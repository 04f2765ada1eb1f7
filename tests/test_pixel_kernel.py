"""The Triton kernel of the pixel losses, run on the CPU by Triton's interpreter, against the bands.

The interpreter must be chosen before Triton is imported, which torch may do, so a process of its own runs these tests.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import losses
from losses import kernel_choice
from losses.pixel_pass import CrossEntropy, PixelPass

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="run by test_under_the_interpreter")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="runs the others")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_under_the_interpreter():
    words = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", __file__]
    root = Path(__file__).parent.parent
    result = subprocess.run(words, env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("SKIPPED [") == 1, result.stdout  # this one


@pytest.fixture
def kernel():
    from losses import pixel_kernel

    kernel_choice.tested_kernel.cache_clear()
    yield pixel_kernel
    kernel_choice.tested_kernel.cache_clear()


def random_label(shape: tuple[int, ...], num_classes: int, seed: int) -> torch.Tensor:
    """Classes, of which a fifth is 255."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, num_classes, shape, dtype=torch.uint8, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.2, 255, label).byte()


@interpreted
@pytest.mark.parametrize("terms", ["label, pseudo, entropy", "label", "entropy", "label, pseudo, third"])
@pytest.mark.parametrize(
    ("num_classes", "low", "size"), [(5, (2, 3), (4, 7)), (3, (1, 1), (2, 3)), (40, (2, 2), (2, 67))]
)
def test_kernel_equals_the_bands(kernel, num_classes, low, size, terms):
    """The last size has more columns between two of the logits than a program's tile."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(1, num_classes, *low, generator=generator)
    slope = torch.rand(1, *size, generator=generator)
    targets = []
    for seed, (name, smooth) in enumerate((("label", 0.0), ("pseudo", 0.1), ("third", 0.2))):
        if name in terms:
            label = random_label((1, *size), num_classes, seed)
            targets.append(CrossEntropy(label, slope * (label != 255), smooth))
    ways = []
    for run in (None, kernel.run):
        entropy_slope = slope if "entropy" in terms else None
        ways.append(PixelPass(logits, size, targets, entropy_slope).run(run))
    bands, ours = ways
    assert len(bands.cross_entropies) == len(targets)
    for one, other in zip([*bands.cross_entropies, bands.entropy], [*ours.cross_entropies, ours.entropy], strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(bands.gradient, ours.gradient, rtol=1e-5, atol=1e-5)


@interpreted
def test_a_kernel_that_works_is_chosen(kernel):
    assert kernel_choice.tested_kernel(torch.device("cpu")) is kernel.run


@interpreted
@pytest.mark.parametrize("result", ["raises", "is wrong", "is missing"])
def test_a_kernel_that_does_not_is_named_and_left_out(kernel, result, monkeypatch, caplog):
    def run(work):
        if result == "raises":
            raise RuntimeError("Failed to find C compiler")
        return torch.zeros_like(work.logits)

    monkeypatch.setattr(kernel, "run", run)
    if result == "is missing":  # as without Triton
        monkeypatch.setitem(sys.modules, "losses.pixel_kernel", None)
        monkeypatch.delattr(losses, "pixel_kernel")
    assert kernel_choice.tested_kernel(torch.device("cpu")) is None
    [line] = caplog.messages
    assert "without their Triton kernel" in line
    assert {"raises": "C compiler", "is wrong": "not close", "is missing": "pixel_kernel"}[result] in line

"""--fused_blocks: what the backward pass keeps, counted without a device, and the blocks that fit a GPU."""

import pytest
import torch
from conftest import FAULTS, bytes_kept, finish, start_group

import models
from models.layers.norm import BatchNorm2d
from models.memory import choose_blocks, fuse_blocks, saved_bytes


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["res50_ASPP_lorm", "deeplabv3p"])
def test_the_count_is_what_real_tensors_take(name, fused):
    model = models.build(name, layers=50, num_classes=5).train()
    fuse_blocks(model, fused)
    expected = sum(bytes_kept(model, torch.zeros(3, 65, 65, 3, dtype=torch.uint8)))
    assert saved_bytes(model, (3, 65)) == pytest.approx(expected, rel=0.01)


@pytest.mark.full_size
@pytest.mark.parametrize(("fused", "channels", "dtype", "size"), [(True, 6, None, 4), (False, 12, torch.bfloat16, 2)])
def test_a_bottleneck_keeps_what_its_description_says(fused, channels, dtype, size):
    """Of width C: 6 C channels, 12 C as separate modules (models/layers/fused.py)."""
    counts = []
    for layers in (50, 101):  # with 6 and 23 blocks of width 256 at stride 8
        with torch.device("meta"):
            model = models.build("res50_ASPP", layers=layers, num_classes=5)
        fuse_blocks(model, fused)
        counts.append(saved_bytes(model, (16, 129), dtype))
    expected = (23 - 6) * channels * 256 * 16 * 17**2 * size
    assert counts[1] - counts[0] == pytest.approx(expected, rel=0.02)  # the rest: means and deviations


@pytest.mark.parametrize(
    ("choice", "memory", "losses", "fused"),
    [
        ("on", 80, 0, True),
        ("off", 1, 0, False),
        ("auto", 0, 0, True),
        ("auto", 80, 0, False),
        ("auto", 1, 0, True),
        ("auto", 80, 75 * 2**30, True),
    ],
)
def test_separate_modules_are_chosen_where_they_fit(choice, memory, losses, fused, caplog):
    caplog.set_level("INFO")
    model = models.build("res50_ASPP", layers=50, num_classes=5)
    choose_blocks(model, choice, (16, 465), None, memory, losses)
    assert {norm.fused for norm in model.modules() if isinstance(norm, BatchNorm2d)} == {fused}
    said = f"--fused_blocks {'on' if fused else 'off'}" if choice == "auto" and memory else ""
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)


@pytest.mark.parametrize(("other", "chosen"), [("gpu_of_70_GiB", "off"), ("gpu_of_1_GiB", "on")])
def test_ranks_choose_the_blocks_that_fit_all_of_their_gpus(demo_flags, tmp_path, other, chosen):
    """With batch norm over processes, as on GPUs. Nothing may be exchanged while a rank counts on the meta device."""
    words = demo_flags(max_steps=2, sync_bn="on")
    ranks = start_group(2, [[gpu, "all", *words] for gpu in ("gpu_of_70_GiB", other)], tmp_path, FAULTS)
    (_, stdout, _), (_, _, stderr) = finish(ranks, status=0)
    assert f"--fused_blocks {chosen}: separate modules take" in stdout
    assert "Warning" not in stderr

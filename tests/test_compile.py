"""--compile: the same run under the same names. What a machine lacks costs time, not the run, and is one warning."""

import copy
import shutil

import pytest
import torch
from chaos import unequal
from conftest import FAULTS, start, start_group, succeed

import models
from models import compiled
from training import checkpoint


def built() -> models.Segmenter:
    torch.manual_seed(0)
    return models.build("res50_ASPP_lorm", layers=50, num_classes=5)


def test_names_stay_and_only_training_is_compiled(monkeypatch):
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", backend)
    monkeypatch.setattr(torch.compiler.config, "recompile_limit", 8)
    model, names = built(), list(built().state_dict())
    compiled.compile_blocks(model)
    assert torch.compiler.config.recompile_limit == compiled.MAX_ENTRIES
    graphs.clear()  # of the first attempt
    images = torch.randint(0, 256, (2, 33, 33, 3), dtype=torch.uint8)
    for one in (model.eval(), copy.deepcopy(model).train()):
        one(images)
    assert not graphs
    model.train()(images)["logits"].sum().backward()
    assert len(graphs) == 5  # a block in each of the 4 layers of a thin network, and the head
    model.eval()(images[:, :17])
    assert len(graphs) == 5
    assert list(model.state_dict()) == names
    assert all(parameter.grad is not None for parameter in model.backbone.parameters())


def assert_close(folder, expected) -> None:
    contents = [vars(checkpoint.read_run(path / "last.pt")) for path in (folder, expected)]
    for part in ("model", "ema"):
        torch.testing.assert_close(contents[0][part], contents[1][part], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (1, {"grad_checkpointing": True}),
        pytest.param(2, {"grad_checkpointing": True, "sync_bn": "on", "freeze_backbone": 2}, marks=pytest.mark.slow),
    ],
)
def test_same_run_with_and_without(demo_flags, tmp_path, world_size, flags):
    """By torch's tracer, without the slow compiler of kernels. A checkpoint of one continues the other."""
    words = demo_flags(model_type="deeplabv2", crop_size=33, ema=0.5, save_step_frequency=2, keep=0, **flags)
    words = ["traced", "all", *words, "--max_steps", "3", "--lr", "0.001"]
    for name, more in (("plain", []), ("compiled", ["--compile"])):
        succeed(start_group(world_size, [*words, *more, "--name", name], tmp_path, FAULTS))
    assert_close(tmp_path / "compiled", tmp_path / "plain")
    (tmp_path / "x").mkdir()
    for file in ("step_00000002.pt", "metrics.jsonl"):
        shutil.copy(tmp_path / "compiled" / file, tmp_path / "x")
    stdout = succeed(start_group(world_size, [*words, "--name", "x", "--resume", "auto"], tmp_path, FAULTS))[0]
    assert "flags changed since the checkpoint: compile: True -> False" in stdout
    assert_close(tmp_path / "x", tmp_path / "plain")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_inductor_trains_as_without(demo_flags, tmp_path):
    words = demo_flags(model_type="deeplabv2", crop_size=33, max_steps=3, lr=0.001, ema=0.5)
    for name, more in (("plain", []), ("compiled", ["--compile"])):
        succeed([start([*words, *more, "--name", name], tmp_path)], timeout=1200)
    assert_close(tmp_path / "compiled", tmp_path / "plain")


def test_without_a_compiler_the_run_ends_as_without_the_flag(demo_flags, tmp_path):
    words, env = demo_flags(max_steps=2), {"CXX": tmp_path / "nonesuch", "TORCHINDUCTOR_CACHE_DIR": tmp_path / "cache"}
    plain = start([*words, "--name", "plain"], tmp_path)
    without = start(["no_compiler", "all", *words, "--compile", "--name", "x"], tmp_path, FAULTS, **env)
    stdout = succeed([plain, without])[1]
    assert stdout.count("--compile: torch.compile does not work here") == 1, stdout
    found, expected = (checkpoint.read_run(tmp_path / name / "last.pt").model for name in ("x", "plain"))
    assert not unequal(found, expected)


def test_no_rank_compiles_if_one_has_no_compiler(demo_flags, tmp_path):
    words = [[fault, "all", *demo_flags(max_steps=1), "--compile"] for fault in ("traced", "no_compiler")]
    ranks = start_group(2, words, tmp_path, FAULTS, TORCHINDUCTOR_CACHE_DIR=tmp_path / "cache")
    assert succeed(ranks)[0].count("--compile: torch.compile does not work here") == 1

"""--compile: the same run under the same names. What a machine lacks costs time, not the run, and is one warning."""

import copy
import shutil

import pytest
import torch
from conftest import FAULTS, flags, start, start_group, succeed

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
    model, names = built(), list(built().state_dict())
    compiled.compile_blocks(model)
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
        pytest.param(2, {"sync_bn": "on", "freeze_backbone": 2}, marks=pytest.mark.slow),
        pytest.param(2, {"grad_checkpointing": True}, marks=pytest.mark.slow),
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


LACKS = {  # a fault of train_with_fault.py: flags, what the warning says
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
    "fault", [name if name == "no_compiler" else pytest.param(name, marks=pytest.mark.slow) for name in LACKS]
)
def test_the_run_ends_as_without_it(plain, tmp_path, fault):
    (words, weights), (more, warning) = plain, LACKS[fault]
    words = [fault, "all", *words, *more.split(), "--logdir", str(tmp_path), "--name", "x"]
    env = {"CXX": str(tmp_path / "nonesuch"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    stdout = succeed([start(words, tmp_path, FAULTS, **env)])[0]
    assert stdout.count(warning) == 1, stdout
    found = checkpoint.read_run(tmp_path / "x/last.pt").model
    assert all(torch.equal(value, found[name]) for name, value in weights.items())

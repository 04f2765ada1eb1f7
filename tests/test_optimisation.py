"""AdamW, poly, clipping and a factor for the head: a plain loop of torch's, on any processes, killed, and old flags."""

import functools
import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from conftest import ALONE, FLOAT64, assert_same_run, kill, read_metrics, start_group, succeed, wait_until

import models
import train
import utils
from flags import Config, parse_flags
from support.batch import Batch
from support.errors import UserError
from training import checkpoint
from training.schedule import lr_factor

LR = 1e-3
ADAMW = {"optimizer": "adamw", "lr": LR, "wdecay": 0.05, "schedule": "poly", "clip_grad": 1.0}
ADAMW |= {"head_lr_factor": 2.0}
DENSE = {"dataset": "Dense", "model_type": "res50_ASPP", "freeze_bn": True}
NO_DECAY = "--no_decay_norm_bias"
VIT = {"backbone": "timm:test_vit", "model_type": "deeplabv2", "layers": None, "clip_grad": 5.0}  # 6 blocks, 64 wide
NETWORKS = {"resnet": {}, "vit": VIT}


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def plain_loop(cfg: Config, num_steps: int) -> tuple[models.Segmenter, list[float], list[float]]:
    """Train as the flags say by torch's AdamW, clip_grad_norm_ and formulas. Return (model, losses, norms)."""
    torch.manual_seed(cfg.seed)
    model = models.build(cfg.model_type, **cfg.architecture, freeze_bn=True).train()
    groups = []
    for name, parameter in model.named_parameters():
        factor = 1.0 if name.startswith("backbone") else 2.0
        decay = 0.0 if parameter.ndim == 1 or name.endswith(("pos_embed", "token")) else 0.05
        groups.append({"params": [parameter], "factor": factor, "weight_decay": decay})
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.999))
    loader = utils.get_loader(cfg, "train", ALONE)
    losses, norms = [], []

    def batches() -> Iterator[Batch]:
        for epoch in itertools.count():
            loader.sampler.set_position(epoch, 0)
            yield from loader

    for step, batch in enumerate(itertools.islice(batches(), num_steps)):
        logits = model(batch.image)["logits"]
        logits = F.interpolate(logits, batch.label.shape[1:], mode="bilinear", align_corners=True)
        loss = F.cross_entropy(logits, batch.label.long(), ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip_grad).item())
        for group in optimizer.param_groups:  # 2 steps of warm-up
            rise_and_fall = (step + 1) / 2 if step < 2 else (1 - (step - 2) / (num_steps - 2)) ** 0.9
            group["lr"] = LR * rise_and_fall * group["factor"]
        optimizer.step()
        losses.append(loss.item())
    return model, losses, norms


@pytest.mark.parametrize("network", NETWORKS)
def test_run_is_a_plain_loop_with_torchs_adamw_on_any_processes(demo_flags, float64, tmp_path, network):
    """10 steps of global batch 4 in float64: one process, two, two that accumulate."""
    length = {"epochs": None, "max_steps": 10, "warmup_epochs": None, "warmup_steps": 2, "val_epoch_frequency": 0}
    kind = DENSE | NETWORKS[network] | {"lr_scaling": "none", "batchsize": None}
    words = demo_flags(**ADAMW | length | kind)
    words.append(NO_DECAY)
    ways = {"two": ["--batchsize", "2"], "accumulated": ["--batchsize", "1", "--accum_steps", "2"]}
    processes = [
        process
        for name, way in ways.items()
        for process in start_group(2, [*words, *way, "--name", name], tmp_path, FLOAT64)
    ]
    one = [*words, "--batchsize", "4"]
    assert train.main([*one, "--name", "one"]) == 0
    succeed(processes, timeout=240)

    cfg = parse_flags(one)
    model, losses, norms = plain_loop(cfg, num_steps=10)
    assert min(norms) < cfg.clip_grad < max(norms)  # some are clipped, and some are not
    whole = torch.load(tmp_path / "one" / "last.pt", weights_only=True)
    for name in ("one", "two", "accumulated"):
        lines = read_metrics(tmp_path / name, "train")
        # Adam divides by the root of a mean square: where that is tiny, rounding weighs more.
        assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-8)
        assert [line["grad_norm"] for line in lines] == pytest.approx(norms, rel=1e-8)
        content = torch.load(tmp_path / name / "last.pt", weights_only=True)
        torch.testing.assert_close(content["model"], dict(model.state_dict()), rtol=1e-7, atol=1e-7)
        assert len(content["optimizer"]["state"]) == len(list(model.parameters()))
        for number, state in content["optimizer"]["state"].items():
            assert state["step"] == 10
            torch.testing.assert_close(state["exp_avg"], whole["optimizer"]["state"][number]["exp_avg"])


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_and_resumed_run_ends_the_same_bit_for_bit(demo_flags, tmp_path, world_size):
    """SIGKILL to each process, in mid-epoch."""
    more = {"epochs": 3 * world_size, "val_epoch_frequency": 0, "save_step_frequency": 3, "amp": "bf16", "ema": 0.9}
    words = demo_flags(**ADAMW | more | {"model_type": "deeplabv3", "freeze_backbone": 1})
    run = functools.partial(start_group, world_size, cwd=tmp_path)
    words.append(NO_DECAY)
    whole, killed = (run([*words, "--name", name]) for name in ("whole", "killed"))
    folder = tmp_path / "killed"
    wait_until((folder / "step_00000003.pt").exists, killed)
    kill(killed)
    [stdout, *_] = succeed(run([*words, "--name", "killed", "--resume", "auto"]))
    assert "flags changed since the checkpoint: none" in (folder / "train.log").read_text()
    assert "resuming" in stdout
    succeed(whole)
    assert_same_run(folder, tmp_path / "whole")
    groups = checkpoint.read_run(folder / "last.pt").optimizer["param_groups"]
    assert {group["lr_factor"] for group in groups} == {1.0, 2.0}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.05}


def test_fp16_unscales_before_it_clips(demo_run):
    """The norm is that of the gradients, not of 65536 times them, and is left out where they overflow."""
    norms = {}
    for amp in ("none", "fp16"):
        folder = demo_run(**DENSE, crop_size=17, amp=amp, clip_grad=1e-3, lr=0.01, name=amp, wdecay=0, momentum=0)
        lines = read_metrics(folder, "train")
        norms[amp] = {line["step"]: line["grad_norm"] for line in lines if "grad_norm" in line}
        assert len(norms[amp]) == 4 - lines[-1].get("skipped_steps", 0)
    for step, norm in norms["fp16"].items():
        assert norm == pytest.approx(norms["none"][step], rel=0.05)  # fp16 has 11 bits
    assert norms["fp16"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cosine", [0.5, 1.0, 1.0, 0.5]),  # 0.5 (1 + cos(pi t)), with t = 0 and 1/2
        ("poly", [0.5, 1.0, 1.0, 0.5**0.9]),
        ("constant", [0.5, 1.0, 1.0, 1.0]),
    ],
)
def test_schedules_follow_their_formulas_after_the_warm_up(kind, expected):
    assert [lr_factor(step, 12, 2, kind) for step in (0, 1, 2, 7)] == pytest.approx(expected, rel=1e-12)
    assert lr_factor(12, 12, 2, kind) == (1 if kind == "constant" else 0)
    # A resumed run with half the batch counts twice the steps, and with twice the batch half of them.
    for factor in (2, 0.5):
        assert lr_factor(7 * factor, 12 * factor, 2 * factor, kind) == pytest.approx(expected[3], rel=1e-12)


def test_momentum_and_adamws_state_are_not_mixed(demo_run, tmp_path):
    folder = demo_run(**DENSE, name="x")
    resume = {"resume": folder / "last.pt", "epochs": 2, **DENSE}
    with pytest.raises(UserError, match=r"--optimizer adamw: the checkpoint has the state of sgd: use --optimizer sgd"):
        demo_run(**resume, optimizer="adamw")
    groups = "the checkpoint's optimizer has other groups of parameters.*or start without"
    with pytest.raises(UserError, match=groups):
        demo_run(**resume, head_lr_factor=10)
    demo_run(**resume, optimizer="adamw", head_lr_factor=10, reset_optimizer=True)
    content = vars(checkpoint.read_run(folder / "last.pt"))
    assert {float(state["step"]) for state in content["optimizer"]["state"].values()} == {4.0}  # of epoch 2

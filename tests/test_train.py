"""Whole runs in one process: what they write, their length, and what they do not depend on."""

import gc
import json

import pytest
import torch
import yaml
from chaos import unequal
from conftest import DENSE, FAULTS, assert_same_run, finish, read_metrics, run_train, start, succeed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import flags.loss_weights
import models
import train
from flags import FLAGS
from support.errors import UserError
from support.labels import MAPS
from training.average import WeightAverage
from training.schedule import lr_factor

LOSSES = {"Dense": "seg", "ScribbleOnly": "seg crf", "PseudoOnly": "pseudo lorm"}
LOSSES |= {"ScribblePseudo": "seg pseudo lorm crf"}
LOSSES |= {"ScribblePseudoDs": "seg pseudo lorm ds", "ScribblePseudoDc": "seg pseudo lorm dc"}


def read(folder, name="last.pt") -> dict:
    return torch.load(folder / name, weights_only=True)


def weights(folder, name="last.pt") -> dict[str, torch.Tensor]:
    return read(folder, name)["model"]


def validations(folder) -> list[tuple[int, int]]:
    return [(line["epoch"], line["step"]) for line in read_metrics(folder, "val")]


def steps(folder) -> list[int]:
    return [line["step"] for line in read_metrics(folder, "train")]


@pytest.fixture(scope="module")
def run_of_two_epochs(demo_root, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("log")
    return run_train(dataset_path=demo_root, logdir=logdir, epochs=2, name="two", save_epoch_frequency=1)


def test_run_folder_holds_what_the_readme_says(run_of_two_epochs, demo_root):
    folder = run_of_two_epochs
    names = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    checkpoints = {"last.pt", "best.pt", "epoch_0001.pt", "epoch_0002.pt"}
    assert names == {"augmented.jpg", "config.yaml", "train.log", "metrics.jsonl", "report.html"} | checkpoints
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["dataset_path"] == str(demo_root)
    assert set(saved) == {name for name, item in FLAGS.items() if not item.per_launch}
    log = (folder / "train.log").read_text()
    assert "rank 0, local rank 0, world size 1, device cpu, no process group" in log
    assert "global batch 2, 4 steps an epoch, 8 steps in all, lr 0.01" in log
    assert "mIoU" in log


def test_metrics_have_every_step_once(run_of_two_epochs):
    train_lines, val_lines = (read_metrics(run_of_two_epochs, kind) for kind in ("train", "val"))
    # 8 images, batch 2, 2 epochs
    assert [(line["epoch"], line["step"]) for line in train_lines] == [(1 + step // 4, step + 1) for step in range(8)]
    for line in train_lines:
        assert set(line) == {"kind", "epoch", "step", "loss", "losses", "lr", "images_per_s"}
        assert set(line["losses"]) == {"seg", "pseudo", "lorm", "ds", "dc"}
        assert line["loss"] == pytest.approx(sum(line["losses"].values()), rel=1e-6)
    assert [line["lr"] for line in train_lines] == [0.01 * lr_factor(step, 8, 0) for step in range(8)]
    assert validations(run_of_two_epochs) == [(1, 4), (2, 8)]
    assert all(len(line["iou"]) == 5 and 0 <= line["miou"] <= 1 for line in val_lines)


def test_tensorboard_has_curves_and_pictures(run_of_two_epochs):
    board = EventAccumulator(str(run_of_two_epochs)).Reload()
    tags = board.Tags()
    expected = {"train/loss", "train/loss_seg", "train/lr", "train/images_per_s", "val/miou", "val_iou/ground"}
    assert expected <= set(tags["scalars"])
    assert [event.step for event in board.Scalars("train/loss")] == list(range(1, 9))
    assert len(tags["images"]) == 4  # the first training samples, and the validation list's images
    assert [event.step for event in board.Images("train_images/augmented")] == [0]
    assert board.Tensors("config.yaml/text_summary")


def test_checkpoint_holds_tensors_and_plain_values_only(run_of_two_epochs):
    content = read(run_of_two_epochs)  # weights_only refuses anything else
    state = "format model ema optimizer scaler epoch samples step validated best_score validations_since_best"
    assert set(content) == {*state.split(), "ranks", "origin", "listing", "run", "config", "texts"}
    assert (content["epoch"], content["step"]) == (2, 8)
    assert not any(name.startswith("module.") for name in content["model"])
    assert content["best_score"] == max(line["miou"] for line in read_metrics(run_of_two_epochs, "val"))


def test_saved_config_repeats_the_run_bit_for_bit(run_of_two_epochs, tmp_path):
    train.main(["--config", str(run_of_two_epochs / "config.yaml"), "--logdir", str(tmp_path)])
    assert not unequal(weights(tmp_path / "two"), weights(run_of_two_epochs))


def test_same_weights_with_any_number_of_workers(demo_run, run_of_two_epochs):
    assert not unequal(weights(demo_run(epochs=2, workers=2)), weights(run_of_two_epochs))


def test_resumed_run_takes_the_flags_it_is_given(demo_run):
    words = {"name": "x"}
    folder = demo_run(**words)
    demo_run(**words, epochs=2, lr=0.5, momentum=0.3, pretrained="gone.pt", resume=folder / "last.pt")
    lines = read_metrics(folder, "train")
    # 4 steps of the first run, of 1 epoch; then steps 4 to 7 of the schedule of 2 epochs from lr 0.5
    assert [line["lr"] for line in lines[4:]] == [0.5 * lr_factor(step, 8, 0) for step in range(4, 8)]
    group = read(folder)["optimizer"]["param_groups"][0]
    assert (group["momentum"], group["lr"]) == (0.3, lines[-1]["lr"])
    assert_same_run(folder, folder)  # the curves have each step of metrics.jsonl, once


def test_resume_auto_starts_a_run_where_there_is_none_and_leaves_other_names_alone(demo_run, tmp_path):
    other = demo_run(name="exp-2")
    before = (other / "config.yaml").read_text()
    assert demo_run(resume="auto", name="exp").name == "exp"
    # A newer run of the name that was killed before its first checkpoint is begun anew, not the older one changed.
    (tmp_path / "exp.2").mkdir()
    (tmp_path / "exp.2" / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n{"kind"')
    demo_run(resume="auto", name="exp", seed=1)
    assert steps(tmp_path / "exp.2") == [1, 2, 3, 4]
    assert (other / "config.yaml").read_text() == before


@pytest.mark.parametrize("dataset", [name for name in MAPS if name not in ("ScribblePseudoDsDc", "Folder")])
def test_every_kind_of_labels_trains(demo_run, dataset):
    folder = demo_run(dataset=dataset)
    # The recipe's weight of crf, 0.3, rises over the first half of the run's 4 steps.
    for line, l_crf in zip(read_metrics(folder, "train"), (0, 0.15, 0.3, 0.3), strict=True):
        assert set(line["losses"]) == set(LOSSES[dataset].split())
        crf = line["losses"].pop("crf", 0.0)
        assert line["loss"] == pytest.approx(sum(line["losses"].values()) + l_crf * crf, rel=1e-6)


def test_a_run_in_a_group_with_lorm_weight_0(demo_run, monkeypatch):
    """It leaves LoRM out, and frees DDP before the group, or else the end of the run may hang."""
    alive: list[bool] = []

    def destroy(destroy=torch.distributed.destroy_process_group) -> None:
        alive.append(any(isinstance(value, DistributedDataParallel) for value in gc.get_objects()))
        destroy()

    monkeypatch.setattr(torch.distributed, "destroy_process_group", destroy)
    folder = demo_run(l_lorm=0, distributed=True)
    assert "lorm" not in read_metrics(folder, "train")[0]["losses"]
    assert alive == [False]


def test_start_weights_from_our_own_file(demo_run, run_of_two_epochs, capsys):
    file = run_of_two_epochs / "best.pt"
    folder = demo_run(lr=0, pretrained=file)
    kept, first = weights(folder), weights(run_of_two_epochs, "best.pt")
    assert torch.equal(kept["head.aspp.conv1.weight"], first["head.aspp.conv1.weight"])
    assert f"from {file}; left random: none; in the file but not used: none" in capsys.readouterr().out


def test_average_of_weights_is_that_of_torch_bit_for_bit_and_waits_for_nothing():
    torch.manual_seed(0)
    model = models.build("res50_ASPP_lorm", layers=18, num_classes=5)
    ours = WeightAverage(model, 0.9)
    expected = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        for value in (*model.parameters(), *model.buffers()):
            torch.nn.init.normal_(value.detach()) if value.is_floating_point() else value.add_(7)
        ours.update(model)
        expected.update_parameters(model)
        assert not unequal(ours.module.state_dict(), expected.module.state_dict())
    model.to("meta")  # whatever reads a value fails there
    ours = WeightAverage(model, 0.9)
    for _ in range(2):
        ours.update(model)


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def test_deterministic_runs_are_equal_bit_for_bit(demo_run, tmp_path, monkeypatch, device):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    words = {"epochs": 2, "device": device, "class_weights": "balanced"}
    for name in ("one", "two"):
        demo_run(**words, name=name, deterministic=True, loss="+".join(flags.loss_weights.LOSSES))
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
    assert_same_run(tmp_path / "one", tmp_path / "two")
    demo_run(name="three")
    assert not torch.are_deterministic_algorithms_enabled()


def test_loss_that_is_not_finite_stops_the_run_and_is_named(demo_run, tmp_path):
    named = r"loss '\w+' is (nan|inf) at step \d \(epoch 1\): lower --lr"
    with pytest.raises(UserError, match=named):
        demo_run(lr=1e30)
    assert not list(tmp_path.glob("*/last.pt"))


def test_plain_run_touches_no_process_group(demo_flags, monkeypatch):
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *args, **kwargs: pytest.fail("joined a group"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    train.main([*demo_flags(), "--no_distributed"])


# Runs whose length or validation is by steps


def test_max_steps_ends_a_run_in_mid_epoch_and_a_longer_one_goes_on_there(demo_run):
    """8 images, batch 2: 4 steps an epoch."""
    words = {"epochs": None, "val_epoch_frequency": 0, "name": "short"}
    folder = demo_run(**words, max_steps=7)
    assert steps(folder) == [1, 2, 3, 4, 5, 6, 7]
    assert validations(folder) == [(2, 7)]  # only at the end
    content = read(folder)
    assert (content["epoch"], content["samples"], content["step"]) == (1, 6, 7)
    # The first run ends at step 7 of 7; the longer run continues with the last step of epoch 2.
    demo_run(**words, max_steps=8, resume=folder / "last.pt")
    assert steps(folder) == list(range(1, 9))
    content = read(folder)
    assert (content["epoch"], content["samples"], content["step"]) == (2, 0, 8)


def test_val_step_frequency_validates_between_steps_and_changes_nothing_else(demo_run):
    words = {"epochs": 2, "model_type": "deeplabv3"}  # with dropout
    often = demo_run(**words, name="often", val_step_frequency=3)
    plain = demo_run(**words, name="plain")
    assert validations(plain) == [(1, 4), (2, 8)]
    assert validations(often) == [(1, 3), (1, 4), (2, 6), (2, 8)]
    at_ends = demo_run(**words, name="at_ends", val_step_frequency=4, val_epoch_frequency=0)
    assert validations(at_ends) == [(1, 4), (2, 8)]  # of the epoch that has just been trained
    assert not unequal(weights(often), weights(plain))
    # A validation's line comes after the line of its step, and best.pt holds the best of all.
    lines = [json.loads(line) for line in (often / "metrics.jsonl").read_text().splitlines()]
    order = [f"{kind}{step}" for step in range(1, 9) for kind in ("tv" if step in (3, 4, 6, 8) else "t")]
    assert [f"{line['kind'][0]}{line['step']}" for line in lines] == order
    miou = {line["step"]: line["miou"] for line in read_metrics(often, "val")}
    best = read(often, "best.pt")
    assert best["best_score"] == miou[best["step"]] == max(miou.values())


def test_run_by_steps_stopped_in_its_last_validation_does_it_again(demo_run, demo_flags, tmp_path):
    values = {"max_steps": 3, "epochs": None} | DENSE
    words, folder = demo_flags(**values), tmp_path / "stopped"
    faulty = start(["signal_in_validation", "0", *words, "--name", "stopped"], tmp_path, FAULTS)
    succeed([start([*words, "--name", "whole"], tmp_path)])
    finish([faulty], status=75)
    assert not validations(folder)
    succeed([start([*words, "--name", "stopped", "--resume", "auto"], tmp_path)])
    assert (folder / "best.pt").is_file()
    assert_same_run(folder, tmp_path / "whole")
    demo_run(**values, name="stopped", resume="auto")
    assert validations(folder) == [(1, 3)]  # nothing was left to do

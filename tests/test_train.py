"""Whole runs in one process: what they write, and what they do not depend on."""

import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from conftest import REPO, assert_same_run, finish, flags, read_metrics, run_train, start
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import config
import models
import train
from config import FLAGS
from distributed.group import Group
from errors import UserError
from evaluation.metrics import confusion_matrix, scores
from evaluation.predictor import Predictor
from labels import MAPS
from models.amp import LossScaler
from runs.checkpoint import step_of
from runs.state import TrainState
from schedule import lr_factor
from utils import get_loader


def weights(folder, name="last.pt") -> dict[str, torch.Tensor]:
    return torch.load(folder / name, weights_only=True)["model"]


def assert_same_weights(one: dict, two: dict) -> None:
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def run_of_two_epochs(demo_root, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("log")
    return run_train(dataset_path=demo_root, logdir=logdir, epochs=2, name="two", save_epoch_frequency=1)


def test_run_folder_holds_what_the_readme_says(run_of_two_epochs, demo_root):
    folder = run_of_two_epochs
    names = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    assert names == {
        "config.yaml",
        "train.log",
        "metrics.jsonl",
        "last.pt",
        "best.pt",
        "epoch_0001.pt",
        "epoch_0002.pt",
    }
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["dataset_path"] == str(demo_root)
    assert set(saved) == {name for name, item in FLAGS.items() if not item.per_launch}
    log = (folder / "train.log").read_text()
    assert "rank 0, local rank 0, world size 1, device cpu, no process group" in log
    assert "lr 0.01 x 1 (--lr_scaling linear" in log
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
    assert [(line["epoch"], line["step"]) for line in val_lines] == [(1, 4), (2, 8)]
    assert all(len(line["iou"]) == 5 and 0 <= line["miou"] <= 1 for line in val_lines)


def test_tensorboard_has_curves_and_pictures(run_of_two_epochs):
    board = EventAccumulator(str(run_of_two_epochs))
    board.Reload()
    tags = board.Tags()
    for tag in ("train/loss", "train/loss_seg", "train/lr", "train/images_per_s", "val/miou", "val_iou/0"):
        assert tag in tags["scalars"]
    assert [event.step for event in board.Scalars("train/loss")] == list(range(1, 9))
    assert len(tags["images"]) == 3  # the validation list's images


def test_checkpoint_holds_tensors_and_plain_values_only(run_of_two_epochs):
    content = torch.load(run_of_two_epochs / "last.pt", weights_only=True)  # B3: refuses anything else
    assert set(content) == {
        "format", "model", "ema", "optimizer", "scaler", "epoch", "samples", "step", "validated", "best_miou", "origin", "listing",
        "class_weights", "ranks", "run", "config",
    }  # fmt: skip
    assert (content["epoch"], content["step"]) == (2, 8)
    assert not any(name.startswith("module.") for name in content["model"])
    best = max(line["miou"] for line in read_metrics(run_of_two_epochs, "val"))
    assert content["best_miou"] == best


def test_saved_config_repeats_the_run_bit_for_bit(run_of_two_epochs, tmp_path):
    train.main(["--config", str(run_of_two_epochs / "config.yaml"), "--logdir", str(tmp_path)])
    assert_same_weights(weights(tmp_path / "two"), weights(run_of_two_epochs))


def test_a_run_never_writes_over_another(demo_root, tmp_path):
    first = run_train(dataset_path=demo_root, logdir=tmp_path, name="x")
    before = (first / "last.pt").read_bytes()
    second = run_train(dataset_path=demo_root, logdir=tmp_path, name="x", seed=1)
    assert (first.name, second.name) == ("x", "x.2")
    assert (first / "last.pt").read_bytes() == before


@pytest.mark.parametrize("workers", [1, 3])
def test_same_weights_with_any_number_of_workers(run_of_two_epochs, demo_root, tmp_path, workers):
    folder = run_train(dataset_path=demo_root, logdir=tmp_path, epochs=2, workers=workers)
    assert_same_weights(weights(folder), weights(run_of_two_epochs))


# deeplabv3 has dropout, so that random numbers must be restored, too.
@pytest.mark.parametrize(("model_type", "workers"), [("res50_ASPP_lorm", 0), ("deeplabv3", 1)])
def test_killed_after_two_of_four_epochs_and_resumed_ends_the_same(demo_root, tmp_path, model_type, workers):
    words = flags(dataset_path=demo_root, logdir=tmp_path, epochs=4, model_type=model_type, workers=workers)
    whole = start([*words, "--name", "whole"], tmp_path)
    words += ["--name", "killed"]
    process = start(words, tmp_path)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    last = tmp_path / "killed" / "last.pt"
    # Into the third epoch: last.pt, which is written in the background, holds the second, 8 steps.
    deadline = time.monotonic() + 120
    while '"epoch": 3' not in (metrics.read_text() if metrics.exists() else "") or (step_of(last) or 0) < 8:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved_epoch = torch.load(last, weights_only=True)["epoch"]
    assert saved_epoch in (2, 3)
    [(status, stdout, stderr)] = finish([start([*words, "--resume", "auto"], tmp_path)])
    assert status == 0, stderr
    assert f"last.pt: epoch {saved_epoch + 1}, 0 samples into it" in stdout
    assert "flags changed since: none" in stdout
    assert finish([whole])[0][0] == 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_training_lowers_the_loss(demo_root, tmp_path):
    folder = run_train(
        dataset_path=demo_root, logdir=tmp_path, dataset="Dense", epochs=6, crop_size=65, val_epoch_frequency=6
    )
    losses = [line["loss"] for line in read_metrics(folder, "train")]
    assert sum(losses[-8:]) < 0.85 * sum(losses[:8])


def test_resumed_run_takes_the_flags_it_is_given(demo_root, tmp_path):
    folder = run_train(dataset_path=demo_root, logdir=tmp_path, name="x")
    train.main(
        flags(dataset_path=demo_root, logdir=tmp_path, name="x", epochs=2, lr=0.5, momentum=0.3, pretrained="gone.pt",
              resume=folder / "last.pt")
    )  # fmt: skip
    lines = read_metrics(folder, "train")
    # 4 steps of the first run, of 1 epoch; then steps 4 to 7 of the schedule of 2 epochs from lr 0.5
    assert [line["lr"] for line in lines[4:]] == [0.5 * lr_factor(step, 8, 0) for step in range(4, 8)]
    group = torch.load(folder / "last.pt", weights_only=True)["optimizer"]["param_groups"][0]
    assert (group["momentum"], group["lr"]) == (0.3, lines[-1]["lr"])


def test_resume_auto_leaves_runs_of_other_names_alone(demo_root, tmp_path):
    other = run_train(dataset_path=demo_root, logdir=tmp_path, name="exp-2")
    before = (other / "config.yaml").read_text()
    assert run_train(dataset_path=demo_root, logdir=tmp_path, name="exp", resume="auto").name == "exp"
    # A newer run of the name that was killed before its first checkpoint is begun anew, not the older one changed.
    (tmp_path / "exp.2").mkdir()
    (tmp_path / "exp.2" / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n{"kind"')
    run_train(dataset_path=demo_root, logdir=tmp_path, name="exp", resume="auto", seed=1)
    assert [line["step"] for line in read_metrics(tmp_path / "exp.2", "train")] == [1, 2, 3, 4]
    assert (other / "config.yaml").read_text() == before


def test_resume_by_file_needs_no_other_flag(demo_root, tmp_path):
    run_train(dataset_path=demo_root, logdir=tmp_path, epochs=2, name="x", save_epoch_frequency=1)
    whole = weights(tmp_path / "x")
    train.main(["--resume", str(tmp_path / "x" / "epoch_0001.pt")])
    assert_same_weights(weights(tmp_path / "x"), whole)
    assert [line["epoch"] for line in read_metrics(tmp_path / "x", "val")] == [1, 2]


def test_resume_auto_without_a_run_starts_one(demo_root, tmp_path):
    assert run_train(dataset_path=demo_root, logdir=tmp_path, resume="auto", name="new").name == "new"


@pytest.mark.parametrize("dataset", [name for name in MAPS if name not in ("ScribblePseudoDsDc", "Folder")])
def test_c1_to_c7_every_kind_of_labels_trains(demo_root, tmp_path, dataset):
    folder = run_train(dataset_path=demo_root, logdir=tmp_path, dataset=dataset)
    losses = read_metrics(folder, "train")[-1]["losses"]
    expected = {
        "Dense": {"seg"}, "ScribbleOnly": {"seg"}, "PseudoOnly": {"pseudo", "lorm"},
        "ScribblePseudo": {"seg", "pseudo", "lorm"}, "ScribblePseudoDs": {"seg", "pseudo", "lorm", "ds"},
        "ScribblePseudoDc": {"seg", "pseudo", "lorm", "dc"},
    }  # fmt: skip
    assert set(losses) == expected[dataset]


def test_real_scribbles_train_with_all_five_losses(scribblesup, tmp_path):
    folder = run_train(
        dataset_path=scribblesup, logdir=tmp_path, numclasses=21, batchsize=1, epochs=3, crop_size=465, lr=0.001
    )
    lines = read_metrics(folder, "train")
    assert len(lines) == 3
    for line in lines:
        assert len(line["losses"]) == 5
        assert all(0 < value < 1000 for value in line["losses"].values()), line


def test_average_of_weights_is_what_is_validated_and_saved(demo_root, tmp_path):
    folder = run_train(dataset_path=demo_root, logdir=tmp_path, ema=0.8, dataset="Dense", lr=0.05)
    content = torch.load(folder / "last.pt", weights_only=True)
    model = models.build("res50_ASPP_lorm", layers=18, num_classes=5).eval()
    miou = {}
    val_loader = get_loader(config.parse(flags(dataset_path=demo_root)), "val", Group(torch.device("cpu")))
    for part in ("model", "ema"):
        model.load_state_dict(content[part])
        with torch.inference_mode():
            pairs = [(Predictor(model).labels(batch["image"]), batch["label"]) for batch in val_loader]
        miou[part] = scores(sum(confusion_matrix(predicted, label, 5) for predicted, label in pairs))["miou"]
    assert miou["ema"] != miou["model"]
    assert read_metrics(folder, "val")[0]["miou"] == miou["ema"]


def test_average_of_weights_follows_its_formula():
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.75))
    state = TrainState(model, model, optimizer, lambda _: 0.0, LossScaler(torch.device("cpu"), enabled=False), ema)
    for value in (8.0, 4.0, 0.0):
        torch.nn.init.constant_(model.weight, value)
        model(torch.ones(1, 1)).sum().backward()
        state.update(0.0, 1)
    # It begins with the weights after the first step: 8, then 0.75 * 8 + 0.25 * 4 = 7, then 0.75 * 7 = 5.25.
    assert ema.module.weight.item() == 5.25
    assert (state.step, state.samples) == (3, 3)


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def test_deterministic_runs_are_equal_bit_for_bit(demo_root, tmp_path, monkeypatch, device):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for name in ("one", "two"):
        words = flags(
            dataset_path=demo_root, logdir=tmp_path, name=name, deterministic=True, epochs=2, device=device,
            loss="ce+focal+ohem+dice+lovasz", class_weights="balanced",
        )  # fmt: skip
        train.main(words)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
    assert_same_run(tmp_path / "one", tmp_path / "two")
    run_train(dataset_path=demo_root, logdir=tmp_path, name="three")
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision_stays_close_to_full(run_of_two_epochs, demo_root, tmp_path, amp):
    folder = run_train(dataset_path=demo_root, logdir=tmp_path, amp=amp)
    full, mixed = (read_metrics(path, "train")[0]["losses"] for path in (run_of_two_epochs, folder))
    for name in full:
        assert mixed[name] == pytest.approx(full[name], rel=0.05)
    scaler = torch.load(folder / "last.pt", weights_only=True)["scaler"]
    assert bool(scaler) == (amp == "fp16")


def test_loss_that_is_not_finite_stops_the_run_and_is_named(demo_root, tmp_path):
    with pytest.raises(
        UserError, match=r"loss '\w+' is (nan|inf) at step \d \(epoch 1\), from rank\(s\) \[0\]: lower --lr"
    ):
        run_train(dataset_path=demo_root, logdir=tmp_path, lr=1e30)
    assert not (tmp_path / "ScribblePseudoDsDc_res50_ASPP_lorm" / "last.pt").exists()


def test_b6_no_best_before_the_first_validation(demo_root, tmp_path):
    folder = run_train(dataset_path=demo_root, logdir=tmp_path, epochs=3, val_epoch_frequency=2)
    assert [line["epoch"] for line in read_metrics(folder, "val")] == [2, 3]
    best = max(read_metrics(folder, "val"), key=lambda line: line["miou"])
    assert torch.load(folder / "best.pt", weights_only=True)["epoch"] == best["epoch"]


def test_start_weights_from_our_own_file(run_of_two_epochs, demo_root, tmp_path, capsys):
    file = run_of_two_epochs / "best.pt"
    folder = run_train(dataset_path=demo_root, logdir=tmp_path, lr=0, pretrained=file)
    kept, start = weights(folder), weights(run_of_two_epochs, "best.pt")
    assert torch.equal(kept["head.aspp.conv1.weight"], start["head.aspp.conv1.weight"])
    assert f"from {file}; left random: none; in the file but not used: none" in capsys.readouterr().out


def test_a15_lorm_weight_of_0_leaves_lorm_out(demo_root, tmp_path):
    folder = run_train(dataset_path=demo_root, logdir=tmp_path, l_lorm=0, distributed=True)
    assert "lorm" not in read_metrics(folder, "train")[0]["losses"]


def test_d22_learning_rate_warms_up_from_above_0_and_ends_at_0():
    factors = [lr_factor(step, total_steps=10, warmup_steps=4) for step in range(12)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[7] == pytest.approx(0.5)  # half-way down the cosine: (7 - 4) / (10 - 4)
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[10:] == [0.0, 0.0]


def test_plain_run_touches_no_process_group(demo_root, tmp_path, monkeypatch):
    import torch.distributed as dist

    monkeypatch.setattr(dist, "init_process_group", lambda *args, **kwargs: pytest.fail("joined a group"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    train.main([*flags(dataset_path=demo_root, logdir=tmp_path), "--no_distributed"])


def test_c8_c12_import_does_nothing(tmp_path):
    code = "import train, utils, config; import sys; sys.exit(any('tensorboard' in name for name in sys.modules))"
    script = tmp_path / "imports.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(REPO)!r})\n{code}")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["imports.py"]

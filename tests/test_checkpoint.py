"""Checkpoint files: whole or refused, the newest whole one used, no more of them than asked for."""

import errno
import json
import pickle
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import REPO, read_metrics, refused
from torch import nn

import train
from distributed.group import Group
from distributed.precision import LossScaler
from flags import Config
from support import files
from support.errors import UserError
from support.files import lock_file, remove_scratch, writing
from training import checkpoint
from training.checkpoint_content import Checkpoint, check_run
from training.state import TrainState


def content(step: int) -> Checkpoint:
    model = nn.Linear(1, 1)
    model.register_buffer("numbers", torch.arange(step, step + 100_000))
    optimizer = torch.optim.SGD(model.parameters())
    state = TrainState(model, model, optimizer, LossScaler(torch.device("cpu"), enabled=False), step=step)
    state.origin = dict.fromkeys(("world_size", "global_batch", "steps_per_epoch", "lr_factor"), 1)
    flags = {"amp": "none", "stride_in_1x1": False, "seed": 0, "repeat": 1}
    return state.checkpoint(Group(torch.device("cpu")), config=flags, texts={}, run={"lines": 0, "window": []})


def put(path, step: int) -> None:
    checkpoint.write(path, checkpoint.to_bytes(vars(content(step))))


def truncated(whole: bytes) -> Iterator[bytes]:
    for position in [*range(0, len(whole), len(whole) // 48 + 1), len(whole) - 2, len(whole) - 1]:
        yield whole[:position]


def flipped(whole: bytes) -> Iterator[bytes]:
    for number, position in enumerate(range(0, len(whole), len(whole) // 100 + 1)):
        changed = bytearray(whole)
        changed[position] ^= 1 << number % 8
        yield bytes(changed)


@pytest.mark.parametrize(("damage", "number"), [(truncated, 50), (flipped, 100)])
def test_damaged_file_is_refused_and_the_newest_intact_one_is_used(tmp_path, caplog, damage, number):
    last, newest = tmp_path / "last.pt", tmp_path / "step_00000002.pt"
    for file, step in ((tmp_path / "epoch_0001.pt", 1), (newest, 2), (last, 3)):
        put(file, step)
    whole = last.read_bytes()
    path, intact = checkpoint.read_newest(tmp_path)
    assert (path, intact.step) == (last, 3)
    theirs = torch.load(last, weights_only=True)  # torch reads it, too
    assert torch.equal(theirs["model"]["numbers"], intact.model["numbers"])
    cases = list(damage(whole))
    assert len(cases) >= number
    for data in cases:
        last.write_bytes(data)
        path, intact = checkpoint.read_newest(tmp_path)
        assert (path, intact.step) == (newest, 2)
        assert caplog.messages[-1] == f"{last}: damaged; using {newest} instead"
        with pytest.raises(UserError, match=r"last\.pt: (not an intact checkpoint|truncated|damaged)"):
            checkpoint.read_run(last)
    for file in tmp_path.iterdir():
        file.write_bytes(data)
    with refused(f"{tmp_path}: all checkpoints are damaged (last.pt, step_00000002.pt, epoch_0001.pt): delete them"):
        checkpoint.read_newest(tmp_path)


def test_old_and_quantised_files_print_nothing(tmp_path, recwarn):
    weights = {"w": torch.ones(2), "q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}
    for name in weights:
        torch.save({name: weights[name]}, tmp_path / f"{name}.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "s.pt").write_bytes(struct.pack("<Q", 74) + b'{"w":{"dtype":"F32"}}')
    recwarn.clear()
    assert checkpoint.read(tmp_path / "w.pt")["w"].tolist() == [1, 1]
    for name, message in (("q", "has the type torch.qint8"), ("s", "another kind of file")):
        with pytest.raises(UserError, match=message):
            checkpoint.read(tmp_path / f"{name}.pt")
    assert not recwarn.list


@pytest.mark.parametrize("is_whole", [True, False], ids=["with checksums", "bare pickle"])
def test_code_in_a_file_is_not_run(demo_run, tmp_path, monkeypatch, is_whole):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "was_here"), "w"))

    path = tmp_path / "payload.pt"
    if is_whole:
        save, content = torch.save, {"format": 2, "step": 1, "ranks": Payload()}
        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", lambda value, file: save(content, file))
            checkpoint.write(path, checkpoint.to_bytes({"step": 1}))
        assert b"was_here" in path.read_bytes()
    else:
        path.write_bytes(pickle.dumps(Payload(), protocol=2))
    for flag in ("resume", "pretrained"):
        with pytest.raises(UserError, match=r"payload\.pt: not an intact checkpoint of tensors and plain values"):
            demo_run(**{flag: path})
    assert not (tmp_path / "was_here").exists()


def test_write_goes_on_in_the_background_from_a_copy(tmp_path, monkeypatch):
    """The caller may change its tensors while the file is being written."""
    may_write, to_bytes = threading.Event(), checkpoint.to_bytes

    def slow(values):
        assert may_write.wait(30)
        return to_bytes(values)

    monkeypatch.setattr(checkpoint, "to_bytes", slow)
    live = content(1)
    writer = checkpoint.Writer()
    writer.save(live, [tmp_path / "last.pt"], {})
    assert not (tmp_path / "last.pt").exists()
    live.model["numbers"].zero_()
    may_write.set()
    writer.wait()
    assert torch.equal(checkpoint.read_run(tmp_path / "last.pt").model["numbers"], torch.arange(1, 100_001))


def test_any_error_of_the_writing_thread_is_raised_at_the_next_call(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "to_bytes", mock.Mock(side_effect=RuntimeError("torch.save failed")))
    writer = checkpoint.Writer()
    writer.save(content(1), [tmp_path / "last.pt"], {})
    with pytest.raises(RuntimeError, match=r"torch\.save failed"):
        writer.save(content(2), [tmp_path / "last.pt"], {})


def test_flags_of_saving_reach_the_folder(demo_run):
    folder = demo_run(epochs=3, save_step_frequency=2, save_epoch_frequency=1, keep=2, val_epoch_frequency=3)
    # 4 steps an epoch
    steps = ["step_00000010.pt", "step_00000012.pt"]
    assert sorted(file.name for file in folder.glob("*_*.pt")) == ["epoch_0002.pt", "epoch_0003.pt", *steps]
    middle = vars(checkpoint.read_run(folder / "step_00000010.pt"))
    shutil.copy(folder / "step_00000010.pt", folder / "step_00000008.pt")  # as a process killed at step 12 leaves it
    demo_run(epochs=3, save_step_frequency=2, keep=2, resume=folder / "last.pt")
    assert sorted(file.name for file in folder.glob("step_*.pt")) == steps
    assert (middle["epoch"], middle["samples"], middle["step"]) == (2, 4, 10)
    # --keep -1 is the default, and 0 keeps all.
    kept = [tuple(Config(keep=keep).kept_files.values()) for keep in (-1, 0, 2)]
    assert kept == [(3, 0), (0, 0), (2, 2)]
    # Of the window of metrics that is open there is nothing, as each step has its line.
    assert middle["run"] == {"lines": 10, "window": [], "wandb_id": ""}


def test_temporary_files_of_killed_processes_are_removed_at_once_and_no_others(tmp_path):
    (tmp_path / ".0123456789abcdef.part.onnx").write_bytes(b"half")
    with writing(tmp_path / "a.onnx") as own:
        remove_scratch(tmp_path.iterdir())
        assert list(tmp_path.iterdir()) == [own]


def test_resuming_an_earlier_checkpoint_sets_later_ones_aside(demo_run):
    words = {"name": "x", "epochs": 2}
    folder = demo_run(**words, save_step_frequency=3, keep=0, val_epoch_frequency=2)
    before = {file.name: file.read_bytes() for file in (*folder.glob("*.pt"), *folder.glob("*.html"))}
    assert set(before) == {"last.pt", "best.pt", "step_00000003.pt", "step_00000006.pt", "report.html"}
    demo_run(**words, resume=folder / "step_00000003.pt", val_epoch_frequency=2)
    old = {file.name: file.read_bytes() for file in folder.glob("*.old")}
    assert b"save_step_frequency: 3" in old.pop("config.yaml.old")  # the flags differ, too
    assert old == {f"{name}.old": before[name] for name in set(before) - {"step_00000003.pt"}}
    assert [line["step"] for line in read_metrics(folder, "train")] == list(range(1, 9))
    said = "checkpoints after step 3, or truncated, were renamed to *.old: best.pt, last.pt, step_00000006.pt"
    assert said in (folder / "train.log").read_text()


def test_a_resumed_run_says_what_its_larger_batch_leaves_out(demo_run):
    """Of 8 images, 2 are left after step 3: a step of 2 trains on them, a step of 8 does not."""
    words = {"name": "x", "epochs": 1}
    folder = demo_run(**words, save_step_frequency=3)
    demo_run(**words, resume=folder / "step_00000003.pt")
    assert " leaves out " not in (folder / "train.log").read_text()
    demo_run(**words, resume=folder / "step_00000003.pt", batchsize=8)
    log = (folder / "train.log").read_text()
    assert log.count("epoch 1 leaves out its last 2 samples, fewer than the global batch of 8\n") == 1
    assert "epoch 1/1: no steps were left, mIoU" in log
    assert "1 step an epoch, 1 step in all" in log
    assert "done: 1 epoch, 3 steps, best" in log


def test_a_line_that_a_resumed_run_writes_has_the_types_of_the_first_run(demo_run):
    """The checkpoint of step 4 is saved before the epoch's last line of metrics.jsonl, and holds what it will say."""
    words = {"name": "x", "epochs": 2, "log_interval": 3, "save_step_frequency": 4, "keep": 0}
    folder = demo_run(**words)
    before = read_metrics(folder, "train")
    assert [line["step"] for line in before] == [3, 4, 6, 8]
    demo_run(**words, resume=folder / "step_00000004.pt")
    texts = [json.dumps(line | {"images_per_s": 0}) for line in read_metrics(folder, "train")]
    assert texts == [json.dumps(line | {"images_per_s": 0}) for line in before]


def test_folder_of_a_running_process_is_refused(demo_run, demo_flags):
    folder = demo_run(name="x")
    holder = (
        "import sys; from pathlib import Path; from training.record import folder as run_folder; "
        f"log = run_folder.open_log(Path({str(folder)!r})); print('held', flush=True); sys.stdin.read()"
    )
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", holder], cwd=REPO, **streams)
    assert process.stdout.readline() == "held\n"
    words = demo_flags(name="x", resume="auto", epochs=2)
    with pytest.raises(UserError, match="another process writes to this run"):
        train.main(words)
    process.kill()
    process.wait()
    train.main(words)  # a lock dies with its process


def test_a_run_resumed_by_file_stays_in_its_folder_and_says_so(demo_run, demo_flags, tmp_path, capsys):
    folder = demo_run(name="x").rename(tmp_path / "copy")
    (folder / "config.yaml").write_text("seed: 3  # mine")
    demo_run(name="new", resume=folder / "last.pt", epochs=2)
    said = f"the run goes on in {folder}, not in {tmp_path / 'new'}: to start a new run in {tmp_path / 'new'}"
    assert said in capsys.readouterr().out
    assert (folder / "config.yaml.old").read_text() == "seed: 3  # mine"
    assert not (tmp_path / "new").exists()
    demo_run(name="copy", resume=folder / "last.pt", epochs=3)
    assert "goes on in" not in capsys.readouterr().out
    train.main(demo_flags(logdir=tmp_path / "log", resume=folder / "last.pt", epochs=4))
    assert f"tensorboard.main --logdir {folder}\n" in capsys.readouterr().out  # log/ has no curves


def test_fine_tuning_begins_at_step_1_in_a_new_folder_without_momentum_if_asked(demo_run, tmp_path, capsys):
    source = vars(checkpoint.read_run(demo_run(name="x", log_interval=3) / "last.pt"))
    sums = []
    for name, reset in (("x.2", False), ("x.3", True)):
        words = {"resume": tmp_path / "x/last.pt", "reset_data_offset": True, "lr": 0, "momentum": 1, "wdecay": 0}
        demo_run(name="x", **words, reset_optimizer=reset)
        tuned = vars(checkpoint.read_run(tmp_path / name / "last.pt"))
        assert (tuned["epoch"], tuned["step"]) == (1, 4)
        assert [line["step"] for line in read_metrics(tmp_path / name, "train")] == [1, 2, 3, 4]
        assert torch.equal(tuned["model"]["head.aspp.conv1.weight"], source["model"]["head.aspp.conv1.weight"])
        sums.append(tuned["optimizer"]["state"][0]["momentum_buffer"])
    # With momentum 1 the buffer is the sum of all gradients, and with lr 0 both runs have the same ones.
    before = source["optimizer"]["state"][0]["momentum_buffer"]
    assert before.abs().max() > 1e-3
    torch.testing.assert_close(sums[0] - sums[1], before, rtol=1e-4, atol=1e-5)
    assert "damaged or missing" not in capsys.readouterr().out  # the new runs have metrics of their own


def test_a_file_that_a_run_replaces_meanwhile_is_not_damaged(tmp_path, monkeypatch):
    put(tmp_path / "last.pt", 1)
    read_bytes = Path.read_bytes

    def replaced_afterwards(path):
        data = read_bytes(path)
        put(path, 2)
        return data

    monkeypatch.setattr(Path, "read_bytes", replaced_afterwards)
    _, content = checkpoint.read_newest(tmp_path)
    assert content.step == 1
    assert checkpoint.step_of(tmp_path / "last.pt") == 2


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("names", ["ground\nsky\ntree\nroad\ncar", "car\nroad\ntree\nsky\nground", "a\nb", None])
def test_going_on_with_data_of_other_class_names_is_said(demo_run, demo_root, tmp_path, capsys, names, reset):
    first = tmp_path / "first.txt"
    first.write_text("ground\nsky\ntree\nroad\ncar")
    folder = demo_run(name="x", classes=first)
    data = shutil.copytree(demo_root, tmp_path / "data")
    (data / "classes.txt").unlink(missing_ok=True)
    if names:
        (data / "classes.txt").write_text(names)
    words = {"resume": folder / "last.pt", "reset_data_offset": reset, "dataset_path": data, "numclasses": None}
    demo_run(name="y" if reset else "x", **words)
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if "has other class names than the checkpoint" in line]
    assert len(said) == (names not in (None, first.read_text()))
    # A file of 2 names cannot name the model's 5 classes.
    assert all((f"add --classes {data / 'classes.txt'}" in line) == (names != "a\nb") for line in said)
    assert all("use --pretrained instead of --resume" in line for line in said)


@pytest.mark.parametrize(("num_ranks", "expected"), [(3, [1.0, 2.0, 3.0]), (2, [2.0, 2.0, 2.0])])
def test_each_rank_resumes_with_its_own_batch_norm_statistics(num_ranks, expected):
    cpu = torch.device("cpu")
    for rank, mean in enumerate(expected):
        model = nn.BatchNorm2d(1)
        state = TrainState(model, model, torch.optim.SGD(model.parameters()), LossScaler(cpu, enabled=False))
        content = state.checkpoint(Group(cpu), config={}, texts={}, run={})
        content.model = content.model | {"running_mean": torch.tensor([2.0])}  # averaged over ranks
        content.ranks = [{"buffers": {"running_mean": torch.tensor([1.0 + own])}} for own in range(num_ranks)]
        state.restore(content, Group(cpu, rank=rank, world_size=3))
        assert model.running_mean.item() == mean


@pytest.mark.parametrize(("num_classes", "best"), [(2, -1.0), (3, 0.5)])
def test_the_best_score_of_an_earlier_version(num_classes, best):
    """It judged a single object by the mIoU, too, which is no IoU of the object."""
    older = vars(content(1)) | {"best_miou": 0.5}
    del older["best_score"]
    older["config"] |= {"numclasses": num_classes}
    assert check_run(older).best_score == best


def test_a_disk_that_cannot_lock_holds_nothing_up_and_loses_no_file(tmp_path, monkeypatch):
    """Nobody can tell whether a process writes the temporary file, so it stays."""
    scratch = tmp_path / ".0123456789abcdef.part.pt"
    scratch.touch()
    monkeypatch.setattr(files.fcntl, "flock", mock.Mock(side_effect=OSError(errno.ENOSYS, "not implemented")))
    remove_scratch([scratch])
    assert scratch.exists()
    with lock_file(tmp_path / "chain.lock") as file:
        assert not file.closed
    monkeypatch.undo()
    remove_scratch([scratch])
    assert not scratch.exists()

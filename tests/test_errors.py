"""What a user can get wrong: one line that names it, exit status 2, no traceback, nothing written."""

import contextlib
import errno
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from conftest import REPO, flags, refused
from faulty_data import remove, save, truncate, write

import train
from models import pretrained
from support import program
from support.errors import UserError, of_path
from training import checkpoint
from training.record import folder


@pytest.fixture
def data(demo_root, tmp_path):
    """A copy of the demo data to spoil."""
    return shutil.copytree(demo_root, tmp_path / "data")


def nothing(data: Path) -> None:
    pass


# What is done to the data, the flags, and what the line names.
@pytest.mark.parametrize(
    ("spoil", "words", "named"),
    [
        (shutil.rmtree, "", "data: no such folder"),
        (remove("ImageSets/SegmentationAug/val.txt"), "", "val.txt: no such list"),
        (nothing, "--train_path x", "x: no such folder (for the label files): create it, or correct --train_path"),
        (
            nothing,
            "--distancemap_s x",
            "x: no such folder (for the distance_s files): create it, or correct --distancemap_s",
        ),
        (remove("JPEGImages/demo_0002.jpg"), "", "train.txt: 'demo_0002': no such image in"),
        (truncate("JPEGImages/demo_0002.jpg"), "", "demo_0002.jpg: not a whole, readable image"),
        (
            save("pascal_2012_scribble/demo_0002.png", np.full((120, 160), 37, np.uint8)),
            "--numclasses 11 --classes=",
            "demo_0002.png: label 37 in 19200 pixel(s): with --numclasses 11 labels are 0..10",
        ),
        (nothing, "--resume classes.txt", "classes.txt: not an intact checkpoint"),
        (nothing, "--resume nowhere.pt", "--resume nowhere.pt: no such file"),
        (nothing, "--pretrained classes.txt", "--pretrained classes.txt: not an intact checkpoint"),
        # A name of more than 255 bytes, a loop of links, a file where a folder should be, a null character.
        (nothing, f"--resume {'x' * 300}", f"{'x' * 40}: File name too long: check the path"),
        (nothing, "--pretrained imagnet", "directory): name a FILE, imagenet or none"),
        (
            lambda data: (data / "a").symlink_to("a"),
            "--pretrained a",
            "--pretrained a: cannot be read (Too many levels",
        ),
        (write("c.yaml", 'list_path: "a\\0b"\n'), "--config c.yaml", "has a null character, which no path has"),
        (write("a", ""), "--name a --logdir .", "--logdir/--name a: is a file: name a folder"),
        (nothing, "--logdir JPEGImages", "which programs read as input"),
        (nothing, "--batchsize 9", "has 8 image(s) but one optimizer step takes 9"),
        (nothing, "--dataset ScribbleOnly --l_seg 0", "leaves no loss to train the head on"),
    ],
)
def test_fault_is_named_in_one_line(data, tmp_path, monkeypatch, capsys, spoil, words, named):
    monkeypatch.chdir(data)
    spoil(data)
    status = program.run(lambda: train.main([*flags(dataset_path=data, logdir=tmp_path / "log"), *words.split()]))
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert status == 2
    assert len(lines) == 1
    assert named in lines[0]
    assert not any(map(folder._began, tmp_path.glob("log/*")))  # the next run has the name


def test_only_errors_that_name_a_path_are_one_line(capsys):
    def fail(number: int, *name: str) -> None:
        raise OSError(number, os.strerror(number), *name)

    assert program.run(lambda: fail(errno.EIO, "a" * 300)) == 2
    assert re.fullmatch(r"error: a{100} \.\.\. a{100}: Input/output error: check the path.*\n", capsys.readouterr().err)
    for error in ((errno.EIO,), (errno.EBADF, "x"), (errno.ENOENT, "x")):  # our own bugs leave with a traceback
        with pytest.raises(OSError, match=os.strerror(error[0])):
            program.run(lambda error=error: fail(*error))


def test_weights_of_another_model_are_refused(demo_run, tmp_path):
    path = tmp_path / "other.pt"
    torch.save({"encoder.weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"other\.pt: none of its backbone's weights fits: check --backbone"):
        demo_run(pretrained=path)
    # A checkpoint of ours says which flags give its network.
    config = {"model_type": "deeplabv3p", "backbone": "timm:x", "layers": 34, "output_stride": 0}
    torch.save({"model": {"encoder.weight": torch.zeros(3)}, "config": config}, tmp_path / "ours.pt")
    with pytest.raises(UserError, match=r"weights fits: use --backbone timm:x --model_type deeplabv3p_lorm \("):
        demo_run(pretrained=tmp_path / "ours.pt", backbone="resnet")
    with pytest.raises(UserError, match=r"not a checkpoint of a run; to start from its weights use --pretrained"):
        demo_run(resume=path)


def test_resume_with_another_model_is_refused(demo_run):
    folder = demo_run(name="x", model_type="res50_ASPP")
    with pytest.raises(UserError, match=r"does not fit this model: check --model_type.*lorm\."):
        demo_run(resume=folder / "last.pt", model_type="res50_ASPP_lorm")


READ_ONLY = PermissionError(errno.EACCES, "Permission denied", "/root/.cache/torch")


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        (URLError("no route to host"), "connect"),
        (TimeoutError("timed out"), "connect"),
        (URLError(OSError(errno.EACCES, "blocked")), "connect"),
        (READ_ONLY, "set the environment variable TORCH_HOME to a folder that can be written"),
        (OSError(errno.ENOSPC, "No space left on device"), "set the environment variable TORCH_HOME"),
    ],
)
def test_imagenet_weights_that_cannot_be_had_are_one_line(demo_run, monkeypatch, problem, advice):
    def download(*args, **kwargs):
        assert socket.getdefaulttimeout() == pretrained.STALL_SECONDS  # torch.hub would wait forever
        raise problem

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    with pytest.raises(UserError, match=rf"--pretrained imagenet: its .*\): {advice}.*use --pretrained none"):
        demo_run(pretrained="imagenet")
    assert socket.getdefaulttimeout() is None


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A limit on the size of files, in bytes, stands in for a full disk: both make a write fail half-way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_named_and_leaves_the_earlier_checkpoint_whole(tmp_path):
    path = tmp_path / "last.pt"
    checkpoint.write(path, checkpoint.to_bytes({"step": 1}))
    named = r"last\.pt: cannot be written \(File too large\); the checkpoint needs 4 MiB, and has not replaced the"
    with largest_file(100_000), pytest.raises(UserError, match=named):
        checkpoint.write(path, checkpoint.to_bytes({"step": 2, "weights": torch.zeros(1_000_000)}))
    assert checkpoint.read(path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("name", ["config.yaml", "last.pt", "folder"])
def test_a_disk_that_is_full_before_the_first_checkpoint_has_a_remedy(name, demo_run, monkeypatch):
    def fail(*_) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def replace(source, target, move=os.replace) -> None:
        fail() if Path(target).name == name else move(source, target)

    monkeypatch.setattr(*(folder, "create", fail) if name == "folder" else (os, "replace", replace))
    with refused(": make room or allow writing, or choose another --logdir") as caught:
        demo_run()
    assert "cannot be written (No space left on device)" in str(caught.value)


def test_memory_that_a_cpu_does_not_have_is_one_line():
    named = r"out of memory on cpu \(.*\): use less"
    with pytest.raises(UserError, match=named), program.explain_errors("cpu", "use less"):
        torch.empty(2**55)


def test_ctrl_c_during_the_import_of_torch_prints_no_traceback(tmp_path):
    (tmp_path / "torch.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, REPO / "pseudo.py", "--checkpoint", "x.pt", "--output", "y"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # in the background, shells let it be ignored
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10) == ("", "")
    assert process.returncode == -signal.SIGINT


def test_a_full_quota_is_named():
    full = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "log/x/train.log")
    assert "log/x/train.log: Disk quota exceeded: make room" in str(of_path(full))

"""Real groups of processes, over gloo: same result at any size, one set of files, one end for all."""

import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from chaos import free_port
from conftest import (
    FAULTS,
    FLOAT64,
    REPO,
    finish,
    flags,
    one_line_each,
    read_metrics,
    refused,
    start,
    start_group,
    succeed,
)
from PIL import Image

import train
from distributed.process_group import process_group
from flags.loss_weights import LOSSES
from support.errors import UserError


@pytest.fixture(scope="module")
def uneven_labels(demo_root, tmp_path_factory):
    """The demo data with strokes and masks in 3 of its 8 training images only: some halves of a batch have no label."""
    root = tmp_path_factory.mktemp("uneven") / "demo"
    shutil.copytree(demo_root, root)
    for folder in ("pascal_2012_scribble", "SegmentationClassAug"):
        for path in sorted((root / folder).iterdir())[3:8]:
            Image.fromarray(np.full((120, 160), 255, np.uint8)).save(path)
    return root


ALL_LABEL_LOSSES = {"dataset": "Dense", "model_type": "res50_ASPP", "class_weights": "balanced"}
ALL_LABEL_LOSSES["loss"] = "+".join(LOSSES)


SCORES = ("pixels", "miou", "pixel_acc", "mean_acc", "iou")


def train_three_ways(tmp_path: Path, **values) -> dict[str, tuple[list[dict], dict, dict]]:
    """{how a global batch of 4 is split: the metrics of all steps, the last weights, their average}, in float64."""
    values |= {"logdir": tmp_path, "freeze_bn": True, "lr_scaling": "none", "label_smooth": 0.1, "ema": 0.9}
    words = [*flags(**values | {"batchsize": None}), "--report_training_batch_acc"]
    processes = [
        start([*words, "--batchsize", "4", "--name", "one"], tmp_path, FLOAT64),
        *start_group(2, [*words, "--batchsize", "2", "--name", "two"], tmp_path, FLOAT64),
        start([*words, "--batchsize", "2", "--accum_steps", "2", "--name", "accum"], tmp_path, FLOAT64),
    ]
    succeed(processes, timeout=300)
    runs = {}
    for name in ("one", "two", "accum"):
        content = torch.load(tmp_path / name / "last.pt", weights_only=True)
        runs[name] = read_metrics(tmp_path / name, "train"), content["model"], content["ema"]
    return runs


@pytest.mark.parametrize("losses", [{"l_lorm": 0.01, "l_crf": 0.1}, ALL_LABEL_LOSSES], ids=["scribbles", "dense"])
def test_same_losses_and_weights_at_any_split_of_the_global_batch(uneven_labels, tmp_path, losses):
    """Promise 1, 10 steps of global batch 4, in float64 with frozen batch norm."""
    runs = train_three_ways(tmp_path, dataset_path=uneven_labels, epochs=5, val_epoch_frequency=5, **losses)
    lines, weights, average = runs["one"]
    assert (len(lines), len(lines[0]["losses"])) == (10, 6 if "l_lorm" in losses else len(LOSSES))
    assert any("pixel_acc" in line for line in lines)
    assert all(any(line["losses"][name] > 0 for line in lines) for name in lines[0]["losses"])
    assert weights["head.aspp.conv1.weight"].dtype == torch.float64
    assert not torch.equal(average["head.aspp.conv1.weight"], weights["head.aspp.conv1.weight"])
    for name in ("two", "accum"):
        for line, expected_line in zip(runs[name][0], lines, strict=True):
            assert line["losses"] == pytest.approx(expected_line["losses"], rel=1e-9, abs=1e-15)
            assert line.get("pixel_acc") == expected_line.get("pixel_acc")
        torch.testing.assert_close(runs[name][1], weights, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(runs[name][2], average, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "own"), [(18, {1: [], 4: []}), (50, {1: [], 2: ["--grad_checkpointing"]})], ids=["18", "50"]
)
def test_same_run_at_any_number_of_processes_with_batch_norm_over_all_of_them(uneven_labels, tmp_path, layers, own):
    """Promise 1 with real batch norm, 6 steps of global batch 4, in float64; one image a process with four.

    And promise 2: 3 images of validation, in batches of one: of 4 processes the last has none.
    """
    words = flags(
        dataset_path=uneven_labels, logdir=tmp_path, epochs=3, batchsize=None, val_epoch_frequency=3, l_lorm=0.01,
        model_type="res50_ASPP_lorm", layers=layers, sync_bn="on", lr_scaling="none", ema=0.9, val_batchsize=1,
    )  # fmt: skip
    for world_size, more in own.items():
        more = [*words, *more, "--total_batchsize", "4", "--name", str(world_size)]
        succeed(start_group(world_size, more, tmp_path, FLOAT64), timeout=300)
    one, some = (tmp_path / str(world_size) for world_size in own)
    lines = read_metrics(one, "train")
    assert len(lines) == 6
    for line, expected in zip(read_metrics(some, "train"), lines, strict=True):
        assert line["losses"] == pytest.approx(expected["losses"], rel=1e-9, abs=1e-15)
    content, other = (torch.load(folder / "last.pt", weights_only=True) for folder in (one, some))
    assert content["model"]["backbone.bn1.running_var"].dtype == torch.float64
    for part in ("model", "ema"):
        torch.testing.assert_close(other[part], content[part], rtol=1e-9, atol=1e-12)
    # The number of pixels, and ratios of integers in float64: equal only if the integers are.
    ([scores], [others]) = (read_metrics(folder, "val") for folder in (one, some))
    assert scores["pixels"] == 3 * 120 * 160
    assert {key: others[key] for key in SCORES} == {key: scores[key] for key in SCORES}


def test_lorm_of_all_positions_is_the_same_on_any_number_of_processes(uneven_labels, tmp_path):
    """Its divisor is counted in the forward pass and summed over ranks. Accumulation takes a mean: close, not equal."""
    values = {"epochs": 2, "val_epoch_frequency": 0, "lorm_scope": "all"}
    runs = train_three_ways(tmp_path, dataset_path=uneven_labels, **values)
    lorm = {name: [line["losses"]["lorm"] for line in run[0]] for name, run in runs.items()}
    assert len(lorm["one"]) == 4
    assert lorm["two"] == pytest.approx(lorm["one"], rel=1e-9)
    assert lorm["accum"] != pytest.approx(lorm["one"], rel=1e-9)
    assert lorm["accum"] == pytest.approx(lorm["one"], rel=0.1)
    torch.testing.assert_close(runs["two"][1], runs["one"][1], rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def run_on_two(demo_root, tmp_path_factory):
    """A run of 2 epochs on 2 processes without a word of --distributed: its folder's parent, and the output."""
    tmp_path = tmp_path_factory.mktemp("two")
    words = flags(dataset_path=demo_root, logdir=tmp_path / "log", epochs=2, name="x", lr=0.01)
    return tmp_path, finish(start_group(2, words, tmp_path), status=0)


def test_rank_0_alone_writes_and_every_rank_says_where_it_is(run_on_two):
    tmp_path, [(_, out0, _), (_, out1, err1)] = run_on_two
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["x"]
    files = sorted(path.name for path in (tmp_path / "log" / "x").iterdir())
    assert len(files) == 8
    named = [name for name in files if "tfevents" not in name]
    assert named == ["augmented.jpg", "best.pt", "config.yaml", "last.pt", "metrics.jsonl", "report.html", "train.log"]
    line = "world size 2, device cpu, in a group (gloo)"
    assert f"rank 0, local rank 0, {line}" in out0
    assert out1.strip() == f"rank 1, local rank 1, {line}"
    assert "epoch" not in err1  # nor a bar
    log = (tmp_path / "log" / "x" / "train.log").read_text()
    assert log.count("weights are equal on all 2 ranks") == 2  # after every epoch
    product = "global batch 4 = 2 x 2 processes, 2 steps an epoch, 4 steps in all, lr 0.02"
    assert product in out0
    factor = "lr 0.02 = --lr 0.01 x 2 (--lr_scaling linear); if --lr is already scaled for this batch"
    assert f"{factor}, set --lr_scaling none" in out0.splitlines()
    assert read_metrics(tmp_path / "log" / "x", "train")[0]["lr"] == 0.02


def test_local_rank_that_nobody_says_is_counted_on_each_machine(demo_root, tmp_path):
    """RANK and WORLD_SIZE by hand, three processes of which the second is on another machine."""
    words = ["other_host", "1", *flags(dataset_path=demo_root, logdir=tmp_path, batchsize=1)]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": 3}
    outputs = succeed([start(words, tmp_path, FAULTS, RANK=rank, **env) for rank in range(3)])
    found = [re.search(r"local rank \d", stdout)[0] for stdout in outputs]
    assert found == ["local rank 0", "local rank 0", "local rank 1"]


@pytest.mark.parametrize(
    ("flags_by_rank", "named"),
    [
        ([{"seed": 0}, {"seed": 1}], "--seed is 0 on rank 0 but 1 on rank 1"),
        ([{}, {"device": "cuda:99"}], "--device cuda:99"),
        ([{"dist_timeout": 3}] * 3, "did not connect"),
    ],
    ids=["flags", "device", "missing rank"],
)
def test_wrong_groups_are_named_on_every_rank(demo_flags, tmp_path, flags_by_rank, named):
    words = [demo_flags(**values) for values in flags_by_rank]
    results = finish(start_group(len(words), words, tmp_path, ranks=(0, 1)), timeout=60)
    one_line_each(results, named)
    if len(words) > 2:
        assert any("rank(s) [2] of 3 did not connect" in stderr for _, _, stderr in results)


@pytest.mark.parametrize("error", [UserError("wrong"), KeyError("ours"), KeyboardInterrupt()])
def test_an_error_leaves_a_group_of_one_as_an_exception(error):
    def fail() -> None:
        with process_group(distributed=True, device="cpu") as group:
            assert (group.world_size, group.backend) == (1, "gloo")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert not torch.distributed.is_initialized()


def test_bad_file_on_one_rank_ends_all_with_its_name(demo_root, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(demo_root, root)
    image = root / "JPEGImages" / "demo_0003.jpg"
    image.write_bytes(image.read_bytes()[:2000])
    words = flags(dataset_path=root, logdir=tmp_path / "log", workers=2)
    one_line_each(finish(start_group(2, words, tmp_path), timeout=60), "demo_0003.jpg: not a whole, readable image")


@pytest.mark.slow
def test_port_in_use_is_named_on_every_rank(demo_root, tmp_path):
    words = flags(dataset_path=demo_root, logdir=tmp_path)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        one_line_each(finish(start_group(2, words, tmp_path, MASTER_PORT=port)), f"127.0.0.1:{port}")


@pytest.mark.slow
def test_two_processes_of_one_rank_are_named(demo_root, tmp_path):
    words = flags(dataset_path=demo_root, logdir=tmp_path, dist_timeout=8)
    results = finish(start_group(3, words, tmp_path, ranks=(0, 1, 1)), status=2)
    assert any("rank 1 has already connected" in stderr for _, _, stderr in results)


A_FILE = "use a new file in a folder that all processes can write to"
OF_TWO = ["--distributed", "--world_size", "2", "--rank", "0", "--dist_timeout", "5", "--dist_url"]
NO_HOST = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "no.such.host", "MASTER_PORT": 9999}


@pytest.mark.parametrize(
    ("env", "words", "named"),
    [
        ({"RANK": 0, "WORLD_SIZE": 2}, [], "MASTER_PORT is not set"),
        ({}, ["--world_size", "4"], "add --distributed to join a group"),
        ({}, ["--distributed", "--dist_url", "tcp://nowhere"], "expected tcp://HOST:PORT"),
        ({}, ["--distributed", "--dist_url", "udp://a:1"], "expected env://, tcp://HOST:PORT or file:///PATH"),
        ({}, ["--distributed", "--dist_url", "tcp://localhost:99999"], "0-65535: expected env://, tcp://HOST:PORT"),
        ({}, [*OF_TWO, "tcp://localhost:0"], "localhost:0: expected tcp://HOST:PORT, with a port from 1"),
        ({}, ["--distributed", "--dist_url", "tcp://a..b:1"], "'a..b' is not a known host"),
        ({}, ["--distributed", "--dist_url", "tcp://localhost:1?rank=0"], "without anything after ? or #"),
        ({}, ["--distributed", "--dist_url", "env:///"], "expected env://, tcp://HOST:PORT or file:///PATH"),
        ({}, [*OF_TWO, "file:///nonesuch/x"], f"--dist_url file:///nonesuch/x: No such file or directory: {A_FILE}"),
        ({}, [*OF_TWO, "file:///proc/x"], A_FILE),  # torch tries to open it for minutes
        ({}, [*OF_TWO, "file:///dev"], f"is not a file: {A_FILE}"),
        ({}, [*OF_TWO, "file:///dev/null"], f"is not a file: {A_FILE}"),
        ({}, [*OF_TWO, "file:///x%00"], f"embedded null byte: {A_FILE}"),
        ({}, [*OF_TWO, "file://shared/store"], "shared is read as the name of a machine: write three slashes"),
        ({}, ["--distributed", "--local_rank=-5"], "--local_rank -5: must be at least -1"),
        ({}, ["--distributed", "--rank=-5"], "--rank -5: must be at least -1"),
        (NO_HOST, [], "'no.such.host' is not a known"),
        ({}, ["--distributed", "--backend", "nccl"], "--backend nccl on device cpu"),
        ({}, ["--device", "abacus"], "--device abacus: not a device"),
        pytest.param(
            *({}, ["--device", "cuda"], "1 process(es) on this machine but 0 CUDA device(s)"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_wrong_settings_are_named(demo_root, tmp_path, monkeypatch, env, words, named):
    for name, value in env.items():
        monkeypatch.setenv(name, str(value))
    with refused(named):
        train.main([*flags(dataset_path=demo_root, logdir=tmp_path), *words])
    assert not any(tmp_path.iterdir())


def test_a_file_of_the_users_is_no_store(tmp_path):
    """torch would try for minutes to read it, and append to it."""
    file = tmp_path / "notes.txt"
    file.write_text("bring milk")
    with refused("is a file of another kind"), process_group(distributed=True, device="cpu", dist_url=file.as_uri()):
        pass
    assert file.read_text() == "bring milk"


ENDS = """
import time
from distributed.process_group import process_group
from support import program
from support.errors import UserError

def main():
    with process_group(device="cpu") as group:
        if group.is_main:  # as one that cannot write its results
            time.sleep(1)
            raise UserError("no room")

program.run_and_exit(main)
"""


def test_a_rank_that_is_done_waits_for_the_others(tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)
    processes = start_group(2, ["x"], tmp_path, str(tmp_path / "ends.py"), PYTHONPATH=REPO)
    one_line_each(finish(processes, timeout=60), "no room")

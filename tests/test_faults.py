"""Faults put into real groups of processes: each is named on every rank within seconds, and nothing hangs."""

import contextlib
import itertools
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import (
    ALONE,
    FAULTS,
    errors_of,
    finish,
    flags,
    free_port,
    is_running,
    one_line_each,
    refused,
    start,
    start_group,
    succeed,
    two_processes,
    wait_until,
)

from data.demo import draw_dataset
from distributed import lifeline, rank_checks
from distributed.rendezvous import Deadline
from support.signals import StopRequest
from training import checkpoint

NAMED_SECONDS = 30
slow = pytest.mark.slow


def run_pair(fault: str, rank: object, words: list[str], cwd: Path, **env) -> list[tuple[int, str, str]]:
    """Ends within 60 s, not by a timeout of minutes."""
    return finish(start_group(2, [fault, str(rank), *words], cwd, FAULTS, **env), timeout=60)


@pytest.mark.parametrize(
    ("fault", "rank", "named"),
    [
        ("weight_changed_on_one_rank", "1", "head.aspp.conv1.weight differs between rank 0 and rank 1"),
        *(
            pytest.param(*case, marks=slow)
            for case in (
                ("wrapper_lost", "all", "more differs between rank 0 and rank 1: gradients"),
                ("unused_parameter", "all", "spare got no gradient on rank"),
                ("a_buffer+buffer_changed_on_one_rank", "1", "centre differs between rank 0 and rank 1"),
                ("out_of_memory", "1", "(OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.): lower"),
                ("last_write_fails", "0", "the disk is gone"),
                ("other_numpy", "1", f"NumPy is {np.__version__} on rank 0 but 1.0 on rank 1: install the same"),
                ("other_code", "1", "on rank 0 but 1234 on rank 1: use the same code on all machines"),
                ("loss_not_finite", "1", "is nan at step 6 (epoch 3): lower --lr"),
            )
        ),
    ],
)
def test_fault_is_named_on_both_ranks(demo_flags, tmp_path, fault, rank, named):
    # The last checkpoint is written while the other rank has nothing left to do but to wait.
    words = demo_flags(epochs=1 if fault == "last_write_fails" else 3)
    one_line_each(run_pair(fault, rank, words, tmp_path), named)


@slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("user_error", 2, "the file is wrong"),
        ("bug", 1, "RuntimeError: an index is wrong"),
        ("interrupt", 130, "interrupted"),
    ],
)
def test_error_ends_both_ranks_where_leaving_the_group_would_block(demo_flags, tmp_path, fault, status, message, rank):
    """destroy_process_group() of NCCL waits for collectives that the other ranks never join.

    Step 1 is saved in the background, slowly, while step 2 fails: a user's error lets the writing end.
    """
    words = demo_flags(name="x", workers=1, save_step_frequency=1)
    processes = start_group(2, [f"blocked_destroy+slow_write+{fault}", str(rank), *words], tmp_path, FAULTS)
    note = tmp_path / f"workers.{rank}"
    wait_until(note.exists, processes)
    results = finish(processes, timeout=10, status=status)
    own, other = results[rank][2], results[1 - rank][2]
    hint = f"; to resume, start all processes as before and add: --resume {tmp_path}/x/last.pt"
    said = message + hint if fault == "user_error" and rank == 0 else message  # rank 0 wrote the checkpoint
    own_line = f"interrupted (rank {rank})" if fault == "interrupt" else f"error (rank {rank}): {said}"
    assert own.replace("\r", "\n").split("\n").count(own_line) == 1  # a bar may stand before it
    assert errors_of(other) == [f"error (rank {1 - rank}): on rank {rank}: {said}"]
    assert ("Traceback" in own, "Traceback" in other) == (fault == "bug", False)
    if rank == 0 and fault != "interrupt":
        assert message in (tmp_path / "x" / "train.log").read_text()
    if fault == "user_error":
        assert checkpoint.read_run(tmp_path / "x" / "last.pt").step == 1
    [worker], ended = [int(pid) for pid in note.read_text().split()], time.monotonic()
    while is_running(worker):  # a killed process takes a moment; one that is let be, 5 seconds
        assert time.monotonic() - ended < 3
        time.sleep(0.02)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=slow), 1])
def test_killed_rank_is_named_within_seconds(demo_flags, tmp_path, victim):
    words = demo_flags(epochs=3, name="x")
    processes = start_group(2, ["killed", str(victim), *words], tmp_path, FAULTS)
    assert processes[victim].wait(60) == -9
    status, _, stderr = finish(processes, timeout=NAMED_SECONDS)[1 - victim]
    assert status == 1
    assert len(errors_of(stderr)) == 1, stderr
    [line] = errors_of(stderr)
    assert f"rank {victim} (" in line
    assert "exited without a message" in line
    hint = f"; to resume, start all processes as before and add: --resume {tmp_path}/x/last.pt"
    assert line.endswith(hint)  # after two epochs, both ranks know that there is a checkpoint
    assert "Traceback" not in stderr


@slow
@pytest.mark.parametrize("victim", [0, 2])
def test_stopped_rank_is_waited_for_as_long_as_dist_timeout_says(demo_flags, tmp_path, victim):
    """SIGSTOP: the process exists, its connections are open, but it does not move."""
    words = demo_flags(epochs=4, dist_timeout=6, batchsize=1)  # 2 steps an epoch
    processes = start_group(3, ["halted", str(victim), *words], tmp_path, FAULTS)
    stopped = processes.pop(victim)
    results = finish(processes, timeout=60)
    stopped.kill()
    name = f"rank {victim} ({socket.gethostname()}, process {stopped.pid})"
    one_line_each(results, f": {name} stands still since step 6: no sign of life for 6 s (--dist_timeout)")


def test_different_world_sizes_are_named_at_once(demo_flags, tmp_path):
    env, words = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}, demo_flags()
    ranks = [start(words, tmp_path, RANK=rank, WORLD_SIZE=size, **env) for rank, size in enumerate((3, 2, 3))]
    one_line_each(finish(ranks, timeout=60), "world size is 3 on rank 0 but 2 on rank 1: give all")


def test_any_split_of_the_bytes_gives_the_same_messages():
    """A message may come in pieces, or together with the next: the failure of a rank right after its greeting."""
    sent = ["alive rank 1 (a, process 7)", "failed 2 on rank 1: caf\u00e9", "", "done"]
    stream, chance = "".join(f"{message}\n" for message in sent).encode(), random.Random(0)
    for number in range(500):
        cuts = sorted(chance.sample(range(1, len(stream)), number % len(stream)))
        pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
        line = SimpleNamespace(recv=lambda _, left=[*pieces, b""]: left.pop(0))
        assert list(lifeline.messages_of(line)) == sent


@contextlib.contextmanager
def lifeline_to_rank_0() -> Iterator[tuple[lifeline.Lifeline, socket.socket]]:
    """Rank 0's lifeline, and a connection to it as rank 1 opens it."""
    store, stop = torch.distributed.HashStore(), StopRequest()
    rank0 = lifeline.Lifeline(0, 2, stop, 600)
    threading.Thread(target=rank0.connect, args=(store, "tcp://127.0.0.1:1", Deadline(60, stop))).start()
    port = int(store.get("lifeline").decode().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as line:
        yield rank0, line


def test_failure_sent_together_with_the_greeting_is_told(monkeypatch, capsys):
    ended = threading.Event()
    monkeypatch.setattr(lifeline, "exit_at_once", lambda status, **_: ended.set())
    with lifeline_to_rank_0() as (_, line):
        line.sendall(b"alive rank 1 (a, process 7)\nfailed 2 on rank 1: a cause\n")
        assert ended.wait(60)
    assert errors_of(capsys.readouterr().err.replace("\r", "")) == ["error (rank 0): on rank 1: a cause"]


def test_rank_that_fails_ends_after_the_others_have_read_why(monkeypatch):
    """Its traceback is then the last output. And rank 0 serves the store, which the others may still need."""
    start_thread = threading.Thread.start
    monkeypatch.setattr(lifeline, "LEAVE_SECONDS", 60)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (time.sleep(0.3), start_thread(thread)))  # a busy CPU
    with lifeline_to_rank_0() as (rank0, line):
        line.sendall(b"alive rank 1 (a, process 7)\n")
        wait_until(lambda: rank0.readers, [])
        rank0.stop_listening()
        failing = threading.Thread(target=rank0.publish, args=(2, "a cause"))
        start_thread(failing)
        assert "failed 2 on rank 0: a cause" in lifeline.messages_of(line)
        failing.join(1)
        assert failing.is_alive()  # until rank 1 leaves
    failing.join(60)
    assert not failing.is_alive()


def test_rank_0_ends_after_the_others_have_read_which_rank_is_lost(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(lifeline, "LEAVE_SECONDS", 60)
    monkeypatch.setattr(lifeline, "exit_at_once", lambda status, **_: ended.set())
    with lifeline_to_rank_0() as (rank0, line):
        line.sendall(b"alive rank 1 (a, process 7)\n")
        wait_until(lambda: rank0.readers, [])
        threading.Thread(target=rank0._fail, args=("2 rank 2 is lost",)).start()
        assert "failed 2 rank 2 is lost" in lifeline.messages_of(line)
        assert not ended.wait(1)  # until rank 1 leaves
    assert ended.wait(60)


@slow
@pytest.mark.full_size
def test_slow_download_is_waited_for_beyond_dist_timeout(demo_flags, tmp_path):
    """The others waited in a broadcast, which ends after --dist_timeout; NCCL's by SIGABRT."""
    words = demo_flags(pretrained="imagenet", dist_timeout=6)
    results = run_pair("slow_download", "all", words, tmp_path)
    assert {status for status, _, _ in results} == {0}, results
    assert "rank 1: waiting for rank 0, which is loading --pretrained imagenet" in results[1][2]
    # As many as ResNet-18 has without its classifier.
    [log] = tmp_path.glob("*/train.log")
    assert "start weights: 120 from ResNet18_Weights.IMAGENET1K_V1" in log.read_text()


@slow
@pytest.mark.parametrize(("split", "number"), [("train", 2), ("val", 8)])
def test_different_file_lists_are_named(demo_root, tmp_path, split, number):
    one, other = (shutil.copytree(demo_root, tmp_path / name) for name in ("one", "other"))
    names = other / f"ImageSets/SegmentationAug/{split}.txt"
    names.write_text(names.read_text().replace(f"demo_{number:04d}\n", "demo_0007\n", 1))
    words = [flags(dataset_path=root, logdir=tmp_path / "log") for root in (one, other)]
    named = f"list of rank 1 differs from rank 0's: entry {number % 8 + 1} is 'image=demo_0007.jpg"
    one_line_each(finish(two_processes(words, tmp_path)), named)


@slow
def test_wrong_master_address_is_told_while_waiting_and_named_in_the_end(demo_flags, tmp_path):
    """127.0.0.2 stands for a machine on which nobody listens: rank 1 looks there, rank 0 waits for it."""
    words = demo_flags(dist_timeout=14)
    ports = [free_port(), free_port()]
    processes = [
        start(words, tmp_path, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, MASTER_ADDR=address, MASTER_PORT=ports[rank])
        for rank, address in enumerate(("127.0.0.1", "127.0.0.2"))
    ]
    (status0, _, stderr0), (status1, _, stderr1) = finish(processes, timeout=60)
    meeting = f"tcp://127.0.0.1:{ports[0]}"
    assert (status0, status1) == (2, 2)
    for rank, stderr in enumerate((stderr0, stderr1)):
        first, _, alone = stderr.splitlines()[0].partition("; to train alone: ")
        assert first == f"RANK and WORLD_SIZE make this process rank {rank} of a group of 2, which waits for the others"
        assert alone == "unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT"
        assert errors_of(stderr)[0].endswith(f"; to train alone: {alone}")
    assert f"rank(s) [1] of 2 did not connect to {meeting} yet: check that they started; waiting for" in stderr0
    assert f"rank(s) [1] of 2 did not connect to {meeting} within 14 s" in errors_of(stderr0)[0]
    assert "rank 1: nothing answers at 127.0.0.2:" in stderr1
    assert "check MASTER_ADDR" in errors_of(stderr1)[0]


@slow
@pytest.mark.full_size
def test_full_disk_stops_all_ranks_and_leaves_a_whole_checkpoint(tmp_path, small_disk):
    """A tmpfs of 250 MiB: a checkpoint of this model has 90, and two are kept besides last.pt."""
    draw_dataset(tmp_path / "data", num_train=8, num_val=3)
    words = flags(dataset_path=tmp_path / "data", logdir=small_disk, name="x", epochs=3, save_step_frequency=1)
    named = "cannot be written (No space left on device); the checkpoint needs 90 MiB"
    one_line_each(finish(two_processes(words, tmp_path)), named)
    assert not list((small_disk / "x").glob(".*"))
    (small_disk / "x" / "step_00000001.pt").unlink()
    subprocess.run(["mount", "-o", "remount,size=800m", str(small_disk)], check=True)
    [stdout, _] = succeed(two_processes([*words, "--resume", "auto"], tmp_path))
    assert "resuming" in stdout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_checksum_changes_with_any_bit_and_with_neighbours_that_change_places(dtype):
    value = (torch.arange(3000) % 2).to(dtype).view(3, 1000).t()  # not contiguous
    before, whole = rank_checks._checksum(value), value.contiguous()
    assert rank_checks._checksum(whole) == before
    for place in (0, 1234, 2999):
        changed = whole.clone()
        changed.view(-1).view(torch.uint8)[place * value.element_size()] ^= 1
        assert rank_checks._checksum(changed) != before
    swapped = whole.view(-1)
    first = next(place for place in range(2998) if swapped[place] != swapped[place + 1])
    swapped[[first, first + 1]] = swapped[[first + 1, first]]
    assert rank_checks._checksum(swapped.view(1000, 3)) != before
    assert rank_checks._checksum(torch.zeros((), dtype=dtype)) == 0


def test_a_parameter_without_gradient_is_an_error_only_where_other_ranks_wait_for_it():
    unused = torch.nn.Linear(2, 1)
    rank_checks.check_gradients(ALONE, unused)
    with refused("weight and 1 more got no gradient on rank 0"):
        rank_checks.check_gradients(replace(ALONE, backend="gloo"), unused)

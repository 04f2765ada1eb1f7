"""A run that was cut short anywhere ends as one that was not, also with another number of processes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import chaos
import pytest
import torch
from conftest import (
    DENSE,
    FAULTS,
    FLOAT64,
    REPO,
    assert_same_run,
    count_lines,
    finish,
    flags,
    free_port,
    is_running,
    read_metrics,
    start,
    start_group,
    succeed,
    wait_until,
)

from data.demo import draw_dataset
from training import checkpoint

SAMPLES = FLOAT64  # also notes what it trains on, in $SAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_at_random_moments(demo_root, processes, python, monkeypatch, capsys):
    """A short form of tests/chaos.py, whose full form is 20 kills."""
    monkeypatch.setattr(sys, "executable", str(python.python))
    words = ["--kills", "2", "--processes", str(processes), "--seed", "1", "--"]
    words += ["--dataset_path", str(demo_root), "--classes", f"{demo_root}/classes.txt"]
    words += ["--batchsize", "2", "--epochs", "12", "--val_step_frequency", "20"]  # as many steps as 96 images in 2
    assert chaos.main([*words, "--model_type", "deeplabv3"]) == 0  # it has dropout
    assert "bit for bit, with every step once" in capsys.readouterr().out


def test_the_comparison_of_chaos_sees_each_difference(demo_flags, tmp_path):
    """What makes the test above able to fail."""
    words = demo_flags(log_interval=2)
    succeed([start([*words, "--name", name, "--seed", seed], tmp_path) for name, seed in (("a", "0"), ("b", "1"))])
    found = chaos.compare(tmp_path / "a", tmp_path / "b")
    assert "last.pt: /model/head.aspp.conv1.weight differs" in found
    assert any(line.startswith("metrics.jsonl differs") for line in found)
    assert chaos.compare(tmp_path / "a", tmp_path / "a") == []
    one, other = ({"x": [torch.zeros(2), 1]}, {"x": [torch.tensor([0.0, 1e-45]), 1]})
    assert chaos.unequal(one, other) == ["/x/0"]


def test_without_a_shared_disk_other_ranks_get_rank_0s_checkpoint(demo_flags, tmp_path):
    """Rank 1's machine has another one of this step. Each rank has batch-norm statistics of its own in mid-epoch."""
    words = demo_flags(logdir="log", name="x", max_steps=3, val_epoch_frequency=0)
    own, other, shared = (tmp_path / name for name in ("own", "other", "shared"))
    own.mkdir()
    succeed(start_group(2, words, own))
    shutil.copytree(own, shared)
    (other / "log/x").mkdir(parents=True)
    content = vars(checkpoint.read_run(own / "log/x/last.pt"))
    next(iter(content["model"].values())).add_(1)
    checkpoint.write(other / "log/x/last.pt", checkpoint.to_bytes(content))
    assert checkpoint.step_of(other / "log/x/last.pt") == content["step"] == 3
    words = [*words, "--resume", "auto", "--max_steps", "6"]
    port = {"MASTER_PORT": free_port()}
    processes = start_group(2, words, own, ranks=[0], **port) + start_group(2, words, other, ranks=[1], **port)
    succeed(processes)
    succeed(start_group(2, words, shared))
    assert_same_run(own / "log/x", shared / "log/x")
    assert sorted(path.name for path in other.rglob("*.*")) == ["last.pt"]


def consumed(folder: Path, world_size: int, batch_size: int) -> list[str]:
    """The samples in the order of the whole group: of each forward pass, rank 0's batch first."""
    ranks = [(folder / f"samples.{rank}").read_text().splitlines() for rank in range(world_size)]
    batches = [[lines[at : at + batch_size] for at in range(0, len(lines), batch_size)] for lines in ranks]
    return [sample for forward in zip(*batches, strict=True) for batch in forward for sample in batch]


@pytest.mark.slow
def test_saved_by_4_processes_goes_on_with_2_and_with_1(tmp_path):
    """Promise 1 across a change of size, in float64 with frozen batch norm: same samples, same losses."""
    draw_dataset(tmp_path / "data", num_train=27, num_val=2)
    words = flags(
        dataset_path=tmp_path / "data", epochs=3, freeze_bn=True, val_epoch_frequency=3, l_lorm=0.01, l_crf=0.2,
        name="x", save_step_frequency=2, keep=0, ema=0.5,
    )  # fmt: skip

    def run(name: str, world_size: int, *more: str) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        words_here = [*words, "--logdir", str(tmp_path / name), *more]
        group = start_group(world_size, words_here, tmp_path, SAMPLES, SAMPLES=tmp_path / name / "samples")
        (tmp_path / name / "stdout").write_text(succeed(group, 240)[0])
        return tmp_path / name

    whole = run("whole", 4)  # global batch 8, 3 steps an epoch
    expected = consumed(whole, 4, 2)
    assert len(expected) == len(set(expected)) == 9 * 8
    middle = vars(checkpoint.read_run(whole / "x" / "step_00000004.pt"))
    assert (middle["epoch"], middle["samples"]) == (1, 8)
    for name, world_size, accum_steps in (("two", 2, 2), ("one", 1, 4)):
        (tmp_path / name / "x").mkdir(parents=True)
        for file in ("step_00000004.pt", "metrics.jsonl", "config.yaml"):
            shutil.copy(whole / "x" / file, tmp_path / name / "x")
        again = run(name, world_size, "--resume", "auto", "--accum_steps", str(accum_steps))
        assert consumed(again, world_size, 2) == expected[4 * 8 :]
        lines = read_metrics(again / "x", "train")
        for line, expected_line in zip(lines, read_metrics(whole / "x", "train"), strict=True):
            assert line["losses"] == pytest.approx(expected_line["losses"], rel=1e-6)
            assert (line["lr"], line["step"]) == (expected_line["lr"], expected_line["step"])
        contents = [vars(checkpoint.read_run(folder / "x" / "last.pt")) for folder in (again, whole)]
        for part in ("model", "ema"):
            torch.testing.assert_close(contents[0][part], contents[1][part], rtol=1e-6, atol=1e-9)
    # Half the processes without more accumulation: half the batch, and by the linear rule half the lr.
    (tmp_path / "half" / "x").mkdir(parents=True)
    shutil.copy(whole / "x" / "step_00000004.pt", tmp_path / "half" / "x")
    half = run("half", 2, "--resume", "auto")
    told = "the run began with a global batch of 8: --lr_scaling linear multiplies the lr by 0.5"
    assert told in (half / "stdout").read_text()
    # 27 - 8 = 19 samples of epoch 2 are left: 4 steps of 4; then 6 steps of epoch 3
    assert consumed(half, 2, 2)[: 4 * 4] == expected[4 * 8 : 6 * 8]
    lines = read_metrics(half / "x", "train")
    assert [line["step"] for line in lines] == [*range(5, 9), *range(9, 15)]
    assert lines[0]["lr"] == pytest.approx(0.02 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * (6 + 8 / 4) / 18))))


def test_loss_scale_is_resumed(demo_flags, tmp_path):
    words = demo_flags(**DENSE, amp="fp16", save_step_frequency=2, keep=0, crop_size=17)
    # Scaled like this, a gradient of step 1 or 2 is more than fp16 can hold, and the scale is halved.
    [stdout] = succeed([start(["huge_loss_scale", "0", *words, "--name", "whole"], tmp_path, FAULTS)])
    assert " of them skipped by --amp fp16), best mIoU" in stdout
    saved = vars(checkpoint.read_run(tmp_path / "whole" / "step_00000002.pt"))
    skipped = saved["scaler"]["skipped"]
    assert saved["scaler"]["scale"] == 2.0 ** (17 - skipped) < 2.0**17
    (tmp_path / "x").mkdir()
    for file in ("step_00000002.pt", "metrics.jsonl"):
        shutil.copy(tmp_path / "whole" / file, tmp_path / "x")
    words += ["--name", "x", "--resume", "auto"]
    succeed([start(["huge_loss_scale", "0", *words], tmp_path, FAULTS)])
    one, other = (vars(checkpoint.read_run(tmp_path / name / "last.pt")) | {"config": {}} for name in ("x", "whole"))
    assert chaos.unequal(one, other) == []
    counts = [[line["skipped_steps"] for line in read_metrics(tmp_path / name, "train")] for name in ("x", "whole")]
    assert counts[0] == counts[1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find torchrun's workers")
def test_torchrun_restarts_after_a_worker_was_killed_twice(demo_flags, tmp_path):
    words = demo_flags(epochs=8, save_step_frequency=1, model_type="deeplabv3")
    succeed(start_group(2, [*words, "--name", "whole"], tmp_path))
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--max_restarts", "3"]
    words = [*torchrun, str(REPO / "train.py"), *words, "--name", "x", "--resume", "auto"]
    process = start(words, tmp_path, "-m")
    for lines, victim in ((4, 1), (9, 0)):
        wait_until(lambda lines=lines: count_lines(tmp_path / "x" / "metrics.jsonl") >= lines, [process])
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(workers[victim]), signal.SIGKILL)
        time.sleep(2)  # until the other has ended and the new ones have cut metrics.jsonl
    [(_, stdout, stderr)] = finish([process], status=0)
    assert stdout.count("resuming") == 2
    assert stderr.count("exited without a message") == 2
    assert_same_run(tmp_path / "x", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find torchrun's workers")
def test_ranks_save_and_stop_if_torchrun_is_killed(demo_flags, tmp_path):
    """As processes of their own: start() would make the ranks children of its server."""
    words = ["--standalone", "--nproc_per_node", "2", str(REPO / "train.py"), *demo_flags(epochs=400, name="x")]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: count_lines(tmp_path / "x" / "metrics.jsonl") >= 2, [])
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    wait_until(lambda: not any(map(is_running, map(int, workers))), [])
    log = (tmp_path / "x" / "train.log").read_text()
    assert f"stopped by the end of torchrun (process {process.pid}) after step " in log
    assert checkpoint.read_run(tmp_path / "x" / "last.pt").step >= 2


@pytest.mark.slow
def test_slurm_script_requeues_a_run_that_was_told_to_stop(demo_flags, tmp_path, python):
    """With stand-ins for Slurm's commands: 2 tasks get SIGUSR1 as `--signal=USR1@120` sends it."""
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    (stand_ins / "srun").write_text(
        "#!/usr/bin/env bash\n"
        "while [[ $1 == --* ]]; do shift; done\n"
        "trap 'kill -USR1 $first $second' USR1\n"  # Slurm signals the tasks of a step
        "export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=localhost\n"
        'SLURM_PROCID=0 SLURM_LOCALID=0 "$@" & first=$!\n'
        'SLURM_PROCID=1 SLURM_LOCALID=1 "$@" & second=$!\n'
        f"echo $$ > {tmp_path}/step.pid\n"
        "while kill -0 $first 2>/dev/null; do wait $first; status=$?; done; wait $second; exit $status\n"
    )
    (stand_ins / "scontrol").write_text(f'#!/usr/bin/env bash\necho "$@" >> {tmp_path}/requeued\n')
    for file in stand_ins.iterdir():
        file.chmod(0o755)
    words = demo_flags(name="x", epochs=40)
    env = os.environ | {"PATH": f"{stand_ins}:{python.env['PATH']}", "OMP_NUM_THREADS": "1"}
    env |= {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "here", "SLURM_NTASKS": "2", "SLURM_SUBMIT_DIR": str(REPO)}
    script = ["bash", str(REPO / "scripts/slurm.sbatch"), *words]
    job = subprocess.Popen(script, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: count_lines(tmp_path / "x" / "metrics.jsonl") >= 3, [job])
    os.kill(int((tmp_path / "step.pid").read_text()), signal.SIGUSR1)
    stdout, stderr = job.communicate(timeout=60)
    assert "stopped by SIGUSR1" in stdout, (stdout, stderr)
    assert (tmp_path / "requeued").read_text() == "requeue 12345\n"
    steps = checkpoint.read_run(tmp_path / "x" / "last.pt").step
    # Requeued, it starts the same script again, which goes on.
    words[words.index("40")] = str(steps // 4 + 1)
    script = ["bash", str(REPO / "scripts/slurm.sbatch"), *words]
    job = subprocess.Popen(script, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stdout, stderr = job.communicate(timeout=120)
    assert job.returncode == 0, stderr
    assert "resuming" in stdout
    assert (tmp_path / "requeued").read_text().count("requeue") == 1

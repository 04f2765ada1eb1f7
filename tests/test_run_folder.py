"""A start that fails costs no name, and no two runs share a folder."""

import multiprocessing
from pathlib import Path

import pytest
from conftest import FAULTS, start

import train
from support.errors import UserError
from training.record import folder as run_folder


def create(logdir: Path, name: str) -> Path:
    """Return the folder of a new run."""
    folder, log = run_folder.create(logdir, name)
    log.close()
    return folder


def claim_and_hold(logdir: Path, barrier, results, hold) -> None:
    barrier.wait()
    folder, log = run_folder.create(logdir, "x")
    results.put(folder.name)
    hold.wait()
    log.close()


@pytest.mark.skipif(run_folder.fcntl is None, reason="no locks")
def test_starts_at_once_get_a_folder_each(tmp_path):
    """Also where a start that failed has left a folder."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "train.log").write_text("error: ...\n")
    context = multiprocessing.get_context("fork")
    shared = context.Barrier(6), context.Queue(), context.Event()
    processes = [context.Process(target=claim_and_hold, args=(tmp_path, *shared)) for _ in range(6)]
    for process in processes:
        process.start()
    names = {shared[1].get(timeout=60) for _ in processes}
    shared[2].set()
    for process in processes:
        process.join(30)
    assert len(names) == 6
    assert "x" in names


def test_runs_of_a_sweep_have_a_folder_of_their_own(tmp_path):
    """--name sweep/a is below --logdir; its second run is sweep/a.2, and --resume auto finds it."""
    for expected in ("sweep/a", "sweep/a.2"):
        folder = create(tmp_path, "sweep/a")
        assert folder == tmp_path / expected
        (folder / "best.pt").touch()
    assert run_folder.newest(tmp_path, "sweep/a") == tmp_path / "sweep/a.2"
    assert run_folder.find_best(tmp_path, "sweep/a") == tmp_path / "sweep/a.2/best.pt"


def test_lr_1_5_is_not_the_fifth_run_of_lr_1(tmp_path):
    """--resume auto of lr_1 would continue the other run."""
    for name in ("sweep/lr_1", "sweep/lr_1.5"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "last.pt").touch()
        (tmp_path / name / "config.yaml").write_text(f"name: {name}\n")
    assert run_folder.newest(tmp_path, "sweep/lr_1") == tmp_path / "sweep/lr_1"
    assert create(tmp_path, "sweep/lr_1") == tmp_path / "sweep/lr_1.2"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sweep/a/b/c", "sweep/a is the folder of a run: use another name, such as --name sweep_a_b_c"),
        ("sweep", "sweep has other runs in it, such as .*/sweep/a: use --name sweep/NAME"),
    ],
)
def test_no_run_is_in_the_folder_of_another(demo_flags, tmp_path, name, message):
    (create(tmp_path, "sweep/a") / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=f"^--name {name}: .*{message}$"):
        train.main(demo_flags(name=name))


@pytest.mark.parametrize(
    ("files", "expected"),
    [(["x/last.pt"], "x.2"), (["x/best.pt.old"], "x.2"), (["x/last.pt", "x.3/last.pt"], "x.4")],  # above all others
)
def test_folder_of_a_run_is_left_alone(tmp_path, files, expected):
    for file in files:
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    assert create(tmp_path, "x").name == expected


def test_folder_of_a_start_that_was_killed_is_taken_again(demo_run, demo_flags, tmp_path, capsys):
    words = demo_flags(name="x")
    start(["killed_in_first_step", "0", *words], tmp_path, FAULTS).wait()
    names = {file.name for file in (tmp_path / "x").iterdir() if "tfevents" not in file.name}
    assert names == {"train.log", "config.yaml", "metrics.jsonl", "augmented.jpg"}
    assert demo_run(name="x").name == "x"
    assert [folder.name for folder in tmp_path.iterdir()] == ["x"]
    (tmp_path / "x.2").mkdir()  # of a start that failed: it is not the newest run
    assert run_folder.newest(tmp_path, "x") == tmp_path / "x"
    capsys.readouterr()
    assert demo_run(name="x").name == "x.2"
    assert f"writing to {tmp_path / 'x.2'}, as {tmp_path / 'x'} has an earlier run\n" in capsys.readouterr().out

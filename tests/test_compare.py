"""python -m tools.compare shows runs side by side, whatever state they are in."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from conftest import finish, flags, one_line_each, read_metrics, start

import evaluate
import train
from flags import as_dict, parse_flags
from support.errors import UserError
from tools import compare_page
from tools.compare import main

# Stopped after 20 s, and resumed an hour later for 15 s.
LOG = """2026-11-27 10:00:00 rank 0, local rank 0, world size 1, device cpu, no process group
2026-11-27 10:00:01 global batch 2, 4 steps an epoch, 30 steps in all, lr 0.01
2026-11-27 10:00:20 stopped by SIGTERM after step 12, in epoch 4; to resume: ...
2026-11-27 11:00:00 rank 0, local rank 0, world size 1, device cpu, no process group
2026-11-27 11:00:15 """


def write_run(folder: Path, lines: list[dict], log: str = LOG + "done: 30 steps", **values) -> Path:
    """Write a run's folder as train.py does, without checkpoints. values: of flags."""
    folder.mkdir(parents=True)
    cfg = parse_flags(flags(dataset="Folder", dataset_path="MyData", numclasses=2, logdir=folder.parent))
    (folder / "config.yaml").write_text(yaml.safe_dump(as_dict(cfg) | {"name": folder.name} | values))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "train.log").write_text(log)
    return folder


def test_the_score_that_decides_has_a_column(tmp_path, capsys):
    """Of an object and its background, the IoU of the object decides, not the mIoU."""
    worse = [{"kind": "val", "step": 10, "miou": 0.6, "iou": [0.9, 0.3], "share": [0.9, 0.1]}]
    better = [{"kind": "val", "step": 10, "miou": 0.55, "iou": [0.7, 0.4], "share": [0.9, 0.1]}]
    runs = [write_run(tmp_path / name, lines) for name, lines in (("a", worse), ("b", better), ("c", []))]
    main([*map(str, runs), "--output", str(tmp_path / "page.html")])
    table = [line.split() for line in capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]]
    assert " ".join(table[0]).startswith("run IoU of class 1 mIoU")
    assert [row[:3] for row in table[1:]] == [["b", "40.00", "55.00"], ["a", "30.00", "60.00"], ["c", "-", "-"]]


def lines_of(*mious: float, rate: float = 8.0, loss: float = 1.0) -> list[dict]:
    """A training line and a validation every 10 steps. The IoU of class 0 is the mIoU + 0.1, that of class 1 - 0.1."""
    lines = []
    for step, miou in zip(range(10, 1000, 10), mious, strict=False):
        lines.append({"kind": "train", "epoch": 1, "step": step, "loss": loss, "losses": {}, "images_per_s": rate})
        lines.append({"kind": "val", "epoch": 1, "step": step, "miou": miou, "iou": [miou + 0.1, miou - 0.1]})
    return lines


def compare(capsys, *words: object) -> list[list[dict[str, str]]]:
    """The rows of both tables, {title: cell}."""
    main([str(word) for word in words])
    tables = [text.splitlines()[1:] for text in capsys.readouterr().out.split("\n\n")[:2]]
    cells = [[re.split(r" {2,}", line.strip()) for line in lines] for lines in tables]
    return [[dict(zip(title, row, strict=True)) for row in rows] for title, *rows in cells]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # pytest-xdist sets 80


def test_table_of_two_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = tmp_path / "classes.txt"
    names.write_text("road\nsky\n")
    write_run(Path("log/low"), lines_of(0.1, 0.3, 0.2, rate=9), lr=0.001, scale=[1.0, 1.0], classes=str(names))
    write_run(Path("log/high"), lines_of(0.4, 0.5, 0.5), lr=0.01, classes=str(names))  # the first 0.5 is best.pt
    found = compare(capsys, "log/low", "log/high")
    same = {"at step": "20", "steps": "30", "time": "35 s", "state": "done"}
    high = {"run": "high", "--lr": "0.01", "--scale": "0.5 2", "mIoU": "50.00", "images/s": "8"} | same
    low = {"run": "low", "--lr": "0.001", "--scale": "1 1", "mIoU": "30.00", "images/s": "9"} | same
    ious = [{"run": "high", "road": "60.00", "sky": "40.00"}, {"run": "low", "road": "40.00", "sky": "20.00"}]
    assert found == [[high, low], ious]
    assert compare(capsys, "log") == compare(capsys, "log/low", "log/high", "log/low/", "log/compare.html") == found
    names.unlink()
    assert compare(capsys, "log")[1][0] == {"run": "high", "0": "60.00", "1": "40.00"}
    monkeypatch.setenv("COLUMNS", "40")
    main(["log"])
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run")]
    # As many columns as 40 characters hold, with two spaces between them: 4 + 7 + 9 + 7 + 9 = 36.
    assert titles[:2] == ["run    --lr  --scale   mIoU  at step", "run   steps  time  images/s  state"]


@pytest.mark.parametrize(
    ("mious", "values", "hint"),
    [
        ((0.1, 0.2, 0.3), {"lr": (0.001, 0.01, 0.1)}, "largest --lr of these runs: also try a larger one"),
        ((0.3, 0.2, 0.1), {"lr": (1e-5, 1e-4, 0.001)}, "smallest --lr of these runs: also try a smaller one"),
        ((0.1, 0.3, 0.2), {"lr": (0.001, 0.01, 0.1)}, ""),
        ((0.1, 0.3), {"lr": (0.001, 0.01)}, ""),  # of two runs, the best is always at an end
        ((0.1, 0.2, 0.3), {"seed": (0, 1, 2)}, ""),
        ((0.3, 0.2, 0.1), {"l_crf": (0.0, 0.1, 0.3)}, ""),
        ((0.1, 0.2, 0.3), {"loss": ("ce", "ce+dice", "dice")}, ""),
        ((0.1, 0.2, 0.3), {"lr": (0.001, 0.01, 0.1), "wdecay": (0.1, 0.01, 0.01)}, ""),
        ((0.0, 0.0, 0.0), {"lr": (0.001, 0.01, 0.1)}, ""),  # nothing was learnt
    ],
)
def test_a_best_run_at_the_end_of_a_sweep_asks_for_another_value(tmp_path, capsys, mious, values, hint):
    for number, miou in enumerate(mious):
        given = {name: texts[number] for name, texts in values.items()}
        write_run(tmp_path / f"run{number}", lines_of(miou), **given)
    main([str(tmp_path)])
    said = capsys.readouterr().out
    assert ("the best run has the " in said) == bool(hint)
    assert hint in said


def test_runs_that_did_not_end(tmp_path, capsys):
    """Killed in the middle of a line, without a step, after an error, of an earlier version, and with metrics only."""
    metrics = write_run(tmp_path / "killed", lines_of(0.2), log=LOG.rpartition("\n")[0]) / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"kind": "val", "epoch": 2, "step": 20, "mi')
    write_run(tmp_path / "new", [], log="")
    error = "error: DivergedError: loss 'seg' is nan"
    write_run(tmp_path / "nan", lines_of(0.1)[:1], log=LOG + error)
    old = write_run(tmp_path / "old", lines_of(0.1, 0.1, 0.1))
    (old / "config.yaml").write_text("zero1: true\nlr: 1.0e-1\nnumclasses: 2\n")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/metrics.jsonl").write_text('{"kind": "val", "step": 10, "miou": NaN, "iou": null}\n[1]\n')
    one = LOG.rpartition("\n")[0].replace("30 steps", "1 step")
    write_run(tmp_path / "one", [], log=one)
    runs = {row["run"]: row for row in compare(capsys, *tmp_path.iterdir())[0]}
    assert runs.pop("one")["steps"] == "0 of 1"
    assert [[row[title] for title in ("run", "mIoU", "steps", "time", "state")] for row in runs.values()] == [
        ["killed", "20.00", "10 of 30", "20 s", "not finished"],
        ["old", "10.00", "30", "35 s", "done"],
        ["bare", "-", "10", "-", "not finished, no validation"],
        ["nan", "-", "10 of 30", "35 s", f"{error}, no validation"],
        ["new", "-", "0", "-", "not finished, no validation"],
    ]
    # conftest.TINY has --lr 0.01 and --layers 18. The earlier version lacked --layers, whose default is 50.
    shown = [f"{row['--lr']}, {row['--layers']}" for row in runs.values()]
    assert shown == ["0.01, 18", "0.1, 50", "-, -", "0.01, 18", "0.01, 18"]
    assert "--zero1" not in runs["old"]  # a flag that is gone


@pytest.mark.parametrize(
    "values",
    [
        {"iou": 5},
        {"iou": {"a": 1}},
        {"iou": ["a", "b"]},
        {"iou": [0.9, 0.9], "share": [1]},
        {"iou": [0.9, 0.9], "share": 0.5},
        {"miou": 10**400},
        {"miou": True},
        {"step": 10**400},
        {"losses": [1]},
        {"epoch": "x"},
    ],
)
def test_a_line_with_a_value_of_a_wrong_type_is_damaged(tmp_path, capsys, values):
    wrong = {"kind": "val", "epoch": 1, "step": 60, "miou": 0.9, "iou": [0.9, 0.9]} | values
    write_run(tmp_path / "a", [*lines_of(0.2), wrong])
    [row] = compare(capsys, tmp_path / "a")[0]
    assert (row["mIoU"], row["at step"]) == ("20.00", "10")


def test_page_has_all_curves_and_hostile_names_stay_names(tmp_path, monkeypatch):
    monkeypatch.setattr(compare_page, "MAX_POINTS", 5)
    write_run(tmp_path / (hostile := "<img src=x>$title&"), lines_of(0.2, 0.3, 0.4))
    write_run(tmp_path / "long", lines_of(*[0.1] * 12, loss=2.0))
    main([str(tmp_path)])
    head, _, rest = (tmp_path / "compare.html").read_text("ascii").partition("<body>")
    assert "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\"" in head
    body = ElementTree.fromstring(f"<body>{rest.removesuffix('</html>' + chr(10))}")
    assert {"script", "img"}.isdisjoint(element.tag for element in body.iter())
    assert [path.find("title").text for path in body.iter("path")] == [hostile, "long"] * 2
    assert [row.get("class") for row in body.iter("tr")] == [None, "r0", "r1"] * 2
    # x: 600 pixels for the 120 steps of the longer run. y: 280 pixels for 10 to 40 %, and for losses of 1 to 2.
    # Of 12 points every third is drawn, counted from the last, which is there twice.
    assert [path.get("d") for path in body.iter("path")] == [
        "M50.0 186.7L100.0 93.3L150.0 0.0L150.0 0.0",
        "M150.0 280.0L300.0 280.0L450.0 280.0L600.0 280.0L600.0 280.0",
        "M50.0 280.0L100.0 280.0L150.0 280.0L150.0 280.0",
        "M150.0 0.0L300.0 0.0L450.0 0.0L600.0 0.0L600.0 0.0",
    ]


def test_what_cannot_be_compared_is_an_error_of_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("a"), [])
    Path("odd").mkdir()
    Path("note.txt").touch()
    for words, message in (
        ("none", "none: no such folder: name the folders of runs"),
        ("odd", "odd: neither a run nor a folder of runs"),
        ("note.txt", "note.txt: a file: name the folders of runs"),
        ("a --output a/config.yaml", "--output a/config.yaml: programs read such files"),
        ("a --output a/train.log", "--output a/train.log: exists, and is not an earlier result"),
    ):
        with pytest.raises(UserError, match=message):
            main(words.split())
    Path("a/config.yaml").write_text("lr: [")
    one_line_each(finish([start(["tools.compare", "a"], tmp_path, "-m")]), "repair it, or leave this run out")


def test_runs_of_a_sweep_are_trained_resumed_scored_and_compared(demo_flags, tmp_path, capsys):
    words, folder = demo_flags(name="sweep/a", lr=0.001), tmp_path / "sweep/a"
    for some in (words, [*words, "--epochs", "2", "--resume", "auto"], demo_flags(name="sweep/b")):
        assert train.main(some) == 0
    assert f"evaluate.py --checkpoint {folder / 'best.pt'}" in capsys.readouterr().out
    assert evaluate.main(["--checkpoint", str(folder / "best.pt"), "--device", "cpu", "--workers", "0"]) == 0
    assert train.main([*words, "--task", "test"]) == 0
    capsys.readouterr()
    rows = {row["run"]: row for row in compare(capsys, *(tmp_path / "sweep").iterdir())[0]}
    # An epoch has 8 / 2 steps, and `a` did two.
    assert [rows[name][title] for name in "ab" for title in ("--lr", "steps")] == ["0.001", "8", "0.01", "4"]
    assert {row["state"] for row in rows.values()} == {"done"}
    best = max(line["miou"] for line in read_metrics(folder, "val"))
    assert rows["a"]["mIoU"] == f"{100 * best:.2f}"

"""W&B, the real package offline, has the numbers of metrics.jsonl. What accompanies training never ends it."""

import errno
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from chaos import unequal
from conftest import FAULTS, finish, flags, read_metrics, run_train, start_group, succeed

from data.demo import CLASSES
from flags import parse_flags
from support.errors import UserError
from training import checkpoint
from training.record.boards import WandB

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


def records(file: Path) -> list:
    """The records of a .wandb file: after a header of 7 bytes, LevelDB's log format.

    https://github.com/google/leveldb/blob/main/doc/log_format.md: blocks of 32 KiB, in which each fragment has a header
    of 7 bytes, a checksum, its length and its type: 1 whole, 2 first, 3 middle, 4 last.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found, content = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:  # no room for a header
            at += 2**15 - at % 2**15
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        content += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            found.append(Record.FromString(content))
            content = b""
    return found


def read_wandb(folder: Path) -> tuple[set[str], dict[int, dict], dict[int, set[str]]]:
    """The W&B runs' ids in a run's folder, {step: {tag: value}}, and {step: the tags of its pictures}."""
    ids, numbers, pictures = set(), {}, {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in records(file):
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert (config["lr"], config["name"]) == (0.01, folder.name)
            row = {(item.nested_key or [item.key])[0]: json.loads(item.value_json) for item in record.history.item}
            step = row.get("_step")
            pictures.setdefault(step, set()).update(tag for tag in row if "images/" in tag)
            points = {tag: value for tag, value in row.items() if "images/" not in tag and not tag.startswith("_")}
            numbers.setdefault(step, {}).update(points)
    return ids, *({step: row for step, row in rows.items() if row} for rows in (numbers, pictures))


def expected_rows(folder: Path) -> dict[int, dict]:
    """What metrics.jsonl says should be on a board, {step: {tag: value}}."""
    rows: dict[int, dict] = {}
    for line in read_metrics(folder, "train"):
        losses = line.pop("losses")
        rows[line["step"]] = {f"train/{name}": line[name] for name in line if name not in ("kind", "epoch", "step")}
        rows[line["step"]] |= {f"train/loss_{name}": value for name, value in losses.items()}
    for line in read_metrics(folder, "val"):
        values = {f"val/{name}": line[name] for name in ("miou", "mean_dice", "pixel_acc", "mean_acc")}
        for kind in ("iou", "dice"):
            values |= {f"val_{kind}/{name}": value for name, value in zip(CLASSES, line[kind], strict=True)}
        rows[line["step"]] |= values
    return {step: {tag: value for tag, value in row.items() if value is not None} for step, row in rows.items()}


@pytest.mark.parametrize(
    ("processes", "fault", "status"),
    [
        (1, "killed", -9),
        pytest.param(1, "signal_mid_epoch", 75, marks=pytest.mark.slow),
        pytest.param(2, "signal_mid_epoch", 75, marks=pytest.mark.slow),
    ],
)
def test_wandb_has_the_numbers_of_metrics_jsonl_in_one_run_also_after_a_stop(
    demo_flags, tmp_path, processes, fault, status
):
    pytest.importorskip("wandb", reason="wandb is not installed (pip install -e '.[wandb]')")
    words = demo_flags(name="x", epochs=4, workers=1, wandb=True, report_training_batch_acc=True)
    words += [] if processes == 1 else ["--distributed"]
    results = finish(start_group(processes, [fault, "0", *words], tmp_path, FAULTS, **OFFLINE), status=status)
    assert not any("Traceback" in stderr for _, _, stderr in results)
    succeed(start_group(processes, [*words, "--resume", "auto"], tmp_path, **OFFLINE))
    folder = tmp_path / "x"
    ids, numbers, pictures = read_wandb(folder)
    assert len(ids) == 1
    assert len([*tmp_path.rglob("offline-run-*")]) == 2  # one for each start, and none of rank 1
    expected, steps = expected_rows(folder), {0, *(line["step"] for line in read_metrics(folder, "val"))}
    # W&B's process had no second to write the rows up to the checkpoint.
    lost = set(range(5)) - set(numbers) if fault == "killed" else set()
    assert numbers == {step: row for step, row in expected.items() if step not in lost}
    assert steps - set(range(5) if lost else ()) <= set(pictures) <= steps


def test_wandb_variables_take_precedence_over_our_options(tmp_path, monkeypatch):
    wandb = SimpleNamespace(init=mock.Mock(), Image=None, teardown=None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    WandB(parse_flags(flags(dataset_path="data", logdir=tmp_path)), tmp_path / "sweep/x", "id1")
    assert wandb.init.call_args.kwargs["name"] == "sweep/x"
    assert {*wandb.init.call_args.kwargs} == {"config", "project", "name", "dir", "resume", "id"}
    for name in ("PROJECT", "NAME", "DIR", "RESUME", "RUN_ID"):
        monkeypatch.setenv(f"WANDB_{name}", "0")
    WandB(parse_flags(flags(dataset_path="data")), tmp_path / "x", "id1")
    assert {*wandb.init.call_args.kwargs} == {"config"}


def test_missing_wandb_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    (tmp_path / "wandb").mkdir()  # a folder of runs is no package
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UserError, match=r"--wandb needs the package wandb: .* install .*\[wandb\]"):
        parse_flags(flags(dataset_path="data", wandb=True))


PAGE = b'<script type="application/json" id="data">%s</script>'


def weights(folder) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def expected(demo_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    return weights(run_train(dataset_path=demo_root, logdir=folder, epochs=2, schedule="constant"))


@pytest.fixture(scope="module")
def first_epoch(demo_root, tmp_path_factory):
    return run_train(dataset_path=demo_root, logdir=tmp_path_factory.mktemp("log"), schedule="constant")


def warnings(text: str, named: str) -> list[str]:
    return [line for line in text.splitlines() if "warning: " in line and named in line]


REPORTS = (None, b"", b"\x00\xff" * 99, PAGE[:50], PAGE % b"{", PAGE % b"[1]")  # None: a folder
METRICS = (b"", None, b"\x00\xff\n" * 9, b"[1]\nnull\n{}\n", b"[" * 9**5, b"x")


@pytest.mark.parametrize(("report", "metrics"), [*zip(REPORTS, METRICS, strict=True)])
def test_damaged_files_beside_a_checkpoint_are_one_warning_each(
    demo_run, first_epoch, tmp_path, expected, capsys, report, metrics
):
    folder, damaged = shutil.copytree(first_epoch, tmp_path / "x"), {"report.html": report, "metrics.jsonl": metrics}
    for file, content in damaged.items():
        (folder / file).unlink()
        (folder / file).mkdir() if content is None else (folder / file).write_bytes(content)
    saved = checkpoint.read_run(folder / "last.pt")
    saved.best_score = 1.0  # so that the next validation is not the best, and must read the report
    checkpoint.write(folder / "last.pt", checkpoint.to_bytes(vars(saved)))
    demo_run(name="x", resume="auto", epochs=2, schedule="constant")
    text = capsys.readouterr().out
    assert [len(warnings(text, file)) for file in damaged] == [1, 1]
    assert not unequal(weights(folder), expected)
    assert [line["step"] for line in read_metrics(folder, "train")][-4:] == [5, 6, 7, 8]


# What fails: the part that the warning names. add_image is called only if the pictures are drawn.
WRITER = "torch.utils.tensorboard.SummaryWriter."
FAILURES = [
    {WRITER + "__init__": "TensorBoard", "inference.report.page": "report.html"},
    {WRITER + "add_scalar": "TensorBoard", "train.draw_samples": "augmented.jpg"},
    {WRITER + "add_image": "TensorBoard", "training.record.messages.table": "table of scores"},
    {WRITER + "flush": "TensorBoard", "training.record.metrics.Metrics._write_line": "metrics.jsonl"},
    {WRITER + "close": "TensorBoard", "inference.evaluation.panel": "pictures of the validation"},
    {"training.record.metrics.keep_lines": "metrics.jsonl"},
    {"logging.StreamHandler.emit": "train.log"},
]


@pytest.mark.parametrize("failures", FAILURES, ids=", ".join)
def test_failures_beside_training_are_one_warning_each(demo_run, expected, capsys, monkeypatch, failures):
    for owner in failures:
        monkeypatch.setattr(owner, mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    folder = demo_run(epochs=2, schedule="constant")
    text = capsys.readouterr().out
    for named in failures.values():
        assert ["No space left on device" in line for line in warnings(text, named)] == [True], text
    assert not unequal(weights(folder), expected)

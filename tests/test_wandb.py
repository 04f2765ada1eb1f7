"""--wandb: what reaches Weights & Biases, offline; and that nothing waits for it. No test uses the network."""

import json
import struct
import sys
from types import SimpleNamespace

import pytest
from conftest import finish, flags, read_metrics, start_group

import config
import train
from runs.boards import Board, import_wandb
from support.errors import STOPPED, UserError

internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")

FAULTS = "tests/train_with_fault.py"
OFFLINE = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}


def records(path):
    """The records of a run-ID.wandb: 7 bytes, then protobuf messages in a log like LevelDB's, in blocks of 32 KiB."""
    data, at, message = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<4xHB", data[at : at + 7])
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            record = internal.Record()
            record.ParseFromString(message)
            message = b""
            yield record


def history(path) -> list[dict]:
    """The points of a run-ID.wandb, in their order."""
    points = [record.history.item for record in records(path) if record.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in point} for point in points]


@pytest.mark.slow
def test_two_processes_log_once_and_a_resumed_run_goes_on_in_the_same(demo_root, tmp_path, monkeypatch):
    words = {"dataset_path": demo_root, "logdir": tmp_path, "name": "x", "wandb": True, "resume": "auto"}
    # Stopped by SIGTERM in step 1 of 4, on rank 1; then gone on with by one process.
    one_each = flags(**words, batchsize=1)
    results = finish(start_group(2, ["signal_in_first_step", "1", *one_each], tmp_path, FAULTS, **OFFLINE))
    assert [status for status, _, _ in results] == [STOPPED, STOPPED], results
    assert "Traceback" not in "".join(stderr for _, _, stderr in results)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    assert train.main(flags(**words)) == 0

    folder = tmp_path / "x"
    number = (folder / "wandb_id").read_text()
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))  # one of each start: rank 1 has none
    assert [file.name for file in files] == [f"run-{number}.wandb"] * 2
    assert f"wandb sync {folder}/wandb/offline-run-*-{number}" in (folder / "train.log").read_text()
    for path, exit_code, batchsize in zip(files, (1, 0), (1, 2), strict=True):
        by_kind = {record.WhichOneof("record_type"): record for record in records(path)}
        run = by_kind["run"].run
        assert (run.run_id, run.project, run.display_name) == (number, "segtrain", "x")
        assert by_kind["exit"].exit.exit_code == exit_code
        values = {item.key: json.loads(item.value_json) for item in by_kind["config"].config.update}
        assert (values["batchsize"], values["wandb"]) == (batchsize, True)
    points = [point for file in files for point in history(file)]
    for tag, kind, value in (("train/loss", "train", "loss"), ("val/miou", "val", "miou")):
        found = {point["global_step"]: point[tag] for point in points if tag in point}
        assert found == pytest.approx({line["step"]: line[value] for line in read_metrics(folder, kind)})
    assert sum("val_images/0_input_label_prediction_overlay/_type" in point for point in points) == 1


def test_its_variables_go_first(demo_flags, tmp_path, monkeypatch):
    asked = {}

    class WandB:
        Settings = dict

        def setup(self, options):
            asked.update(options)
            raise ValueError("seen")

    monkeypatch.setitem(sys.modules, "wandb", WandB())
    for name in ("PROJECT", "NAME", "DIR", "RUN_ID"):
        monkeypatch.setenv(f"WANDB_{name}", "mine")
    with pytest.raises(UserError, match="--wandb: ValueError: seen"):
        Board(config.parse(demo_flags(wandb=True)), tmp_path, 0)
    assert set(asked) == {"resume", "sync_tensorboard", "console", "finish_timeout", "show_info"}


def test_missing_package_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install -e '\S*\[wandb\]'$"):
        import_wandb()


@pytest.mark.slow
def test_without_a_login_all_ranks_end_with_one_line(demo_flags, tmp_path):
    words = demo_flags(name="x", batchsize=1, wandb=True)
    # Its server is a port of this machine that nobody listens at.
    env = {"HOME": tmp_path, "NETRC": tmp_path / "none", "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": ""}
    env["WANDB_ERROR_REPORTING"] = "false"
    for status, _, stderr in finish(start_group(2, words, tmp_path, **env)):
        assert status == 2, stderr
        assert "log in with `wandb login` or WANDB_API_KEY, or set WANDB_MODE=offline" in stderr
        assert "Traceback" not in stderr


def test_training_outlives_a_failure_of_its_service(demo_flags, tmp_path, monkeypatch, caplog):
    run = SimpleNamespace(finish=lambda **_: 1 + "1")
    monkeypatch.setattr("runs.boards.start_wandb", lambda *_: run)
    Board(config.parse(demo_flags(wandb=True)), tmp_path, 0).close(failed=False)
    assert "Weights & Biases failed (TypeError" in caplog.text

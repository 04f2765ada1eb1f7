"""What accompanies training never ends it: each failure is one warning, and the weights stay the same."""

import errno
from unittest import mock

import pytest
import torch
from chaos import unequal
from conftest import read_metrics, run_train

FULL = OSError(errno.ENOSPC, "No space left on device")
PAGE = b'<script type="application/json" id="data">%s</script>'


def weights(folder) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def expected(demo_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    return weights(run_train(dataset_path=demo_root, logdir=folder, epochs=2, schedule="constant"))


def warnings(capsys, named: str) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "warning: " in line and named in line]


@pytest.mark.parametrize(
    ("file", "content"),  # None: a folder
    [("report.html", content) for content in (None, b"", b"\x00\xff" * 99, PAGE[:50], PAGE % b"{", PAGE % b"[1]")]
    + [("metrics.jsonl", content) for content in (None, b"", b"\x00\xff\n" * 9, b"[1]\nnull\n{}\n", b"[" * 9**5, b"x")],
)
def test_damaged_file_beside_a_checkpoint_is_one_warning(demo_run, expected, capsys, file, content):
    path = demo_run(name="x", schedule="constant") / file
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    capsys.readouterr()
    folder = demo_run(name="x", resume="auto", epochs=2, schedule="constant")
    assert len(warnings(capsys, file)) == 1
    assert not unequal(weights(folder), expected)
    assert [line["step"] for line in read_metrics(folder, "train")][-4:] == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("owner", "named"),
    [
        *(
            (f"torch.utils.tensorboard.SummaryWriter.{name}", "TensorBoard")
            for name in ("__init__", "add_scalar", "add_image", "flush", "close")
        ),
        ("inference.scoring.panel", "pictures of the validation"),
        ("train.draw_samples", "augmented.jpg"),
        ("inference.report.page", "report.html"),
        ("training.record.messages.table", "table of scores"),
        ("training.record.metrics.keep_lines", "metrics.jsonl"),
        ("training.record.metrics.Metrics._write_line", "metrics.jsonl"),
        ("logging.StreamHandler.emit", "train.log"),
    ],
)
def test_failure_beside_training_is_one_warning(demo_run, expected, capsys, monkeypatch, owner, named):
    monkeypatch.setattr(owner, mock.Mock(side_effect=FULL))
    folder = demo_run(epochs=2, schedule="constant")
    assert len(found := warnings(capsys, named)) == 1
    assert "No space left on device" in found[0]
    assert not unequal(weights(folder), expected)

"""A checkpoint holds what its use needs; no path in it is followed, and no entry is used unchecked."""

import copy
import functools
import io
import json
import math
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_train, score, using

import pseudo
import segtrain
import train
from inference.export_onnx import metadata_of
from inference.trained import TrainedModel
from support.errors import UserError
from training import checkpoint, checkpoint_content

NAMES = ["earth", "disc", "square", "triangle", "cross"]
WORDS = {"dataset_path": "own", "dataset": "Dense", "model_type": "res50_ASPP", "classes": "own/names.txt"}


@pytest.fixture(scope="module")
def place(demo_root, tmp_path_factory) -> Path:
    """A run in log/x on own/, with names and a label map: labels 0 and 1 are swapped. All its paths are relative."""
    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        shutil.copytree(demo_root, "own")
        Path("own/names.txt").write_text("\n".join(["earth #010203", *NAMES[1:]]))
        Path("own/map.txt").write_text("0 1\n1 0\n2-4 2-4")
        run_train(**WORDS, logdir="log", name="x", label_map="own/map.txt", ema=0.5, log_interval=7)
    return place


@pytest.fixture
def folder(place, tmp_path, monkeypatch) -> Path:
    """A copy of the run, in the present folder."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("log/x")


def test_a_moved_checkpoint_needs_no_other_file(folder, demo_root, tmp_path, monkeypatch, capsys):
    before = score(folder / "best.pt", tmp_path, "--dataset_path", demo_root)
    moved = tmp_path / "another place" / "model.pt"
    moved.parent.mkdir()
    (folder / "best.pt").rename(moved)
    shutil.rmtree("own")
    shutil.rmtree("log")
    monkeypatch.chdir(moved.parent)
    after = score("model.pt", tmp_path, "--dataset_path", demo_root, "--report", "page")
    assert after["classes"] == NAMES
    assert after["confusion"] == before["confusion"]  # so the map is followed
    assert '"earth"' in Path("page/index.html").read_text()
    other = score("model.pt", tmp_path, "--dataset_path", demo_root, "--label_map", "")
    assert other["confusion"][0] == after["confusion"][1]
    model = segtrain.load(moved)
    assert (model.classes, model.colours[0].tolist()) == (NAMES, [1, 2, 3])
    about = metadata_of(TrainedModel(moved), "auto", ["labels"], 1)
    assert json.loads(about["class_names"]) == NAMES
    assert TrainedModel(moved, {"dataset": "Folder"}).cfg.label_map == ""  # the map is of other files
    Path("five.txt").write_text("a\nb\nc\nd\ne")
    assert segtrain.load(moved, classes="five.txt").classes == list("abcde")
    pseudo.main(using("model.pt", "--dataset_path", demo_root, "--label_map", "", "--output", "pseudo"))
    assert "--classes pseudo/classes.txt" in capsys.readouterr().out  # as the file of the checkpoint is gone
    assert Path("pseudo/classes.txt").read_text().startswith("earth #010203\ndisc")


@pytest.mark.parametrize("path", ["own/names.txt", "gone.txt", "/dev/zero", "own", "own/map.txt"])
def test_a_checkpoint_of_an_earlier_version_has_its_names_from_the_path_or_none(folder, path, caplog):
    content = torch.load(folder / "best.pt", weights_only=True)
    del content["texts"]
    content["config"]["classes"] = path
    torch.save(content, "old.pt")
    is_read = path == "own/names.txt"
    assert segtrain.load("old.pt").classes == (NAMES if is_read else list("01234"))
    warnings = [line for line in caplog.messages if "saved no class names, so classes are numbers: --classes" in line]
    assert len(warnings) == (not is_read)
    assert TrainedModel("old.pt").cfg.label_map == "own/map.txt"


def test_a_resumed_run_takes_the_names_of_the_file_or_else_of_the_checkpoint(folder):
    changed = "has changed since the checkpoint; from here on the file is used"
    for text, said in (("a\nb\nc\nd\ne", changed), (None, "using its text in the checkpoint")):
        Path("own/names.txt").write_text(text) if text else Path("own/names.txt").unlink()
        train.main(["--resume", str(folder / "last.pt")])  # its epochs are done
        assert said in (folder / "train.log").read_text()
    words = ["--config", folder / "config.yaml", "--resume", folder / "last.pt", "--classes", "nowhere.txt"]
    with pytest.raises(UserError, match=r"--classes nowhere\.txt: No such file"):
        train.main([*map(str, words)])


def test_a_resumed_run_of_an_earlier_version_has_numbers_if_the_file_of_names_is_gone(folder):
    content = torch.load(folder / "last.pt", weights_only=True)
    del content["texts"]
    (folder / "last.pt").write_bytes(checkpoint.to_bytes(content))
    Path("own/names.txt").unlink()
    train.main(["--resume", str(folder / "last.pt")])  # its epochs are done
    log = (folder / "train.log").read_text()
    assert "or one of ade20k, binary, camvid, cityscapes, cocostuff, voc; classes are named by their numbers" in log
    Path("own/map.txt").unlink()  # labels cannot be read without it
    with pytest.raises(UserError, match=r"--label_map own/map\.txt: No such file"):
        train.main(["--resume", str(folder / "last.pt")])


STEP = dict.fromkeys(("loss", "epoch", "step", "lr"), 1)
NOT_COUNTS = (None, -1, 0.5, 2**70, 10**5000, math.nan, [1], {}, "x", torch.ones(2))
NOT_DICTS = (None, -1, [], "x", torch.ones(2))
NOT_WEIGHTS = (None, 1.0, [1.0], {}, torch.tensor(math.nan), torch.ones(2).to_sparse(), torch.ones(2, device="meta"))
NOT_WEIGHTS += (torch.ones(2, dtype=torch.int8), torch.ones(2, dtype=torch.complex64), torch.ones(1).expand(2**40))
WRONG: dict[str, tuple] = {
    **dict.fromkeys(("epoch", "samples", "step", "validated", "validations_since_best", "run/lines"), NOT_COUNTS),
    **dict.fromkeys(("origin/world_size", "origin/global_batch", "origin/steps_per_epoch"), (0, *NOT_COUNTS)),
    **dict.fromkeys(("config", "model", "origin", "run", "optimizer", "optimizer/state"), NOT_DICTS),
    "texts": NOT_DICTS[1:],
    **dict.fromkeys(("model/backbone.conv1.weight", "ranks/0/buffers/backbone.bn1.running_mean"), NOT_WEIGHTS),
    "ema/backbone.conv1.weight": NOT_WEIGHTS,
    "optimizer/state/0/momentum_buffer": NOT_WEIGHTS[1:],
    "optimizer/state/999": ({"momentum_buffer": torch.zeros(1)},),  # of no parameter
    "optimizer/param_groups/0/params": (None, [], [1], [0, 0]),
    "best_score": (None, 2, math.nan, []),
    "listing": (None, []),
    "origin/lr_factor": (0, -1.0, math.inf, 1e300),
    "ranks": (None, {}, [None], [{}]),
    "run/window": (None, [{}], [{"loss": math.nan}], [STEP | {"hits": [1]}], [STEP | {"hits": -1.0, "lr": []}]),
    "scaler": (None, [], {"scale": 1.0}),
    "texts/classes": (None, 1, "one", "a\nb", "x" * 2**23),
    "texts/label_map": (None, "1 9", "x"),
    "config/numclasses": (None, 1e9, "x", [5]),
    "config/model_type": (None, "unet", []),
    "config/backbone": (None, "x", 1, []),
    "config/layers": (None, 51, math.inf),
    "config/head_channels": (7, 1e9),
    "config/scale": (None, [[[1]]], [1.0] * 9, [math.nan]),
    "config/long_side": (-1, 5, "9" * 5000),
    "config/amp": ("auto", None, "int8"),
    "config/seed": (None, 2**70),
}


def replaced(content: Any, names: list[str], value: object) -> Any:
    """A copy of the content with another entry, named by its keys from the outside to the inside."""
    changed, key = copy.copy(content), int(names[0]) if names[0].isdigit() else names[0]
    changed[key] = replaced(changed[key], names[1:], value) if names[1:] else value
    return changed


def write(path: Path, content: dict, step: int) -> None:
    torch.save(content, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = checkpoint.COMMENT.format(step=step).encode()


def test_each_crafted_entry_is_one_line(folder):
    content = torch.load(folder / "last.pt", weights_only=True)
    for name, values in WRONG.items():
        for value in values:
            with pytest.raises(UserError) as raised, checkpoint_content.naming(Path("a.pt")):
                checkpoint_content.check_run(replaced(content, name.split("/"), value))
            assert re.match(r"a\.pt: .{3,300}$", str(raised.value)), name
    assert checkpoint_content.check_run(content).config == content["config"]
    write(Path("a.pt"), content | {"format": torch.ones(2)}, content["step"])
    with pytest.raises(UserError, match="format unknown, here 3"):
        checkpoint.read_run(Path("a.pt"))


def test_weights_of_integers_are_refused(folder):
    content = torch.load(folder / "last.pt", weights_only=True)
    name = "backbone.conv1.weight"
    for kind, dtype in (("ema", torch.int8), ("ema", torch.int64), ("model", torch.int64)):
        changed = content | {kind: content[kind] | {name: content[kind][name].to(dtype)}}
        checkpoint.write(folder / "crafted.pt", checkpoint.to_bytes(changed))
        resume = functools.partial(train.main, ["--resume", f"{folder}/crafted.pt"])
        with pytest.raises(UserError, match=name):
            TrainedModel(folder / "crafted.pt").model() if kind == "ema" else resume()


def test_compressed_records_are_refused_before_they_take_memory(tmp_path):
    buffer = io.BytesIO()
    torch.save({"model": {"weight": torch.zeros(2**20)}}, buffer)
    with zipfile.ZipFile(buffer) as plain, zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for record in plain.infolist():
            packed.writestr(record.filename, plain.read(record))
    assert (tmp_path / "a.pt").stat().st_size < 2**14
    with pytest.raises(UserError, match=r"a\.pt: has compressed records or a bytearray"):
        checkpoint.read(tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as script:  # as torch.jit.save() names its records
        script.writestr("b/constants.pkl", b"")
    with pytest.raises(UserError, match=r"b\.pt: a TorchScript file"):
        checkpoint.read(tmp_path / "b.pt")

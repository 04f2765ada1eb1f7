"""The entries of .vscode/launch.json, started with their own words, with nothing but requirements.txt installed."""

import json
import shutil
import sys

import pytest
from conftest import REPO, finish, free_port, start

import export
from tools.check import __main__ as check

LAUNCH = json.loads((REPO / ".vscode/launch.json").read_text())
ENTRIES = {entry["name"]: entry for entry in LAUNCH["configurations"]}
# What makes a training small. It comes last, so that the entry's own words still count.
SMALL = ["--layers", "18", "--crop_size", "33", "--batchsize", "2"]
SMALL += ["--max_steps", "1", "--pretrained", "none", "--device", "cpu"]
NOT_REQUIRED = ("onnx", "onnxscript", "onnxruntime", "pytest")


def words(name: str) -> list[str]:
    """The entry's words, with the answers to what VS Code asks for."""
    answers = {"folder": "my data", "numclasses": "5"}
    assert {asked["id"] for asked in LAUNCH["inputs"]} == set(answers)
    assert {asked["type"] for asked in LAUNCH["inputs"]} == {"promptString"}
    found = ENTRIES[name]["args"]
    for asked, answer in answers.items():
        found = [word.replace(f"${{input:{asked}}}", answer) for word in found]
    assert not [word for word in found if "${" in word]
    return found


def program(name: str) -> str:
    return ENTRIES[name]["program"].removeprefix("${workspaceFolder}/")


@pytest.fixture(scope="module")
def workspace(demo_root, tmp_path_factory):
    """A folder like the repository's root, with the demo's data and a data set of plain folders."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "configs").symlink_to(REPO / "configs")
    shutil.copytree(demo_root, folder / "dataset/demo")
    for split in ("train", "val"):
        for name in (demo_root / f"ImageSets/SegmentationAug/{split}.txt").read_text().split():
            for kind, file in (("images", f"JPEGImages/{name}.jpg"), ("masks", f"SegmentationClassAug/{name}.png")):
                target = folder / "my data" / kind / split / file.rpartition("/")[2]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(demo_root / file, target)
    return folder


@pytest.fixture(scope="module")
def trained(workspace):
    results = finish([start([*words("Train"), *SMALL], workspace)])
    assert results[0][0] == 0, results
    return workspace


def test_every_entry_is_here_and_starts_what_is_there():
    names = "Train, Debug DDP Training, Train on my data, Check my data, Evaluate, Predict, Export"
    assert ", ".join(ENTRIES) == names
    for entry in ENTRIES.values():
        assert entry["type"] == "debugpy"
        assert (entry["module"] == "tools.check") if "module" in entry else (REPO / program(entry["name"])).is_file()


@pytest.mark.parametrize("name", ["Debug DDP Training", "Train on my data"])
def test_training_starts(workspace, name):
    env = ENTRIES[name].get("env", {})
    if name == "Debug DDP Training":
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        assert env == place | {"MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
        env = env | {"MASTER_PORT": free_port()}  # other tests may run at the same time
    [(status, stdout, stderr)] = finish([start([*words(name), *SMALL], workspace, program(name), **env)])
    assert status == 0, (stdout, stderr)


def test_evaluate_and_predict_take_the_checkpoint_that_train_writes(trained):
    for name in ("Evaluate", "Predict"):
        [(status, stdout, stderr)] = finish([start([*words(name), "--device", "cpu"], trained, program(name))])
        assert status == 0, (stdout, stderr)
    assert (trained / "log/report/index.html").is_file()
    assert len(list((trained / "log/predictions/overlays").iterdir())) == 11  # 8 images for training, 3 for validation


@pytest.mark.slow
def test_export_and_the_data_check_need_no_other_packages(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    for package in NOT_REQUIRED:
        monkeypatch.setitem(sys.modules, package, None)  # importing it now raises ImportError
    monkeypatch.setattr(export, "RANDOM_SIZES", ((17, 130),))  # test_export.py checks the others
    export.main([*words("Export"), "--num_images", "1"])
    assert (trained / "log/demo/best.pt2").is_file()
    assert check.main(words("Check my data")) < 2
    assert "--numclasses 5" in capsys.readouterr().out

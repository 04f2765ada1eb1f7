"""Cityscapes, ADE20K, COCO-Stuff and VOC with SBD as they are released: the commands of docs/known_datasets.md work."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import ALONE, REPO
from documents import commands
from known_datasets import HEIGHT, draw_ade20k, draw_cityscapes, draw_cocostuff, draw_voc_sbd

import evaluate
import predict
import train
from data.dataset import SegmentationDataset
from flags import parse_flags
from tools.check.__main__ import main
from training.data import count_labels
from training.settle import split_batchsize
from utils import get_loader

PAGE = REPO / "docs/known_datasets.md"
TINY = "--pretrained none --device cpu --workers 0 --amp none --layers 18 --crop_size 33 --max_steps 2"
TINY += " --total_batchsize 2"
FLAGS = """dataset dataset_path numclasses classes label_map image_suffix label_suffix train_split val_split image_path
train_path val_path list_path"""
COLUMN = 2 * HEIGHT  # pixels of a value in an image, but three columns in VOC

# Config: where its data are, how they are drawn, training images, and pixels of each class in all of them, as drawn.
DRAWN = {
    "cityscapes": ("dataset/cityscapes", draw_cityscapes, 2, [2 * COLUMN] * 19),
    "ade20k": ("dataset/ADEChallengeData2016", draw_ade20k, 2, [2 * COLUMN] * 150),
    "cocostuff": ("dataset/cocostuff", draw_cocostuff, 2, [2 * COLUMN] * 171),
    # SBD's image has background in the place of 255.
    "voc_sbd": ("dataset/VOCdevkit/VOC2012", draw_voc_sbd, 3, [10 * HEIGHT * 1 + 2 * HEIGHT] + [9 * HEIGHT] * 20),
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """The current folder, with the repository's configs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPO / "configs")
    return tmp_path


def load(words: list[str], split: str = "train") -> SegmentationDataset:
    return get_loader(split_batchsize(parse_flags([*words, *TINY.split()]), ALONE), split, ALONE).dataset


@pytest.mark.parametrize("name", DRAWN)
def test_the_documented_commands_train_score_and_predict(name, place):
    root, draw, num_train, counts = DRAWN[name]
    draw(Path(root))
    wanted = f"log/{name}/", f"train.py --config configs/{name}.yaml"
    chosen = [shlex.split(line)[1:] for line in commands(PAGE, "console") if any(text in line for text in wanted)]
    (_, *to_train), (_, *to_score), (_, *to_predict) = chosen
    dataset = load(to_train)
    files = [sample["label"] for sample in dataset.files]
    assert len(files) == num_train
    rows = count_labels(files, ALONE, dataset.label_map, len(counts))
    assert [sum(row.get(number, 0) for row in rows) for number in range(len(counts))] == counts
    assert train.main([*to_train, *TINY.split(), "--class_weights", "balanced"]) == 0

    assert evaluate.main([*to_score, "--device", "cpu", "--workers", "0", "--json", "scores.json"]) == 0
    scores = json.loads(Path("scores.json").read_text())
    # One validation image, with each class once.
    assert np.sum(scores["confusion"], axis=1).tolist() == [(3 * HEIGHT if name == "voc_sbd" else COLUMN)] * len(counts)
    assert len(scores["classes"]) == len(counts)
    assert predict.main([*to_predict, "--device", "cpu", "--workers", "0"]) == 0
    images = [path for path in Path(to_predict[to_predict.index("--input") + 1]).rglob("*") if path.is_file()]
    assert len(list(Path("predictions/masks").rglob("*.png"))) == len(images) > 0


@pytest.mark.parametrize("name", DRAWN)
def test_the_check_of_the_raw_folder_with_the_config_is_clean_and_prints_its_flags(name, place, capsys):
    root, draw, num_train, counts = DRAWN[name]
    draw(Path(root))
    assert main([root, "--config", f"configs/{name}.yaml", "--workers", "0", "--json", "check.json"]) == 0
    printed = capsys.readouterr().out
    assert "nothing wrong found" in printed
    report = json.loads(Path("check.json").read_text())
    train_split, val_split = report["splits"]
    assert report["images"] == {train_split: num_train, val_split: 1}
    assert [row["pixels"][train_split] for row in report["classes"]] == counts
    assert "0" not in [row["name"] for row in report["classes"]]
    # The command at the end reads the data as the config does.
    words = shlex.split(printed.splitlines()[-1].split("to train: ")[1])[2:]
    by_config, by_check = (parse_flags(["--config", f"configs/{name}.yaml"]), parse_flags(words))
    for flag in FLAGS.split():
        assert getattr(by_check, flag) == getattr(by_config, flag), flag

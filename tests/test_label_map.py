"""--label_map: values of label files become class numbers, everywhere that labels are read."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import flags, read_metrics, run_train
from faulty_data import picture
from known_datasets import CITYSCAPES, COCO, put
from PIL import Image

import config
import evaluate
from data import distance
from data.images import read_label
from data.label_check import check_sample
from data.label_map import PRESETS, read_label_map
from distributed.group import Group
from support.errors import UserError
from utils import get_loader

ALONE = Group(torch.device("cpu"))
# Value: class, of what each preset lists, by the authors of the data; see tests/known_datasets.py.
LISTED = {
    "ade20k": {0: 255} | {value: value - 1 for value in range(1, 151)},
    "binary": {0: 0, 255: 1},
    "cityscapes": {value: CITYSCAPES.get(value, 255) for value in range(34)},
    "cocostuff": {value: number for number, value in enumerate(COCO)},
}


def test_presets():
    assert sorted(path.stem for path in PRESETS.glob("*.txt")) == sorted(LISTED)
    for name, listed in LISTED.items():
        found = read_label_map(name)
        expected = {255: 255} | listed
        assert {value: int(number) for value, number in enumerate(found.table) if number != 254} == expected
        assert found.num_classes == len({number for number in listed.values() if number != 255})


def test_lines_of_a_file(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text(
        "\ufeff# numbers of the camera\n7 0\n10-12 1-3  # three classes\n20-29 4\n300 5\n\n* 255\n", encoding="utf-8"
    )
    found = read_label_map(str(file))
    values = np.array([[7, 10, 11, 12, 20, 29, 300, 0, 65535, 255]], np.uint16)
    assert found.look_up(values).tolist() == [[0, 1, 2, 3, 4, 4, 5, 255, 255, 255]]
    assert found.look_up(values[:, :6].astype(np.uint8)).tolist() == [[0, 1, 2, 3, 4, 4]]
    assert read_label_map("") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0\n2", r"map\.txt line 2: '2': expected 'VALUE CLASS'"),
        ("road 0", "'road 0': expected"),
        ("1 254", "a class is 0 to 253, or 255"),
        ("* 255", "gives no class, so that nothing is labelled"),
        ("1-4 252-255", "a class is 0 to 253, or 255"),
        ("1-3 0-1", r"3 value\(s\), but 2 class\(es\)"),
        ("3-1 0", "a range goes up"),
        ("65536 0", "a value is 0 to 65535"),
        ("1 0\n0-5 1", "line 2: '0-5 1': lists a value that an earlier line lists"),
        ("1 9", "gives classes up to 9, but --numclasses is 5: use --numclasses 10"),
        (None, r"map\.txt: No such file or directory; give a FILE, or one of ade20k, binary, cityscapes, cocostuff"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, message):
    file = tmp_path / "map.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_label_map(str(file), 5)


@pytest.mark.parametrize(
    ("mode", "values"),
    [("L", [[0, 1, 150]]), ("P", [[0, 1, 150]]), ("I;16", [[0, 1, 150]]), ("1", [[0, 1, 1]])],
)
def test_label_files_of_every_mode(tmp_path, mode, values):
    array = np.array(values, np.uint16 if mode == "I;16" else np.uint8)
    image = Image.fromarray(array * 255).convert("1") if mode == "1" else Image.fromarray(array)
    if mode == "P":
        image.putpalette([9] * 768)
    image.save(tmp_path / "a.png")
    expected = [[255, 0, 0]] if mode == "1" else [[255, 0, 149]]
    label = read_label(tmp_path / "a.png", 150, read_label_map("ade20k"))
    assert (label.dtype, label.tolist()) == (np.uint8, expected)


def test_a_value_that_the_map_lacks_is_named(tmp_path):
    put(tmp_path / "a.png", np.array([[0, 34, 34]], np.uint8))
    with pytest.raises(
        UserError, match=r"a\.png: label 34 in 2 pixel\(s\) is not in --label_map cityscapes: use a FILE"
    ):
        read_label(tmp_path / "a.png", 255, read_label_map("cityscapes"))
    put(tmp_path / "b.tif", np.array([[70000, 1]], np.int32))
    with pytest.raises(UserError, match="label 70000 in 1"):
        read_label(tmp_path / "b.tif", 255, read_label_map("ade20k"))


@pytest.fixture
def numbered(tmp_path):
    """A data set whose classes 0, 1 and 2 have the numbers 300, 7 and 9, and a map that says so."""
    for split, count in (("train", 4), ("val", 1)):
        for number in range(count):
            values = np.array([300, 7, 9, 65535], np.uint16)[np.arange(40) // 10][None].repeat(40, axis=0)
            put(tmp_path / f"data/images/{split}/{number}.png", picture(f"{split}{number}", 40, 40))
            put(tmp_path / f"data/masks/{split}/{number}.png", values)
    (tmp_path / "map.txt").write_text("300 0\n7 1\n9 2\n65535 255\n")
    return {"dataset": "Folder", "dataset_path": tmp_path / "data", "numclasses": 3, "label_map": tmp_path / "map.txt"}


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_training_and_scoring_see_class_numbers(numbered, tmp_path, cache):
    extra = {"class_weights": "balanced", "model_type": "res50_ASPP", "cache": cache}
    folder = run_train(**numbered, **extra, logdir=tmp_path / "log")
    assert all(math.isfinite(line["loss"]) for line in read_metrics(folder, "train"))
    # 3 of 4 stripes of 10 columns are labelled, and each class has a third of them.
    assert read_metrics(folder, "val")[0]["pixels"] == 30 * 40
    weight = 1 / math.log(1.02 + 1 / 3)
    assert f"balanced): 0: {weight:.4g}, 1: {weight:.4g}, 2: {weight:.4g}\n" in (folder / "train.log").read_text()
    words = [
        "--checkpoint",
        str(folder / "last.pt"),
        "--device",
        "cpu",
        "--workers",
        "0",
        "--json",
        str(tmp_path / "s"),
    ]
    evaluate.main(words)  # the checkpoint remembers the map
    assert np.sum(json.loads((tmp_path / "s").read_text())["confusion"], axis=1).tolist() == [400] * 3


def test_a_changed_map_is_another_cache_and_another_list(numbered, tmp_path):
    def load():
        folder = {"cache": "disk", "cache_dir": tmp_path / "caches"}
        return get_loader(config.parse(flags(**numbered, **folder)), "train", ALONE).dataset

    first = load()
    assert first.cache[0]["label"][0, ::10].tolist() == [0, 1, 2, 255]
    assert load().listing == first.listing
    (tmp_path / "map.txt").write_text("300 0\n7 2\n9 1\n65535 255\n")
    second = load()
    assert second.cache[0]["label"][0, ::10].tolist() == [0, 2, 1, 255]
    assert second.listing[:-1] == first.listing[:-1]
    assert second.listing[-1] != first.listing[-1]


def test_masks_of_0_and_255_train_with_the_map_binary(tmp_path):
    for split in ("train", "val"):
        mask = np.repeat([[0, 255]], 20, axis=0).repeat(20, axis=1).astype(np.uint8)
        for number in range(2):
            put(tmp_path / f"images/{split}/{number}.png", picture(f"{split}{number}", *mask.shape))
            put(tmp_path / f"masks/{split}/{number}.png", mask)
    files = [{"label": path} for path in tmp_path.glob("masks/*/*.png")]
    with pytest.raises(UserError, match=r"only 0 and 255.*use --label_map binary"):
        check_sample(files, files, 2, "the command")
    values = {"dataset": "Folder", "dataset_path": tmp_path, "numclasses": 2, "label_map": "binary"}
    assert read_metrics(run_train(**values, logdir=tmp_path / "log"), "val")[0]["pixels"] == 2 * 20 * 40


def test_distance_maps_of_mapped_scribbles(tmp_path):
    """Value 5 stands for no stroke."""
    put(tmp_path / "in/a.png", np.array([[1, 5, 5, 5]], np.uint8))
    (tmp_path / "map.txt").write_text("1 1\n5 255\n")
    distance.main(
        ["--scribbles", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--label_map", f"{tmp_path}/map.txt"]
    )
    # 255 - trunc(sqrt(e) * d): sqrt(e) = 1.6487
    assert np.array(Image.open(tmp_path / "out/a.png")).tolist() == [[255, 254, 252, 251]]

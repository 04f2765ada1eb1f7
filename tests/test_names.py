"""Names as they are: ends of file names, names of splits, and where plain folders may have their masks."""

import numpy as np
import pytest
from conftest import run_train, using
from test_layout import find, put, put_pairs

import evaluate
from inference.trained import TrainedModel
from support.errors import UserError
from tools.check.__main__ import check

MASK = np.zeros((40, 40), np.uint8)


def test_ends_of_names_pair_images_and_labels(tmp_path):
    for name in ("a/x_1", "a/x_2", "b/x_1"):
        put(tmp_path / f"images/train/{name}_sat.jpg")
        put(tmp_path / f"masks/train/{name}_mask.png")
        put(tmp_path / f"masks/train/{name}_color.png")  # another file, not an error
    put(tmp_path / "images/train/a/x_1_depth.png")
    expected = [f"image={name}_sat.jpg label={name}_mask.png" for name in ("a/x_1", "a/x_2", "b/x_1")]
    assert find(tmp_path, image_suffix="_sat", label_suffix="_mask").listing == expected
    with pytest.raises(UserError, match=r"expected .*a/x_1_gt\.png .*--label_suffix"):
        find(tmp_path, image_suffix="_sat", label_suffix="_gt")


def test_lists_name_images_with_or_without_the_end_of_their_names(tmp_path):
    for name in ("a", "b", "c"):
        put(tmp_path / f"images/{name}_sat.jpg")
        put(tmp_path / f"masks/{name}_mask.png")
    (tmp_path / "train.txt").write_text("b_sat.jpg\na_sat\nc\n")
    found = find(tmp_path, image_suffix="_sat", label_suffix="_mask")
    assert found.names == ["b", "a", "c"]
    (tmp_path / "train.txt").write_text("b_sat\nd_sat\n")
    with pytest.raises(UserError, match=r"train\.txt: 'd_sat': no such image"):
        find(tmp_path, image_suffix="_sat", label_suffix="_mask")


def test_images_and_labels_in_one_folder(tmp_path):
    """train/NAME.png beside train/NAME_mask.png: a label is no image."""
    for name in ("a", "sub/b"):
        put(tmp_path / f"train/{name}.png")
        put(tmp_path / f"train/{name}_mask.png", MASK)
    found = find(tmp_path, image_path=".", label_path=".", label_suffix="_mask").listing
    assert found == ["image=a.png label=a_mask.png", "image=sub/b.png label=sub/b_mask.png"]


@pytest.mark.parametrize(
    ("masks", "layout"), [("labels", "{folder}/{split}"), ("annotations", "{split}/{folder}"), ("masks", "lists")]
)
def test_places_of_images_and_masks(tmp_path, masks, layout):
    if layout == "lists":
        (tmp_path / "train.txt").write_text("a\n")
        layout = "{folder}"
    images, labels = (tmp_path / layout.format(folder=folder, split="train") for folder in ("images", masks))
    put(images / "a.jpg")
    put(labels / "a.png", MASK)
    assert find(tmp_path).files == [{"image": images / "a.jpg", "label": labels / "a.png"}]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["labels/train/a.png"], r"masks/train and .*labels/train: both could hold the masks: choose one with"),
        (["train.txt"], r"images/train and .*train\.txt: both would be the split 'train': remove or rename one, or"),
        (["train/images/a.jpg"], r"train/images and .*images/train: both would be the split 'train': remove or rename"),
    ],
)
def test_two_places_are_an_error_that_names_both(tmp_path, files, message):
    put_pairs(tmp_path, "train/a")
    for file in files:
        put(tmp_path / file, None if "images" in file else MASK) if "/" in file else (tmp_path / file).write_text("a")
    for read in (find, check):
        with pytest.raises(UserError, match=message):
            read(tmp_path)


def test_a_folder_without_label_files_is_no_second_place(tmp_path):
    """YOLO's labels are text, COCO's annotations JSON."""
    put_pairs(tmp_path, "train/a")
    for name in ("labels/train/a.txt", "annotations/train/a.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    assert find(tmp_path).files[0]["label"] == tmp_path / "masks/train/a.png"
    put(tmp_path / "labels/train/a.png", MASK)
    assert find(tmp_path, label_path="labels").files[0]["label"] == tmp_path / "labels/train/a.png"


def test_names_of_splits_in_training_and_scoring(tmp_path, capsys):
    put_pairs(tmp_path / "data", *(f"training/{number}" for number in range(2)), "validation/a", "test/b", "test/c")
    names = {"train_split": "training", "val_split": "validation"}
    folder = run_train(dataset="Folder", dataset_path=tmp_path / "data", numclasses=2, logdir=tmp_path / "log", **names)
    score = using(folder / "last.pt")
    capsys.readouterr()
    assert evaluate.main(score) == 0  # the checkpoint remembers the name
    assert "on 1 image of validation" in capsys.readouterr().out
    assert evaluate.main([*score, "--split", "test"]) == 0
    assert "on 2 images of test" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"no split 'val': looked for the folder .*images/val.*--val_split"):
        evaluate.main([*score, "--split", "val"])
    # Another layout: what the checkpoint says about names does not apply to it.
    assert TrainedModel(folder / "last.pt", {"dataset": "Dense"}).cfg.val_split == "val"

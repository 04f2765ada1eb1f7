"""train.py warns of labels that cannot be right, and is silent on good ones."""

import shlex

import numpy as np
import pytest
import torch
from conftest import finish, flags, one_line_each, run_train, start_group
from faulty_data import Drawn, label, picture, scribblesup_like

import config
import utils
from data.check.__main__ import main as data_check
from data.label_check import SAMPLE, check_sample, check_validation
from distributed.group import Group
from errors import UserError

HEIGHT, WIDTH = 12, 16  # of the drawn labels
PLAIN = {"dataset": "Folder", "model_type": "res50_ASPP"}


@pytest.fixture
def warnings(logged):
    """A function that returns what check_sample logs about a data set."""

    def check(root, **values) -> list[str]:
        cfg, group = config.parse(flags(dataset_path=root, **({"batchsize": 1} | values))), Group(torch.device("cpu"))
        train_set, val_set = (utils.get_loader(cfg, split, group).dataset for split in ("train", "val"))
        logged.clear()
        check_sample(train_set.files, val_set.files, cfg.numclasses, "the command")
        assert {record.levelname for record in logged.records} <= {"WARNING"}
        return logged.messages

    return check


def draw(root, masks, **folders: str):
    """Plain folders: a training and a validation image for each mask."""
    drawn, image = Drawn(root, **folders), picture("one", HEIGHT, WIDTH)
    for split in ("train", "val"):
        for number, mask in enumerate(masks):
            drawn.pair(f"{split}/{number:03d}", image, mask)
    return root


def stripes(*values: int) -> np.ndarray:
    return label(*values, height=HEIGHT, width=WIDTH)


def test_masks_of_0_and_255_are_refused_on_every_rank(tmp_path, capsys):
    root = draw(tmp_path / "my data", [stripes(0, 255)] * 2, image="pictures", mask="gt")
    words = flags(
        dataset_path=root, numclasses=2, logdir=tmp_path / "log", image_path="pictures", train_path="gt", val_path="gt",
        batchsize=1, **PLAIN,
    )  # fmt: skip
    results = finish(start_group(2, words, tmp_path))
    one_line_each(
        results, "the training labels hold only 0 and 255; 255 is ignored, so the model can learn class 0 only"
    )
    assert not (tmp_path / "log").exists()
    # The command names all folders, and finds the fault.
    command = shlex.split(results[0][2].rsplit(": ", 1)[1])
    assert command[1].endswith("data/check/__main__.py")
    assert data_check([*command[2:], "--workers", "0"]) == 2
    assert "label-binary-255 (4)" in capsys.readouterr().out


def test_masks_of_0_and_255_are_a_warning_with_more_classes(tmp_path, warnings):
    draw(tmp_path, [stripes(0, 255)] * 2)
    (line,) = warnings(tmp_path, numclasses=21, **PLAIN)
    assert line.startswith("the training labels hold only 0 and 255; 255 is ignored")
    assert line.endswith("check the labels: the command")


def test_a_rare_class_that_the_sample_lacks_is_no_fault(tmp_path, warnings):
    # Of 3 * SAMPLE masks the sample has numbers 0, 3, 6 ...; class 1 is in number 4 alone.
    masks = [stripes(0, 255)] * (3 * SAMPLE)
    masks[4] = stripes(0, 1)
    assert warnings(draw(tmp_path, masks), numclasses=2, **PLAIN) == []
    masks[4] = stripes(0, 255)
    with pytest.raises(UserError, match="hold only 0 and 255"):
        warnings(draw(tmp_path, masks), numclasses=2, **PLAIN)


def test_scribbles_of_background_are_fine_where_pseudo_labels_have_the_classes(tmp_path, warnings):
    drawn = scribblesup_like(tmp_path)
    for name in "ab":
        drawn.put("image", f"{name}.jpg", picture(name))
        for kind, values in {"mask": label(0, 1), "scribble": label(0, 255), "pseudo": label(0, 1)}.items():
            drawn.put(kind, f"{name}.png", values)
    lists = tmp_path / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a")
    (lists / "val.txt").write_text("b")
    assert warnings(tmp_path, dataset="ScribblePseudo", numclasses=2) == []
    with pytest.raises(UserError, match="hold only 0 and 255"):
        warnings(tmp_path, dataset="ScribbleOnly", numclasses=2)


@pytest.mark.parametrize(
    ("numclasses", "num_images", "warned"),
    # Labels 0..3. 4 + 8 = 12 classes are too many, 11 may be meant; and 7 + 7 images are too few to tell.
    [(12, 8, True), (11, 8, False), (12, 7, False)],
)
def test_numclasses_far_above_the_labels_is_a_warning(tmp_path, numclasses, num_images, warned, warnings):
    draw(tmp_path, [stripes(0, 1, 2)] * (num_images - 1) + [stripes(3, 255)])
    said = warnings(tmp_path, numclasses=numclasses, **PLAIN)
    expected = "--numclasses is 12, but the highest label of 16 images is 3: use --numclasses 4 if there are"
    assert [line[: len(expected)] for line in said] == ([expected] if warned else [])


def test_half_as_many_classes_again_may_be_meant(tmp_path, warnings):
    # Labels 0..19: 28 has 8 more, but is below 1.5 * 20 = 30.
    draw(tmp_path, [stripes(0, 19)] * 8)
    assert warnings(tmp_path, numclasses=29, **PLAIN) == []
    assert len(warnings(tmp_path, numclasses=30, **PLAIN)) == 1


def test_real_data_and_the_demo(camvid, scribblesup, demo_root, warnings):
    assert warnings(camvid, dataset="Dense", numclasses=11) == []
    (line,) = warnings(camvid, dataset="Dense", numclasses=21)
    assert "the highest label of 128 images is 10: use --numclasses 11" in line
    assert warnings(scribblesup, dataset="ScribblePseudo", numclasses=21) == []
    assert warnings(demo_root) == []


def test_the_first_validation_names_the_classes_that_no_mask_has(demo_root, tmp_path, thin):
    folder = run_train(dataset_path=demo_root, logdir=tmp_path / "log", numclasses=8, epochs=2)
    lines = [line for line in (folder / "train.log").read_text().splitlines() if "have no pixel of" in line]
    (line,) = lines  # of two validations
    assert "the validation masks have no pixel of classes 5-7 (--numclasses is 8), so the means leave these" in line
    assert shlex.split(line.rsplit(": ", 1)[1])[-3:] == [str(demo_root), "--dataset", "ScribblePseudoDsDc"]


@pytest.mark.parametrize(
    ("accuracies", "message"),
    [
        ([0.5, None, None], "hold no class but 0; 255 is ignored, so an object must be written as 1"),
        ([None, 0.5, None, None], "have no pixel of classes 0, 2-3 (--numclasses is 4)"),
        ([0.5, None, 0.5], "have no pixel of class 1 (--numclasses is 3)"),
        ([0.5, 0.0], None),
    ],
)
def test_classes_that_no_validation_mask_has(logged, accuracies, message):
    check_validation(accuracies, "the command")
    (line,) = logged.messages or [None]
    assert line is message or line.startswith(f"the validation masks {message}")

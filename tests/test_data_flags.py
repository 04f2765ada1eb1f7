"""What a data set decides by itself: `train.py --dataset_path X` is enough."""

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused, start, succeed, two_processes
from faulty_data import Drawn, label, scribblesup_like

import evaluate
from data.layout import Split
from distributed.group import Group
from flags import Config, parse_flags
from support.errors import UserError
from tools.check.__main__ import main as check_data
from training import settle
from training.data import find_masks, find_training_files
from training.data_flags import choose_classes, choose_layout

CPU = Group(torch.device("cpu"))


def chosen(root: Path, *flags: object) -> tuple[Config, list[float]]:
    """The flags that training in `root` gets, and the shares of the classes."""
    cfg = choose_layout(parse_flags(["--dataset_path", str(root), *map(str, flags)]), CPU)
    files: dict[str, Split] = {"train": find_training_files(cfg), "val": find_masks(cfg, cfg.val_split)}
    cfg, shares = choose_classes(cfg, CPU, files, None)
    return cfg, shares.tolist()


def plain(root: Path, *masks: np.ndarray, val: np.ndarray, splits=("train", "val")) -> Path:
    train = {f"{splits[0]}/{number}": mask for number, mask in enumerate(masks)}
    Drawn(root).pairs(train | {f"{splits[1]}/v": val})
    return root


def test_plain_folders_with_splits_of_other_names(tmp_path):
    root = plain(tmp_path / "Photos", label(0, 1), label(0, 2), val=label(0, 4), splits=("training", "valid"))
    cfg, shares = chosen(root)
    assert (cfg.dataset, cfg.train_split, cfg.val_split) == ("Folder", "training", "valid")
    assert (cfg.model_type, cfg.name) == ("res50_ASPP", "Photos")
    assert cfg.numclasses == 5  # class 4 is in a validation mask only
    assert shares == [0.5, 0.25, 0.25, 0, 0]


def test_voc_layout_with_scribbles_and_pseudo_labels(tmp_path):
    drawn = scribblesup_like(tmp_path / "voc")
    drawn.pair("a", mask=label(0, 3))
    drawn.put("scribble", "a.png", label(0, 255))
    drawn.write_lists(train="a", val="a")
    cfg, shares = chosen(drawn.root)
    assert (cfg.dataset, cfg.model_type, cfg.numclasses, shares) == ("ScribbleOnly", "res50_ASPP", 4, [])
    drawn.put("pseudo", "a.png", label(0, 5))
    cfg, _ = chosen(drawn.root)  # the loss of the project's method: distances are computed
    assert (cfg.dataset, cfg.model_type, cfg.numclasses) == ("ScribblePseudoDsDc", "res50_ASPP_lorm", 6)
    assert chosen(drawn.root, "--dataset", "Dense")[0].dataset == "Dense"


@pytest.mark.parametrize(
    ("masks", "given", "expected"),
    [
        ((label(0, 255), label(0, 255), label(0)), (), ("binary", 2)),
        ((label(0, 255), label(0, 255)), ("--numclasses", 2), ("binary", 2)),
        ((label(0, 255), label(0, 1, 255)), (), ("", 2)),  # 255 is ignored there, as elsewhere
        ((label(0, 1), label(0, 1)), (), ("", 2)),
        ((label(255), label(0)), (), ("binary", 2)),  # patches
        ((label(0), label(0)), (), ("", 2)),
        ((label(0, 255),), ("--label_map", "binary"), ("binary", 2)),
        ((label(0, 255),), ("--label_map", ""), ("", 2)),
    ],
)
def test_masks_of_0_and_255(tmp_path, masks, given, expected):
    cfg, shares = chosen(plain(tmp_path, *masks, val=masks[0]), *given)
    assert (cfg.label_map, cfg.numclasses) == expected
    if expected[0] and not given:
        objects = sum((mask == 255).mean() for mask in masks) / len(masks)
        assert shares == pytest.approx([1 - objects, objects])


def test_objects_of_1_in_some_masks_and_255_in_others_are_refused(tmp_path):
    """One kind of mask for training, another for validation: the validation would ignore its objects."""
    message = "1 of 3 masks hold only 0 and 255, others have class 1: .* --label_map binary; .* --label_map ''"
    root = plain(tmp_path, label(0, 1), label(0, 1), val=label(0, 255))
    with pytest.raises(UserError, match=message):
        chosen(root)
    assert chosen(root, "--label_map", "binary")[0].numclasses == 2
    root = plain(tmp_path / "more", label(0, 1), label(0, 2), val=label(0, 255))
    assert (chosen(root)[0].label_map, chosen(root)[0].numclasses) == ("", 3)  # a map to two classes would be wrong


def test_soft_edges_of_an_object_are_no_classes(tmp_path):
    soft = np.full((40, 60), 0, np.uint8)
    soft[:, 40:] = 255
    soft[:, 38:40] = 100, 200  # 4 of 60 columns are between 0 and 255
    soft[:, 36:38] = 20, 60
    classes = np.repeat(np.arange(200, dtype=np.uint8), 12).reshape(40, 60)  # 200 classes, and some ignored pixels
    classes[0, :5] = 255
    root = plain(tmp_path, soft, label(0, 255, height=40, width=60), val=soft)
    with pytest.raises(UserError, match=r"such as .*masks/train/0\.png: add --label_map threshold; .* --label_map ''"):
        chosen(root)
    cfg, shares = chosen(root, "--label_map", "threshold")
    objects = (21 / 60 + 0.5) / 2  # 200 and 255 in one mask, half of the other one
    assert (cfg.numclasses, shares) == (2, pytest.approx([1 - objects, objects]))
    assert chosen(plain(tmp_path / "many", classes, val=classes))[0].numclasses == 200


def test_one_mask_of_another_class_among_objects_of_255_is_named(tmp_path):
    root = plain(tmp_path, *[label(0, 255)] * 3, label(0, 7), val=label(0, 255))
    message = r"4 of 5 masks hold only 0 and 255, but .*3\.png has class 7: .* --label_map ''"
    with pytest.raises(UserError, match=message):
        chosen(root)
    assert chosen(root, "--label_map", "")[0].numclasses == 8


def test_a_rare_object_is_found_among_many_masks(tmp_path):
    """The check reads all masks, so training does, too: of 400 masks, one has a stripe of 1/64."""
    masks = [label(0)] * 399 + [label(*[0] * 63, 255)]
    root = plain(tmp_path, *masks, val=masks[-1])
    (root / "classes.txt").write_text("rest\ncar\n")
    cfg, shares = chosen(root)
    assert (cfg.label_map, cfg.numclasses, cfg.classes) == ("binary", 2, str(root / "classes.txt"))
    (root / "classes.txt").unlink()
    assert chosen(root)[0].classes == "binary"  # background and object
    assert shares == pytest.approx([1 - 1 / 64 / 400, 1 / 64 / 400])


def test_the_file_of_class_names(tmp_path):
    root = plain(tmp_path, label(0, 1), val=label(0, 1))
    (root / "classes.txt").write_text("sky\nhouse\ntree\n")
    cfg, shares = chosen(root)
    assert (cfg.classes, cfg.numclasses, shares) == (str(root / "classes.txt"), 3, [])
    assert chosen(root, "--classes", "", "--numclasses", 2)[0].classes == ""
    with pytest.raises(UserError, match=r"classes\.txt.* 3 .*--numclasses.* 5"):
        chosen(root, "--numclasses", 5)
    (root / "classes.txt").write_text("car\nbackground\n")
    with pytest.raises(UserError, match=r"classes\.txt: background is class 1: it must be the first line"):
        chosen(root)
    (root / "classes.txt").write_text("car\n")
    with refused("classes.txt: 1 name; the background is a class, too: add a line for it above"):
        chosen(root)
    (root / "classes.txt").rename(root / "Classes.txt").write_text("0 sky\n1 car\n")
    assert chosen(root)[0].classes == str(root / "Classes.txt")
    cfg, _ = chosen(root, "--classes", "camvid")
    assert (cfg.classes, cfg.numclasses) == ("camvid", 11)


def test_what_is_wrong_is_one_line(tmp_path):
    root = plain(tmp_path / "a", label(0, 1), label(0, 1, 200), val=label(0, 1))
    cfg, _ = chosen(root)
    assert cfg.numclasses == 2  # 200 is no class: reading it is an error
    with pytest.raises(UserError, match=r"1\.png: label 200 .*--numclasses 2"):
        settle.check_data(cfg, CPU, {"train": find_training_files(cfg), "val": find_masks(cfg, "val")})
    Drawn(tmp_path / "b").pair("x")
    with pytest.raises(UserError, match=r"b: no split 'train': to divide the images .*tools.split.* --val 0\.2$"):
        chosen(tmp_path / "b")
    (tmp_path / "c").mkdir()
    with pytest.raises(UserError, match=r"c: no data set: .*tools.check"):
        chosen(tmp_path / "c")
    with pytest.raises(UserError, match="nowhere: no such folder"):
        chosen(tmp_path / "nowhere")


def test_the_check_prints_that_command_and_trains_alike(tmp_path, capsys, caplog):
    """The check and the start of training choose the same flags, and give the same reason for the loss."""
    mask = label(*[0] * 63, 255)  # one of 64 columns is object
    root = plain(tmp_path / "one object", mask, mask, val=mask)
    (root / "classes.txt").write_text("background\ncar\n")
    reason = "ce+dice class 1 (car) has 1.56% of the pixels"
    assert check_data([str(root), "--label_map", "binary", "--workers", "0"]) == 0
    output = capsys.readouterr().out
    command = shlex.split(output.splitlines()[-1].removeprefix("to train: "))
    assert command[2:] == ["--dataset_path", str(root), "--label_map", "binary"]
    assert reason in " ".join(output.split())
    [stdout] = succeed([start(["--dataset_path", str(root), "--max_steps", "1", "--pretrained", "none"], tmp_path)])
    assert "--label_map binary (masks hold only 0 and 255)" in stdout
    assert "--loss ce+dice (class 1 (car) has 1.56% of the pixels)" in stdout
    assert "IoU of class 1 (car)" in stdout
    score = stdout[stdout.index("IoU of class 1 (car)") :].partition(" (best)")[0]
    assert evaluate.main(["--checkpoint", str(tmp_path / "log/one object/best.pt"), "--workers", "0"]) == 0
    assert score in capsys.readouterr().out  # of the one epoch, which is the best


def test_two_processes_choose_alike_and_a_resumed_run_keeps_its_classes(tmp_path):
    root = plain(tmp_path / "data", *[label(0, 1, 2)] * 4, val=label(0, 1))
    words = ["--dataset_path", str(root), "--pretrained", "none", "--batchsize", "2", "--layers", "18"]
    outputs = succeed(two_processes([*words, "--max_steps", "1"], tmp_path))
    assert "--numclasses 3 (from the highest label)" in outputs[0]
    for number in range(4):
        (root / f"masks/train/{number}.png").write_bytes((root / "masks/val/v.png").read_bytes())
    [stdout] = succeed([start([*words, "--max_steps", "2", "--resume", "auto"], tmp_path)])
    assert "3 classes" in stdout  # the model's, though the labels have two now
    assert "best mIoU" in stdout

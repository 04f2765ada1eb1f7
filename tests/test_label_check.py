"""train.py warns of labels that cannot be right, and is silent on good ones."""

import shlex

import cv2
import numpy as np
import pytest
from conftest import DENSE, finish, flags, one_line_each, refused, start_group
from faulty_data import Drawn, label, picture
from PIL import Image

from data.label_check import MAX_LABELS_READ, check_sample, is_smoothed, spread
from support.errors import UserError
from tools.check.__main__ import main as data_check

HEIGHT, WIDTH = 12, 16  # of the drawn labels


def draw(folder, masks: list[np.ndarray], kind: str = "label") -> list[dict]:
    """The files of an image for each mask; the same mask is the same file."""
    folder.mkdir(exist_ok=True)
    paths = {id(mask): folder / f"{kind}_{number}.png" for number, mask in enumerate(masks)}
    for mask in masks:
        if not paths[id(mask)].exists():
            Image.fromarray(mask).save(paths[id(mask)])
    return [{kind: paths[id(mask)]} for mask in masks]


def stripes(*values: int) -> np.ndarray:
    return label(*values, height=HEIGHT, width=WIDTH)


@pytest.fixture
def warnings(caplog):
    """A function that returns what check_sample logs about the files of training and validation images."""

    def check(train: list[dict], val: list[dict], num_classes: int) -> list[str]:
        caplog.clear()
        check_sample(train, val, num_classes, "the command")
        assert {record.levelname for record in caplog.records} <= {"WARNING"}
        return caplog.messages

    return check


def test_masks_of_0_and_255_are_refused_on_every_rank(tmp_path, capsys):
    drawn = Drawn(tmp_path / "my data", image="pictures", mask="gt")
    for name in ("train/a", "train/b", "val/a", "val/b"):
        drawn.pair(name, picture("one", HEIGHT, WIDTH), stripes(0, 255))
    data = DENSE | {"dataset": "Folder", "image_path": "pictures", "train_path": "gt", "val_path": "gt"}
    data["label_map"] = ""  # chosen: train.py would choose binary
    words = flags(**data, dataset_path=drawn.root, numclasses=2, logdir=tmp_path / "log", batchsize=1)
    results = finish(start_group(2, words, tmp_path))
    problem = "the training labels hold only 0 and 255; 255 is ignored, so the model can learn class 0 only"
    one_line_each(results, problem)
    assert not (tmp_path / "log").exists()
    # The command names all folders, and says what 255 is; the images are alike, which is an error.
    command = shlex.split(results[0][2].rsplit(": ", 1)[1])
    assert command[1].endswith("tools/check/__main__.py")
    assert data_check([*command[2:], "--workers", "0"]) == 2
    assert "masks hold only 0 and 255: 255 is read as class 1" in capsys.readouterr().out


def test_the_check_reads_soft_edges_of_an_object_as_one_class(tmp_path, capsys):
    drawn = Drawn(tmp_path / "soft")
    mask = stripes(0, 255)
    mask[0, :3] = 20, 70, 180  # three of 192 pixels are between
    drawn.pairs({"train/a": mask, "train/b": mask, "val/c": mask})
    data_check([str(tmp_path / "soft"), "--workers", "0"])
    said = capsys.readouterr().out
    assert "masks show an object with soft edges: values from 128 on are read as class 1" in said
    assert "read with --label_map threshold" in said


def test_the_sample_is_spread_over_the_list(tmp_path, warnings):
    masks = [stripes(0, 1)] * (3 * MAX_LABELS_READ)
    masks[-3] = stripes(0, 9)  # the last one of the numbers 0, 3, 6 ...
    with pytest.raises(UserError, match="label 9 in"):
        warnings(draw(tmp_path, masks), [], 2)


def test_a_rare_class_that_the_sample_lacks_is_no_fault(tmp_path, warnings):
    # Of 3 * MAX_LABELS_READ masks the sample has numbers 0, 3, 6 ...; class 1 is in number 4 alone.
    masks = [stripes(0, 255)] * (3 * MAX_LABELS_READ)
    remedy = "if 255 is a class, map it with --label_map, then check the labels: the command"
    for num_classes, said in ((2, "hold only 0 and 255"), (21, remedy)):
        with pytest.raises(UserError, match=said):
            warnings(draw(tmp_path, masks), [], num_classes)
    masks[4] = stripes(0, 1, 255)
    assert warnings(draw(tmp_path, masks), [], 2) == []


def test_a_number_of_classes_that_labels_do_not_need_is_told(tmp_path, warnings):
    files = draw(tmp_path, [stripes(0, 1, 2, 255)])
    assert warnings(files, [], 6) == []
    (problem,) = warnings(files, [], 7)
    assert problem.startswith("the training labels have no class above 2, but --numclasses is 7: to count the classes")
    masks = [stripes(0, 255)] * (2 * MAX_LABELS_READ)
    masks[1] = stripes(0, 1, 255)  # the sample has numbers 0, 2, 4 ...
    assert warnings(draw(tmp_path, masks), [], 4) == []


def test_objects_of_255_among_masks_that_do_without_255(tmp_path, warnings):
    mixed = [stripes(0, 255), *[stripes(0, 1)] * 3, stripes(0, 2)]
    (line,) = warnings(draw(tmp_path, mixed), [], 3)
    assert line.startswith("1 of 5 training labels hold only 0 and 255 (ignored), but most others have no 255")
    for number, other in enumerate((stripes(0, 1, 255), stripes(0, 1))):  # 255 is what is ignored; no 255
        assert warnings(draw(tmp_path / str(number), [stripes(0, 255 if not number else 0), other]), [], 2) == []


def test_validation_masks_of_0_and_255_beside_training_labels_of_a_class_are_named(tmp_path, warnings):
    train, val = draw(tmp_path, [stripes(0, 1, 255)]), draw(tmp_path / "val", [stripes(0, 255)])
    with refused("0.png: like all validation masks, holds only 0 and 255 (ignored), so only class 0 is scored: write"):
        warnings(train, val, 2)
    many = val * (MAX_LABELS_READ + 1)
    outside = ({*range(len(many))} - {*spread(range(len(many)))}).pop()  # of the sample
    many[outside] = draw(tmp_path / "object", [stripes(0, 1)])[0]
    assert warnings(train, many, 2) == []
    assert warnings(train, train, 2) == []


@pytest.mark.parametrize("values", [(1, 255), (0,), (1,)])
def test_training_labels_of_one_class_are_named(tmp_path, warnings, values):
    (line,) = warnings(draw(tmp_path, [stripes(*values)]), [], 2)
    assert line.startswith(f"the training labels hold only class {values[0]}")


def test_validation_masks_without_a_labelled_pixel_are_refused(tmp_path, warnings):
    train, val = draw(tmp_path, [stripes(0, 1)]), draw(tmp_path / "val", [stripes(255)] * (2 * MAX_LABELS_READ))
    with pytest.raises(UserError, match="all validation masks are 255"):
        warnings(train, val, 2)
    with pytest.raises(UserError, match="all training labels are 255"):
        warnings(val, train, 2)
    val[1] = train[0]  # the sample has numbers 0, 2, 4 ...
    assert warnings(train, val, 2) == []


def test_scribbles_of_background_are_fine_where_pseudo_labels_have_the_classes(tmp_path, warnings):
    (scribble,), (pseudo,) = draw(tmp_path, [stripes(0, 255)]), draw(tmp_path, [stripes(0, 1)], "pseudo")
    assert warnings([scribble | pseudo], [], 2) == []
    with pytest.raises(UserError, match="hold only 0 and 255"):
        warnings([scribble], [], 2)


def resized(mask: np.ndarray, method: int, size: tuple[int, int]) -> np.ndarray:
    return cv2.resize(mask, size, interpolation=method)


@pytest.mark.parametrize("classes", [(5,), range(21)])
def test_masks_with_interpolated_borders_are_told_from_thin_objects(classes):
    """Discs and lines of one pixel, drawn without smoothing; discs resized or coded with it."""
    rng = np.random.default_rng(0)
    discs = np.zeros((160, 200), np.uint8)
    for _ in range(12):
        centre, radius = (rng.integers(0, 160, 2).tolist(), int(rng.integers(8, 40)))
        cv2.circle(discs, centre, radius, int(rng.choice(classes)), -1)
    lines = discs.copy()
    for _ in range(60):
        cv2.line(lines, *rng.integers(0, 160, (2, 2)).tolist(), int(rng.choice(classes)))
    noise = rng.choice([0, *classes], discs.shape).astype(np.uint8)
    nearest = [resized(lines, cv2.INTER_NEAREST, size) for size in ((120, 90), (500, 300))]
    assert [is_smoothed(mask) for mask in (discs, lines, noise, *nearest)] == [False] * 5
    ways = [(cv2.INTER_LINEAR, (500, 300)), (cv2.INTER_CUBIC, (500, 300)), (cv2.INTER_AREA, (120, 90))]
    jpeg = cv2.imdecode(cv2.imencode(".jpg", discs)[1], cv2.IMREAD_GRAYSCALE)
    assert [is_smoothed(mask) for mask in (*(resized(discs, *way) for way in ways), jpeg)] == [True] * 4
    stripes = np.repeat(np.array([0, classes[-1]] * 4, np.uint8), 20)[:, None].repeat(200, 1)
    between = resized(stripes, cv2.INTER_LINEAR, (200, 500))  # only along the columns
    assert [is_smoothed(mask) for mask in (stripes, between, between.T.copy())] == [False, True, True]


def test_real_masks_are_smoothed_only_if_they_are_resized_so(camvid):
    masks = [np.array(Image.open(path)) for path in sorted((camvid / "SegmentationClass").glob("*.png"))[::12]]
    assert not any(map(is_smoothed, masks))
    assert all(is_smoothed(resized(mask, cv2.INTER_LINEAR, (432, 324))) for mask in masks)


def test_smoothed_masks_are_a_warning_that_names_one(tmp_path, warnings):
    edge = np.clip(np.arange(WIDTH) - 5, 0, 4).astype(np.uint8)[None].repeat(HEIGHT, axis=0)
    train, val = draw(tmp_path, [stripes(0, 4), edge]), draw(tmp_path, [stripes(0, 4)])
    assert warnings(train, val, 5) == [
        "1 of 2 labels have interpolated class numbers at borders, as from bilinear resizing or JPEG: "
        f"{train[1]['label']} ...: resize masks by nearest neighbour"
    ]

"""tools.suggest: which places come first, and what it writes, killed and repeated, and in two processes."""

import base64
import csv
import io
import itertools
import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    contents,
    finish,
    flags,
    one_line_each,
    random_checkpoint,
    refused,
    start,
    succeed,
    two_processes,
    using,
    wait_until,
)
from PIL import Image
from test_layout import put

from data.classes import read_classes
from data.images import read_label
from flags import parse_flags
from inference import random_walk
from inference.pseudo_labels import Stroked
from tools.convert.__main__ import main as convert
from tools.convert.reading import list_name
from tools.scribbles import chain, pipeline
from tools.scribbles.drawn_strokes import Pass, strokes_table
from tools.suggest import places as module
from tools.suggest.__main__ import main
from tools.suggest.page import figure, page
from tools.suggest.places import Place, choose, find_places

SIZE = (120, 200)  # of an image; its grid has cells of 2 x 2 pixels


@pytest.fixture(scope="module")
def checkpoint(demo_root, tmp_path_factory) -> Path:
    file, strokes = tmp_path_factory.mktemp("run") / "best.pt", demo_root / "pascal_2012_scribble"
    # As the pipeline saves it.
    return random_checkpoint(file, num_classes=5, dataset="ScribbleOnly", train_path=str(strokes))


@pytest.fixture
def words(checkpoint, demo_root, tmp_path) -> list[str]:
    """Flags of six suggestions, in the folder `next`."""
    return [str(demo_root), *using(checkpoint, "--budget", 6, "--output", tmp_path / "next")]


@pytest.fixture(scope="module")
def suggested(checkpoint, demo_root, tmp_path_factory) -> Path:
    """What one process writes with these flags."""
    out = tmp_path_factory.mktemp("suggested") / "next"
    assert main([str(demo_root), *using(checkpoint, "--budget", 6, "--output", out)]) == 0
    return out


def rows(folder: Path) -> list[dict]:
    with (folder / "next.csv").open() as file:
        return list(csv.DictReader(file))


def scene(patches: list, strokes: list) -> tuple[Stroked, torch.Tensor]:
    """A grey image of class 0, of which the model is sure, but for patches (rows, columns, probabilities) of the grid.

    strokes: (rows, columns, class), in pixels.
    """
    probs = torch.zeros(3, SIZE[0] // 2, SIZE[1] // 2)
    probs[0] = 1
    for down, across, values in patches:
        probs[:, down, across] = torch.tensor(values)[:, None, None]
    image, scribble = np.full((*SIZE, 3), 128, np.uint8), np.full(SIZE, 255, np.uint8)
    for down, across, value in strokes:
        scribble[down, across] = value
    return Stroked(0, image, scribble, random_walk.grid(image, scribble)), probs


def test_the_best_place_is_inside_the_part_that_is_unsure_and_away_from_strokes():
    probs = [0.1, 0.6, 0.3]
    patches = [(slice(10, 18), slice(20, 28), probs), (slice(30, 38), slice(60, 68), probs)]
    stroke = (slice(66, 70), slice(124, 134), 1)  # in the second patch
    item, probs = scene(patches, [stroke])
    found, areas = find_places(item, probs)
    # 2 patches of 64 of 6000 cells; the rest is class 0.
    np.testing.assert_allclose(areas, [(6000 - 128 + 12.8) / 6000, 76.8 / 6000, 38.4 / 6000], rtol=1e-5)
    (_, place), *_ = choose([found], areas, budget=9)
    assert (place.label, place.other) == (1, 2)
    assert 20 <= place.row < 36  # in pixels, twice the grid's
    assert 40 <= place.column < 56
    # The window covers the whole patch: 64 cells, each of class 2 with 0.3, of class 0 with 0.1.
    np.testing.assert_allclose(place.chances, [6.4 / 6000, 0, 19.2 / 6000], rtol=1e-5)
    # Above the stroke, 12 cells of its patch are farther from it than half a window: 8, 3 and 1 in 3 rows.
    np.testing.assert_allclose(found[1].chances, np.array([0.1, 0, 0.3]) * 12 * 0.2 / 6000, rtol=1e-5)
    # The window reaches 4 cells (0.04 of 100) to each side, and no place is within half of it, 4 pixels, of a stroke.
    for place in found:
        down, across = max(66 - place.row, place.row - 69, 0), max(124 - place.column, place.column - 133, 0)
        assert np.hypot(down, across) > 3  # the middle of a cell is at most a pixel away


def test_the_places_of_a_class_are_not_all_beside_its_best_one():
    """The window around the first place, which is left out, covers its part: the second place is in the other part."""
    patches = [(slice(10, 22), slice(20, 32), [0, 0.4, 0.6]), (slice(40, 43), slice(80, 83), [0, 0.2, 0.8])]
    found, _ = find_places(*scene(patches, []))
    assert [place.row // 2 in range(40, 43) for place in found if place.label == 2] == [False, True]


def place(label: int, chances: list[float], colour: float = 0.0) -> Place:
    return Place(1, 2, label, np.array(chances), 0.1, np.full(3, colour, np.float32))


def test_equal_doubts_count_more_for_smaller_classes(monkeypatch):
    monkeypatch.setattr(module, "MISTAKE", 0.0)
    areas = np.array([8.0, 1.0, 0.1])
    common, rare = place(0, [0, 0.01, 0]), place(0, [0, 0, 0.01])
    # 0.01 (1 / A_c + 1 / A_l): a pixel costs the class that misses it, and the class that has it wrongly.
    assert common.value(areas) == pytest.approx(0.01 * (1 + 1 / 8))
    assert rare.value(areas) == pytest.approx(0.01 * (10 + 1 / 8))
    assert [item for _, item in choose([[common], [rare]], areas, 2)] == [rare, common]


def test_what_looks_alike_comes_later_and_an_image_counts_with_all_its_places(monkeypatch):
    monkeypatch.setattr(module, "MISTAKE", 0.0)
    areas = np.array([1.0, 1.0, 1.0])
    best, same, other = place(0, [0, 0.03, 0]), place(0, [0, 0.029, 0]), place(0, [0, 0.02, 0], colour=100)
    assert [number for number, _ in choose([[best], [same], [other]], areas, 3)] == [0, 2, 1]
    many = [place(0, [0, 0.02, 0], colour) for colour in (0, 100)]  # 0.04 together
    assert choose([[best], many], areas, 2, whole=True) == [(1, None), (0, None)]
    assert choose([[], []], areas, 2) == []


def test_drawn_files_convert_to_the_strokes_before_and_the_new_ones(words, demo_root, tmp_path, capsys):
    assert main(words) == 0
    with refused("with other settings (masks)"):
        main([*words, "--masks"])
    suggested, folder = rows(tmp_path / "next"), tmp_path / "next/labelme"
    assert [row["rank"] for row in suggested] == list("123456")
    first = suggested[0]
    file = folder / f"{first['image']}.json"
    content = json.loads(file.read_text())
    x, y = int(first["x"]), int(first["y"])
    # LabelMe offers the names of the places as labels.
    label = f"suggested: {first['or']}"
    content["shapes"].append({"label": label, "points": [[x + 0.5, y + 0.5]], "shape_type": "linestrip"})
    file.write_text(json.dumps(content))
    options = ["--scribbles", "--classes", str(tmp_path / "next/classes.txt"), "--workers", "0"]
    assert convert(["labelme", str(folder), str(tmp_path / "drawn"), *options]) == 0
    names = (tmp_path / "next/classes.txt").read_text().split()[::2]
    for name in {row["image"] for row in suggested}:
        before = read_label(demo_root / f"pascal_2012_scribble/{name}.png", 5)
        after = read_label(tmp_path / f"drawn/pascal_2012_scribble/{name}.png", 5)
        if name == first["image"]:
            assert after[y, x] == names.index(first["or"])
            new = after != before
            assert 0 < new.sum() <= 9  # a point 3 pixels wide
            after = np.where(new, before, after)
        np.testing.assert_array_equal(after, before)
    text = (tmp_path / "next/index.html").read_text()
    assert text.count("<figure>") == len({row["image"] for row in suggested})
    assert f"labelme {folder}" in capsys.readouterr().out


def test_a_folder_of_photos_has_no_strokes_and_a_mask_has_no_places(checkpoint, demo_root, tmp_path, capsys):
    photos = shutil.copytree(demo_root / "JPEGImages", tmp_path / "photos")
    put(photos / "small.png", np.zeros((3, 5, 3), np.uint8))
    for name in ("sub dir/demo 1", "sub_dir/demo_1"):  # LabelMe's files are in one folder, without spaces
        put(photos / f"{name}.png", np.full((50, 60, 3), 99, np.uint8))
    out = tmp_path / "masks"
    assert main([str(photos), *using(checkpoint, "--budget", 999, "--masks", "--output", out)]) == 0
    said = capsys.readouterr().out
    names = [row["image"] for row in rows(out)]
    assert len({*names}) == len(names) == len([*photos.rglob("*.*")]) - 1
    assert f"--budget 999: only {len(names)} images found" in said
    assert "1 image(s), such as " in said
    assert len({"sub dir/demo 1", "sub_dir/demo_1"} & {*names}) == 1
    assert sorted(path.stem for path in (out / "labelme").iterdir()) == sorted(map(list_name, names))
    assert said.splitlines()[-1].endswith(f"--classes {out}/classes.txt --unlabelled ignore")  # classes 0 to 4
    (photos / "small.png").unlink()
    shutil.rmtree(photos / "sub dir")
    shutil.rmtree(photos / "sub_dir")
    both = [str(demo_root), str(photos), *using(checkpoint, "--budget", 500, "--output", tmp_path / "both")]
    assert main(both) == 0
    # An image of both folders counts once, with its strokes.
    listed = {row["image"] for row in rows(tmp_path / "both")}
    shapes = json.loads((tmp_path / "both/labelme/demo_0000.json").read_text())["shapes"]
    assert "mask" in {shape["shape_type"] for shape in shapes}
    assert len(listed & {path.stem for path in photos.iterdir()}) == len(listed)
    by_image: dict[str, list[tuple[int, int]]] = {}
    for row in rows(tmp_path / "both"):
        by_image.setdefault(row["image"], []).append((int(row["x"]), int(row["y"])))
    pairs = [pair for places in by_image.values() for pair in itertools.combinations(places, 2)]
    assert pairs
    # A window reaches 3 cells of 2 pixels (0.04 of an image of 80 cells) to each side.
    assert min(max(abs(x - u), abs(y - v)) for (x, y), (u, v) in pairs) > 6


def test_strokes_and_areas_of_a_black_class_are_seen_on_a_dark_photo():
    item, _ = scene([], [(slice(40, 60), slice(20, 60), 0)])
    item.image[:] = 10
    shown = figure("a", item, np.zeros(SIZE, np.uint8), [], read_classes("", 3), background=None)
    pictures = [base64.b64decode(data) for data in re.findall('base64,([^"]+)', shown)]
    drawn, painted = (np.array(Image.open(io.BytesIO(data))) for data in pictures)
    # Pictures are twice as large. The stroke is light; JPEG changes it a little.
    assert drawn[85:115, 45:115].min() > 190
    assert painted.min() > 90  # half of 10 and half of the light grey
    assert drawn[:70].max() < 30
    assert "background:#000000" not in page([shown], read_classes("", 3), masks=False)


def test_images_of_16_bits_are_seen_in_labelme_as_the_model_sees_them(checkpoint, tmp_path):
    deep = np.full((40, 50), 300, np.uint16)
    deep[:20] = 400
    put(tmp_path / "photos/a.tif", deep)
    flags = ["--budget", 1, "--masks", "--value_range", 300, 400, "--output", tmp_path / "next"]
    assert main([str(tmp_path / "photos"), *using(checkpoint, *flags)]) == 0
    shown = np.array(Image.open(tmp_path / "next/labelme/a.png"))
    assert (shown.dtype, shown[0, 0].tolist(), shown[-1, 0].tolist()) == (np.uint8, [255] * 3, [0] * 3)


def test_class_names_of_the_data_set_that_are_not_the_models_are_named(checkpoint, demo_root, tmp_path, capsys):
    named = torch.load(checkpoint, weights_only=False)
    classes = str(demo_root / "classes.txt")
    named["config"] |= {"classes": classes}
    named["texts"] = {"classes": Path(classes).read_text()}
    torch.save(named, tmp_path / "best.pt")
    other = shutil.copytree(demo_root, tmp_path / "other")
    names = Path(classes).read_text().splitlines()
    (other / "classes.txt").write_text("\n".join(names[::-1]))
    assert main([str(other), *using(tmp_path / "best.pt", "--budget", 1, "--output", tmp_path / "next")]) == 0
    assert f"{other}/classes.txt: has other class names than the checkpoint" in capsys.readouterr().out


def test_killed_and_repeated_it_suggests_the_same_and_keeps_what_was_drawn(words, suggested, tmp_path):
    out = tmp_path / "next"
    process = start(["tools.suggest", *words], tmp_path, "-m")
    wait_until(lambda: list(out.glob("labelme/[!.]*.json")), [process])
    process.send_signal(signal.SIGKILL)
    finish([process])
    (out / "next.csv").unlink(missing_ok=True)
    file = sorted(out.glob("labelme/[!.]*.json"))[0]
    file.write_text('{"drawn": 1}')
    assert main(words) == 0
    found, expected = contents(out), contents(suggested)
    assert found.pop(str(file.relative_to(out))) == b'{"drawn": 1}'
    assert found.items() <= expected.items()
    assert len(found) == len(expected) - 1


def test_two_processes_suggest_what_one_does(words, suggested, tmp_path):
    flags = [*words, "--distributed", "--backend", "gloo"]
    succeed(two_processes(["tools.suggest", *flags], tmp_path, "-m"))
    assert contents(tmp_path / "next") == contents(suggested)


def test_strokes_in_vocs_layout_are_read_as_such_by_a_model_of_plain_folders(suggested, demo_root, tmp_path):
    folders = {"dataset": "Folder", "train_path": "strokes"}
    checkpoint = random_checkpoint(tmp_path / "best.pt", num_classes=5, **folders)
    assert main([str(demo_root), *using(checkpoint, "--budget", 6, "--output", tmp_path / "folders")]) == 0
    assert rows(tmp_path / "folders") == rows(suggested)


def test_a_user_error_is_one_line(words, suggested, demo_root, tmp_path):
    shutil.copytree(suggested, tmp_path / "next")
    with refused("next: has results made with other settings (budget)"):
        main([*words, "--budget", "7"])
    with refused("nowhere: no such folder: name a data set"):
        main(["nowhere", *words[1:]])
    with refused("classes.txt: not a folder: name a data set"):
        main([str(demo_root / "classes.txt"), *words[1:]])
    for out in (demo_root / "JPEGImages/next", demo_root):
        with refused("lies in"):
            main([*words, "--output", str(out)])
    other = shutil.copytree(demo_root, tmp_path / "other")
    put(other / "pascal_2012_scribble/demo_0003.png", np.zeros((4, 5), np.uint8))
    with refused(f"{other}/pascal_2012_scribble/demo_0003.png: 5x4 pixels, but its image"):
        main([str(other), *words[1:], "--output", str(tmp_path / "x")])
    (tmp_path / "names.txt").write_text("a\nsuggested: b\nc\nd\ne\n")
    with refused("the class name 'suggested: b' begins with 'suggested: ', which marks"):
        main([*words, "--classes", str(tmp_path / "names.txt")])
    (tmp_path / "empty").mkdir()
    with refused("empty: no images in it"):
        main([str(tmp_path / "empty"), *words[1:], "--output", str(tmp_path / "x")])
    process = start(["suggest", *words, "--budget", "0"], tmp_path, "tools/scribbles/__main__.py")
    one_line_each(finish([process], status=2), "--budget 0")


def test_strokes_of_an_image_in_a_folder_are_taken_by_its_name_without_folder(tmp_path):
    put(tmp_path / "JPEGImages/day one/a.jpg")
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/train.txt").write_text("day one/a\n")
    before, after = Pass(tmp_path, tmp_path / "pascal_2012_scribble"), Pass(tmp_path / "drawn_1")
    drawn = np.full((40, 40), 255, np.uint8)
    put(before.scribbles / "day one/a.png", drawn)
    drawn[3, 4] = 1
    put(before.converted / "pascal_2012_scribble" / f"{list_name('day one/a')}.png", drawn)
    cfg = parse_flags(flags(dataset="ScribbleOnly", dataset_path=tmp_path))
    assert after.take_strokes(before, {}, cfg)
    assert np.array_equal(read_label(after.scribbles / "day one/a.png", 5), drawn)


def test_the_pipeline_trains_on_after_each_drawing(checkpoint, demo_root, tmp_path, monkeypatch, capsys):
    """Training, labelling and scoring are left out; suggestions, conversion and the rounds are real."""
    commands: list[list[str]] = []
    saved_meanwhile: dict[Path, str] = {}  # while the conversion runs, after it has read the files

    def run(program: str, *words: object, num_processes: int = 1) -> None:
        words = list(map(str, words))
        commands.append([Path(program).parent.name or Path(program).stem, *words])
        if program == "train.py":
            folder = Path(words[words.index("--logdir") + 1], words[words.index("--name") + 1])
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkpoint, folder / "best.pt")
        elif program == "evaluate.py":
            scores = Path(words[words.index("--json") + 1])
            values = {"miou": 0.25 * len(commands) / 5, "iou": [0.5] * 5, "classes": [*"abcde"]}
            scores.write_text(json.dumps(values))
        elif "suggest" in program:
            assert main([*words, "--workers", "0"]) == 0
        elif "convert" in program:
            if status := convert([*words, "--workers", "0"]):
                raise subprocess.CalledProcessError(status, words)
            for path, content in saved_meanwhile.items():
                path.write_text(content)

    monkeypatch.setattr(chain, "run", run)
    work, data = tmp_path / "work", shutil.copytree(demo_root, tmp_path / "data")
    words = [str(data), str(work), "--budget", "4"]

    def programs() -> str:
        names = " ".join(command[0] for command in commands)
        commands.clear()
        return names

    assert pipeline.main(words) == 0
    assert programs() == "train pseudo train evaluate suggest"
    assert pipeline.main(words) == 0  # nothing was drawn
    assert programs() == "convert"
    scores = (work / "scores.json").read_text()
    one_object = {"miou": 0.9, "iou": [0.99, 0.6], "share": [0.9, 0.1], "classes": ["background", "car"]}
    (work / "scores.json").write_text(json.dumps(one_object))
    cfg = pipeline.read_flags(["--background", "0"], data)[1]
    title, line = strokes_table([Pass(work, data / "pascal_2012_scribble")], cfg)
    assert (title.split(maxsplit=2)[2], line.split()[2]) == ("IoU of class 1 (car)", "60.00")  # decides, not the mIoU
    (work / "scores.json").write_text(scores)
    other_budget, kept = [*words[:2], "--budget", "9"], "next keeps the places of an earlier start (--budget 4); the"
    assert kept not in capsys.readouterr().out
    assert pipeline.main(other_budget) == 0
    assert kept in capsys.readouterr().out
    assert programs() == "convert"
    for damaged in ("{", "[]", "{}"):
        content = (work / "next/suggestions.json").read_text()
        (work / "next/suggestions.json").write_text(damaged)
        with refused("suggestions.json: "):
            pipeline.main(words)
        (work / "next/suggestions.json").write_text(content)
    (work / "next/next.csv").unlink()  # as if tools.suggest was stopped
    assert pipeline.main(other_budget) == 0
    assert kept in capsys.readouterr().out
    assert programs() == "train pseudo train evaluate suggest convert"
    assert len(rows(work / "next")) == 4
    with refused("round_2/best.pt: is missing, and training goes on from it"):
        pipeline.main([*words, "--rounds", "2"])
    file = sorted((work / "next/labelme").glob("*.json"))[0]
    text = file.read_text()
    wrong = json.loads(text)
    wrong["shapes"].append({"label": "sqare", "points": [[3, 3]], "shape_type": "point"})
    file.write_text(json.dumps(wrong))
    with refused("labelme: some files have the faults named above: mend"):
        pipeline.main(words)
    said = capsys.readouterr().err
    assert f"'sqare': not in the list of classes: ignored (255) in 1 place(s), such as {file}" in said
    file.write_text(text)
    copy = file.rename(file.with_name("copy.json"))
    with refused("copy.json: belongs to no training image"):
        pipeline.main(words)
    copy.rename(file)
    commands.clear()
    content = json.loads(file.read_text())
    (point,) = [shape["points"][0] for shape in content["shapes"] if shape["shape_type"] == "point"][:1]
    content["shapes"].append({"label": "3", "points": [point], "shape_type": "point"})
    file.write_text(json.dumps(content))
    saved_meanwhile[file] = text  # too late
    assert pipeline.main(words) == 0
    for number in (1, 3):
        assert commands[number][-2:] == ["--pretrained", str(work / "round_1/best.pt")]
    assert programs() == "convert train pseudo train evaluate suggest"
    saved_meanwhile.clear()
    assert pipeline.main(words) == 0
    assert f"{file}: changed after drawn_1 had read it, so the changes are not used" in capsys.readouterr().err
    late = file.with_name("0_late.json")
    late.write_text(text)
    Pass(work / "drawn_1", work / "drawn_1/strokes").warn_of_late_drawings(Pass(work, data / "pascal_2012_scribble"))
    assert f"{late}: changed after drawn_1 had read it" in capsys.readouterr().err
    late.unlink()
    assert programs() == "convert"
    strokes = work / "drawn_1/strokes"
    names = (data / "ImageSets/SegmentationAug/train.txt").read_text().split()
    assert sorted(path.stem for path in strokes.iterdir()) == sorted(names)
    number = [0, 0]
    for name in names:
        before, after = (read_label(folder / f"{name}.png", 5) for folder in (data / "pascal_2012_scribble", strokes))
        changed = before != after
        assert changed.any() == (name == file.stem)
        assert set(after[changed]) <= {3}
        number = [n + int((label != 255).sum()) for n, label in zip(number, (before, after), strict=True)]
    assert pipeline.main(words) == 0
    table = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.strip()[:1].isdigit()]
    assert table == [[str(number[0]), "20.00"], [str(number[1]), "25.00"]]
    commands.clear()
    files = list((work / "drawn_1/next/labelme").glob("*.json"))
    for file in files:  # delete all strokes there; only the suggested places stay
        content = json.loads(file.read_text())
        content["shapes"] = [shape for shape in content["shapes"] if shape["shape_type"] == "point"]
        file.write_text(json.dumps(content))
    assert pipeline.main(words) == 0
    assert programs() == "train pseudo train evaluate suggest"
    for name in names:
        is_empty = (read_label(work / f"drawn_2/strokes/{name}.png", 5) == 255).all()
        assert is_empty == (f"{name}.json" in {file.name for file in files})
    for file in (work / "drawn_2/next/labelme").glob("*.json"):
        if file.name not in {file.name for file in files}:
            file.unlink()  # those left have no stroke: nothing has changed, and nothing is to be converted
    assert pipeline.main(words) == 0
    assert programs() == ""
    for file in (work / "drawn_2/next/labelme").glob("*.json"):
        file.unlink()
    assert pipeline.main(words) == 0
    assert programs() == ""

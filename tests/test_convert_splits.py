"""Exports of COCO and CVAT as tools write them: the split stays, and nothing outside the folder is read.

recorded/datumaro_coco and recorded/datumaro_cvat are what Datumaro 1.13.12 writes for random polygons in five images of
24x32 pixels; pycocotools.json has the masks that pycocotools 2.0.11 draws for them, a digit for each pixel.
"""

import json
import shutil
from pathlib import Path

import annotated
import cv2
import numpy as np
import pytest
from annotated import Picture
from faulty_data import put
from test_convert import convert, mask_of

from support.errors import UserError
from tools.convert.reading import read_splits

RECORDED = Path(__file__).parent / "recorded"
COCO_NAMES = {"train/a", "train/b", "val/a", "val/c", "test/a"}


def save(path: Path, size: tuple[int, int] = (24, 32), value: int = 0) -> None:
    put(path, np.full((*size, 3), value, np.uint8))


def outputs(out: Path, folder: str = "masks") -> set[str]:
    return {path.relative_to(out / folder).with_suffix("").as_posix() for path in (out / folder).rglob("*.*")}


@pytest.mark.parametrize("folder", ["images/{}", "{}2017"])
def test_datumaros_coco_has_its_split_and_pycocotools_masks(tmp_path, capsys, folder):
    """Image files of one name in each split, in Datumaro's folders and in those of COCO as released."""
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(RECORDED / "datumaro_coco", source)
    for number, name in enumerate(sorted(COCO_NAMES)):
        split, stem = name.split("/")
        save(source / folder.format(split) / f"{stem}.jpg", value=number * 40)
    (source / "pycocotools.json").unlink()
    captions = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "A cat."}]}
    (source / "annotations/captions_train2017.json").write_text(json.dumps(captions))
    points = json.loads((source / "annotations/instances_val.json").read_text())
    points["annotations"][0]["keypoints"] = [1, 2, 2]
    (source / "annotations/person_keypoints_val2017.json").write_text(json.dumps(points))
    assert convert("coco", source, out) == 0
    assert outputs(out) == outputs(out, "images") == COCO_NAMES
    printed = capsys.readouterr().out
    assert "3 JSON file(s) without COCO masks, such as " in printed  # captions, key points, image_info
    assert "tools.split" not in printed
    expected = json.loads((RECORDED / "datumaro_coco/pycocotools.json").read_text())
    for number, name in enumerate(sorted(COCO_NAMES)):
        assert cv2.imread(str(out / f"images/{name}.jpg"))[0, 0, 0] == pytest.approx(number * 40, abs=2)
        label = np.array([list(map(int, row)) for row in expected[name]])
        assert (mask_of(out, name) == label).mean() > 0.95  # pycocotools draws outlines a little wider


def test_datumaros_cvat_has_its_split(tmp_path):
    """Datumaro names each file after its subset, and writes all images into one folder."""
    source = tmp_path / "in"
    shutil.copytree(RECORDED / "datumaro_cvat", source)
    for name in ("t_a", "t_b", "v_a", "v_c"):
        save(source / f"images/{name}.jpg")
    assert convert("cvat", source, tmp_path / "out") == 0
    # The test image has the name of a training image: Datumaro's writer keeps one of the two files.
    assert outputs(tmp_path / "out") == {"train/t_a", "train/t_b", "val/v_a", "val/v_c", "test/t_a"}


# As CVAT's server writes a project: cvat/apps/dataset_manager/formats/cvat.py of github.com/cvat-ai/cvat.
PROJECT = """<annotations><version>1.1</version><meta><project><labels>
<label><name>cat</name><color>#ff0000</color><type>polygon</type></label>
<label><name>night</name><color>#00ff00</color><type>tag</type></label>
</labels></project></meta>
<image id="0" name="a.png" subset="Train" task_id="1" width="8" height="6">
<polygon label="cat" points="1,1;5,1;5,4;1,4" z_order="0"/></image>
<image id="1" name="a.png" subset="Validation" task_id="2" width="8" height="6"><tag label="night"/>
<polygon label="cat" points="2,2;4,2;4,4;2,4" z_order="0"/></image>
</annotations>"""


@pytest.mark.parametrize("subset", ["", "Default"])
def test_a_cvat_project_with_names_that_meet(tmp_path, capsys, subset):
    """An image without a subset is in the folder default, as CVAT's _export_project() names it."""
    for folder, value in (("Train", 0), ("Validation", 100), (subset or "default", 200)):
        save(tmp_path / f"in/images/{folder}/a.png", (6, 8), value)
    third = PROJECT.partition("<image")[2].partition("</image>")[0].replace('"Train"', f'"{subset}"')
    project = PROJECT.replace("</annotations>", f"<image{third}</image></annotations>")
    (tmp_path / "in/annotations.xml").write_text(project)
    assert convert("cvat", tmp_path / "in", tmp_path / "out") == 0
    assert outputs(tmp_path / "out") == {"train/a", "val/a", "a"}
    for name, value, area in (("train/a", 0, 4 * 3), ("val/a", 100, 2 * 2), ("a", 200, 4 * 3)):
        assert cv2.imread(str(tmp_path / f"out/images/{name}.png"))[0, 0, 0] == value
        assert (mask_of(tmp_path / "out", name) == 1).sum() == area
    assert "night" not in (tmp_path / "out/classes.txt").read_text()  # a tag of whole images
    assert "1 image(s) are in none of train, val" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"--split x: the labels have splits of their own \(train, val\)"):
        convert("cvat", tmp_path / "in", tmp_path / "other", "--split", "x")


def test_an_image_of_another_subset_is_not_taken(tmp_path, capsys):
    save(tmp_path / "in/images/Train/a.png", (6, 8))
    (tmp_path / "in/annotations.xml").write_text(PROJECT)
    assert convert("cvat", tmp_path / "in", tmp_path / "out") == 1
    assert outputs(tmp_path / "out") == {"a"}  # one split is left
    assert "image 'a.png': not below" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["coco", "labelme"])
def test_an_image_outside_the_folder_is_not_read(tmp_path, capsys, kind):
    pictures = [Picture(name, np.zeros((4, 4, 3), np.uint8), [("cat", "box", [0, 0, 2, 2])]) for name in ("a", "b")]
    source = getattr(annotated, f"write_{kind}")(tmp_path / "in", pictures)
    save(tmp_path / "secret.png", (4, 4))
    file = source if kind == "coco" else source / "a.json"
    file.write_text(file.read_text().replace("a.png", "../secret.png"))
    assert convert(kind, source, tmp_path / "out") == 1
    assert len(list((tmp_path / "out/masks").iterdir())) == 1
    assert "image '../secret.png': not below" in capsys.readouterr().err


def test_vocs_trainval_does_not_contradict_train_and_val(tmp_path):
    for name, text in {"train": "a", "trainval": "a\nb", "val": "b"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    faults: list[str] = []
    assert read_splits(tmp_path.glob("*.txt"), ["a", "b"], faults, tmp_path) == {"a": "train", "b": "val"}
    assert faults == []

"""Plain folders (--dataset Folder): images and masks find each other, or one line says what is missing."""

import functools
import hashlib
import os
import unicodedata
from pathlib import Path

import faulty_data
import numpy as np
import pytest

from data.dataset import EvalSet
from data.folders import left_out, list_folder
from data.images import read_label
from data.layout import find_split
from distributed.rank_checks import digest
from support.errors import UserError
from support.files import write_atomic
from tools.check.__main__ import check


def put(path: Path, values=None) -> Path:
    """An image file of 40x40 pixels, RGB or, below masks, of the classes 0 and 1."""
    rng = np.random.default_rng(len(path.name))
    if values is None:
        is_mask = "masks" in path.parts
        values = rng.integers(0, 2 if is_mask else 256, (40, 40) if is_mask else (40, 40, 3), dtype=np.uint8)
    return faulty_data.put(path, values, lossless=True)


def put_pairs(root: Path, *names: str, image: str = ".jpg", mask: str = ".png") -> None:
    for name in names:
        put(root / "images" / (name + image))
        put(root / "masks" / (name + mask))


def find(root: Path, split: str = "train", **paths: str) -> EvalSet:
    return EvalSet(find_split(root, "Folder", split, {"label": paths.pop("label_path", "")}, **paths), 2)


def test_subfolders_are_splits_and_pairs_are_found_at_any_depth(tmp_path):
    put_pairs(tmp_path, "train/b", "train/a", "train/night/first one", "val/a", "some split/x")
    assert find(tmp_path).listing == [
        "image=a.jpg label=a.png",
        "image=b.jpg label=b.png",
        "image=night/first one.jpg label=night/first one.png",
    ]
    pair = {"image": tmp_path / "images/val/a.jpg", "label": tmp_path / "masks/val/a.png"}
    assert find(tmp_path, "val").files == [pair]
    assert len(find(tmp_path, "some split")) == 1
    assert find(tmp_path)[2]["image"].shape == (40, 40, 3)


def test_lists_take_names_with_and_without_suffix_space_or_folder(tmp_path):
    put_pairs(tmp_path, "a b", "sub/c", "d.2", "Größe", image=".png")
    mask = tmp_path / "masks" / "Größe.png"
    mask.rename(mask.with_name(unicodedata.normalize("NFD", mask.name)))  # as macOS writes it
    (tmp_path / "train.txt").write_text("sub/c.PNG\r\na b\n\nd.2\n./Größe.png", encoding="utf-8-sig")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "train.txt").write_text("sub\\c\n")
    assert [files["image"].name for files in find(tmp_path).files] == ["c.png", "a b.png", "d.2.png", "Größe.png"]
    assert find(tmp_path, list_path="lists").listing == ["image=sub/c.png label=sub/c.png"]


def test_kinds_of_files(tmp_path):
    kinds = {".JPG": ".PNG", ".jpeg": ".webp", ".Png": ".bmp", ".webp": ".tif", ".bmp": ".png", ".TIF": ".tiff"}
    for number, (image, mask) in enumerate(kinds.items()):
        put_pairs(tmp_path, f"train/{number}", image=image, mask=mask)
    for sample in (find(tmp_path)[number] for number in range(len(kinds))):
        assert sample["image"].shape == (40, 40, 3)
        assert set(np.unique(sample["label"])) == {0, 1}


def test_litter_of_systems_and_masks_without_image_are_skipped(tmp_path):
    put(tmp_path / "masks/train/unused.png")
    put_pairs(tmp_path, "train/a", "train/._a", "train/__MACOSX/a", "train/@eaDir/a", "train/.cache/a")
    for name in ("images/train/.DS_Store", "images/train/Thumbs.db", "masks/train/notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "images/train/loop").symlink_to(tmp_path / "images")
    assert find(tmp_path).listing == ["image=a.jpg label=a.png"]


def test_links_that_lead_round_in_circles_are_not_followed_and_others_are(tmp_path):
    (tmp_path / "disk").mkdir()
    put_pairs(tmp_path / "disk", "night/b")
    put_pairs(tmp_path / "data", "train/a")
    for kind in ("images", "masks"):  # a data set is often a link, or has links to other disks
        (tmp_path / f"data/{kind}/train/far").symlink_to(tmp_path / f"disk/{kind}/night")
    (tmp_path / "set").symlink_to(tmp_path / "data")
    train = tmp_path / "set/images/train"
    for name, target in {"all": "/", "up": tmp_path, "self": train, "itself": train / "itself"}.items():
        (train / name).symlink_to(target)
    (tmp_path / "disk/images/night/back").symlink_to(tmp_path / "data/images/train")  # by way of "far"
    assert find(tmp_path / "set").names == ["a", "far/b"]
    real = tmp_path.resolve() / "data/images/train"
    targets = {"all": "/", "up": tmp_path.resolve(), "self": real, "far/back": real}
    found = {f"{train / name}": f"not followed: it links to its parent folder {to}" for name, to in targets.items()}
    assert left_out(train) == found


def test_a_link_to_a_large_tree_without_images_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("data.folders.MAX_FOLDERS", 30)
    for number in range(40):
        (tmp_path / f"system/{number}").mkdir(parents=True)
        put(tmp_path / f"many/{number}/x.jpg")
    (tmp_path / "images").mkdir()
    for name in ("many", "system"):
        (tmp_path / "images" / name).symlink_to(tmp_path / name)
    with pytest.raises(UserError, match=r"images/system: a link to a tree with 30 folders without an image"):
        list_folder(tmp_path / "images", (".jpg",))
    (tmp_path / "images/system").unlink()
    assert len(list_folder(tmp_path / "images", (".jpg",))) == 40


def test_names_that_are_not_utf8_make_lists_and_digests(tmp_path):
    name = os.fsdecode("图像".encode("gbk"))
    put_pairs(tmp_path, name, "b")
    write_atomic(tmp_path / "train.txt", f"{name}\nb")
    assert find(tmp_path).names == [name, "b"]
    assert digest([name]) == hashlib.sha256("图像".encode("gbk")).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\nb".encode("utf-16"), "(not UTF-8: line 1 has a NUL byte)"),
        (b"a\nb\0\n", "(not UTF-8: line 2 has a NUL byte)"),
        (b"a\n" + b"b" * 4097, "(line 2 has 4097 bytes, but at most 4096 are read)"),
        (b"b" * 5000, "(5000 bytes, but at most 4999 are read)"),
    ],
)
def test_lists_that_are_no_lists_are_named_in_training_and_in_the_check(tmp_path, monkeypatch, content, message):
    put_pairs(tmp_path, "a", "b")
    monkeypatch.setattr("data.layout.MAX_LIST", 4999)
    (tmp_path / "train.txt").write_bytes(content)
    for read in (find, check):
        with pytest.raises(UserError) as error:
            read(tmp_path)
        assert str(error.value).startswith(f"{tmp_path / 'train.txt'}: the list cannot be read {message}")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["images/train/b.jpg"], r"train/b\.jpg: an image without a mask: expected .*masks/train/b\.png"),
        (["images/train/b.jpg", "masks/train/b.jpeg"], r"masks/train/b\.jpeg: JPEG compression .*save the mask as PNG"),
        (["images/train/a.png"], r"train/a\.jpg and a\.png: two files of one name"),
        (["images/train/b.jpg", "masks/train/b.gif"], r"b\.jpg: an image without .* convert them to \.png: 1 \.gif"),
        (["masks/train/a.tif"], r"train/a\.png and a\.tif: two files of one name"),
    ],
)
def test_faulty_folders_are_named(tmp_path, files, message):
    put_pairs(tmp_path, "train/a")
    for file in files:
        put(tmp_path / file)
    with pytest.raises(UserError, match=message):
        find(tmp_path)


def test_missing_splits_and_names_are_named(tmp_path):
    put_pairs(tmp_path, "train/a")
    with pytest.raises(UserError, match=r"no split 'val': looked for the folder .*images/val and .* list .*val\.txt"):
        find(tmp_path, "val")
    (tmp_path / "images/val").mkdir()
    with pytest.raises(UserError, match=r"masks/val: no such folder"):
        find(tmp_path, "val")
    (tmp_path / "masks/val").mkdir()
    with pytest.raises(UserError, match=r"images/val: no images in it \(\.jpg, .*\.webp\)"):
        find(tmp_path, "val")
    put_pairs(tmp_path, "val/b")
    with pytest.raises(UserError, match=r"'train' and 'val', but no split 'tset': .* or the list .*/tset\.txt"):
        find(tmp_path, "tset")
    (tmp_path / "test.txt").write_text("train/a.jpg\ntrain/b\n")
    with pytest.raises(UserError, match=r"test\.txt: 'train/b': no such image in .*images \(looked for \.jpg"):
        find(tmp_path, "test")
    with pytest.raises(UserError, match=r"--dataset_path .*nowhere: no such folder"):
        find(tmp_path / "nowhere")


def test_masks_of_three_equal_channels_are_read(tmp_path):
    grey = np.array([[0, 1, 255]], np.uint8)
    put(tmp_path / "grey.webp", np.stack([grey] * 3, axis=2))
    assert read_label(tmp_path / "grey.webp", 2).tolist() == grey.tolist()


def test_plain_folders_taken_for_another_layout_are_recognised(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / folder / "train").mkdir(parents=True)
    with pytest.raises(UserError, match=r"train\.txt: no such list; for the flags that fit it.*tools.check"):
        find_split(tmp_path, "ScribbleOnly", "train", {"label": ""})


def test_lists_of_other_names_are_named(tmp_path):
    for name in ("val", "train_aug"):
        write_atomic(tmp_path / f"ImageSets/Segmentation/{name}.txt", "a", parents=True)
    with pytest.raises(UserError, match=r"train\.txt: no such list, but train_aug and val: choose .*--train_split"):
        find_split(tmp_path, "Dense", "train", {"label": ""})


def test_an_image_is_not_its_own_label(tmp_path):
    put(tmp_path / "train/a.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "train")
    split = find_split(tmp_path, "Folder", "train", {"label": "."}, image_path=".")
    for folder in ("train", "link"):
        split.folders["label"] = tmp_path / folder
        with pytest.raises(UserError, match=r"a\.jpg: is the image and its label at once: .*--label_suffix"):
            _ = split.pairs
    put(tmp_path / "train/a_mask.png")
    split = find_split(tmp_path, "Folder", "train", {"label": "."}, image_path=".", label_suffix="_mask")
    assert split.files[0]["label"].name == "a_mask.png"


@pytest.mark.parametrize(
    "line",
    [
        *("images/a b.jpg,masks/a b.png", "a b.jpg, a b.png", "a b.jpg;masks/a b.png", "a b.jpg\ta b.png"),
        *("masks/a b.png images/a b.jpg", "masks/a b.png,a b.jpg", "masks/a b.png images/a b.png"),
        *("/images/a b.jpg /masks/a b.png", "/images/a b.jpg", "{root}/images/a b.jpg", "./a b.jpg"),
        "a b.jpg,other.jpg",  # nothing tells the mask: the image is first
    ],
)
def test_lines_of_other_programs_lists(tmp_path, line):
    for file in ("images/a b.jpg", "masks/a b.png"):
        put(tmp_path / file)
    (tmp_path / "train.txt").write_text(line.format(root=tmp_path))
    names, files = find_split(tmp_path, "Folder", "train", {"label": ""}).pairs
    assert (names, files) == (["a b"], [{"image": tmp_path / "images/a b.jpg", "label": tmp_path / "masks/a b.png"}])


def test_a_list_in_the_layout_of_voc_that_names_another_mask_is_refused(tmp_path):
    for file in ("JPEGImages/a.jpg", "SegmentationClass/a.png", "SegmentationClassAug/a.png"):
        put(tmp_path / file)
    (tmp_path / "train.txt").write_text("/JPEGImages/a.jpg /SegmentationClass/a.png\n")
    with pytest.raises(UserError, match=r"names the mask /SegmentationClass/a\.png, but .*Aug/a\.png would be read"):
        find_split(tmp_path, "Dense", "train", {"label": ""}, list_path=".")
    split = find_split(tmp_path, "Dense", "train", {"label": "SegmentationClass"}, list_path=".")
    assert split.files[0]["label"] == tmp_path / "SegmentationClass/a.png"


def test_in_the_labels_folder_images_with_an_ending_of_their_own_may_have_the_labels_before_it(tmp_path):
    put(tmp_path / "train/face_mask_sat.jpg")
    put(tmp_path / "train/face_mask_mask.png")
    found = find(tmp_path, image_path=".", label_path=".", image_suffix="_sat", label_suffix="_mask")
    assert found.listing == ["image=face_mask_sat.jpg label=face_mask_mask.png"]


@pytest.mark.parametrize(
    ("other", "ending"), [("masks_fixed/a.png", ""), ("masks/a_v2.png", ""), ("masks_fixed/a.png", "_sat")]
)
def test_a_list_that_names_another_mask_is_refused(tmp_path, other, ending):
    """The mask of the image's own name would be read without a word."""
    image = f"images/a{ending}.jpg"
    for file in (image, "masks/a.png", other):
        put(tmp_path / file)
    find = functools.partial(find_split, tmp_path, "Folder", "train", {"label": ""}, image_suffix=ending)
    for name, fits in (("masks/a.png", True), (other, False), ("masks/missing.png", True)):
        (tmp_path / "train.txt").write_text(f"{image} {name}\n")
        if fits:
            assert find().listed == [image]
        else:
            with pytest.raises(UserError, match=rf"train\.txt: names the mask {other}, but .*masks/a\.png would be"):
                find()

"""Reading images, labels and lists: right, or named."""

import io

import numpy as np
import pytest
from PIL import Image

from data.dataset import SegmentationDataset
from data.images import image_size, read_distance, read_image, read_label
from data.layout import Split, read_list
from errors import UserError


def save(array: np.ndarray, path, mode: str | None = None) -> None:
    Image.fromarray(array, mode=mode).save(path) if mode is None else Image.fromarray(array).convert(mode).save(path)


@pytest.fixture
def folders(tmp_path):
    """One image, 6x4 pixels, with a label."""
    for name in ("image", "label"):
        (tmp_path / name).mkdir()
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)).save(tmp_path / "image" / "a.jpg")
    Image.fromarray(np.full((4, 6), 2, np.uint8)).save(tmp_path / "label" / "a.png")
    return {"image": tmp_path / "image", "label": tmp_path / "label"}


def test_d18_palette_png_is_read_as_indices(tmp_path):
    indices = np.array([[0, 1], [7, 255]], np.uint8)
    image = Image.fromarray(indices, mode="P")
    image.putpalette([value for index in range(256) for value in (index // 2, 255 - index, 17)])
    image.save(tmp_path / "p.png")
    assert read_label(tmp_path / "p.png", 8).tolist() == indices.tolist()


def test_label_out_of_range_is_named(tmp_path):
    path = tmp_path / "l.png"
    Image.fromarray(np.array([[0, 37, 255]], np.uint8)).save(path)
    with pytest.raises(UserError, match=r"l\.png: label 37 in 1 pixel.*--numclasses 11 labels are 0\.\.10"):
        read_label(path, 11)
    assert read_label(path, 38).tolist() == [[0, 37, 255]]


def test_colour_mask_and_float_distance_are_refused(tmp_path):
    Image.fromarray(np.array([[[0, 0, 0], [128, 0, 0]]], np.uint8)).save(tmp_path / "rgb.png")
    with pytest.raises(UserError, match=r"rgb\.png: a RGB image: labels must be class numbers"):
        read_label(tmp_path / "rgb.png", 3)
    Image.fromarray(np.zeros((2, 2), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match="8-bit"):
        read_distance(tmp_path / "deep.png")


def test_d17_missing_file_is_named_at_once(folders):
    with pytest.raises(UserError, match=r"'b': no such image in .*image \(looked for"):
        SegmentationDataset(Split(folders, ["a", "b"]), 3)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        SegmentationDataset(Split(folders | {"label": folders["label"] / "nowhere"}, ["a"]), 3)


def test_truncated_jpeg_is_named(folders):
    path = folders["image"] / "a.jpg"
    whole = path.read_bytes()
    # Cut in the header, and in the middle of the pixels, which OpenCV 4 fills with grey.
    for size in (10, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"a\.jpg: not a whole, readable image"):
            SegmentationDataset(Split(folders, ["a"]), 3)[0]
    path.write_text("no image")
    with pytest.raises(UserError, match=r"a\.jpg: not a whole"):
        SegmentationDataset(Split(folders, ["a"]), 3)[0]


def test_truncated_png_label_is_named(folders):
    path = folders["label"] / "a.png"
    path.write_bytes(path.read_bytes()[:-25])
    with pytest.raises(UserError, match=r"a\.png: not a whole"):
        SegmentationDataset(Split(folders, ["a"]), 3)[0]


@pytest.mark.parametrize("shape", [(4, 5), (5, 6)])
def test_d17_mask_of_another_height_or_width_is_named(folders, shape):
    Image.fromarray(np.zeros(shape, np.uint8)).save(folders["label"] / "a.png")
    with pytest.raises(UserError, match=rf"a\.png: {shape[1]}x{shape[0]} pixels, but its image .*a\.jpg has 6x4"):
        SegmentationDataset(Split(folders, ["a"]), 3)[0]


def test_image_modes_become_rgb_and_exif_orientation_is_followed(tmp_path):
    for mode in ("L", "RGBA", "CMYK", "P", "1"):
        path = tmp_path / f"{mode}.tif"
        Image.new(mode, (5, 3)).save(path)
        image = read_image(path)
        assert image.shape == (3, 5, 3)
        assert image.dtype == np.uint8
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to show
    Image.new("RGB", (5, 3)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").shape == (5, 3, 3)


def test_broken_exif_is_named(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a title"
    Image.new("RGB", (5, 3)).save(tmp_path / "a.jpg", exif=exif)
    whole = (tmp_path / "a.jpg").read_bytes()
    # The title's tag becomes that of the width, which is no text: PIL leaves with an error of struct
    (tmp_path / "a.jpg").write_bytes(whole.replace(b"\x01\x0e\x00\x02", b"\x01\x00\x00\x02"))
    with pytest.raises(UserError, match=r"a\.jpg: not a whole, readable image"):
        read_image(tmp_path / "a.jpg")


def test_an_image_too_large_for_pillow_is_to_be_cut_not_replaced(tmp_path):
    # 13500 x 13500 = 182.25 million pixels; the limit is twice PIL's 1024^3 / 4 / 3 = 178.96 million. 1 bit a pixel.
    Image.MAX_IMAGE_PIXELS, limit = None, Image.MAX_IMAGE_PIXELS
    Image.new("1", (13500, 13500)).save(tmp_path / "a.png")
    Image.MAX_IMAGE_PIXELS = limit
    for read in (read_image, image_size):
        with pytest.raises(UserError) as caught:
            read(tmp_path / "a.png")
        assert (
            str(caught.value)
            == f"{tmp_path}/a.png: has more than 178 million pixels, too many for Pillow: cut it into tiles"
        )


def test_deep_images_are_refused_not_saturated(tmp_path):
    Image.fromarray(np.full((2, 2), 1000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match="more than 8 bits a channel"):
        read_image(tmp_path / "deep.png")


def test_lists(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("a\nb\n\nc")  # no newline at the end
    assert read_list(path) == ["a", "b", "c"]
    path.write_bytes(b"\xef\xbb\xbfa\r\nb \r\n")  # as Windows editors write it
    assert read_list(path) == ["a", "b"]
    path.write_text("a.jpg a.png\n")
    with pytest.raises(UserError, match="line 1"):
        read_list(path)
    path.write_text("\n")
    with pytest.raises(UserError, match="the list is empty"):
        read_list(path)
    with pytest.raises(UserError, match=r"val\.txt: the list cannot be read"):
        read_list(tmp_path / "val.txt")


def test_evaluation_sample_is_the_file_at_its_own_size(folders):
    sample = SegmentationDataset(Split(folders, ["a"]), 3)[0]
    with Image.open(io.BytesIO((folders["image"] / "a.jpg").read_bytes())) as image:
        assert (sample["image"] == np.asarray(image)).all()
    assert (sample["label"] == 2).all()
    assert sample.pop("index") == 0
    assert {values.dtype for values in sample.values()} == {np.dtype(np.uint8)}


@pytest.mark.parametrize("orientation", [None, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99])
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_size_from_the_header_is_that_of_the_image(tmp_path, orientation, suffix):
    path, turned = tmp_path / f"a.{suffix}", Image.Exif()
    if orientation is not None:
        turned[0x0112] = orientation
    Image.new("RGB", (30, 20)).save(path, exif=turned)
    assert image_size(path) == read_image(path).shape[:2]
    assert image_size(path) == ((30, 20) if orientation in (5, 6, 7, 8) else (20, 30))


def test_colour_masks_are_refused_whichever_channel_differs(tmp_path):
    for channel in range(3):
        label = np.zeros((4, 4, 3), np.uint8)
        label[0, 0, channel] = 1
        Image.fromarray(label).save(tmp_path / "a.png")
        with pytest.raises(UserError, match="a RGB image"):
            read_label(tmp_path / "a.png", 3)

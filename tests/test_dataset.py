"""Reading images, labels and lists: right, or named."""

import contextlib
import os
import struct
import zlib

import cv2
import numpy as np
import pytest
from conftest import refused
from faulty_data import exif
from PIL import Image, TiffImagePlugin

from data.dataset import EvalSet
from data.images import read_distance, read_header, read_image, read_label
from data.layout import Split, read_list
from support.errors import UserError


def save(path, values, **options):
    (values if isinstance(values, Image.Image) else Image.fromarray(np.array(values, np.uint8))).save(path, **options)
    return path


@pytest.fixture
def folders(tmp_path):
    """One image, 6x4 pixels, with a label."""
    for name in ("image", "label"):
        (tmp_path / name).mkdir()
    save(tmp_path / "image" / "a.jpg", np.random.default_rng(0).integers(0, 256, (4, 6, 3)))
    save(tmp_path / "label" / "a.png", np.full((4, 6), 2))
    return {"image": tmp_path / "image", "label": tmp_path / "label"}


def read_first(folders) -> None:
    EvalSet(Split(folders, ["a"]), 3)[0]


def read_mask(path) -> np.ndarray:
    return read_label(path, 3)


READERS = (read_image, read_header, read_mask, read_distance)


def test_label_out_of_range_is_named(tmp_path):
    path = save(tmp_path / "l.png", [[0, 37, 255]])
    for num_classes in (11, 37):
        labels = rf"--numclasses {num_classes} labels are 0\.\.{num_classes - 1}"
        with pytest.raises(UserError, match=rf"l\.png: label 37 in 1 pixel.*{labels}"):
            read_label(path, num_classes)
    assert read_label(path, 38).tolist() == [[0, 37, 255]]


def write_grey(path, mask: np.ndarray, bits: int, white: int = 1):
    """Write a mask as PNG or TIFF of `bits` bits a pixel, unchanged. white: TIFF's tag 262; 0: the value 0 is white."""
    rows = np.packbits((mask[..., None] >> np.arange(bits - 1, -1, -1)) & 1).reshape(len(mask), -1)
    if path.suffix == ".tif":
        return write_tiff(path, rows[..., None], {256: mask.shape[1], 258: bits, 262: white})
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *mask.shape[::-1], bits, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize(("suffix", "white"), [("png", 1), ("tif", 1), ("tif", 0)])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_labels_have_the_values_that_are_stored(tmp_path, bits, suffix, white):
    mask = np.arange(3 * 16, dtype=np.uint8).reshape(3, 16) % np.uint16(2**bits)
    assert (read_label(write_grey(tmp_path / f"a.{suffix}", mask, bits, white), 254) == mask).all()


def write_bmp(path, indices: np.ndarray, palette: list, bits: int, *, rle: bool = False, old: bool = False):
    """Write a BMP file of a palette of RGB colours. rle: run-length encoded; old: with the header of OS/2."""
    height, width = indices.shape
    if rle:  # (number, index) for each pixel; (0, 0): end of the row; (0, 1): end of the image
        runs = [b"".join(bytes([1, index << 8 - bits]) for index in row) for row in indices[::-1].tolist()]
        pixels = b"\0\0".join(runs) + b"\0\1"
    else:  # rows from below, each of a multiple of four bytes
        rows = np.packbits(((indices[::-1, :, None] >> np.arange(bits)[::-1]) & 1).reshape(height, -1), axis=1)
        pixels = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4))).tobytes()
    codec = 8 // bits if rle else 0  # 1: of 8 bits, 2: of 4 bits
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, codec, 0, 0, 0, len(palette), 0)
    header = struct.pack("<IHHHH", 12, width, height, 1, bits) if old else header
    colours = b"".join(bytes(colour[::-1]) + b"\0" * (not old) for colour in palette)
    start = 14 + len(header) + len(colours)
    path.write_bytes(struct.pack("<2sIII", b"BM", start + len(pixels), 0, start) + header + colours + pixels)
    return path


GREYS = [(value,) * 3 for value in range(256)]
BLACK_WHITE, COLOURS = [(0, 0, 0), (255, 255, 255)], [(0, 0, 0), (200, 0, 9)]
PALETTES = [
    *[(bits, palette) for bits in (1, 4, 8) for palette in (BLACK_WHITE, COLOURS)],
    *[(bits, GREYS[:number]) for bits in (4, 8) for number in (1, 5, 15, 16)],
    (8, GREYS),
]
# Run lengths need more than a bit, and OS/2 a palette of all indices.
BMPS = [(*kind, {}) for kind in PALETTES]
BMPS += [(bits, palette, {"rle": True}) for bits, palette in PALETTES if bits > 1]
BMPS += [(bits, palette, {"old": True}) for bits, palette in PALETTES if len(palette) == 2**bits]


@pytest.mark.parametrize(("bits", "palette", "options"), BMPS)
@pytest.mark.parametrize("width", [3, 16])
def test_bmp_files_of_any_palette_are_read_as_indices_and_colours(tmp_path, bits, palette, options, width):
    """Pillow reads black and white of 8 bits as rows of 1 bit, and greys of 4 bits as of 8."""
    indices = np.random.default_rng(0).integers(0, len(palette), (4, width), dtype=np.uint8)
    path = write_bmp(tmp_path / "a.bmp", indices, palette, bits, **options)
    assert (read_label(path, 256) == indices).all()
    assert (read_image(path) == np.array(palette, np.uint8)[indices]).all()


@pytest.mark.parametrize(("mode", "order"), [("I;16", "<"), ("I;16B", ">")])
def test_both_byte_orders_of_16_bits_are_read(tmp_path, mode, order):
    mask = np.array([[0, 1, 2, 255]], np.uint16)
    path = save(tmp_path / "a.tif", Image.frombytes(mode, (4, 1), mask.astype(f"{order}u2").tobytes()))
    assert read_label(path, 3).tolist() == mask.tolist()


def test_signed_8_bits_are_read_as_stored_and_refused_where_only_0_to_255_fits(tmp_path):
    path = write_tiff(tmp_path / "a.tif", np.array([[[0], [1], [255]]], np.uint8), {256: 3, 258: 8, 262: 1, 339: 2})
    with pytest.raises(UserError, match=r"a\.tif: label -1 in 1 pixel"):
        read_label(path, 3)
    for read in (read_image, read_header, read_distance):
        with pytest.raises(UserError, match=r"a\.tif: (has )?signed values: "):
            read(path)


WEBP_META = {"icc_profile": b"x" * 200, "exif": exif(1).tobytes()}  # chunks in front of the pixels


@pytest.mark.parametrize(
    ("name", "options", "codec"),
    [
        ("a.tif", {"compression": "jpeg"}, "jpeg .in TIFF."),
        ("a.webp", {"quality": 90}, "lossy WebP"),
        ("a.webp", {"quality": 90, **WEBP_META}, "lossy WebP"),
        ("a.png", {"format": "WEBP", "quality": 90}, "lossy WebP"),
        ("a.png", {"format": "JPEG"}, "JPEG"),
        ("a.bmp", {"format": "MPO", "save_all": True, "append_images": [Image.new("L", (9, 6))]}, "JPEG"),
        ("a.webp", {"lossless": True, **WEBP_META}, None),
        ("a.webp", {"lossless": True, "icc_profile": b"odd"}, None),  # RIFF pads chunks of an odd length
        *[("a.tif", {"compression": codec}, None) for codec in ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate")],
    ],
)
def test_labels_of_codecs_that_change_values_are_refused_whatever_the_suffix(tmp_path, name, options, codec):
    mask = np.arange(54, dtype=np.uint8).reshape(6, 9) % 3
    path = save(tmp_path / name, mask, **options)
    with pytest.raises(UserError, match=f"{codec} compression changes") if codec else contextlib.nullcontext():
        assert (read_label(path, 3) == mask).all()


@pytest.mark.parametrize("suffix", ["tif", "png", "webp", "gif"])
def test_labels_of_several_frames_are_refused_but_not_their_overviews(tmp_path, suffix):
    first, *others = [Image.fromarray(np.full((8, 9), value, np.uint8)) for value in (0, 1, 2)]
    path = save(tmp_path / f"a.{suffix}", first, append_images=others, save_all=True, lossless=True)
    for read in (read_mask, read_distance):
        with refused(f"a.{suffix}: has 3 frames"):
            read(path)
    assert read_header(path).frames == 3
    assert read_image(path).max() == 0  # the first
    if suffix == "tif":
        small = save(tmp_path / "b.tif", others[0], append_images=[first.resize((4, 4))], save_all=True)
        assert (read_label(small, 3) == 1).all()
        others[1].encoderinfo = {"tiffinfo": {254: 4}}  # a mask of transparency
        masked = save(tmp_path / "c.tif", first, append_images=others[1:], save_all=True)
        assert (read_label(masked, 3) == 0).all()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("read", [*READERS, read_list])
def test_what_is_no_regular_file_is_named_and_not_waited_for(tmp_path, make, read):
    make(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: .*not a regular file"):
        read(tmp_path / "a.png")


@pytest.mark.parametrize("target", ["nowhere.png", "a.png"])
@pytest.mark.parametrize("read", READERS)
def test_links_that_lead_to_no_file_are_named(tmp_path, target, read):
    (tmp_path / "a.png").symlink_to(target)
    with pytest.raises(UserError, match=r"a\.png: a link to a missing file, or to itself: remove it, or restore"):
        read(tmp_path / "a.png")


def test_only_documented_formats_are_opened(tmp_path, monkeypatch):
    """PIL starts Ghostscript for PostScript."""
    monkeypatch.setattr("subprocess.Popen", None)
    path = tmp_path / "a.png"
    for kind in ("EPS", "PCX", "PPM", "ICO", "JPEG2000"):
        save(path, Image.new("RGB", (16, 16)), format=kind)
        for read in READERS:
            with pytest.raises(UserError, match=r"a\.png: not a whole, readable image .cannot identify"):
                read(path)


@pytest.mark.parametrize("channel", range(3))
def test_colour_masks_are_refused_whichever_channel_differs(tmp_path, channel):
    label = np.zeros((4, 4, 3))
    label[0, 0, channel] = 128
    with pytest.raises(UserError, match=r"rgb\.png: an image of mode RGB: labels must be class numbers"):
        read_label(save(tmp_path / "rgb.png", label), 3)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (Image.new("F", (4, 4)), "a label of floats: save its class numbers as 8-bit PNG"),
        (Image.new("LA", (4, 4)), "a grey label with transparency: save it without the alpha channel"),
        (np.zeros((4, 4, 1), np.float64), "1 channel(s) of 64 bits: save class numbers as one channel of 8 or 16 bits"),
    ],
)
def test_labels_of_one_channel_that_are_refused_are_not_taken_for_colours(tmp_path, values, said):
    path = tmp_path / "a.tif"
    save(path, values) if isinstance(values, Image.Image) else write_tiff(path, values, {262: 1})
    with refused(f"a.tif: {said}"):
        read_label(path, 3)


def write_tiff(path, values: np.ndarray, others: dict | None = None):
    """Write an uncompressed TIFF file of any number of channels and type; tags as in the TIFF 6.0 specification."""
    height, width, channels = values.shape
    kind, bits = {"u": 1, "i": 2, "f": 3}[values.dtype.kind], 8 * values.dtype.itemsize
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    lists = {258: (bits,) * channels, 338: (0,) * (channels - 3), 339: (kind,) * channels}
    numbers = {256: width, 257: height, 259: 1, 262: 2, 273: 0, 277: channels, 278: height, 279: values.nbytes}
    for tag, value in (numbers | lists | (others or {})).items():
        if value != ():
            tags[tag] = value
    path.write_bytes(b"II*\0\x08\0\0\0" + tags.tobytes(8) + values.tobytes())  # tobytes() adds its end to tag 273
    return path


def test_images_of_more_than_8_bits_or_4_channels_are_refused(tmp_path):
    deep = save(tmp_path / "deep.png", Image.fromarray(np.full((2, 2), 1000, np.uint16)))
    with pytest.raises(UserError, match="8-bit"):
        read_distance(deep)
    cv2.imwrite(str(tmp_path / "colour.png"), np.full((2, 2, 3), 1000, np.uint16))
    with pytest.raises(UserError, match=r"colour\.png: 3 channels of 16 bits: save class numbers"):
        read_label(tmp_path / "colour.png", 5)  # PIL would keep the upper 8 bits: class 3
    files = {deep: "more than 8 bits a channel", tmp_path / "colour.png": "3 channels of 16 bits"}
    for channels, kind, message in ((3, "u2", "3 .*16 bits"), (5, "u1", "5 channels"), (3, "f4", "3 .*32 bits")):
        files[write_tiff(tmp_path / f"{channels}{kind}.tif", np.ones((4, 6, channels), kind))] = message
    for path, message in files.items():
        for read in (read_image, read_header):
            with pytest.raises(UserError, match=rf"{path.name}: (?=.*{message}).* 8-bit RGB"):
                read(path)


# Tags of TIFF: 262: 1 = grey; 284: 2 = channels one after the other; 338: 0 = a channel that is no colour.
@pytest.mark.parametrize(
    ("channels", "kind", "others", "found"),
    [
        (3, "u2", {284: 2}, "3 channels of 16 bits:"),  # PIL: noise
        (2, "u1", {262: 1, 338: (0,)}, "2 channel.* of 8 bits"),  # PIL: the first one; older ones cannot open it
        (9, "u1", {262: 1, 338: (0,) * 8}, "9 channel.* of 8 bits"),  # PIL: cannot open it, and logs a line
    ],
)
def test_tiff_files_of_which_pil_reads_a_part_are_refused(tmp_path, channels, kind, others, found, capfd):
    """A mask with a channel for each class was read as the first channel, and planar colours of 16 bits as noise."""
    path = write_tiff(tmp_path / "a.tif", np.eye(channels, dtype=kind)[np.arange(24).reshape(4, 6) % channels], others)
    for read, needed in ((read_image, "images must be 8-bit RGB"), (lambda path: read_label(path, 9), "save class")):
        with pytest.raises(UserError, match=rf"a\.tif: {found}.* {needed}"):
            read(path)
    assert capfd.readouterr().err == ""


def test_channels_beside_a_tiff_files_colours_are_no_reason_to_refuse_it(tmp_path):
    values = np.arange(96, dtype="u1").reshape(4, 6, 4)  # the fourth channel may be infrared
    np.testing.assert_array_equal(read_image(write_tiff(tmp_path / "a.tif", values)), values[..., :3])


# Cut in the header, and in the middle of the pixels, which OpenCV 4 fills with grey; 0: not an image.
@pytest.mark.parametrize(("kind", "end"), [("image", 10), ("image", -30), ("label", -25), ("image", 0)])
def test_truncated_files_are_named(folders, kind, end):
    (path,) = folders[kind].iterdir()
    path.write_bytes(path.read_bytes()[:end] or b"no image")
    with pytest.raises(UserError, match=rf"{path.name}: not a whole, readable image"):
        read_first(folders)


@pytest.mark.parametrize("shape", [(4, 5), (6, 4)])
def test_mask_of_another_height_or_width_is_named(folders, shape):
    save(folders["label"] / "a.png", np.zeros(shape))
    with pytest.raises(UserError, match=rf"a\.png: {shape[1]}x{shape[0]} pixels, but its image .*a\.jpg has 6x4"):
        read_first(folders)


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P", "1"])
def test_image_modes_become_rgb(tmp_path, mode):
    image = read_image(save(tmp_path / "a.tif", Image.new(mode, (5, 3))))
    assert (image.shape, image.dtype) == ((3, 5, 3), np.uint8)


def test_an_image_too_large_for_pillow_is_named(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", Image.new("1", (1500, 1500)))  # 2.25 million pixels
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # Pillow refuses twice as many
    for read in (read_image, read_header):
        with pytest.raises(UserError, match=r"a\.png: too large .*exceeds limit of 2000000 pixels.*: cut it"):
            read(path)


def test_lists(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("a\nb\n\nc")  # no newline at the end
    assert read_list(path) == ["a", "b", "c"]
    path.write_bytes(b"\xef\xbb\xbfa\r\nb \r\n")  # as Windows editors write it
    assert read_list(path) == ["a", "b"]
    path.write_text("\n")
    for file, said in ((path, "the list is empty"), (tmp_path / "val.txt", "val.txt: the list cannot be read")):
        with refused(said):
            read_list(file)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


XMP = b"XML:com.adobe.xmp\0\0\0\0\0<x:xmpmeta>"
XMP += b"<rdf:Description tiff:Orientation='1' tiff:Orientation=\"6\"/></x:xmpmeta>"
RAW = b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n 40\n" + exif(6).tobytes().hex().encode())


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("kind", "content", "turned"),
    [(b"eXIf", exif(6).tobytes()[6:], True), (b"zTXt", RAW, True), (b"iTXt", XMP, True), (b"tEXt", b"a\0eXIf", False)],
)
def test_size_of_a_png_needs_no_pixels_wherever_exif_is(tmp_path, monkeypatch, kind, content, turned, behind):
    """A PNG of 30x20 pixels with a chunk in front of its pixels or behind them; orientation 6 is a quarter turn."""
    path = save(tmp_path / "a.png", Image.new("RGB", (30, 20)))
    data = path.read_bytes()
    place = data.index(b"IEND" if behind else b"IDAT") - 4
    path.write_bytes(data[:place] + chunk(kind, content) + data[place:])
    size = (30, 20) if turned else (20, 30)
    assert read_image(path).shape[:2] == size
    if not turned:
        monkeypatch.setattr(Image.Image, "load", None)  # no pixel is decoded
    assert read_header(path).size == size


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0, "quality": 100}])
def test_jpegs_have_the_pixels_that_pil_decodes(tmp_path, monkeypatch, options):
    """OpenCV decodes them: PIL is not asked."""
    noise = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    path = save(tmp_path / "a.jpg", np.kron(noise, np.ones((5, 5, 1))), **options)
    expected = np.asarray(Image.open(path))
    monkeypatch.setattr("data.images.files.turn_upright", None)
    assert np.array_equal(read_image(path), expected)


def upright(values: np.ndarray, orientation: int | None) -> np.ndarray:
    """What EXIF's orientation means: the axes that it swaps, and then reverses."""
    values = values.T if orientation in (5, 6, 7, 8) else values
    values = values[:, ::-1] if orientation in (2, 3, 6, 7) else values
    return values[::-1] if orientation in (3, 4, 7, 8) else values


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_images_labels_and_maps_follow_exif_as_does_the_size_from_the_header(tmp_path, suffix):
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    stored = np.asarray(Image.open(save(tmp_path / f"plain.{suffix}", values, lossless=True)).convert("L"))
    for orientation in (None, *range(1, 10), 99):
        tags = Image.Exif() if orientation is None else exif(orientation)
        path = save(tmp_path / f"a.{suffix}", values, exif=tags, lossless=True)
        expected = upright(stored, orientation)
        assert read_header(path).size == expected.shape, orientation
        readers = (lambda path: read_image(path)[..., 0], lambda path: read_label(path, 12), read_distance)
        for read in readers[:1] if suffix == "jpg" else readers:
            assert np.array_equal(read(path), expected), orientation

"""Images of any number of channels: what is read equals what was written, or one line says why not."""

import itertools
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image
from tiff_writer import DEFLATE, LZW, write_tiff

from data.images import image_size, read_image
from data.images import kind_of as kind_of_file
from data.images.rasters import open_raster
from support.errors import UserError
from support.image_stats import RGB, ImageType

CHANNELS = (1, 2, 3, 4, 5, 8, 13, 16)
DTYPES = ("uint8", "uint16", "int16", "float32")


def pixels(channels: int, dtype: str, height: int = 21, width: int = 18) -> np.ndarray:
    """Random values over the whole range of the type, (H, W, C)."""
    rng = np.random.default_rng(channels)
    if dtype == "float32":
        return rng.normal(0, 1e4, (height, width, channels)).astype(np.float32)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, (height, width, channels), dtype, endpoint=True)


def kind_of(values: np.ndarray) -> ImageType:
    return ImageType(values.shape[2], values.dtype.name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"planar": True}, {"tile": 16}, {"tile": 16, "planar": True}], ids=str)
def test_tiff_of_each_number_of_channels_and_type(tmp_path, dtype, options):
    for channels in CHANNELS:
        values = pixels(channels, dtype, width=35)  # 2 x 3 tiles
        path = write_tiff(tmp_path / "a.tif", values, **options)
        assert image_size(path, kind_of(values)) == (21, 35)
        assert open_raster(path).dtype == dtype
        np.testing.assert_array_equal(open_raster(path).rows(0, 21), values)
        np.testing.assert_array_equal(open_raster(path).rows(7, 18), values[7:18])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("dtype", "predictor", "compression"),
    [
        ("uint16", 1, 1),
        *itertools.product(["uint16"], [1, 2], [LZW, DEFLATE]),
        ("float32", 3, LZW),
        ("float32", 3, DEFLATE),
        ("uint8", 2, LZW),
    ],
)
def test_tiff_compressions_predictors_and_byte_orders(tmp_path, order, compression, dtype, predictor):
    values = pixels(5, dtype)
    options = {"order": order, "compression": compression, "predictor": predictor}
    path = write_tiff(tmp_path / "a.tif", values, tile=16, planar=True, big=True, **options)
    np.testing.assert_array_equal(open_raster(path).rows(3, 20), values[3:20])
    path = write_tiff(tmp_path / "b.tif", values, **options)
    np.testing.assert_array_equal(open_raster(path).rows(0, 21), values)


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd", "lzma"])
def test_tiff_that_libtiff_compressed(tmp_path, compression):
    values = np.repeat(pixels(4, "uint8"), 3, axis=1)
    Image.fromarray(values).save(tmp_path / "a.tif", compression=compression)
    np.testing.assert_array_equal(open_raster(tmp_path / "a.tif").rows(2, 21), values[2:])


@pytest.mark.parametrize(("compression", "predictor"), [(LZW, 1), (DEFLATE, 3)])
def test_a_tiff_that_needs_imagecodecs_says_how_to_get_it(tmp_path, monkeypatch, compression, predictor):
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    path = write_tiff(tmp_path / "a.tif", pixels(5, "float32"), compression=compression, predictor=predictor)
    with pytest.raises(UserError, match=r"a\.tif: .* needs the package imagecodecs: .*pip install -e '\S*\[tiff\]'$"):
        read_image(path, ImageType(5, "float32"))
    Image.fromarray(pixels(3, "uint8")).save(path, compression="tiff_lzw")  # which Pillow reads
    np.testing.assert_array_equal(open_raster(path).rows(0, 21), pixels(3, "uint8"))


def test_a_tiff_of_ycbcr_is_a_picture(tmp_path):
    picture = Image.fromarray(pixels(3, "uint8")).convert("YCbCr")
    picture.save(tmp_path / "a.tif")
    assert kind_of_file(tmp_path / "a.tif") == RGB
    np.testing.assert_array_equal(open_raster(tmp_path / "a.tif").rows(0, 21), np.array(picture.convert("RGB")))


def test_pages_of_one_channel_are_channels_and_overviews_are_not(tmp_path):
    values = pixels(5, "uint16")
    planes = np.split(values, 5, axis=2)
    path = write_tiff(tmp_path / "a.tif", *planes, pixels(1, "uint16", 10, 9))
    np.testing.assert_array_equal(read_image(path, ImageType(5, "uint16")), values)
    overview = write_tiff(tmp_path / "b.tif", planes[0], tags={254: 1})
    with pytest.raises(UserError, match=r"b\.tif: not a whole, readable image \(it has no image\)"):
        read_image(overview, ImageType(1, "uint16"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_npy_with_channels_last_first_or_none(tmp_path, dtype):
    for channels in CHANNELS:
        values = pixels(channels, dtype, width=30)
        for array in (values, values.transpose(2, 0, 1), np.asfortranarray(values)):
            np.save(tmp_path / "a.npy", array)
            np.testing.assert_array_equal(read_image(tmp_path / "a.npy", kind_of(values)), values)
            np.testing.assert_array_equal(open_raster(tmp_path / "a.npy").rows(4, 9), values[4:9])
    np.save(tmp_path / "b.npy", values[..., 0].astype(values.dtype.newbyteorder(">")))
    np.testing.assert_array_equal(read_image(tmp_path / "b.npy", ImageType(1, dtype)), values[..., :1])


def write_png(path, values: np.ndarray) -> None:
    """Write a PNG file by hand (ISO/IEC 15948), unfiltered."""
    height, width, channels = values.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = values.astype(values.dtype.newbyteorder(">")).reshape(height, -1).view(np.uint8)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    head = struct.pack(">IIBBBBB", width, height, 8 * values.itemsize, colour, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")):
        data += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    path.write_bytes(data)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png(tmp_path, channels, dtype):
    values = pixels(channels, dtype)
    write_png(tmp_path / "a.png", values)
    kind = kind_of(values)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", kind), values)
    assert image_size(tmp_path / "a.png", kind) == (21, 18)
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"a\.png: not a whole, readable image"):
        read_image(tmp_path / "a.png", kind)


@pytest.mark.parametrize(
    ("channels", "dtype", "kind", "message"),
    [
        (4, "uint16", RGB, "4 channels of uint16, but 8-bit RGB expected: all images must have the same channels"),
        (3, "uint16", RGB, "3 channels of uint16, but 8-bit RGB expected"),
        (5, "uint8", RGB, "5 channels of uint8, but 8-bit RGB expected"),
        (1, "float32", RGB, "1 channel of float32, but 8-bit RGB expected"),
        (4, "uint16", ImageType(3, "uint16"), "4 channels of uint16, but 3 channels of uint16 expected"),
        (1, "uint8", ImageType(1, "int16"), "1 channel of uint8, but 1 channel of int16 expected"),
    ],
)  # fmt: skip
def test_other_channels_or_types_are_named(tmp_path, channels, dtype, kind, message):
    path = write_tiff(tmp_path / "a.tif", pixels(channels, dtype))
    with pytest.raises(UserError, match=rf"a\.tif: {message}"):
        read_image(path, kind)


def test_deep_colour_png_is_refused_as_rgb_and_not_cut_to_8_bits(tmp_path):
    write_png(tmp_path / "a.png", pixels(3, "uint16"))
    with pytest.raises(UserError, match=r"a\.png: more than 8 bits a channel .*expected: measure them"):
        read_image(tmp_path / "a.png", remedy="measure them")


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.zeros((4, 4, 17), np.uint8), {}, "has 17 channels: 1 to 16 are supported"),
        (np.zeros((4, 4, 1), np.float64), {}, "values of float64: convert them to uint8, uint16, int16 or float32"),
        (np.zeros((4, 4, 2), np.int8), {}, "values of int8: convert"),
        (np.zeros((4, 4, 5), np.uint8), {"tags": {259: 7}}, "compression 7: save it as a plain TIFF file"),
        (np.zeros((4, 4, 5), np.uint8), {"tags": {262: 0}}, "0 is white: save it"),
        (np.zeros((4, 4, 5), np.uint8), {"tags": {274: 6}}, "orientation 6: save it"),
    ],
)
def test_tiff_that_is_not_read_is_named(tmp_path, values, options, message):
    path = write_tiff(tmp_path / "a.tif", values, **options)
    with pytest.raises(UserError, match=rf"a\.tif: {message}"):
        read_image(path, ImageType(5, "uint8"))


@pytest.mark.parametrize("compression", [1, LZW, DEFLATE])
def test_a_tiff_cut_anywhere_is_named(tmp_path, compression):
    values = pixels(5, "uint16")
    data = write_tiff(tmp_path / "a.tif", values, compression=compression).read_bytes()
    for length in range(0, len(data), 97):
        (tmp_path / "a.tif").write_bytes(data[:length])
        with pytest.raises(UserError, match=r"a\.tif: not a whole, readable image"):
            read_image(tmp_path / "a.tif", ImageType(5, "uint16"))


def test_a_damaged_npy_file_is_named(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, pixels(4, "uint16"))
    data = path.read_bytes()
    for length in (0, 5, 40, 127, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"a\.npy: not a whole, readable image"):
            read_image(path, ImageType(4, "uint16"))
    np.save(path, np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"a\.npy: not a whole, readable image"):
        read_image(path, ImageType(4, "uint16"))


def test_pictures_of_8_bits_are_read_with_the_channels_that_they_have_and_turned(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    for mode, channels in (("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4)):
        values = pixels(channels, "uint8")
        picture = Image.fromarray(values.squeeze())
        assert picture.mode == mode
        picture.save(tmp_path / "a.png", exif=exif)
        kind = kind_of(values)
        # Orientation 6: the first row is the visual right side, so the picture is turned clockwise.
        expected = np.rot90(values, k=-1)
        assert image_size(tmp_path / "a.png", kind) == (18, 21)
        if kind != RGB:
            np.testing.assert_array_equal(open_raster(tmp_path / "a.png").rows(0, 18), expected)
        np.testing.assert_array_equal(read_image(tmp_path / "a.png", kind), expected)

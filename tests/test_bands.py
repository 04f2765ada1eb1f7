"""Images of other bits and bands than 8-bit RGB give what the same images give once they are converted by hand."""

import json
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from conftest import finish, flags, one_line_each, read_metrics, refused, score, start_group, succeed, using
from faulty_data import exif
from PIL import Image

import export
import predict
import segtrain
import train
from data.images.deep import any_header, deep_header, read_values
from data.images.reader import ImageReader
from data.images.stretch import choose_reading
from inference.trained import TrainedModel
from tools.check.__main__ import check

tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed (pip install -e '.[tiff]')")

NOT_SET: dict[str, tuple] = {"bands": (), "stretch": (), "value_range": ()}
SIZE = (20, 33)


def draw(bands: int, dtype: str, seed: int = 0, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Values over the whole range of the dtype, (*size, bands); those of floats lie within -50 and 50."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind.kind == "f":
        return rng.normal(0, 10, (*size, bands)).astype(kind)
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, (*size, bands), kind, endpoint=True)


def by_hand(values: np.ndarray, bands: list[int], low_high: list[float]) -> np.ndarray:
    """The formula of docs/bits_and_bands.md, in float64, one pixel value at a time."""
    out = np.zeros((*values.shape[:2], 3), np.uint8)
    for channel in range(3):
        low, high = low_high[2 * channel : 2 * channel + 2]
        for row, column in np.ndindex(values.shape[:2]):
            value = float(values[row, column, bands[channel] - 1])
            if np.isfinite(value):
                out[row, column, channel] = min(max(round((value - low) / (high - low) * 255), 0), 255)
    return out


def rounded(low_high: list[float]) -> tuple[float, ...]:
    """Each pair with the decimals of a hundred-thousandth of their difference, such as 0.1 of 12,345 to 23,456."""
    pairs = zip(low_high[::2], low_high[1::2], strict=True)
    digits = [5 - len(str(int(high - low))) + 1 for low, high in pairs]
    return tuple(round(value, digits[number // 2]) for number, value in enumerate(low_high))


def write(path: Path, values: np.ndarray, **options) -> Path:
    """A TIFF file of values (H, W, bands), by default with the bands of a pixel together."""
    options = {"photometric": "minisblack", "planarconfig": "contig"} | options
    if values.shape[2] == 1:
        values, options = values[..., 0], options | {"planarconfig": None}
    elif options["planarconfig"] != "contig":
        values = values.transpose(2, 0, 1)
    tifffile.imwrite(path, values, **options)
    return path


@pytest.mark.parametrize(
    ("bands", "dtype", "options"),
    [
        (1, "uint16", {}),
        (3, "uint16", {"photometric": "rgb"}),
        (8, "uint16", {"compression": "zlib", "predictor": True}),
        (8, "uint16", {"compression": "lzw", "tile": (16, 16)}),
        (8, "int16", {"planarconfig": "separate"}),
        (4, "int16", {"byteorder": ">", "bigtiff": True}),
        (2, "float32", {}),
        (5, "float64", {"compression": "zstd"}),
        (3, "uint32", {"planarconfig": None}),  # a page for each band
        (3, "int8", {}),
        (6, "uint8", {}),
        (8, "float16", {"rowsperstrip": 3}),
    ],
)
def test_a_tiff_file_is_read_as_converted_by_hand(tmp_path, bands, dtype, options):
    if options.get("compression") in ("lzw", "zstd"):
        pytest.importorskip("imagecodecs", reason="imagecodecs is not installed (pip install -e '.[tiff]')")
    values = draw(bands, dtype)
    path = write(tmp_path / "a.tif", values, **options)
    numbers = [bands, 1, (bands + 1) // 2]
    low_high = np.percentile(values.astype(np.float64), [5, 90, 10, 80, 0, 100]).tolist()
    low_high[-1] = low_high[-1] * 1.5  # beyond all values
    if dtype == "uint8":  # these stay as they are
        low_high = [0.0, 255.0] * 3
    reader = ImageReader(tuple(numbers), tuple(low_high) if dtype != "uint8" else (7.0, 9.0))
    assert (reader.read(path) == by_hand(values, numbers, low_high)).all()
    header = reader.header(path)
    assert (header.size, header.bands, header.dtype) == (SIZE, bands, dtype)
    assert header == any_header(path) or dtype == "uint8"


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("turn", "place"), [(1, 0), (6, 33), (6, -12)])  # behind the header; behind the pixels
def test_png_files_of_16_bits(tmp_path, channels, turn, place):
    values = draw(channels, "uint16")
    order = [2, 1, 0, 3][:channels] if channels > 1 else [0]
    cv2.imwrite(str(tmp_path / "a.png"), values[..., order])
    if turn > 1:  # PNG's eXIf chunk, of a file that PIL wrote
        Image.new("L", (2, 2)).save(tmp_path / "b.png", exif=exif(turn))
        data, other = (tmp_path / "a.png").read_bytes(), (tmp_path / "b.png").read_bytes()
        at = other.index(b"eXIf") - 4
        chunk = other[at : at + 12 + int.from_bytes(other[at : at + 4], "big")]
        (tmp_path / "a.png").write_bytes(data[:place] + chunk + data[place:])
        values = np.rot90(values, -1)  # clockwise
    reader = ImageReader((), (100.0, 60000.0))
    expected = by_hand(values, [1, 2, 3] if channels > 1 else [1, 1, 1], [100.0, 60000.0] * 3)
    assert (reader.read(tmp_path / "a.png") == expected).all()
    header = reader.header(tmp_path / "a.png")
    assert (*header.size, header.bands, header.dtype) == (*values.shape, "uint16")


def test_a_tiff_file_is_turned_as_its_orientation_says(tmp_path):
    """The eight orientations of a picture of three values, as table 6 of Exif 2.32 draws them."""
    upright = np.array([[1, 2, 3], [4, 5, 6]], np.uint16)
    stored = {1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1]}
    stored |= {5: upright.T, 6: np.rot90(upright), 7: upright[::-1, ::-1].T, 8: np.rot90(upright, -1)}
    reader = ImageReader((1,), (0.0, 255.0))
    for turn, values in stored.items():
        path = tmp_path / f"{turn}.tif"
        tags = [(274, 3, 1, turn, True)]
        tifffile.imwrite(path, np.ascontiguousarray(values), photometric="minisblack", extratags=tags)
        assert (reader.read(path)[..., 0] == upright).all(), turn
        assert reader.header(path).size == (2, 3)


def test_bands_of_ordinary_files(tmp_path):
    values = draw(4, "uint8")
    Image.fromarray(values).save(tmp_path / "a.png")
    Image.fromarray(values[..., 0]).save(tmp_path / "grey.png")
    Image.fromarray(values[..., :3]).save(tmp_path / "a.jpg", quality=100, exif=exif(6))
    assert (ImageReader((3, 2, 1)).read(tmp_path / "a.png") == values[..., [2, 1, 0]]).all()
    assert (ImageReader((4,)).read(tmp_path / "a.png") == values[..., [3, 3, 3]]).all()
    assert (ImageReader((1,)).read(tmp_path / "grey.png") == values[..., [0, 0, 0]]).all()
    turned = ImageReader((3, 2, 1))
    assert (turned.read(tmp_path / "a.jpg") == ImageReader().read(tmp_path / "a.jpg")[..., ::-1]).all()
    assert turned.header(tmp_path / "a.jpg").size == (SIZE[1], SIZE[0])
    assert (ImageReader((), (50.0, 100.0)).read(tmp_path / "a.png") == values[..., :3]).all()
    assert choose_reading([tmp_path / "a.png"], [], NOT_SET) == ({}, [])
    with refused("--stretch has no effect: the training images have 8 bits"):
        choose_reading([tmp_path / "a.png"], [], NOT_SET | {"stretch": (2.0, 98.0)})
    [said] = choose_reading([tmp_path / "a.png"], [], NOT_SET | {"value_range": (2.0, 98.0)})[1]
    assert "--value_range has no effect" in said


MODES_OF = {  # that PIL writes
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("1", "L", "RGB", "CMYK", "YCbCr"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "GIF": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "WEBP": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"),
}


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in MODES_OF.items() for mode in modes])
def test_the_header_has_the_bands_that_are_read(tmp_path, kind, mode):
    """CMYK has four channels and is read as RGB, and so is an image of 1 bit."""
    image = Image.new(mode, (5, 4))
    if mode == "P":  # without colours, Pillow 12 writes a BMP file that it cannot read
        image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(tmp_path / "a.png", kind, exif=exif(6))
    (values, _), header = read_values(tmp_path / "a.png"), deep_header(tmp_path / "a.png")
    assert (*header.size, header.bands, header.dtype) == (*values.shape, values.dtype)


def test_nan_infinite_and_nodata_values_become_0_and_do_not_count(tmp_path, caplog):
    values = draw(1, "float32")
    values[0, :4, 0] = np.nan, np.inf, -np.inf, -9999
    tag = (42113, 2, 0, "-9999", True)  # GDAL_NODATA
    good = write(tmp_path / "good.tif", draw(1, "float32", 1))
    bad = write(tmp_path / "bad.tif", values, extratags=[tag])
    choices, warnings = choose_reading([good, bad], [], NOT_SET | {"stretch": (2.0, 98.0)})
    counted = np.concatenate([values.ravel()[4:], draw(1, "float32", 1).ravel()]).astype(np.float64)
    assert choices["value_range"][0] == rounded(np.percentile(counted, [2, 98]).tolist())
    assert warnings == [f"1 of 2 images have NaN, infinite or nodata values, which become 0 (black): {bad} ..."]
    pixels = ImageReader((), (-5.0, 5.0)).read(bad)
    assert not pixels[0, :4].any()
    assert (pixels[1:] == by_hand(values, [1, 1, 1], [-5.0, 5.0] * 3)[1:]).all()
    whole = draw(1, "uint16")
    whole[3, 5] = 7
    path = write(tmp_path / "nodata.tif", whole, extratags=[(42113, 2, 0, "7", True)])
    assert not ImageReader((), (-1000.0, 70000.0)).read(path)[3, 5].any()  # else 7 would become 255 * 1007 / 71000 = 4


def test_an_image_of_one_value_is_said_and_a_band_of_one_value_stops(tmp_path):
    flat, other = np.full((*SIZE, 3), 9, np.uint16), draw(3, "uint16")
    paths = [write(tmp_path / "flat.tif", flat), write(tmp_path / "other.tif", other)]
    assert choose_reading(paths, [], NOT_SET)[1] == [
        f"1 of 2 images have one value in all pixels of a band: {paths[0]} ..."
    ]
    other[..., 1] = 9
    write(paths[1], other)
    with refused("the band for green has only the value 9 in 2 image(s): choose other --bands, or set --value_range"):
        choose_reading(paths, [], NOT_SET)
    assert choose_reading(paths, [], NOT_SET | {"value_range": (0.0, 9.0)})[0] == {}
    path = write(tmp_path / "nan.tif", np.full((*SIZE, 1), np.nan, np.float32))
    with refused("the band for red has only NaN, infinite or nodata values in 1 image(s): choose"):
        choose_reading([path], [], NOT_SET)


@pytest.mark.parametrize(("bands", "chosen"), [(1, None), (2, (1, 2, 2)), (3, None), (4, (1, 2, 3)), (8, (1, 2, 3))])
def test_the_bands_that_are_chosen(tmp_path, bands, chosen):
    path = write(tmp_path / "a.tif", draw(bands, "uint16"))
    choices, _ = choose_reading([path], [], NOT_SET)
    assert choices.get("bands", (None, ""))[0] == chosen
    assert choices["stretch"][0] == (2, 98)
    assert "bands" not in choose_reading([path], [], NOT_SET | {"bands": (1,)})[0]


@pytest.mark.parametrize("bands", [1, 3, 4])
def test_8_bit_files_that_are_not_marked_as_rgb_get_bands(tmp_path, bands):
    """TIFF files of three grey channels, and what PIL cannot open, such as BigTIFF with the high byte first."""
    values, options = draw(bands, "uint8"), {"bigtiff": True, "byteorder": ">"} if bands == 1 else {}
    path = write(tmp_path / "a.tif", values, photometric="minisblack", **options)
    with refused("a.tif: "):
        ImageReader().read(path)
    choices, warnings = choose_reading([path], [], NOT_SET)
    numbers = [1, 2, 3] if bands > 1 else [1]
    assert choices == {"bands": (tuple(numbers), f"of {bands} in a file; name others with --bands")}
    assert warnings == []
    assert (ImageReader(tuple(numbers)).read(path) == values[..., [number - 1 for number in numbers]]).all()


def test_files_that_cannot_be_used_are_named(tmp_path):
    deep = write(tmp_path / "deep.tif", draw(2, "uint16"))
    waves = write(tmp_path / "waves.tif", draw(2, "float32").astype(np.complex64))
    missing = "deep.tif: has 2 band(s), but band 3 is read: use images as in training, or name other --bands"
    no_range = "deep.tif: has uint16 values: name those that become 0 and 255 with --value_range"
    for bands, value_range, path, said in (
        ((1, 2, 3), (0.0, 9.0), deep, missing),
        ((1,), (), deep, no_range),
        ((), (), deep, "deep.tif: 2 channel(s) of 16 bits: images must be 8-bit RGB"),
        ((1,), (0.0, 9.0), waves, "waves.tif: has complex64 values: save real numbers"),
    ):
        reader = ImageReader(bands, value_range)
        for read in (reader.read, reader.header):
            with refused(said):
                read(path)


def test_8_bit_images_among_others_are_read_as_they_are_and_said(tmp_path):
    plain = draw(3, "uint8")
    path = tmp_path / "plain.png"
    Image.fromarray(plain).save(path)
    deep = [write(tmp_path / f"{seed}.tif", draw(3, "uint16", seed)) for seed in range(3)]
    alone, warnings = choose_reading(deep[:2], deep[2:], NOT_SET)
    assert warnings == []
    for some, others in (([path, *deep[:2]], deep[2:]), (deep[:2], [deep[2], path])):
        choices, [said] = choose_reading(some, others, NOT_SET)
        assert choices == alone
        assert f"1 of 4 images have uint8 values in 3 band(s), 3 have uint16 values in 3 band(s): {path} " in said
    assert (ImageReader((), choices["value_range"][0]).read(path) == plain).all()


def test_other_values_and_numbers_of_bands_are_said(tmp_path):
    paths = [write(tmp_path / f"{seed}.tif", draw(3, "uint16", seed)) for seed in range(3)]
    paths += [write(tmp_path / "float.tif", draw(3, "float32")), write(tmp_path / "many.tif", draw(8, "uint16"))]
    said = "\n".join(choose_reading(paths, [], NOT_SET)[1])
    assert f"1 of 5 images have float32 values in 3 band(s), 3 have uint16 values in 3 band(s): {paths[3]} " in said
    assert f"1 of 5 images have uint16 values in 8 band(s), 3 have uint16 values in 3 band(s): {paths[4]} " in said
    # a range that is set is not measured, but the files are looked at
    bad = draw(3, "float32")
    bad[0, 0] = np.nan
    choices, [said] = choose_reading([write(paths[0], bad)], [], NOT_SET | {"value_range": (0.0, 9.0)})
    assert (choices, "1 of 1 images have NaN" in said) == ({}, True)


def test_the_least_and_largest_value_are_used_if_both_percentiles_are_equal(tmp_path):
    values = np.full((*SIZE, 3), 500, np.uint16)
    values[0, 0] = 300, 400, 7
    values[0, 1] = 600, 700, 900
    choices, warnings = choose_reading([write(tmp_path / "a.tif", values)], [], NOT_SET)
    assert choices["value_range"][0] == (300, 600, 400, 700, 7, 900)
    said = "both percentiles of the band for red are 500: its least and largest value are used, 300 and 600"
    assert said in warnings[0]


@pytest.mark.parametrize("kind", ["one write for each", "small first", "another kind", "palette"])
def test_pages_that_are_written_one_by_one(tmp_path, kind):
    values, path = draw(3, "uint16"), tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as file:
        if kind == "small first":
            file.write(values[:5, :5, 0])
        for band in range(3):
            file.write(values[..., band] if kind != "another kind" or band != 1 else values[..., 1].astype(np.float32))
    if kind == "palette":
        colours = np.zeros((3, 256), np.uint16)
        tifffile.imwrite(path, values[..., 0].astype(np.uint8), photometric="palette", colormap=colours)
    reader = ImageReader((3, 1, 2), (0.0, 65535.0))
    if kind in ("another kind", "palette"):
        for read in (reader.read, reader.header):
            with refused("a.tif: its pages have uint"):
                read(path)
        return
    assert (reader.read(path) == by_hand(values, [3, 1, 2], [0.0, 65535.0] * 3)).all()
    assert (reader.header(path).size, reader.header(path).bands) == (SIZE, 3)


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("png", {}),
        ("tif", {}),
        ("tif", {"compression": "zlib"}),
        ("tif", {"tile": (16, 16)}),
        ("tif", {"planarconfig": None}),
    ],
)
def test_a_truncated_file_is_refused_at_any_length(tmp_path, suffix, options):
    path, values = tmp_path / f"cut.{suffix}", draw(3, "uint16")
    cv2.imwrite(str(path), values) if suffix == "png" else write(path, values, **options)
    whole = path.read_bytes()
    lengths = range(8, len(whole), 97)
    assert len(lengths) > 20
    for length in lengths:
        path.write_bytes(whole[:length])
        with refused(f"{path.name}: "):
            ImageReader((1,), (0.0, 9.0)).read(path)


def test_without_the_package_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tif", draw(3, "uint16"))
    monkeypatch.setitem(sys.modules, "tifffile", None)
    for read in (ImageReader((1,), (0.0, 9.0)).read, any_header):
        with refused("[tiff]"):
            read(path)


BANDS = [5, 1, 3]
SELECTED = ["--bands", *map(str, BANDS)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    """The same data set twice: files of 5 bands of 16 bits, and PNG files that were converted by hand.

    Bands 5, 1 and 3, from 2 % to 98 % of the training images' values, of all their pixels: they are few.
    """
    roots = {name: tmp_path_factory.mktemp(name) for name in ("deep", "hand")}
    values = {f"{name}": draw(5, "uint16", number, (40, 48)) // (1 + number) for number, name in enumerate("abcdef")}
    train = np.concatenate([values[name].reshape(-1, 5) for name in "abcd"]).astype(np.float64)
    low_high = np.percentile(train[:, [number - 1 for number in BANDS]], [2, 98], axis=0).T.ravel().tolist()
    low_high = list(rounded(low_high))
    for name, value in values.items():
        folder = "train" if name in "abcd" else "val"
        mask = (value[..., 4] > np.median(value[..., 4])).astype(np.uint8)
        for root in roots.values():
            for kind in ("images", "masks"):
                (root / kind / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(root / "masks" / folder / f"{name}.png")
        write(roots["deep"] / "images" / folder / f"{name}.tif", value)
        Image.fromarray(by_hand(value, BANDS, low_high)).save(roots["hand"] / "images" / folder / f"{name}.png")
    (roots["deep"] / "low_high.json").write_text(json.dumps(low_high))
    return roots


OWN = {"dataset": "Folder", "model_type": "res50_ASPP", "numclasses": 2, "max_steps": 3, "epochs": None}


def test_a_run_is_equal_to_one_on_images_converted_by_hand(data, tmp_path, caplog):
    """From training to validation, resuming, evaluation, prediction, ONNX and segtrain.load."""
    import onnx

    for name, root in data.items():
        more = SELECTED if name == "deep" else []
        train.main([*flags(dataset_path=root, logdir=tmp_path, name=name, **OWN), *more])
    deep, hand = (tmp_path / name for name in ("deep", "hand"))
    contents = [torch.load(folder / "last.pt", weights_only=True) for folder in (deep, hand)]
    assert all(torch.equal(value, contents[1]["model"][name]) for name, value in contents[0]["model"].items())
    assert contents[0]["config"]["value_range"] == tuple(json.loads((data["deep"] / "low_high.json").read_text()))
    assert read_metrics(deep, "val")[-1]["miou"] == read_metrics(hand, "val")[-1]["miou"]
    scores = [score(folder / "last.pt", tmp_path) for folder in (deep, hand)]
    assert scores[0]["confusion"] == scores[1]["confusion"]
    for name, root in data.items():
        out, checkpoint = tmp_path / f"out_{name}", tmp_path / name / "last.pt"
        assert predict.main(using(checkpoint, "--input", root / "images/val", "--output", out, "--overlay")) == 0
        if name == "deep":
            export.main(["--checkpoint", str(checkpoint), "--output", str(tmp_path / "deep.onnx")])
        else:  # the same weights, so only what reads the files differs
            proto = onnx.load(tmp_path / "deep.onnx")
            content = {item.key: item.value for item in proto.metadata_props}
            content["reading"] = json.dumps(TrainedModel(checkpoint).cfg.reading)
            onnx.helper.set_model_props(proto, content)
            onnx.save(proto, tmp_path / "hand.onnx")
        own = ["--model", tmp_path / f"{name}.onnx", "--input", root / "images/val", "--output", f"{out}_onnx"]
        assert predict.main([*map(str, own), "--device", "cpu", "--workers", "0"]) == 0
    for file in ("/masks/e.png", "/masks/f.png", "/overlays/e.jpg", "_onnx/masks/e.png", "_onnx/masks/f.png"):
        assert (tmp_path / f"out_deep{file}").read_bytes() == (tmp_path / f"out_hand{file}").read_bytes()
    path = data["deep"] / "images/val/e.tif"
    model, mask = segtrain.load(deep / "last.pt", device="cpu"), np.array(Image.open(tmp_path / "out_deep/masks/e.png"))
    for image in (path, tifffile.imread(path)):
        result = model.predict(image)
        assert (result.mask == mask).all()
        assert (result.plot(legend=False) == model.predict(path).plot(legend=False)).all()
    # Other bands at prediction need a range of their own, and change the result.
    own = using(deep / "last.pt", "--input", path, "--output", tmp_path / "other", "--bands", "1")
    with refused("--bands 1: "):
        predict.main(own)
    assert predict.main([*own, "--value_range", "0", "9000", "--probs"]) == 0
    probs = model.predict(path, probs=True).probs
    assert not np.allclose(np.load(tmp_path / "other/probs/e.npy"), probs, atol=1e-3)  # the file has float16


def pairs(low_high: tuple[float, ...]) -> list[tuple[float, ...]]:
    return [low_high[at : at + 2] for at in (0, 2, 4)]


def test_processes_and_a_resumed_run_read_the_same_values(data, tmp_path):
    more = OWN | {"dataset_path": data["deep"], "logdir": tmp_path, "name": "two"}
    low_high = tuple(json.loads((data["deep"] / "low_high.json").read_text()))

    def config() -> dict:
        return torch.load(tmp_path / "two/last.pt", weights_only=True)["config"]

    def resume(max_steps: int, *words: str) -> dict:
        train.main([*flags(**more | {"max_steps": max_steps, "resume": "auto"}), *words])
        return config()

    succeed(start_group(2, [*flags(**more, batchsize=1), *SELECTED], tmp_path))
    assert config()["value_range"] == low_high
    same = resume(4)  # --bands is not given again
    assert (same["value_range"], same["bands"]) == (low_high, tuple(BANDS))
    narrow = resume(5, "--stretch", "10", "90")
    assert (narrow["bands"], narrow["stretch"]) == (tuple(BANDS), (10, 90))
    first, second, third = pairs(narrow["value_range"])
    assert all(new[0] > old[0] for new, old in zip((first, second, third), pairs(low_high), strict=True))
    # BANDS are 5, 1, 3
    assert pairs(resume(6, "--bands", "3", "5", "1")["value_range"]) == [third, first, second]


def test_an_image_that_lacks_a_band_stops_all_processes(data, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(data["deep"], root)
    write(root / "images/val/e.tif", draw(2, "uint16", size=(40, 48)))
    words = [*flags(dataset_path=root, logdir=tmp_path, batchsize=1, **OWN), *SELECTED]
    results = finish(start_group(2, words, tmp_path))
    one_line_each(results, "e.tif: has 2 band(s), but band 5 is read: use images as in training")


def test_the_check_reads_as_training_does_and_finds_bad_values(data, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(data["deep"], root)
    counts, findings = check(root, bands=tuple(BANDS))
    assert not findings.sorted()
    low_high = " ".join(map(str, json.loads((root / "low_high.json").read_text())))
    assert f"--value_range {low_high} " in " ".join(counts.notes)
    values = tifffile.imread(root / "images/train/b.tif")
    write(root / "images/train/b.tif", values, extratags=[(42113, 2, 0, str(values[0, 0, 4]), True)])
    write(root / "images/train/c.tif", np.full_like(values, 500))
    (root / "images/train/d.tif").write_bytes((root / "images/train/d.tif").read_bytes()[:900])
    Image.new("RGB", (48, 40), (9, 8, 7)).save(root / "images/val/e.tif")
    for wrong in ({"bands": (1, 2)}, {"stretch": (50.0, 50.0)}, {"value_range": (5.0, 1.0)}, {"value_range": (5.0,)}):
        with refused(f"--{next(iter(wrong))} "):
            check(root, **wrong)
    _, findings = check(root, bands=tuple(BANDS))
    assert {item.code: item.files for item in findings.sorted()} == {
        "image-unreadable": ["images/train/d.tif", "images/val/e.tif"],
        "image-missing-values": ["images/train/b.tif"],
        "image-of-one-value": ["images/train/c.tif"],
    }

"""segtrain.load(): predictions in three lines of Python, and one line if something is wrong."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO, random_checkpoint, refused
from faulty_data import exif
from PIL import Image

import predict
from data.images.reader import ImageReader
from data.overlays import overlay
from inference.api import pixels_of
from segtrain import UserError, load


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "classes.txt").write_text("ground #010203\nsky\ntree\nroad\ncar")
    return random_checkpoint(folder / "best.pt", num_classes=5, classes=folder / "classes.txt", long_side=70)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.array(Image.fromarray(noise).resize((80, 60), Image.Resampling.BICUBIC))


def test_three_lines_predict_what_predict_py_writes(checkpoint, image, tmp_path):
    Image.fromarray(image).save(tmp_path / "a.png")
    model = load(checkpoint)
    result = model.predict(tmp_path / "a.png")
    assert (result.mask.shape, result.mask.dtype) == ((60, 80), np.uint8)
    assert len(np.unique(result.mask)) > 1
    words = ["--checkpoint", str(checkpoint), "--input", str(tmp_path / "a.png"), "--output", str(tmp_path / "out")]
    assert predict.main([*words, "--workers", "0"]) == 0
    result.save(tmp_path / "mask.png")
    assert (tmp_path / "mask.png").read_bytes() == (tmp_path / "out/masks/a.png").read_bytes()
    # Class 0 is the background, which stays clear.
    assert np.array_equal(result.plot(legend=False), overlay(image, result.mask, result.colours, 0))
    assert np.array_equal(result.plot()[: len(image)], result.plot(legend=False))  # the legend is below it
    for made in (model, result):
        assert (made.classes, made.colours[0].tolist()) == (["ground", "sky", "tree", "road", "car"], [1, 2, 3])
    assert np.array_equal(pickle.loads(pickle.dumps(result)).plot(), result.plot())
    with pytest.raises(UserError, match=r"mask\.jpg: a mask is saved as PNG"):
        result.save(tmp_path / "mask.jpg")
    assert result.probs is None


def test_import_segtrain_is_quick_and_silent():
    code = "import segtrain, sys; assert not {'torch', 'numpy'} & set(sys.modules); assert 'load' in dir(segtrain)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_image_may_be_a_path_an_array_or_a_pil_image(checkpoint, image, tmp_path):
    Image.fromarray(image).save(tmp_path / "a.png")
    model = load(str(checkpoint), device="cpu")
    expected = model.predict(image).mask
    for given in (str(tmp_path / "a.png"), Image.fromarray(image), Image.open(tmp_path / "a.png")):
        assert np.array_equal(model.predict(given).mask, expected)
    several = model.predict([image, image, image[:40], tmp_path / "a.png", image[:, ::-1]])
    assert [result.mask.shape for result in several] == [(60, 80), (60, 80), (40, 80), (60, 80), (60, 80)]
    assert all((several[number].mask == expected).mean() > 0.999 for number in (0, 1, 3))
    assert model.predict([]) == []
    Image.fromarray(image).save(tmp_path / "turned.jpg", exif=exif(6))
    shown = [model.predict(given) for given in (tmp_path / "turned.jpg", Image.open(tmp_path / "turned.jpg"))]
    assert [result.plot(legend=False).shape for result in shown] == [(80, 60, 3)] * 2
    assert np.array_equal(shown[0].mask, shown[1].mask)


@pytest.mark.parametrize("reader", [ImageReader(), ImageReader(bands=(1,)), ImageReader(value_range=(0, 900))])
def test_a_pil_image_is_read_as_its_file(reader, image, tmp_path):
    for mode in ("RGB", "L", "P", "1", "RGBA", "LA", "I;16"):
        is_deep = mode == "I;16"
        if is_deep and not reader.value_range:
            continue
        picture = (
            Image.fromarray(image[..., 0].astype(np.uint16) * 4) if is_deep else Image.fromarray(image).convert(mode)
        )
        for turn in (1, 6):
            picture.save(file := tmp_path / "a.png", exif=exif(turn))
            assert np.array_equal(pixels_of(Image.open(file), reader), pixels_of(file, reader)), (mode, turn)


def test_probabilities_are_those_of_the_mask(checkpoint, image):
    model = load(checkpoint)
    result = model.predict(image, probs=True)
    assert (result.probs.shape, result.probs.dtype) == ((5, 60, 80), np.float32)
    assert np.abs(result.probs.sum(0) - 1).max() < 1e-5
    assert np.array_equal(result.probs.argmax(0), result.mask)


def test_settings_reach_the_predictor(checkpoint):
    settings = {"scales": (0.5, 1), "flip": True, "long_side": 64, "window": 33, "stride_rate": 0.5}
    model = load(checkpoint, **settings, amp="bf16", weights="raw")
    assert {name: getattr(model.predictor, name) for name in settings} == settings
    assert model.predictor.amp == "bf16"
    assert load(checkpoint, long_side=0).predictor.long_side == 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"scales": (0.5, 0)}, "scales 0.0: must be above 0"),
        ({"long_side": 1.5}, "long_side: 1.5 is not an int"),
        ({"device": "gpu"}, "--device gpu: "),
        ({"device": None}, "--device None: "),
        ({"scales": None}, "scales: None is not a float"),
        ({"classes": "nowhere.txt"}, "--classes nowhere.txt: "),
    ],
)
def test_wrong_settings_are_named(checkpoint, settings, named):
    with refused(named):
        load(checkpoint, **settings)


def test_wrong_files_and_images_are_named(checkpoint, image, tmp_path):
    for path, named in ((None, "path: None is not a str"), ("a\0b", "has a null character"), ("x" * 300, "too long")):
        with pytest.raises(UserError, match=named):
            load(path)
    with pytest.raises(UserError, match=r"nowhere\.pt: cannot be read"):
        load(tmp_path / "nowhere.pt")
    model = load(checkpoint, scales=1.0)
    closed = Image.open(Image.fromarray(image).save(tmp_path / "a.png") or tmp_path / "a.png")
    closed.close()
    for wrong, named in (
        (tmp_path / "nowhere.png", r"nowhere\.png: no such file"),
        (image.astype(np.float32), r"an array of float32 \(60, 80, 3\): give \(height, width, 3\) uint8, RGB"),
        (image[..., 0], r"an array of uint8 \(60, 80\): give"),
        (image[:0], r"\(0, 80, 3\)"),
        (Image.fromarray(image[..., 0].astype(np.uint16)), "a PIL image of mode I;16: more than 8 bits"),
        (Image.new("La", (9, 9)), "a PIL image of mode La: cannot be read as RGB"),
        (closed, "a PIL image of mode RGB: cannot be read as RGB"),
        (None, "a NoneType is no image"),
    ):
        with pytest.raises(UserError, match=named):
            model.predict(wrong)
    result = model.predict(tmp_path / "a.png")
    for target in (None, "a\0.png"):
        with pytest.raises(UserError, match="name the path of a"):
            result.save(target)
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="has changed since it was predicted: it is now 20x10"):
        result.plot()

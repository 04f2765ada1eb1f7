"""predict.py --window on huge images: read by rows, written by bands, as if the whole image were there."""

import numpy as np
import pytest
import tifffile
import torch
from conftest import random_checkpoint
from PIL import Image
from tiff_writer import DEFLATE, write_tiff

import predict
import prediction.large
from data.images.rasters import NpyRaster, TiffRaster, open_raster
from evaluation import streaming
from evaluation.predictor import Predictor
from evaluation.streaming import can_stream, stream
from prediction.large import OVERLAY_SIDE, Miniature, open_large
from support.image_stats import RGB, ImageType
from trained import TrainedModel

CPU = torch.device("cpu")


def picture(height: int, width: int) -> np.ndarray:
    """Smooth colours, (H, W, 3) uint8."""
    noise = torch.rand(1, 3, 9, 9, generator=torch.Generator().manual_seed(width)) * 255
    smooth = torch.nn.functional.interpolate(noise, size=(height, width), mode="bilinear")
    return smooth[0].permute(1, 2, 0).to(torch.uint8).contiguous().numpy()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return random_checkpoint(tmp_path_factory.mktemp("large") / "last.pt", 5)


# Heights and widths around a window of 33 with steps of 22: one window, two, many, and narrower than a window.
@pytest.mark.parametrize("size", [(33, 33), (34, 100), (120, 75), (97, 20), (20, 50)])
@pytest.mark.parametrize("flip", [False, True])
def test_bands_equal_the_prediction_of_the_whole_image(checkpoint, monkeypatch, size, flip):
    monkeypatch.setattr(streaming, "CPU_BAND_BYTES", 4 * 5 * 7 * size[1])  # bands of at most seven rows
    predictor = TrainedModel(checkpoint, {"window": 33}).predictor(flip=flip)
    image = picture(*size)
    reads = []

    def read(top: int, bottom: int) -> np.ndarray:
        reads.append((top, bottom))
        return image[top:bottom]

    bands = list(stream(predictor, read, size, CPU))
    assert [row for band in bands for row in range(band.rows.start, band.rows.stop)] == list(range(size[0]))
    np.testing.assert_array_equal(np.concatenate([band.image for band in bands]), image)
    expected = torch.cat([probs for _, probs in predictor.probs(torch.from_numpy(image)[None])], dim=2)[0]
    torch.testing.assert_close(torch.cat([band.probs for band in bands], dim=1), expected, rtol=0, atol=1e-6)
    # Each row is read once and in order, and never more than a window's.
    assert [row for top, bottom in reads for row in range(top, bottom)] == list(range(size[0]))
    assert max(bottom - top for top, bottom in reads) <= 33


def test_other_scales_need_the_whole_image(checkpoint):
    model = TrainedModel(checkpoint).model()
    assert can_stream(Predictor(model, window=33))
    assert not can_stream(Predictor(model))
    assert not can_stream(Predictor(model, window=33, scales=(0.5, 1.0)))
    assert not can_stream(Predictor(model, window=33, long_side=100))


@pytest.mark.parametrize("kind", ["strips", "tiles", "npy"])
def test_predict_writes_the_same_masks_and_probabilities_by_bands(checkpoint, tmp_path, monkeypatch, kind):
    folder = tmp_path / "images"
    folder.mkdir()
    image = picture(101, 66)
    if kind == "npy":
        np.save(folder / "a.npy", image)
    else:
        write_tiff(folder / "a.tif", image, tile=32 * (kind == "tiles"), compression=DEFLATE)
    words = ["--checkpoint", str(checkpoint), "--input", str(next(folder.iterdir())), "--window", "33", "--overlay",
             "--probs", "--device", "cpu", "--workers", "0"]  # fmt: skip
    predict.main([*words, "--output", str(tmp_path / "whole")])
    monkeypatch.setattr(prediction.large, "LARGE_PIXELS", 1)
    # Pillow refuses more than twice this many pixels.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    reads = []
    for raster in (TiffRaster, NpyRaster):
        original = raster.rows
        monkeypatch.setattr(raster, "rows", lambda self, top, bottom, original=original: (
            reads.append((top, bottom)), original(self, top, bottom))[1])  # fmt: skip
    predict.main([*words, "--output", str(tmp_path / "bands")])
    assert max(bottom - top for top, bottom in reads) == 33
    monkeypatch.undo()
    whole, bands = (Image.open(tmp_path / name / "masks/a.png") for name in ("whole", "bands"))
    assert whole.getpalette() == bands.getpalette()
    np.testing.assert_array_equal(np.array(whole), np.array(bands))
    assert len(np.unique(np.array(whole))) > 1
    expected, probs = (np.load(tmp_path / name / "probs/a.npy") for name in ("whole", "bands"))
    np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-3)  # float16
    assert Image.open(tmp_path / "bands/overlays/a.jpg").size > (65, 101)  # with a legend
    assert (tmp_path / "bands/done.0.txt").read_text() == (tmp_path / "whole/done.0.txt").read_text()


def test_a_huge_image_that_is_cut_is_named_and_leaves_no_mask(checkpoint, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(prediction.large, "LARGE_PIXELS", 1)
    path = write_tiff(tmp_path / "a.tif", picture(101, 66))
    with tifffile.TiffFile(path, mode="r+b") as file:  # a strip that begins beyond the file
        starts = file.pages[0].tags[273]
        starts.overwrite([*starts.value[:10], 10**6, *starts.value[11:]])
    status = predict.main(["--checkpoint", str(checkpoint), "--input", str(path), "--window", "33", "--device", "cpu",
                           "--workers", "0", "--output", str(tmp_path / "out")])  # fmt: skip
    assert status == 1
    assert "a.tif: not a whole, readable image (the file is truncated)" in capfd.readouterr().out
    assert list((tmp_path / "out/masks").iterdir()) == []


def test_which_files_are_read_by_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction.large, "LARGE_PIXELS", 50 * 40)
    values = np.zeros((50, 40, 4), np.uint16)
    four = ImageType(4, "uint16")
    assert open_large(write_tiff(tmp_path / "a.tif", values), four)
    assert not open_large(write_tiff(tmp_path / "b.tif", values[1:]), four)  # not huge
    assert not open_large(tmp_path / "a.tif", RGB)  # of another kind: the usual way names it
    assert not open_large(tmp_path / "a.tif", ImageType(4, "int16"))
    rgba = np.zeros((50, 40, 4), np.uint8)
    assert open_large(write_tiff(tmp_path / "c.tif", rgba), RGB)  # without alpha, as always
    Image.fromarray(rgba).save(tmp_path / "d.png")
    assert not open_large(tmp_path / "d.png", ImageType(4, "uint8"))
    # Rows that are decoded together: of 50 rows in a compressed strip all, of an uncompressed one each by itself.
    monkeypatch.setattr(prediction.large, "MOST_BYTES", 10 * 40 * 4 * 2)
    assert not open_large(write_tiff(tmp_path / "e.tif", values, rows=50, compression=DEFLATE), four)
    assert open_large(write_tiff(tmp_path / "f.tif", values, rows=10, compression=DEFLATE), four)
    assert open_large(write_tiff(tmp_path / "g.tif", values, rows=50), four)
    assert open_raster(tmp_path / "g.tif").unit == 1


def test_the_overlay_of_a_huge_image_shows_every_nth_row_and_column():
    size = 2 * OVERLAY_SIDE + 1, 30  # every third
    small = Miniature(size)
    image = np.broadcast_to(np.arange(size[0]).reshape(-1, 1, 1) % 251, (*size, 3)).astype(np.uint8)
    for top in range(0, size[0], 100):
        small.add(top, image[top : top + 100], image[top : top + 100, :, 0])
    shown, label = small.maps
    np.testing.assert_array_equal(shown, image[::3, ::3])
    np.testing.assert_array_equal(label, image[::3, ::3, 0])

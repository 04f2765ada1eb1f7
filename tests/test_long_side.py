"""--long_side: training, validation and prediction see an image at one size, and labels keep their own."""

import numpy as np
import pytest
import torch
from conftest import ALONE, flags, read_metrics, using
from faulty_data import exif, put
from PIL import Image

import evaluate
import utils
from data.dataset import TrainSet
from data.distance import pseudo_distance, scribble_distance
from data.images import read_header, read_image
from data.images.resize import scaled_size, shrink, suggest_long_side
from data.layout import find_split
from data.transforms import CentreCrop, TrainTransform
from flags import parse_flags
from inference.predictor import Predictor
from support.errors import UserError


def stripes(height: int, width: int) -> np.ndarray:
    """One black, one white column: they alias as badly as anything can."""
    columns = np.where(np.arange(width) % 2, 255, 0).astype(np.uint8)
    return np.broadcast_to(columns[None, :, None], (height, width, 3)).copy()


@pytest.mark.parametrize("width", [300, 270, 222])
def test_shrunk_images_do_not_alias_and_labels_keep_their_classes(width):
    label = np.zeros((100, width), np.uint8)
    label[:, width // 2 :] = 7
    maps = {"image": stripes(100, width), "label": label}
    shrunk = shrink(maps, 100)
    assert shrunk["image"].shape == (*scaled_size((100, width), 100), 3)
    # 2.2 to 3 columns make one: their mean is near 127; without averaging they would be 0 and 255 by turns.
    assert abs(shrunk["image"].astype(float).mean() - 127.5) < 2
    assert np.ptp(shrunk["image"][:, 2:-2]) < 128
    assert shrunk["label"].shape == shrunk["image"].shape[:2]
    assert (shrunk["label"][:, :50] == 0).all()
    assert (shrunk["label"][:, 50:] == 7).all()
    assert all(np.array_equal(values, maps[name]) for name, values in shrink(maps, width).items())
    assert all(np.array_equal(values, maps[name]) for name, values in shrink(maps, 0).items())
    assert (maps["image"] == stripes(100, width)).all()


@pytest.mark.parametrize("long_side", [60, 240])  # shrunk before the warp; enlarged by it
def test_training_at_scale_1_sees_what_prediction_sees(long_side):
    """The warp without scale, rotation, mirror image, shift and blur, against the tensor that a model gets."""

    seen = []

    class Seen(torch.nn.Module):
        def forward(self, images):
            seen.append(images[0].float().numpy())
            return {"logits": torch.zeros(len(images), 2, 4, 4)}

    class Middle:
        def uniform(self, low, high):
            return 1.0 if high > 1 else 0.0

        def random(self):
            return 0.5  # no rotation at 0.5, no mirror image, the middle, no blur

    rng = np.random.default_rng(0)
    image = np.array(Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((120, 80)))
    maps = shrink({"image": image, "label": image[..., 0] // 64}, long_side)
    expected_size = scaled_size((80, 120), long_side)
    size = expected_size[1]
    warped = TrainTransform(size, scale=(0.5, 2.0), rotation=10.0, long_side=long_side)(maps, Middle())
    centred = CentreCrop(size, long_side=long_side)(maps, rng)
    Predictor(Seen(), long_side=long_side).labels(torch.from_numpy(image)[None])
    assert seen[0].shape[:2] == expected_size
    rows = slice((size - expected_size[0]) // 2, (size - expected_size[0]) // 2 + expected_size[0])
    inside = (slice(2, -2), slice(2, -2))  # at the border a warp mixes in the padding
    for crop in (warped, centred):
        difference = np.abs(crop["image"][rows][inside] - seen[0][inside])
        assert difference.mean() < 0.5
        assert difference.max() <= 6  # cv2 interpolates at 1/32 of a pixel; neighbours differ by up to 30
        assert (crop["label"][: rows.start] == 255).all()
    assert np.array_equal(warped["label"], centred["label"])


@pytest.mark.parametrize("long_side", [80, 240])  # the demo's images have 160x120 pixels
def test_loader_computes_distances_of_what_it_trains_on(demo_root, long_side):
    dataset = utils.get_loader(parse_flags(flags(dataset_path=demo_root, long_side=long_side)), "train", ALONE).dataset
    maps, own = dataset.training_maps(1), dataset.read(1)
    shape = (60, 80) if long_side == 80 else (120, 160)
    assert {name: values.shape[:2] for name, values in maps.items()} == dict.fromkeys(maps, shape)
    scale = 1.0 if long_side == 80 else 240 / 160
    shrunk = shrink(own, long_side)
    assert np.array_equal(maps["distance_s"], scribble_distance(shrunk["label"], scale=scale))
    assert np.array_equal(maps["distance_c"], pseudo_distance(shrunk["pseudo"], scale=scale))
    # 10 pixels from a stroke: 255 - trunc(sqrt(e) * 10 * scale) = 255 - 8 at scale 1/2
    label = np.where(np.arange(40) == 30, 1, 255).astype(np.uint8)[None]
    assert scribble_distance(label, scale=0.5)[0, 20] == 247


def test_checkpoint_is_scored_at_its_training_size_unless_told_otherwise(demo_run, capsys):
    """evaluate.py prints the numbers that the run logged, in pixels of the images themselves."""
    folder = demo_run(long_side=100, window=65, stride_rate=0.5, max_steps=2, lr=0.001)
    scored = read_metrics(folder, "val")[-1]
    assert scored["pixels"] == 3 * 120 * 160  # of the labels as they are
    for given, how in (
        ([], "long side 100, scale 1, windows of 65, step 0.5"),
        (["--long_side", "0", "--window", "0"], "own size, scale 1, whole images"),
    ):
        capsys.readouterr()
        evaluate.main(using(folder / "best.pt", *given))
        said = capsys.readouterr().out
        assert how in said
        if not given:
            assert f"{100 * scored['miou']:.2f}" in said


def test_a_size_that_validation_could_not_hold_ends_the_run_before_training(demo_run, tmp_path):
    with pytest.raises(UserError, match="--long_side 60000, --window 0"):
        demo_run(long_side=60000, max_steps=1)
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("mode", "suffix"), [("RGB", "jpg"), ("CMYK", "jpg"), ("RGB", "png")])
def test_photos_are_decoded_no_larger_than_needed(tmp_path, mode, suffix, orientation):
    """JPEG files at an eighth, a quarter, a half; the whole image, averaged, is what they must look like."""
    path = tmp_path / f"a.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((645, 467), Image.Resampling.BICUBIC).convert(mode)
    photo.save(path, exif=exif(orientation), **({"quality": 95} if suffix == "jpg" else {}))
    whole = read_image(path)
    assert whole.shape[:2] == ((645, 467) if orientation == 6 else (467, 645))
    # The sides are no multiples of 8, so that a decoded photo has pixels which lie in part beyond its edge.
    for long_side in (400, 322, 161, 20):
        pixels = read_image(path, long_side)
        assert (pixels.shape == whole.shape) == (long_side == 400 or suffix == "png")
        if pixels.shape == whole.shape:
            continue
        assert read_header(path).size == whole.shape[:2]
        shrunk = shrink({"image": pixels, "label": whole[..., 0]}, long_side)
        expected = shrink({"image": whole, "label": whole[..., 0]}, long_side)
        assert shrunk["image"].shape == expected["image"].shape == (*shrunk["label"].shape, 3)
        assert np.abs(shrunk["image"].astype(int) - expected["image"]).mean() < 1.5
        assert np.array_equal(shrunk["label"], expected["label"])


def test_label_of_another_size_is_named_though_the_photo_is_decoded_small(tmp_path):
    put(tmp_path / "images/train/a.jpg", Image.new("RGB", (400, 300)))
    put(tmp_path / "masks/train/a.png", Image.new("L", (200, 150)))
    split = find_split(tmp_path, "Folder", "train", {"label": ""})
    dataset = TrainSet(split, 2, transform=TrainTransform(33, long_side=100))
    with pytest.raises(UserError, match=r"a\.png: 200x150 pixels, but its image .*a\.jpg has 400x300"):
        dataset[0, 0]


@pytest.mark.parametrize(
    ("size", "crop_size", "expected"),
    # 12 Mpx have more than 25 crops of 465^2 = 5.4 Mpx; Cityscapes has not of 321^2
    [((3000, 4000), 465, 1400), ((3000, 4000), 769, 0), ((1024, 2048), 321, 0)],
)
def test_large_images_are_those_of_which_a_crop_shows_little(size, crop_size, expected):
    assert suggest_long_side([size] * 2 + [(10, 10)] * 2, crop_size) == (0, "")  # half of the images are not most
    long_side, advice = suggest_long_side([size] * 3 + [(10, 10)], crop_size)
    assert long_side == expected
    assert (f"--long_side {expected}" in advice and f"--window {crop_size}" in advice) == bool(expected)

"""--long_side: training, validation and prediction see an image at one size, and labels keep their own."""

import numpy as np
import pytest
import torch
from conftest import flags, read_metrics, run_train
from PIL import Image

import config
import evaluate
import utils
from config.programs import EVALUATE
from data.dataset import SegmentationDataset
from data.distance import pseudo_distance, scribble_distance
from data.images import image_size, read_image
from data.images.resize import large_images, resize, scaled_size, shrink
from data.layout import find_split
from data.transforms import CentreCrop, TrainTransform
from distributed.group import Group
from evaluation.predictor import Predictor
from support.errors import UserError
from trained import read_flags

ALONE = Group(torch.device("cpu"))


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


def test_uint8_and_float_images_are_resized_alike():
    """A CPU keeps uint8, CUDA computes in float32."""
    images = torch.randint(0, 256, (2, 61, 90, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert (resize(images, (20, 30)).float() - resize(images.float(), (20, 30))).abs().max() <= 1


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
    warped = TrainTransform(size, rotation=10.0, long_side=long_side)(maps, Middle())
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


def test_distances_are_in_pixels_at_the_long_side():
    label = np.full((40, 80), 255, np.uint8)
    label[20, 30] = 1
    # 10 pixels away: 255 - trunc(sqrt(e) * 10 * scale) = 255 - 16 at scale 1, 255 - 8 at scale 1/2
    assert [scribble_distance(label, scale=scale)[20, 40] for scale in (1.0, 0.5)] == [239, 247]
    # a contour of one pixel, 3 pixels away: trunc(e^3 * 3 * scale) = 60, 30
    pseudo = np.where(label == 1, 1, 0).astype(np.uint8)
    assert [pseudo_distance(pseudo, scale=scale)[20, 33] for scale in (1.0, 0.5)] == [60, 30]


@pytest.mark.parametrize("long_side", [80, 240])  # the demo's images have 160x120 pixels
def test_loader_computes_distances_of_what_it_trains_on(demo_root, long_side):
    dataset = utils.get_loader(config.parse(flags(dataset_path=demo_root, long_side=long_side)), "train", ALONE).dataset
    maps, own = dataset.training_maps(1), dataset.read(1)
    shape = (60, 80) if long_side == 80 else (120, 160)
    assert {name: values.shape[:2] for name, values in maps.items()} == dict.fromkeys(maps, shape)
    scale = 1.0 if long_side == 80 else 240 / 160
    shrunk = shrink(own, long_side)
    assert np.array_equal(maps["distance_s"], scribble_distance(shrunk["label"], scale=scale))
    assert np.array_equal(maps["distance_c"], pseudo_distance(shrunk["pseudo"], scale=scale))
    assert dataset.transform.long_side == long_side


def test_checkpoint_is_scored_at_its_training_size_unless_told_otherwise(demo_root, tmp_path, capsys):
    """evaluate.py prints the numbers that the run logged, in pixels of the images themselves."""
    folder = run_train(
        dataset_path=demo_root, logdir=tmp_path, long_side=100, window=65, stride_rate=0.5, max_steps=2, lr=0.001
    )
    scored = read_metrics(folder, "val")[-1]
    assert scored["pixels"] == 3 * 120 * 160  # of the labels as they are
    assert "long side 100, scale 1, windows of 65, step 0.5" in (folder / "report.html").read_text()
    assert "done: 2 steps, best mIoU" in capsys.readouterr().out
    words = ["--checkpoint", str(folder / "best.pt"), "--workers", "0", "--device", "cpu"]
    for given, how in (
        ([], "long side 100, scale 1, windows of 65, step 0.5"),
        (["--long_side", "0", "--window", "0"], "own size, scale 1, whole images"),
        (["--long_side", "128"], "long side 128, scale 1, windows of 65"),
    ):
        capsys.readouterr()
        evaluate.main([*words, *given])
        said = capsys.readouterr().out
        assert how in said
        if not given:
            assert f"{100 * scored['miou']:.2f}" in said


@pytest.mark.parametrize(
    ("size", "crop_size", "expected"),
    [
        ((3000, 4000), 465, 1400),  # 12 Mpx have more than 25 crops of 465^2 = 5.4 Mpx
        ((3000, 4000), 512, 1500),
        ((3000, 4000), 769, 0),
        ((1024, 2048), 465, 0),  # Cityscapes
        ((1024, 2048), 321, 0),
        ((720, 960), 288, 0),  # CamVid
        ((375, 500), 321, 0),  # VOC
    ],
)
def test_large_images_are_those_of_which_a_crop_shows_little(size, crop_size, expected):
    long_side, advice = large_images([size] * 3 + [(10, 10)], crop_size)
    assert long_side == expected
    assert (f"--long_side {expected}" in advice and f"--window {crop_size}" in advice) == bool(expected)
    assert large_images([(10, 10)] * 3 + [size] * 2, crop_size) == (0, "")


@pytest.mark.parametrize("read", [config.parse, lambda words: read_flags(EVALUATE, words[-2:])])
def test_images_of_a_few_pixels_are_refused(demo_root, read):
    with pytest.raises(UserError, match=r"--long_side 1: give 16 pixels or more, or 0 to keep the images' size"):
        read([*flags(dataset_path=demo_root), "--long_side", "1"])


def test_distance_files_with_long_side_are_refused(demo_root):
    with pytest.raises(UserError, match=r"--distancemap_s maps with --long_side 80: .*drop --distancemap_s"):
        config.parse(flags(dataset_path=demo_root, long_side=80, distancemap_s="maps"))


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize(("mode", "suffix"), [("RGB", "jpg"), ("L", "jpg"), ("CMYK", "jpg"), ("RGB", "png")])
def test_photos_are_decoded_no_larger_than_needed(tmp_path, mode, suffix, orientation):
    """JPEG files at an eighth, a quarter, a half; the whole image, averaged, is what they must look like."""
    path, turned = tmp_path / f"a.{suffix}", Image.Exif()
    turned[0x0112] = orientation
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((645, 467), Image.Resampling.BICUBIC).convert(mode)
    photo.save(path, exif=turned, **({"quality": 95} if suffix == "jpg" else {}))
    whole = read_image(path)
    assert whole.shape[:2] == ((645, 467) if orientation == 6 else (467, 645))
    # The sides are no multiples of 8, so that a decoded photo has pixels which lie in part beyond its edge.
    for long_side in (400, 322, 170, 161, 80, 20):
        pixels = read_image(path, long_side)
        assert (pixels.shape == whole.shape) == (long_side == 400 or suffix == "png")
        if pixels.shape == whole.shape:
            continue
        assert image_size(path) == whole.shape[:2]
        shrunk = shrink({"image": pixels, "label": whole[..., 0]}, long_side)
        expected = shrink({"image": whole, "label": whole[..., 0]}, long_side)
        assert shrunk["image"].shape == expected["image"].shape == (*shrunk["label"].shape, 3)
        assert np.abs(shrunk["image"].astype(int) - expected["image"]).mean() < 1.5
        assert np.array_equal(shrunk["label"], expected["label"])


def test_label_of_another_size_is_named_though_the_photo_is_decoded_small(tmp_path):
    for folder, size in (("images", (400, 300)), ("masks", (200, 150))):
        (tmp_path / folder / "train").mkdir(parents=True)
        suffix, mode = ("jpg", "RGB") if folder == "images" else ("png", "L")
        Image.new(mode, size).save(tmp_path / folder / f"train/a.{suffix}")
    split = find_split(tmp_path, "Folder", "train", {"label": ""})
    dataset = SegmentationDataset(split, 2, transform=TrainTransform(33, long_side=100))
    with pytest.raises(UserError, match=r"a\.png: 200x150 pixels, but its image .*a\.jpg has 400x300"):
        dataset[0, 0]

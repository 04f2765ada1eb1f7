"""Images that are not 8-bit RGB, through every program: 4 channels of 16 bits as TIFF, and the parts in between."""

import json

import numpy as np
import pytest
import torch
from conftest import errors_of, flags, read_metrics, run_train
from PIL import Image
from tiff_writer import DEFLATE, write_tiff

import config
import evaluate
import export
import models
import predict
import train
from data.augment.transforms import CentreCrop, TrainTransform
from data.cache import Cache, build
from data.dataset import SegmentationDataset
from models.pretrained import StartWeights, adapt_input, load_start_weights
from support.errors import UserError
from support.image_stats import Display, ImageStats, ImageType, read_stats
from tools import statistics
from trained import TrainedModel

FOUR = ImageType(4, "uint16")


def scene(number: int, size: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """An image (H, W, 4) uint16 with a bright square, which only channel 3 shows, and its mask (H, W)."""
    rng = np.random.default_rng(number)
    image = rng.integers(900, 1100, (size, size, 4)).astype(np.uint16)
    mask = np.zeros((size, size), np.uint8)
    top, left = rng.integers(0, size // 2, 2)
    mask[top : top + size // 2, left : left + size // 2] = 1
    image[..., 3] += np.uint16(30_000) * mask
    return image, mask


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """6 training and 3 validation images, with image_stats.json."""
    root = tmp_path_factory.mktemp("four") / "data"
    for number in range(9):
        split = "train" if number < 6 else "val"
        for folder in ("images", "masks"):
            (root / folder / split).mkdir(parents=True, exist_ok=True)
        image, mask = scene(number)
        options = {"planar": number % 2 > 0, "compression": DEFLATE if number % 3 else 1}
        write_tiff(root / "images" / split / f"{number}.tif", image, **options)
        Image.fromarray(mask).save(root / "masks" / split / f"{number}.png")
    statistics.main([str(root), "--workers", "0"])
    return root


def words(data, **values):
    return {
        "dataset": "Folder", "dataset_path": data, "numclasses": 2, "model_type": "res50_ASPP",
        "image_stats": data / "image_stats.json", "background": "none", **values,
    }  # fmt: skip


def test_statistics_equal_numpys_over_all_values(data, capsys):
    # NumPy in float64 over the values of all training images together.
    values = np.concatenate([scene(number)[0].reshape(-1, 4) for number in range(6)]).astype(np.float64)
    stats = read_stats(str(data / "image_stats.json"))
    np.testing.assert_allclose(stats.mean, values.mean(0), rtol=1e-13)
    np.testing.assert_allclose(stats.std, values.std(0), rtol=1e-13)
    assert stats.kind == FOUR
    statistics.main([str(data), "--output", str(data / "again.json"), "--workers", "2"])
    assert read_stats(str(data / "again.json")) == stats  # whatever the number of processes
    output = capsys.readouterr().out
    assert "6 images of the split train: 4 channels of uint16" in output
    assert f"it prints the command, which needs --image_stats {data / 'again.json'}" in output


def test_statistics_do_not_cancel_and_leave_out_what_is_missing():
    # Values around 1e6 with a spread of 1: E[x^2] - E[x]^2 would keep 4 digits in float64 sums of 1e6.
    values = (1e6 + np.random.default_rng(0).normal(0, 1, (30, 40, 2))).astype(np.float32)
    values[3:5, :, 1] = np.nan
    values[0, 0, 1] = np.inf
    parts = [statistics.moments(values[:7]), statistics.moments(values[7:])]
    total = parts[0].merge(parts[1])
    expected = [
        values[..., 0].ravel().astype(np.float64),
        values[..., 1][np.isfinite(values[..., 1])].astype(np.float64),
    ]
    np.testing.assert_allclose(total.mean, [channel.mean() for channel in expected], rtol=1e-14)
    np.testing.assert_allclose(total.squares / total.count, [channel.var() for channel in expected], rtol=1e-9)
    assert (total.missing, total.count.tolist()) == (81, [1200, 1119])


def test_statistics_name_a_constant_channel_and_an_image_of_another_kind(tmp_path):
    for split in ("images/train", "masks/train"):
        (tmp_path / split).mkdir(parents=True)
    values = np.random.default_rng(0).integers(0, 9, (8, 8, 3)).astype(np.int16)
    values[..., 2] = -7
    write_tiff(tmp_path / "images/train/a.tif", values)
    with pytest.raises(UserError, match="channel 2 is -7 in every pixel of the 1 images: leave this channel out"):
        statistics.main([str(tmp_path), "--workers", "0"])
    write_tiff(tmp_path / "images/train/b.tif", values[..., :2].astype(np.uint8))
    message = r"b\.tif: 2 channels of uint8, but 3 channels of int16 expected"
    with pytest.raises(UserError, match=message):
        statistics.main([str(tmp_path), "--workers", "0"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not a file that python -m tools.statistics wrote"),
        ('{"dtype": "uint32", "mean": [1], "std": [1]}', "dtype 'uint32' is not one of uint8, uint16, int16, float32"),
        ('{"dtype": "uint8", "mean": [1, 2], "std": [1]}', "mean and std need one number for each of 1 to 16 channels"),
        ('{"dtype": "uint8", "mean": [1], "std": [0]}', "std above 0"),
    ],
)
def test_a_wrong_statistics_file_is_named(tmp_path, content, message):
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(UserError, match=rf"--image_stats .*s\.json: .*{message}"):
        config.parse(flags(dataset_path=tmp_path, image_stats=tmp_path / "s.json"))


def test_the_first_convolution_gives_what_it_gave_on_rgb():
    torch.manual_seed(0)
    rgb = models.build("res50_ASPP", layers=18, num_classes=2).eval()
    image = torch.rand(1, 3, 33, 33)
    before = rgb.backbone.conv1(image)
    # 1 channel: grey is R = G = B. 6 channels: RGB twice, each with half the weight: 3 / 6.
    for channels, inputs in ((1, None), (6, torch.cat([image, image], 1))):
        own = models.build("res50_ASPP", layers=18, num_classes=2, in_channels=channels).eval()
        line = load_start_weights(own, StartWeights("RGB", rgb.state_dict()), 18)
        assert "left random: none" in line
        if inputs is None:
            grey = image[:, :1]
            torch.testing.assert_close(own.backbone.conv1(grey), rgb.backbone.conv1(grey.expand(-1, 3, -1, -1)))
        else:
            torch.testing.assert_close(own.backbone.conv1(inputs), before)
    # 4 channels: R, G, B and R again, times 3/4; 2 channels: R and G, times 3/2.
    kernel = rgb.state_dict()["backbone.conv1.weight"]
    for channels, order in ((4, [0, 1, 2, 0]), (2, [0, 1])):
        own = models.build("res50_ASPP", layers=18, num_classes=2, in_channels=channels)
        adapted = adapt_input(rgb.state_dict(), own)["backbone.conv1.weight"]
        torch.testing.assert_close(adapted, kernel[:, order] * 3 / channels)


def test_normalisation_uses_the_images_own_units_and_missing_values_become_the_mean():
    model = models.build("res50_ASPP", layers=18, num_classes=2, in_channels=2).eval()
    model.set_images(torch.float32, (10.0, -5.0), (2.0, 4.0))
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image = torch.full((1, 20, 20, 2), 14.0)  # (14 - 10) / 2 = 2 and (14 + 5) / 4 = 4.75
    image[0, 3, 4] = torch.tensor([float("nan"), float("-inf")])
    assert model(image)["logits"].isfinite().all()
    assert seen[0][0, :, 0, 0].tolist() == [2, 4.75]
    assert seen[0][0, :, 3, 4].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 16])
def test_transforms_treat_each_channel_as_if_it_were_alone(channels, dtype):
    rng = np.random.default_rng(0)
    image = (rng.random((50, 40, channels)) * 250).astype(dtype)
    outside = tuple(range(1, channels + 1))
    maps = {"image": image, "label": rng.integers(0, 3, (50, 40), np.uint8)}
    for kind in (TrainTransform, CentreCrop):
        whole = kind(61, outside=outside)(maps, np.random.default_rng(7))
        assert (whole["image"].dtype, whole["image"].shape) == (np.dtype(dtype), (61, 61, channels))
        for number in range(channels):
            one = {"image": image[..., [number]], "label": maps["label"]}
            alone = kind(61, outside=outside[number : number + 1])(one, np.random.default_rng(7))
            np.testing.assert_array_equal(alone["image"][..., 0], whole["image"][..., number])
            np.testing.assert_array_equal(alone["label"], whole["label"])
    assert (whole["image"][0, 0] == outside).all()  # 61 pixels do not fit into 50x40: the corner is outside
    np.testing.assert_array_equal(whole["image"][5:55, 10:50], image)  # (61 - 50) // 2 - 1, (61 - 40) // 2


@pytest.mark.parametrize("dtype", ["uint16", "float32", "uint8"])
def test_a_cache_keeps_channels_and_type(tmp_path, dtype):
    rng = np.random.default_rng(0)
    samples = [
        {"image": (rng.random((height, 3, 5)) * 200).astype(dtype), "label": rng.integers(0, 9, (height, 3), np.uint8)}
        for height in (3, 5, 7)  # 9 to 21 pixels: labels of an odd size before the next image
    ]
    cache = build(tmp_path / "a.cache", "s", lambda index: samples[index], 3)
    assert cache is not None
    for index, sample in enumerate(samples):
        for name, values in Cache(cache.path)[index].items():
            assert values.dtype == sample[name].dtype
            np.testing.assert_array_equal(values, sample[name])
            assert values.flags.aligned


def test_an_image_is_shown_by_three_channels_stretched_over_two_deviations():
    stats = ImageStats("uint16", (100.0, 1000.0, 0.0, 50.0), (10.0, 100.0, 1.0, 5.0))
    # mean - 2 std -> 0, mean -> 127.5, rounded to even, mean + 2 std -> 255; beyond: clipped.
    image = np.array([[[80, 0, 0, 50], [120, 0, 0, 60], [500, 0, 0, 0]]], np.uint16)
    assert Display.of((3, 0, 0), stats)(image)[0].tolist() == [[128, 0, 0], [255, 255, 255], [0, 255, 255]]
    assert Display.of((0,), stats)(image)[0, :, 2].tolist() == [0, 255, 255]
    rgb = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert Display.of((), None)(rgb) is rgb
    with pytest.raises(UserError, match="--show_channels 4: give one or three numbers of 0 to 3"):
        Display.of((4,), stats)


@pytest.mark.slow
def test_four_channels_of_16_bits_train_resume_evaluate_predict_and_export(data, tmp_path, capfd):
    straight = run_train(**words(data, logdir=tmp_path / "a", epochs=3, lr=0.05))
    assert read_metrics(straight, "val")[-1]["miou"] > 0  # it validates
    part = words(data, logdir=tmp_path / "b", epochs=3, lr=0.05, workers=1, cache="disk", cache_dir=tmp_path / "cache")
    # Stop inside the second epoch by --max_steps' schedule: another run of the same flags, killed after a step file.
    folder = run_train(**part, save_step_frequency=2)
    (folder / "last.pt").unlink()
    (folder / "best.pt").unlink()
    # The flags are repeated, except --image_stats, whose file is gone: the checkpoint has it.
    given = part | {"image_stats": None, "logdir": tmp_path / "b", "save_step_frequency": 2}
    train.main([*flags(**given), "--resume", str(folder / "step_00000004.pt")])
    ours, theirs = (torch.load(each / "last.pt", weights_only=True) for each in (folder, straight))
    assert all(torch.equal(ours["model"][name], value) for name, value in theirs["model"].items())
    assert ours["config"]["image_stats"] == read_stats(str(data / "image_stats.json")).text

    best = str(folder / "last.pt")
    evaluate.main(["--checkpoint", best, "--device", "cpu", "--workers", "0", "--report", str(tmp_path / "report"),
                   "--show_channels", "3", "--json", str(tmp_path / "scores.json")])  # fmt: skip
    assert json.loads((tmp_path / "scores.json").read_text())["images"] == 3
    assert (tmp_path / "report" / "index.html").is_file()

    common = ["--device", "cpu", "--workers", "0", "--overlay", "--show_channels", "3", "0", "1"]
    images = str(data / "images" / "val")
    predict.main(["--checkpoint", best, "--input", images, "--output", str(tmp_path / "p"), *common])
    predictor = TrainedModel(best).predictor()
    for number in (6, 7, 8):
        expected = predictor.labels(torch.from_numpy(scene(number)[0])[None])[0].numpy()
        np.testing.assert_array_equal(np.array(Image.open(tmp_path / f"p/masks/{number}.png")), expected)
        assert Image.open(tmp_path / f"p/overlays/{number}.jpg").width >= 40
    assert errors_of(capfd.readouterr().err) == []

    export.main(["--checkpoint", best, "--output", str(tmp_path / "e")])
    log = capfd.readouterr()
    assert "comparing with PyTorch on random images and 3 real ones" in log.out + log.err


@pytest.mark.slow
def test_an_onnx_file_says_which_images_it_takes(data, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    from exporting.onnx import OnnxModel

    folder = run_train(**words(data, logdir=tmp_path, epochs=1))
    export.main(["--checkpoint", str(folder / "last.pt")])
    model = OnnxModel(folder / "last.onnx", torch.device("cpu"))
    assert model.stats is not None
    assert model.stats.kind == FOUR
    assert model.session.get_inputs()[0].type == "tensor(uint16)"
    output = tmp_path / "predictions"
    predict.main(["--model", str(folder / "last.onnx"), "--input", str(data / "images/val"), "--output", str(output),
                  "--device", "cpu", "--workers", "0"])  # fmt: skip
    assert len(list((output / "masks").iterdir())) == 3


def test_images_of_another_kind_without_statistics_are_refused_with_the_command(data, tmp_path):
    given = words(data, logdir=tmp_path, image_stats=None)
    message = r"0\.tif: 4 channels of uint16, but 8-bit RGB expected: measure them once, and train with --image_stats: "
    with pytest.raises(UserError, match=rf"{message}.*tools.statistics {data} --dataset Folder"):
        train.main(flags(**given))


def test_a_later_image_of_another_kind_is_named(data, tmp_path):
    for path in data.rglob("*.*"):
        copy = tmp_path / "data" / path.relative_to(data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    write_tiff(tmp_path / "data/images/train/3.tif", scene(3)[0][..., :3])
    message = r"3\.tif: 3 channels of uint16, but 4 channels of uint16 expected"
    with pytest.raises(UserError, match=message):
        train.main(flags(**words(tmp_path / "data", logdir=tmp_path)))


def test_workers_send_the_type_of_the_images(data):
    from data.layout import find_split

    dataset = SegmentationDataset(
        find_split(data, "Folder", "train", {"label": ""}), 2, transform=CentreCrop(40, outside=(0, 0, 0, 0))
    )
    dataset.expect(FOUR)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=lambda batch: batch,
                                         sampler=[(0, index) for index in range(6)])  # fmt: skip
    for number, batch in enumerate(loader):
        assert batch["image"].dtype == torch.uint16
        np.testing.assert_array_equal(batch["image"][1].numpy(), scene(2 * number + 1)[0])

"""predict.py as a user starts it, on files good and bad."""

import json
import os
import re
import shlex
import signal
import time

import cv2
import numpy as np
import pytest
import torch
from conftest import finish, one_line_each, random_checkpoint, start, start_group
from PIL import Image

import models
import predict
from data.classes import Classes, voc_colours
from data.images import read_image
from evaluation.pictures import overlay
from evaluation.predictor import Predictor
from prediction import films, outputs
from prediction.inputs import find_inputs
from support.errors import UserError


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return random_checkpoint(tmp_path_factory.mktemp("run") / "best.pt", num_classes=5)


def photo(height: int = 60, width: int = 80) -> Image.Image:
    """Smooth colours, which JPEG keeps."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def run(checkpoint, given, out, *words: str) -> int:
    inputs = given if isinstance(given, list) else [str(given)]
    fixed = ["--checkpoint", str(checkpoint), "--workers", "0", "--device", "cpu"]
    return predict.main([*fixed, "--input", *inputs, "--output", str(out), *words])


def mask(path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "P"
        assert image.getpalette()[:9] == voc_colours()[:3].ravel().tolist()
        return np.array(image)


def expected(checkpoint, image: np.ndarray) -> np.ndarray:
    model = models.build("res50_ASPP", layers=18, num_classes=5).eval()
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    labels = Predictor(model).labels(torch.from_numpy(image)[None])[0].numpy()
    assert len(np.unique(labels)) > 1
    return labels


@pytest.fixture
def faulty(tmp_path):
    """A folder with one of each kind of file that people have."""
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    image = photo()
    image.save(folder / "good.JPG", quality=95)
    image.save(folder / "sub" / "Stra\u00dfe \u4e00.png")
    whole = (folder / "good.JPG").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    image.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257).save(folder / "deep.png")
    image.convert("L").save(folder / "grey.png")
    frames = [photo(100 + 20 * number, 160).crop((0, 0, 160, 100)) for number in range(5)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:], duration=100)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    image.transpose(Image.Transpose.ROTATE_90).save(folder / "turned.jpg", exif=turned, quality=95)
    Image.new("RGB", (1, 1), (9, 200, 30)).save(folder / "one.png")
    (folder / "text.jpg").write_text("not an image")
    (folder / "notes.txt").write_text("of another kind")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def test_each_file_is_right_or_named(checkpoint, faulty, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(checkpoint, faulty, out, "--overlay", "--probs") == 1
    said = capsys.readouterr().out
    assert "1 file(s) of other kinds" in said
    named = [line.split(":")[0] for line in said.split("could not be predicted:")[1].splitlines() if line.strip()]
    assert [os.path.basename(name) for name in named] == ["deep.png", "text.jpg", "truncated.jpg"]
    images = ("good.JPG", "sub/Stra\u00dfe \u4e00.png", "cmyk.jpg", "grey.png", "turned.jpg", "one.png")
    stems = [os.path.splitext(name)[0] for name in images] + [f"moving/{number:06d}" for number in range(1, 6)]
    assert {str(path.relative_to(out / "masks")) for path in out.rglob("masks/**/*.png")} == {f"{s}.png" for s in stems}
    for name in images:
        stem = os.path.splitext(name)[0]
        image = read_image(faulty / name)
        labels = mask(out / "masks" / f"{stem}.png")
        assert labels.shape == image.shape[:2]
        if name != "one.png":
            assert (labels == expected(checkpoint, image)).mean() > 0.999  # ties; batches differ
        with Image.open(out / "overlays" / f"{stem}.jpg") as overlay:
            assert overlay.width >= image.shape[1]
            assert (overlay.height > image.shape[0]) == bool(labels.any())  # a legend of all classes but the background
        probs = np.load(out / "probs" / f"{stem}.npy")
        assert (probs.shape, probs.dtype) == ((5, *image.shape[:2]), np.float16)
        assert np.abs(probs.astype(np.float64).sum(0) - 1).max() < 5e-3
        assert (np.take_along_axis(probs, labels[None].astype(np.int64), 0)[0] >= probs.max(0) - 1e-3).all()
    # As shown, not as stored: 60 high and 80 wide, like the one that was not turned.
    assert (mask(out / "masks/turned.png") == mask(out / "masks/good.png")).mean() > 0.9
    # CMYK and the original look the same.
    assert (mask(out / "masks/cmyk.png") == mask(out / "masks/good.png")).mean() > 0.9
    with Image.open(faulty / "moving.gif") as animation:
        for number in range(5):
            animation.seek(number)
            labels = mask(out / f"masks/moving/{number + 1:06d}.png")
            assert (labels == expected(checkpoint, np.array(animation.convert("RGB")))).mean() > 0.999
    [film] = [cv2.VideoCapture(str(path)) for path in (out / "overlays").glob("moving.*")]
    assert film.get(cv2.CAP_PROP_FPS) == 10
    assert sum(film.grab() for _ in range(9)) == 5


def test_inputs_are_named_relative_to_their_common_folder(tmp_path, monkeypatch):
    """As a shell expands a/*.jpg and b/*: what is alike in two folders keeps its folder, in one folder its suffix."""
    names = "a/x.jpg a/x.png a/sub/x.jpg b/x.jpg b/film.gif b/notes.txt b/.hidden.jpg c/[1].png c/y.JPG d/film.gif"
    names += " c/out/masks/x.png c/other/predictions.json c/other/x.png d/film/000001.png"
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)

    def found(*given: str) -> tuple[str, dict[str, str], int]:
        base, inputs, num_others = find_inputs(given, tmp_path / "c/out")
        return os.path.relpath(base), {file.path.as_posix(): file.name for file in inputs}, num_others

    assert found("a/x.jpg", "b/film.gif", "b/notes.txt", "b/x.jpg", "b/.hidden.jpg") == (
        ".",
        {"a/x.jpg": "a/x.jpg", "b/film.gif": "b/film", "b/x.jpg": "b/x"},
        1,
    )
    assert found("a/x.jpg", "a/x.png") == ("a", {"a/x.jpg": "x.jpg", "a/x.png": "x.png"}, 0)
    # A pattern, the files that a shell makes of it, and each file alone have the same names.
    assert found("a/*.jpg") == found("a/x.jpg") == ("a", {"a/x.jpg": "x.jpg"}, 0)
    assert found("a/**/*.[jJ]*") == ("a", {"a/x.jpg": "x.jpg", "a/sub/x.jpg": "sub/x"}, 0)
    # Files, folders and patterns mixed, one file named twice.
    assert found("a/sub", "a/sub/x.jpg", "b/*.gif") == (".", {"a/sub/x.jpg": "a/sub/x", "b/film.gif": "b/film"}, 0)
    assert found("a/sub/x.jpg", str(tmp_path / "a/sub/x.jpg")) == ("a/sub", {"a/sub/x.jpg": "x"}, 0)
    # Outputs of predict.py inside the input do not count; a file may look like a pattern.
    assert found("c")[1] == {"c/[1].png": "[1]", "c/y.JPG": "y"}
    assert found("c/[1].png")[1] == {"c/[1].png": "[1]"}
    assert found("d")[1] == {"d/film.gif": "film.gif", "d/film/000001.png": "film/000001"}
    for word, message in (("nowhere.jpg", "no such file or folder"), ("b/*.tif", "no file matches this pattern")):
        with pytest.raises(UserError, match=re.escape(f"--input {word}: {message}")):
            found("a/x.jpg", word)
    (tmp_path / "a/x.jpg.png").touch()
    with pytest.raises(UserError, match=r"a/x\.jpg.*would be written to the same files"):
        found("a")


def folder_of(tmp_path, number: int, name: str = "in"):
    (tmp_path / name).mkdir()
    for index in range(number):
        photo(40 + index, 50).save(tmp_path / name / f"{index}.png")
    return tmp_path / name


def test_deleted_files_are_predicted_again_and_others_are_not(checkpoint, tmp_path, capsys):
    given, out = folder_of(tmp_path, 4), tmp_path / "out"
    assert run(checkpoint, given, out, "--overlay") == 0
    (out / "masks/2.png").unlink()
    (out / "overlays/3.jpg").unlink()
    # What a killed process left half-written, and a file that is not ours.
    for name in ("masks/.0123456789abcdef.part.png", "masks/.a.part.png"):
        (out / name).touch()
    written = (out / "masks/1.png").stat().st_mtime_ns
    capsys.readouterr()
    assert run(checkpoint, given, out, "--overlay") == 0
    assert "2 to predict, 2 done before" in capsys.readouterr().out
    assert mask(out / "masks/2.png").shape == (42, 50)
    assert (out / "overlays/3.jpg").is_file()
    assert (out / "masks/1.png").stat().st_mtime_ns == written
    assert [path.name for path in out.rglob(".*")] == [".a.part.png"]


def test_a_batch_that_is_not_done_is_predicted_again_whole(checkpoint, tmp_path, monkeypatch):
    """A model's result may depend on the batch's size: after a kill, probabilities differed in the last bit."""
    given, out = tmp_path / "photos", tmp_path / "out"
    given.mkdir()
    for number in range(6):
        photo().save(given / f"{number}.png")
    frames = [photo().rotate(5 * number) for number in range(6)]
    frames[0].save(given / "film.gif", save_all=True, append_images=frames[1:])
    assert run(checkpoint, given, out, "--val_batchsize", "3") == 0
    batches, predict_batch = [], predict.Prediction._predict
    monkeypatch.setattr(
        predict.Prediction,
        "_predict",
        lambda self, images, **more: batches.append(list(images)) or predict_batch(self, images, **more),
    )
    for name in ("4", "film/000002"):
        (out / f"masks/{name}.png").unlink()
    assert run(checkpoint, given, out, "--val_batchsize", "3") == 0
    assert batches == [["3", "4", "5"], [f"film/00000{number}" for number in (1, 2, 3)]]


def test_predictions_of_something_else_are_not_taken_for_these(checkpoint, tmp_path):
    given, out = folder_of(tmp_path, 2), tmp_path / "out"
    assert run(checkpoint, given, out) == 0
    (out / "masks/old.png").touch()
    for words in (["--flip"], ["--amp", "bf16"], ["--overlay"], ["--scales", "0.5"]):
        with pytest.raises(UserError, match="with other settings"):
            run(checkpoint, given, out, *words)
    with pytest.raises(UserError, match=r"with other settings \(input\)"):
        run(checkpoint, folder_of(tmp_path, 2, "other"), out)
    # Nothing of the old settings is left, whatever --overwrite then reaches.
    old = (out / "masks/1.png").stat().st_mtime_ns
    assert run(checkpoint, given, out, "--flip", "--overwrite") == 0
    assert (out / "masks/1.png").stat().st_mtime_ns > old
    assert not (out / "masks/old.png").exists()
    (out / "predictions.json").unlink()
    with pytest.raises(UserError, match=r"masks/\d\.png, which predict\.py did not write"):
        run(checkpoint, given, out, "--overwrite")


def test_name_that_is_too_long_to_write_is_named_and_the_rest_done(checkpoint, tmp_path, capsys):
    given = folder_of(tmp_path, 2)
    for suffix in (".jpg", ".png"):  # so that both keep it, and the masks' names have 4 more letters than 255
        photo().save(given / ("n" * 251 + suffix))
    assert run(checkpoint, given, tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert "2 predicted" in said
    assert said.count("File name too long") == 2


def write_video(path, num_frames: int, codec: str = "mp4v") -> None:
    film = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), 10, (64, 48))
    for number in range(num_frames):
        film.write(np.asarray(photo(48 + number, 64))[:48, :, ::-1].copy())
    film.release()


def test_stopped_in_a_video_and_going_on_gives_what_it_would_have(checkpoint, tmp_path):
    write_video(tmp_path / "film.mp4", 200)
    words = ["--checkpoint", str(checkpoint), "--input", "film.mp4", "--output", "out", "--device", "cpu", "--overlay"]
    process = start(words, tmp_path, "predict.py")
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("out/masks/film/*.png"))) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    [(status, stdout, stderr)] = finish([process])
    assert status == 75, (stdout, stderr)
    done = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("out/masks/film/*.png")}
    assert 8 <= len(done) < 200
    assert not list(tmp_path.glob("out/overlays/*"))
    [(status, _, stderr)] = finish([start(words, tmp_path, "predict.py")])
    assert status == 0, stderr
    now = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("out/masks/film/*.png")}
    assert len(now) == 200
    assert {name: now[name] for name in done} == done  # not done again
    [film] = [cv2.VideoCapture(str(path)) for path in tmp_path.glob("out/overlays/film.*")]
    assert sum(film.grab() for _ in range(300)) == 200
    assert json.loads((tmp_path / "out/masks/film/frames.json").read_text()) == {"frames": 200, "frames_per_s": 10.0}
    assert not list(tmp_path.rglob("out/**/.*"))


def test_overlay_video_for_no_browser_comes_with_the_command_that_converts_it(
    checkpoint, tmp_path, monkeypatch, capsys
):
    write_video(tmp_path / "my film.avi", 2, "MJPG")
    monkeypatch.setattr(films, "CODECS", films.CODECS[1:])
    assert run(checkpoint, tmp_path / "my film.avi", tmp_path / "out", "--overlay", "--log_level", "WARNING") == 0
    [line] = capsys.readouterr().out.splitlines()
    written = tmp_path / "out/overlays/my film.mp4"
    assert written.is_file()
    assert line.startswith(f"warning: {written}: browsers do not play it")
    assert shlex.split(line.rpartition(": ")[2])[:3] == ["ffmpeg", "-i", str(written)]


@pytest.mark.parametrize("background", [0, None])
def test_overlay_leaves_the_background_clear_unless_there_is_none(checkpoint, tmp_path, background):
    image, label = np.asarray(photo()), np.zeros((60, 80), np.uint8)
    label[20:40, 30:60] = 1
    classes = Classes(["ground", "disc"], voc_colours())
    with outputs.Outputs(tmp_path, classes, background, overlays=True, probs=False) as files:
        files.write("a", image, label, None, frame=False)
        files.wait()
    written = np.asarray(Image.open(tmp_path / "overlays/a.jpg"))[:60, :80].astype(int)
    for number in (0, None):
        painted = overlay(image, label, voc_colours(), number)
        assert (np.abs(written - painted).mean() < 5) == (number == background)  # JPEG is not exact
    # --background reaches it, and what was written for another one is not taken for this.
    photo().save(tmp_path / "b.png")
    words = ["--overlay", "--background", "none" if background is None else "0"]
    assert run(checkpoint, tmp_path / "b.png", tmp_path / "out", *words) == 0
    assert json.loads((tmp_path / "out/predictions.json").read_text())["overlay"] == {"background": background}


def test_overlays_and_films_have_the_colours_of_the_masks_and_a_legend(tmp_path):
    classes = tmp_path / "classes.txt"
    classes.write_text("void #102030\nroad & kerb #ff0080\n\u5929\u7a7a #0000ff\n", encoding="utf-8")
    checkpoint = random_checkpoint(tmp_path / "best.pt", num_classes=3, classes=classes)
    photo().save(tmp_path / "a.png")
    write_video(tmp_path / "film.avi", 3, "MJPG")
    given = [str(tmp_path / "a.png"), str(tmp_path / "film.avi")]
    assert run(checkpoint, given, tmp_path / "out", "--overlay") == 0
    with Image.open(tmp_path / "out/masks/a.png") as image:
        assert image.getpalette()[:9] == [0x10, 0x20, 0x30, 0xFF, 0, 0x80, 0, 0, 0xFF]
        shown = set(np.unique(np.array(image))) - {0}
    assert shown
    strip = np.asarray(Image.open(tmp_path / "out/overlays/a.jpg")).astype(int)[60:]
    for number, colour in ((1, (0xFF, 0, 0x80)), (2, (0, 0, 0xFF))):
        assert (np.abs(strip - colour).max(axis=2) < 30).any() == (number in shown)
    [film] = [cv2.VideoCapture(str(path)) for path in tmp_path.glob("out/overlays/film.*")]
    frames = [film.read()[1] for _ in range(3)]
    assert frames[0].shape[0] > 48
    assert all(frame.shape == frames[0].shape for frame in frames)


def test_film_that_is_cut_off_is_named(checkpoint, tmp_path, capsys):
    write_video(tmp_path / "a.mp4", 20)
    write_video(tmp_path / "b.avi", 20, "MJPG")
    frames = [photo(60 + 5 * number, 80).crop((0, 0, 80, 60)) for number in range(6)]
    frames[0].save(tmp_path / "c.gif", save_all=True, append_images=frames[1:])
    for name, said in (("a.mp4", "not a readable video"), ("b.avi", "it is truncated"), ("c.gif", "readable image")):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        assert run(checkpoint, tmp_path / name, tmp_path / f"{name}.out", "--overlay") == 1
        assert re.search(f"{re.escape(name)}: .*{said}", capsys.readouterr().out)
        assert not list((tmp_path / f"{name}.out").rglob("overlays/*.*"))


def test_two_processes_write_what_one_does(checkpoint, faulty, tmp_path):
    words = ["--checkpoint", str(checkpoint), "--input", str(faulty), "--device", "cpu", "--workers", "0", "--output"]
    results = finish(start_group(2, [*words, "two"], tmp_path, "predict.py"))
    assert [status for status, _, _ in results] == [1, 1], results
    assert "3 could not be predicted" in results[0][1]
    assert results[1][1] == ""
    predict.main([*words, str(tmp_path / "one")])
    one, two = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "one", tmp_path / "two")
    )
    assert len(one) == 6 + 6 + 1  # images; frames and frames.json; predictions.json
    assert one == two


def test_an_image_beyond_the_limits_of_pillow_and_jpeg(checkpoint, tmp_path, monkeypatch):
    photo().save(tmp_path / "a.png")
    assert run(checkpoint, tmp_path / "a.png", tmp_path / "usual", "--window", "33") == 0
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow refuses more than twice as many
    monkeypatch.setattr(outputs, "JPEG_SIDE", 40)
    assert run(checkpoint, tmp_path / "a.png", tmp_path / "out", "--window", "33", "--overlay") == 0
    monkeypatch.undo()
    assert np.array_equal(mask(tmp_path / "out/masks/a.png"), mask(tmp_path / "usual/masks/a.png"))
    shown = np.asarray(Image.open(tmp_path / "out/overlays/a.jpg")).astype(int)[:30, :40]
    image, label = np.asarray(photo())[::2, ::2], mask(tmp_path / "out/masks/a.png")[::2, ::2]
    assert np.abs(shown - overlay(image, label, voc_colours(), 0)).mean() < 25  # JPEG is not exact


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--input is not set"),
        (["--input", "x.jpg", "--checkpoint", ""], "--checkpoint is not set"),
        (["--input", "x.jpg"], "--input x.jpg: no such file"),
        (["--input", ".", "--checkpoint", "nowhere.pt"], "nowhere.pt: cannot be read"),
        (["--input", ".", "--weights", "ema"], "has no average of weights"),
        (["--input", ".", "--layers", "50"], "weights of a res50_ASPP with --layers 50"),
        (["--input", ".", "--checkpoint", "", "--model", "m.onnx", "--flip"], "predicts whole images at one scale"),
        (["--input", ".", "--checkpoint", "", "--model", "m.onnx", "--layers", "18"], "predicts whole images at one"),
        (["--input", "a.png", "--output", "file"], "--output file: is a file"),
    ],
)
def test_wrong_flags_are_named(checkpoint, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    photo().save("a.png")
    (tmp_path / "file").touch()
    given = [] if "--checkpoint" in words else ["--checkpoint", str(checkpoint)]
    with pytest.raises(UserError, match=re.escape(named)):
        predict.main([*given, *words, "--device", "cpu"])


def test_full_disk_ends_it_with_one_line(checkpoint, small_disk, tmp_path):
    given = folder_of(tmp_path, 4)
    (small_disk / "other").write_bytes(bytes(250 * 2**20 - 60_000))  # room for 2 of 4 files of 5 x 40 x 50 x 2 bytes
    words = ["--checkpoint", str(checkpoint), "--input", str(given), "--output", str(small_disk), "--device", "cpu"]
    one_line_each(finish([start([*words, "--probs", "--workers", "0"], tmp_path, "predict.py")]), "No space left")
    assert not list(small_disk.rglob(".*"))

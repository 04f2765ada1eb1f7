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
from data.classes import voc_colours
from data.images import read_image
from errors import UserError
from evaluation.pictures import overlay
from evaluation.predictor import Predictor
from prediction import films
from prediction.inputs import find_inputs
from prediction.outputs import Outputs


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return random_checkpoint(tmp_path_factory.mktemp("run") / "best.pt", num_classes=5)


def photo(height: int = 60, width: int = 80) -> Image.Image:
    """Smooth colours, which JPEG keeps."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def run(checkpoint, given, out, *words: str) -> int:
    return predict.main(
        [
            "--checkpoint",
            str(checkpoint),
            "--input",
            *(given if isinstance(given, list) else [str(given)]),
            "--output",
            str(out),
            "--workers",
            "0",
            "--device",
            "cpu",
            *words,
        ]
    )


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
    named = [line.split(":")[0].strip() for line in said.split("could not be:")[1].splitlines() if line.strip()]
    assert [os.path.basename(name) for name in named] == ["deep.png", "text.jpg", "truncated.jpg"]
    images = ("good.JPG", "sub/Stra\u00dfe \u4e00.png", "cmyk.jpg", "grey.png", "turned.jpg", "one.png")
    assert {str(path.relative_to(out / "masks")) for path in (out / "masks").rglob("*.png")} == {
        *(os.path.splitext(name)[0] + ".png" for name in images), *(f"moving/{number:06d}.png" for number in range(1, 6))
    }  # fmt: skip
    for name in images:
        stem = os.path.splitext(name)[0]
        image = read_image(faulty / name)
        labels = mask(out / "masks" / f"{stem}.png")
        assert labels.shape == image.shape[:2]
        if name != "one.png":
            assert (labels == expected(checkpoint, image)).mean() > 0.999  # ties; batches differ
        with Image.open(out / "overlays" / f"{stem}.jpg") as overlay:
            assert overlay.size == image.shape[1::-1]
        probs = np.load(out / "probs" / f"{stem}.npy")
        assert (probs.shape, probs.dtype) == ((5, *image.shape[:2]), np.float16)
        assert np.abs(probs.astype(np.float64).sum(0) - 1).max() < 5e-3
        assert (np.take_along_axis(probs, labels[None].astype(np.int64), 0)[0] >= probs.max(0) - 1e-3).all()
    # As shown, not as stored: 60 high and 80 wide, like the one that was not turned.
    assert (mask(out / "masks/turned.png") == mask(out / "masks/good.png")).mean() > 0.9
    # CMYK and the original look the same.
    assert (mask(out / "masks/cmyk.png") == mask(out / "masks/good.png")).mean() > 0.9
    [film] = [cv2.VideoCapture(str(path)) for path in (out / "overlays").glob("moving.*")]
    assert film.get(cv2.CAP_PROP_FPS) == 10
    assert sum(film.grab() for _ in range(9)) == 5
    film.set(cv2.CAP_PROP_POS_FRAMES, 0)
    assert film.read()[1].shape == (100, 160, 3)


def test_frames_of_an_animation_are_predicted_each(checkpoint, faulty, tmp_path):
    run(checkpoint, faulty / "moving.gif", tmp_path / "out")
    masks = [mask(tmp_path / f"out/masks/moving/{number:06d}.png") for number in range(1, 6)]
    with Image.open(faulty / "moving.gif") as film:
        for number, labels in enumerate(masks):
            film.seek(number)
            assert (labels == expected(checkpoint, np.array(film.convert("RGB")))).mean() > 0.999
    assert any((labels != masks[0]).any() for labels in masks)


def test_same_name_with_two_suffixes_gives_two_masks(checkpoint, tmp_path):
    (tmp_path / "in").mkdir()
    photo().save(tmp_path / "in/a.png")
    photo(30, 40).save(tmp_path / "in/a.bmp")
    assert run(checkpoint, tmp_path / "in", tmp_path / "out") == 0
    assert mask(tmp_path / "out/masks/a.png.png").shape == (60, 80)
    assert mask(tmp_path / "out/masks/a.bmp.png").shape == (30, 40)


def test_pattern_single_file_and_output_inside_the_input(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/predictions/masks").mkdir(parents=True)
    for name in ("a/x.jpg", "a/b/y.JPG", "a/b/[1].png", "a/predictions/masks/x.png"):
        photo().save(tmp_path / name)

    def names(given: str) -> list[str]:
        return [found.name for found in find_inputs([str(tmp_path / given)], tmp_path / "a/predictions")[1]]

    assert names("a") == ["b/[1]", "b/y", "x"]
    assert names("a/**/*.[jJ][pP][gG]") == ["b/y", "x"]
    assert names("a/b/[1].png") == ["[1]"]  # a file of that name, not a pattern
    with pytest.raises(UserError, match="no such file or folder"):
        names("nowhere")
    with pytest.raises(UserError, match="no file matches this pattern"):
        names("a/*.tif")


def test_several_inputs_are_named_relative_to_their_common_folder(tmp_path, monkeypatch):
    for name in ("a/x.jpg", "a/x.png", "a/sub/x.jpg", "b/x.jpg", "b/film.gif", "b/notes.txt", "b/.hidden.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        photo().save(tmp_path / name) if name.endswith(("jpg", "png", "gif")) else (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)

    def found(*given: str) -> tuple[str, list[tuple[str, str]], int]:
        base, inputs, num_others = find_inputs(given, tmp_path / "out")
        return os.path.relpath(base), [(file.path.as_posix(), file.name) for file in inputs], num_others

    # As a shell expands a/*.jpg and b/*: what is alike in two folders keeps its folder, in one folder its suffix.
    assert found("a/x.jpg", "b/film.gif", "b/notes.txt", "b/x.jpg", "b/.hidden.jpg") == (
        ".", [("a/x.jpg", "a/x.jpg"), ("b/film.gif", "b/film"), ("b/x.jpg", "b/x")], 1,
    )  # fmt: skip
    assert found("a/x.jpg", "a/x.png") == ("a", [("a/x.jpg", "x.jpg"), ("a/x.png", "x.png")], 0)
    # A pattern, the files that a shell makes of it, and each file alone have the same names.
    assert found("a/*.jpg") == found("a/x.jpg") == ("a", [("a/x.jpg", "x.jpg")], 0)
    # Files, folders and patterns mixed, one file named twice.
    assert found("a/sub", "a/sub/x.jpg", "b/*.gif") == (".", [("a/sub/x.jpg", "a/sub/x"), ("b/film.gif", "b/film")], 0)
    assert found("a/sub/x.jpg", str(tmp_path / "a/sub/x.jpg")) == ("a/sub", [("a/sub/x.jpg", "x")], 0)
    for given, named in (("nowhere.jpg", "nowhere.jpg: no such file"), ("b/*.tif", "b/*.tif: no file matches")):
        with pytest.raises(UserError, match=re.escape(f"--input {named}")):
            found("a/x.jpg", given)


def test_images_and_videos_of_several_folders(checkpoint, tmp_path, capsys):
    for name in ("a/x.jpg", "b/x.jpg"):
        (tmp_path / name).parent.mkdir()
        photo().save(tmp_path / name)
    write_video(tmp_path / "b/film.avi", 2, "MJPG")
    given = [str(tmp_path / name) for name in ("a/x.jpg", "b/x.jpg", "b/film.avi")]
    assert run(checkpoint, given, tmp_path / "out") == 0
    assert f"3 inputs in {tmp_path}: 3 to predict" in capsys.readouterr().out
    written = {path.relative_to(tmp_path / "out/masks").as_posix() for path in (tmp_path / "out").rglob("*.png")}
    assert written == {"a/x.png", "b/x.png", "b/film/000001.png", "b/film/000002.png"}
    assert json.loads((tmp_path / "out/predictions.json").read_text())["input"] == str(tmp_path)
    assert run(checkpoint, given[::-1], tmp_path / "out") == 0
    assert "0 to predict, 3 done before" in capsys.readouterr().out
    with pytest.raises(UserError, match="of another input"):  # whose x would be b/x
        run(checkpoint, given[1:], tmp_path / "out")


def folder_of(tmp_path, number: int, name: str = "in"):
    (tmp_path / name).mkdir()
    for index in range(number):
        photo(40 + index, 50).save(tmp_path / name / f"{index}.png")
    return tmp_path / name


def test_goes_on_where_it_stopped(checkpoint, tmp_path, capsys):
    given, out = folder_of(tmp_path, 4), tmp_path / "out"
    assert run(checkpoint, given, out, "--overlay") == 0
    (out / "masks/2.png").unlink()
    (out / "overlays/3.jpg").unlink()
    written = (out / "masks/1.png").stat().st_mtime_ns
    capsys.readouterr()
    assert run(checkpoint, given, out, "--overlay") == 0
    assert "2 to predict, 2 done before" in capsys.readouterr().out
    assert mask(out / "masks/2.png").shape == (42, 50)
    assert (out / "overlays/3.jpg").is_file()
    assert (out / "masks/1.png").stat().st_mtime_ns == written


def test_predictions_of_something_else_are_not_taken_for_these(checkpoint, tmp_path):
    given, out = folder_of(tmp_path, 2), tmp_path / "out"
    assert run(checkpoint, given, out) == 0
    for words in (["--flip"], ["--amp", "bf16"], ["--overlay"], ["--scales", "0.5"]):
        with pytest.raises(UserError, match="made in another way"):
            run(checkpoint, given, out, *words)
    with pytest.raises(UserError, match="of another input"):
        run(checkpoint, folder_of(tmp_path, 2, "other"), out)
    (tmp_path / "theirs/masks").mkdir(parents=True)
    with pytest.raises(UserError, match=r"has masks that are not of predict\.py"):
        run(checkpoint, given, tmp_path / "theirs")


def test_what_overwrite_has_not_come_to_is_not_done(checkpoint, tmp_path, capsys):
    given, out = folder_of(tmp_path, 3), tmp_path / "out"
    assert run(checkpoint, given, out) == 0
    old = (out / "masks/1.png").stat().st_mtime_ns
    assert run(checkpoint, given, out, "--flip", "--overwrite") == 0
    assert (out / "masks/1.png").stat().st_mtime_ns > old
    os.utime(out / "masks/1.png", ns=(old, old))  # as if stopped before this one
    capsys.readouterr()
    assert run(checkpoint, given, out, "--flip") == 0
    assert "1 to predict, 2 done before" in capsys.readouterr().out


def test_what_another_process_left_is_removed_when_it_is_old(checkpoint, tmp_path):
    given, out = folder_of(tmp_path, 1), tmp_path / "out"
    assert run(checkpoint, given, out) == 0
    for name, age in (("old", 7200), ("new", 0)):
        (out / "masks" / f".{name}.1.part.png").touch()
        os.utime(out / "masks" / f".{name}.1.part.png", (time.time() - age,) * 2)
    assert run(checkpoint, given, out) == 0
    assert [path.name for path in out.rglob(".*")] == [".new.1.part.png"]


def test_no_two_files_are_written_to_the_same_place(tmp_path):
    def names(*files: str) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()
        return [found.name for found in find_inputs([str(folder)], tmp_path / "out")[1]]

    assert names("a.jpg", "b.png") == ["a", "b"]
    assert names("a.jpg", "a.png", "b.png") == ["a.jpg", "a.png", "b"]
    assert names("film.gif", "film/000001.png") == ["film/000001", "film.gif"]
    with pytest.raises(UserError, match=r"a\.jpg.*would be written to the same files"):
        names("a.jpg", "a.png", "a.jpg.png")
    (tmp_path / "x").mkdir()
    for suffix in ("jpg", "png"):
        photo().save(tmp_path / f"x/a.{suffix}")
    # One after the other as both at once.
    assert [find_inputs([str(tmp_path / f"x/a.{suffix}")], tmp_path)[1][0].name for suffix in ("jpg", "png")] == [
        "a.jpg",
        "a.png",
    ]


def test_name_that_is_too_long_to_write_is_named_and_the_rest_done(checkpoint, tmp_path, capsys):
    given = folder_of(tmp_path, 2)
    for suffix in (".jpg", ".png"):  # so that both keep it, and the masks' names have 4 more letters than 255
        photo().save(given / ("n" * 251 + suffix))
    assert run(checkpoint, given, tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert "2 predicted" in said
    assert said.count("File name too long") == 2


def test_errors_of_the_writing_threads_are_raised(tmp_path):
    (tmp_path / "masks").write_text("no folder")
    image, label = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8)

    def write() -> None:  # raised by the call itself, if the thread is that quick, or by the next one
        with Outputs(tmp_path, voc_colours(), overlays=False, probs=False) as outputs:
            outputs.write("a", image, label, None, frame=False)
            outputs.wait()

    with pytest.raises(UserError, match=r"a\.png: cannot be written"):
        write()


def test_damaged_and_turned_files(checkpoint, tmp_path, capsys):
    given = folder_of(tmp_path, 1)
    frames = [photo(60 + 5 * number, 80).crop((0, 0, 80, 60)) for number in range(6)]
    frames[0].save(given / "whole.gif", save_all=True, append_images=frames[1:])
    (given / "cut.gif").write_bytes((given / "whole.gif").read_bytes()[: (given / "whole.gif").stat().st_size * 2 // 3])
    for orientation in (5, 6, 8, 9, 99):
        turned = Image.Exif()
        turned[0x0112] = orientation
        photo(40, 50).save(given / f"turned{orientation}.jpg", exif=turned)
    photo(40, 50).save(given / "turned.tif", tiffinfo={274: 6})
    (given / "line\nbreak.jpg").write_text("no image")
    assert run(checkpoint, given, tmp_path / "out", "--val_batchsize", "16") == 1
    failed = capsys.readouterr().out.split("could not be:")[1].strip().splitlines()
    assert [line.split(":")[0].split("/")[-1] for line in failed] == ["cut.gif", "line\\nbreak.jpg"]
    for name in ("turned5", "turned6", "turned8", "turned"):
        assert mask(tmp_path / f"out/masks/{name}.png").shape == (50, 40)
    for name in ("turned9", "turned99", "0"):
        assert mask(tmp_path / f"out/masks/{name}.png").shape == (40, 50)


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
    monkeypatch.setattr(films, "CODECS", (("mp4v", ".mp4"),))
    assert run(checkpoint, tmp_path / "my film.avi", tmp_path / "out", "--overlay", "--log_level", "WARNING") == 0
    [line] = capsys.readouterr().out.splitlines()
    written = tmp_path / "out/overlays/my film.mp4"
    assert written.is_file()
    assert line.startswith(f"{written}: not playable in browsers, as OpenCV encodes neither H.264 nor VP8")
    assert shlex.split(line.rpartition(": ")[2]) == [
        "ffmpeg", "-i", str(written), "-c:v", "libx264", "-pix_fmt", "yuv420p", str(written.with_suffix(".h264.mp4")),
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "background"), [("0", 0), ("none", None)])
def test_overlay_leaves_the_background_clear_unless_there_is_none(checkpoint, tmp_path, given, background):
    image = np.asarray(photo(60, 80))
    label = np.zeros((60, 80), np.uint8)
    label[20:40, 30:60] = 1
    with Outputs(tmp_path, voc_colours(), background, overlays=True, probs=False) as outputs:
        outputs.write("a", image, label, None, frame=False)
        outputs.wait()
    written = np.asarray(Image.open(tmp_path / "overlays/a.jpg")).astype(int)
    for number in (0, None):
        painted = overlay(image, label, voc_colours(), number)
        assert (np.abs(written - painted).mean() < 5) == (number == background)  # JPEG is not exact
    # --background reaches it, and what was written for another one is not taken for this.
    photo().save(tmp_path / "b.png")
    assert run(checkpoint, tmp_path / "b.png", tmp_path / "out", "--overlay", "--background", given) == 0
    assert json.loads((tmp_path / "out/predictions.json").read_text())["overlay"] == {"background": background}


def test_video_that_is_cut_off_is_named(checkpoint, tmp_path, capsys):
    for name, codec, said in (("a.mp4", "mp4v", "not a readable video"), ("b.avi", "MJPG", "frames: it is cut off")):
        write_video(tmp_path / name, 20, codec)
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        assert run(checkpoint, tmp_path / name, tmp_path / f"{name}.out", "--overlay") == 1
        assert f"{name}: " in (out := capsys.readouterr().out)
        assert said in out
        assert not list((tmp_path / f"{name}.out").rglob("overlays/*.*"))


def test_two_processes_write_what_one_does(checkpoint, faulty, tmp_path):
    words = ["--checkpoint", str(checkpoint), "--input", str(faulty), "--device", "cpu", "--workers", "0", "--output"]
    results = finish(start_group(2, [*words, "two"], tmp_path, "predict.py"))
    assert [status for status, _, _ in results] == [1, 1], results
    assert "3 could not be" in results[0][1]
    assert results[1][1] == ""
    predict.main([*words, str(tmp_path / "one")])
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 6 + 6 + 1  # images; frames and frames.json; predictions.json
    assert files == sorted(
        path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*") if path.is_file()
    )
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--checkpoint", "{checkpoint}"], "--input is not set"),
        (["--input", "x.jpg"], "--checkpoint is not set"),
        (["--input", "x.jpg", "--checkpoint", "{checkpoint}"], "--input x.jpg: no such file"),
        (["--input", ".", "--checkpoint", "nowhere.pt"], "nowhere.pt: cannot be read"),
        (["--input", ".", "--checkpoint", "{checkpoint}", "--scales", "0"], "--scales 0.0: must be above 0"),
        (["--input", ".", "--checkpoint", "{checkpoint}", "--stride_rate", "1.5"], "--stride_rate 1.5"),
        (["--input", ".", "--checkpoint", "{checkpoint}", "--weights", "ema"], "has no average of weights"),
        (["--input", ".", "--checkpoint", "{checkpoint}", "--layers", "50"], "weights of a res50_ASPP with --layers 50"),
        (["--input", ".", "--checkpoint", "{checkpoint}", "--flop"], "did you mean --flip?"),
        (["--input", ".", "--model", "m.onnx", "--flip"], "predicts whole images at one scale"),
        (["--input", ".", "--model", "m.onnx", "--layers", "18"], "predicts whole images at one scale"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(checkpoint, tmp_path, words, named):
    words = [word.format(checkpoint=checkpoint) for word in words]
    one_line_each(finish([start([*words, "--device", "cpu"], tmp_path, "predict.py")]), named)


def test_output_that_cannot_be_written_is_said_first(checkpoint, tmp_path):
    (tmp_path / "out").write_text("a file")
    photo().save(tmp_path / "a.png")
    words = ["--checkpoint", str(checkpoint), "--input", "a.png", "--output", "out", "--device", "cpu"]
    one_line_each(finish([start(words, tmp_path, "predict.py")]), "out")


def test_disk_that_fills_up_ends_it_with_one_line(checkpoint, small_disk, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(4):
        photo(100, 100).save(tmp_path / f"in/{number}.png")
    (small_disk / "other").write_bytes(bytes(250 * 2**20 - 300_000))  # room for 2 of 4 files of 5 x 100 x 100 x 2 bytes
    words = [
        "--checkpoint",
        str(checkpoint),
        "--input",
        "in",
        "--output",
        str(small_disk),
        "--device",
        "cpu",
        "--probs",
    ]
    one_line_each(finish([start([*words, "--workers", "0"], tmp_path, "predict.py")]), "No space left")
    assert not list(small_disk.rglob(".*"))

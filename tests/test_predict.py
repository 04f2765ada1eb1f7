"""predict.py as a user starts it, on files good and bad."""

import json
import os
import re
import shlex
import signal
import sys

import numpy as np
import pytest
from conftest import contents, finish, random_checkpoint, refused, start, succeed, two_processes, using, wait_until
from faulty_data import exif
from PIL import Image

import predict
from data.classes import read_classes
from data.images import read_image
from data.images.files import jpeg_damage
from data.overlays import overlay
from distributed.group import Stopped
from inference.inputs import film_hint, find_inputs
from inference.outputs import MAX_WAITING, Outputs
from segtrain import load
from support.errors import UserError

NAMES = ("void", "road & kerb", "\u5929\u7a7a", "tree", "car")
COLOURS = np.zeros((256, 3), np.uint8)
COLOURS[:5] = (16, 32, 48), (255, 0, 128), (0, 0, 255), (0, 200, 0), (255, 160, 0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    lines = [f"{name} #{bytes(colour).hex()}" for name, colour in zip(NAMES, COLOURS, strict=False)]
    (folder / "classes.txt").write_text("\n".join(lines), encoding="utf-8")
    return random_checkpoint(folder / "best.pt", num_classes=5, classes=folder / "classes.txt")


def photo(height: int = 60, width: int = 80) -> Image.Image:
    """Smooth colours, which JPEG keeps."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def run(checkpoint, given, out, *words: str) -> int:
    return predict.main(using(checkpoint, "--input", given, "--output", out, *words))


def mask(path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "P"
        assert image.getpalette()[:15] == COLOURS[:5].ravel().tolist()
        return np.array(image)


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
    (folder / "damaged.jpg").write_bytes(whole[: len(whole) // 2] + b"\xff\xd0" * 20 + whole[len(whole) // 2 + 40 :])
    image.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    image.convert("L").save(folder / "grey.png")
    image.transpose(Image.Transpose.ROTATE_90).save(folder / "turned.jpg", exif=exif(6), quality=95)
    Image.new("RGB", (1, 1), (9, 200, 30)).save(folder / "one.png")
    (folder / "text.jpg").write_text("not an image")
    (folder / "notes.txt").write_text("of another kind")
    (folder / ".hidden.png").write_bytes(b"")
    os.mkfifo(folder / "pipe.png")
    (folder / "gone.jpg").symlink_to("nowhere")
    (folder / "self.jpg").symlink_to("self.jpg")
    image.save(folder / "pages.tif", save_all=True, append_images=[image.rotate(180)])
    return folder


def test_each_file_is_right_or_named(checkpoint, faulty, tmp_path, capsys):
    out, model = tmp_path / "out", load(checkpoint, device="cpu")
    assert run(checkpoint, faulty, out, "--overlay", "--probs") == 1
    said = capsys.readouterr().out
    assert "1 file(s) of other kinds" in said
    named = [line.split(":")[0] for line in said.split("could not be predicted:")[1].splitlines() if line.strip()]
    assert " ".join(map(os.path.basename, named)) == "gone.jpg pipe.png self.jpg text.jpg truncated.jpg"
    assert "1 image(s) have several frames, and only the first is read (--bands takes pages): " in said
    assert f"1 JPEG image(s) have damaged data, so parts of their masks are wrong: {faulty / 'damaged.jpg'} (" in said
    images = ["pages.tif", "damaged.jpg", "good.JPG", "cmyk.jpg", "grey.png", "turned.jpg", "one.png"]
    images.append("sub/Stra\u00dfe \u4e00.png")
    stems = [os.path.splitext(name)[0] for name in images]
    assert {str(path.relative_to(out / "masks")) for path in out.rglob("masks/**/*.png")} == {f"{s}.png" for s in stems}
    for name, stem in zip(images, stems, strict=True):
        image = read_image(faulty / name)
        labels = mask(out / "masks" / f"{stem}.png")
        assert labels.shape == image.shape[:2]
        if name != "one.png":
            assert (labels == model.predict(image).mask).mean() > 0.999  # ties; batches differ
            assert len(np.unique(labels)) > 1
        shown, (height, width) = np.asarray(Image.open(out / "overlays" / f"{stem}.jpg")).astype(int), labels.shape
        painted = [overlay(image, labels, COLOURS, background) for background in (0, None)]
        errors = [np.abs(shown[:height, :width] - picture).mean() for picture in painted]
        assert errors[0] <= errors[1]  # JPEG is not exact
        for number in range(1, 5):  # the legend, without the background
            assert (np.abs(shown[height:] - COLOURS[number]).max(axis=2) < 30).any() == (number in labels)
        probs = np.load(out / "probs" / f"{stem}.npy")
        assert (probs.shape, probs.dtype) == ((5, *image.shape[:2]), np.float16)
        assert (np.take_along_axis(probs, labels[None].astype(np.int64), 0)[0] >= probs.max(0) - 1e-3).all()
    # As shown, not as stored: 60 high and 80 wide, like the one that was not turned. CMYK looks like the original.
    for name in ("turned", "cmyk"):
        assert (mask(out / f"masks/{name}.png") == mask(out / "masks/good.png")).mean() > 0.9


def test_damage_is_looked_for_in_jpeg_files_only(faulty, tmp_path, monkeypatch):
    """A service may close the standard error, to which libjpeg writes; other formats may have no 8 bits."""
    assert jpeg_damage(faulty / "damaged.jpg").startswith("Corrupt JPEG data")
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "deep.tif")
    assert [jpeg_damage(path) for path in (faulty / "good.JPG", faulty / "one.png", tmp_path / "deep.tif")] == [""] * 3
    monkeypatch.setattr(sys, "stderr", None)
    assert jpeg_damage(faulty / "damaged.jpg") == ""


def test_inputs_are_named_relative_to_their_common_folder(tmp_path, monkeypatch):
    """As a shell expands a/*.jpg and b/*: what is alike in two folders keeps its folder, in one folder its suffix."""
    names = "a/x.jpg a/x.png a/sub/x.jpg b/x.jpg b/notes.txt b/.hidden.jpg c/[1].png c/y.JPG"
    names += " c/out/masks/x.png c/other/predictions.json c/other/masks/x.png c/other/z.png"
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)

    def found(*given: str) -> tuple[str, dict[str, str], int]:
        base, inputs, others = find_inputs(given, tmp_path / "c/out")
        return os.path.relpath(base), {path.as_posix(): name for name, path in inputs.items()}, len(others)

    assert film_hint(find_inputs(["a", "b"], tmp_path / "out")[2]) == ""
    film = tmp_path / "b/my film.MOV"
    film.touch()
    split = "1 of them film(s), which must be split into images first: mkdir 'b/my film' && ffmpeg -i 'b/my film.MOV' "
    assert film_hint(find_inputs(["a", "b"], tmp_path / "out")[2]) == f"; {split}'b/my film/%06d.png'"
    with pytest.raises(UserError, match=re.escape(f"no image found, only 1 other file(s); {split}")):
        find_inputs(["b/my film.MOV"], tmp_path / "out")
    film.unlink()
    assert found("a/x.jpg", "b/notes.txt", "b/x.jpg", "b/.hidden.jpg") == (
        ".", {"a/x.jpg": "a/x.jpg", "b/x.jpg": "b/x"}, 1,
    )  # fmt: skip
    assert found("a/x.jpg", "a/x.png") == ("a", {"a/x.jpg": "x.jpg", "a/x.png": "x.png"}, 0)
    # A pattern, the files that a shell makes of it, and each file alone have the same names.
    assert found("a/*.jpg") == found("a/x.jpg") == ("a", {"a/x.jpg": "x.jpg"}, 0)
    assert found("a/**/*.[jJ]*") == ("a", {"a/x.jpg": "x.jpg", "a/sub/x.jpg": "sub/x"}, 0)
    # One file named twice. Outputs of predict.py inside the input do not count; a file may look like a pattern.
    assert found("a/sub/x.jpg", str(tmp_path / "a/sub/x.jpg")) == ("a/sub", {"a/sub/x.jpg": "x"}, 0)
    assert found("c")[1] == {"c/[1].png": "[1]", "c/other/z.png": "other/z", "c/y.JPG": "y"}
    assert found("c/**/*.png") == ("c", {"c/[1].png": "[1]", "c/other/z.png": "other/z"}, 0)
    assert find_inputs(["c/y.JPG", "a/x.png"], tmp_path / "c")[1].keys() == {"c/y", "a/x.png"}
    assert found("c/[1].png")[1] == {"c/[1].png": "[1]"}
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


def test_stopped_and_started_again_repeats_whole_batches(checkpoint, tmp_path):
    """A model's result may depend on the batch's size: after a kill, probabilities differed in the last bit."""
    given = tmp_path / "in"
    given.mkdir()
    for number in range(60):
        photo(97, 129).rotate(number).save(given / f"{number:02d}.png")
    words = using(checkpoint, *shlex.split("--input in --probs --val_batchsize 3 --scales 1 2 --overlay --output"))
    process = start([*words, "out"], tmp_path, "predict.py")
    wait_until(lambda: len(list(tmp_path.glob("out/masks/*.png"))) >= 4, [process])
    process.send_signal(signal.SIGTERM)
    finish([process], status=75)
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/masks/*.png")}
    assert 4 <= len(done) < 60
    (tmp_path / "out/overlays/01.jpg").unlink()
    (tmp_path / "out/probs/02.npy").unlink()
    (tmp_path / "out/masks/.0123456789abcdef.part.png").touch()  # what a killed process left half-written
    said, _ = succeed([start([*words, name], tmp_path, "predict.py") for name in ("out", "whole")])
    assert f"{len(done) - 2} done before (--overwrite predicts them again)" in said
    assert {path.stem for path, written in done.items() if path.stat().st_mtime_ns != written} == {"00", "01", "02"}
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_predictions_of_something_else_are_not_taken_for_these(checkpoint, tmp_path):
    given, out = folder_of(tmp_path, 2), tmp_path / "out"
    assert run(checkpoint, given, out) == 0
    (out / "masks/mine.png").touch()
    for words in ("--flip", "--overlay", "--amp bf16", "--scales 0.5", "--overlay --background none"):
        with pytest.raises(UserError, match="with other settings"):
            run(checkpoint, given, out, *words.split())
    with pytest.raises(UserError, match=r"with other settings \(input\)"):
        run(checkpoint, folder_of(tmp_path, 2, "other"), out)
    # Nothing of the old settings is left, whatever --overwrite then reaches.
    old = (out / "masks/1.png").stat().st_mtime_ns
    assert run(checkpoint, given, out, "--flip", "--overwrite") == 0
    assert (out / "masks/1.png").stat().st_mtime_ns > old
    # But what predict.py did not write stays, and an input of its name is refused.
    assert (out / "masks/mine.png").exists()
    photo(40, 50).save(given / "mine.png")
    with pytest.raises(UserError, match=r"masks/mine\.png, which predict\.py did not write"):
        run(checkpoint, given, out, "--flip")
    (out / "predictions.json").unlink()
    with pytest.raises(UserError, match=r"masks/\d\.png but no predictions\.json, so predict\.py may not"):
        run(checkpoint, given, out, "--overwrite")


def test_an_input_that_changed_is_predicted_again(checkpoint, tmp_path, capsys):
    given, out = folder_of(tmp_path, 2), tmp_path / "out"
    assert run(checkpoint, given, out, "--overlay") == 0
    written = (out / "masks/1.png").stat().st_mtime_ns
    photo(60, 70).save(given / "0.png")
    assert run(checkpoint, given, out, "--overlay") == 0
    assert "1 to predict, 1 done before" in capsys.readouterr().out
    assert (mask(out / "masks/0.png").shape, (out / "masks/1.png").stat().st_mtime_ns) == ((60, 70), written)
    for part in (given / "1.png", given):  # a part of the inputs, and then all: none is forgotten
        assert run(checkpoint, part, out, "--overlay") == 0
    assert "0 to predict, 2 done before" in capsys.readouterr().out
    os.utime(given / "0.png", ns=(0, 0))  # as another photo of the same size in bytes
    assert run(checkpoint, given, out, "--overlay") == 0
    assert "1 to predict, 1 done before" in capsys.readouterr().out
    (given / "0.png").write_bytes(b"damaged")
    assert run(checkpoint, given, out, "--overlay") == 1
    assert not list(out.glob("*/0.*"))
    # An earlier version recorded no inputs: nothing says which masks are up to date.
    note = json.loads((out / "predictions.json").read_text())
    del note["files"]
    (out / "predictions.json").write_text(json.dumps(note))
    photo(60, 70).save(given / "0.png")
    assert run(checkpoint, given, out, "--overlay") == 0
    assert "2 to predict" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "then", "stays"),
    [
        ("a.png", "a.png a.jpg", "a"),  # then named a.png and a.jpg
        ("a.png a.jpg", "a.png", "a.jpg"),
        ("a.png b.png", "b.png", "a"),
        ("a.png", "a.png b.png", ""),
    ],
)
def test_masks_of_inputs_that_are_gone_or_have_another_name_are_said(checkpoint, tmp_path, capsys, first, then, stays):
    given, out = folder_of(tmp_path, 0), tmp_path / "out"
    for names in (first, then):
        for path in given.iterdir():
            path.unlink()
        for name in names.split():
            photo().save(given / name)
        capsys.readouterr()
        assert run(checkpoint, given, out) == 0
    said = capsys.readouterr().out
    assert ("of other inputs stay" in said) == bool(stays)
    if stays:
        assert f"mask(s) of other inputs stay, such as {out / 'masks' / stays}.png" in said
        assert (out / f"masks/{stays}.png").is_file()
    assert run(checkpoint, given, out, "--overwrite") == 0  # removes them
    assert "of other inputs stay" not in capsys.readouterr().out
    assert len(list((out / "masks").iterdir())) == len(then.split())


def test_two_processes_write_what_one_does(checkpoint, faulty, tmp_path):
    words = using(checkpoint, "--input", faulty, "--output")
    (_, said, _), (_, other, _) = finish(two_processes([*words, "two"], tmp_path, "predict.py"), status=1)
    assert "5 could not be predicted" in said
    assert other == ""
    predict.main([*words, str(tmp_path / "one")])
    one = contents(tmp_path / "one")
    assert len(one) == 8 + 1  # images; predictions.json
    assert one == contents(tmp_path / "two")


def test_an_image_beyond_the_limit_of_pillow_and_a_name_that_is_too_long(checkpoint, tmp_path, monkeypatch, capsys):
    given = folder_of(tmp_path, 1)
    for suffix in (".jpg", ".png"):  # so that both keep it, and the masks' names have 4 more letters than 255
        photo().save(given / ("n" * 251 + suffix))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow refuses more than twice as many
    assert run(checkpoint, given, tmp_path / "out") == 1
    monkeypatch.undo()
    said = capsys.readouterr().out
    assert "1 predicted" in said
    assert said.count("File name too long") == 2
    assert mask(tmp_path / "out/masks/0.png").shape == (40, 50)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "--input is not set"),
        ("--input ''", "--input is empty"),
        ("--input a.png --output ''", "--output is empty"),
        ("--model ''", "--model is empty"),
        (
            "--input . --checkpoint '' --model no.onnx",
            "--model no.onnx: no such file: name an ONNX FILE that export.py wrote",
        ),
        ("--input x.jpg", "--input x.jpg: no such file"),
        ("--input . --checkpoint nowhere.pt", "nowhere.pt: cannot be read (No such file or directory): name the"),
        ("--input . --checkpoint data", "--checkpoint data: not a file: name the FILE of a run"),
        ("--input . --checkpoint a.png", "--checkpoint a.png: not an intact checkpoint"),
        ("--input . --weights ema", "has no average of weights"),
        ("--input . --layers 50", "weights of a res50_ASPP with --layers 50"),
        ("--input . --checkpoint '' --model m.onnx --flip", "predicts whole images at one scale"),
        ("--input a.png --output file", "--output file: is a file"),
        ("--input a.png --output a.png/out", "--output a.png/out: a.png is a file"),
        (
            "--input data/masks --output data",
            "--input data/masks: all its images are in masks, overlays, probs of an output folder",
        ),
        ("--input data/images --output data/images/x", "which programs read as input"),
        ("--input a.png --output mask.png", "--output mask.png: ends like a file"),
        ("--input a.png --long_side 60000", ".pt with --long_side 60000, --window 0"),
        ("--input a.png --window 60000", ".pt with --long_side 0, --window 60000"),
    ],
)
def test_wrong_flags_are_named(checkpoint, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "data/images", tmp_path / "data/masks"):
        folder.mkdir(parents=True, exist_ok=True)
        photo().save(folder / "a.png")
    (tmp_path / "file").touch()
    given = [] if "--checkpoint" in words else ["--checkpoint", str(checkpoint)]
    with refused(named):
        predict.main([*given, *shlex.split(words), "--device", "cpu", "--workers", "0"])


def test_damage_that_another_process_finds_is_said(checkpoint, faulty, tmp_path):
    photo(90, 120).save(faulty / "large.png")  # larger images come first, to rank 0
    words = using(checkpoint, "--input", faulty / "large.png", faulty / "damaged.jpg", "--output", "two")
    (_, said, _), _ = finish(two_processes(words, tmp_path, "predict.py"), status=0)
    assert "1 JPEG image(s) have damaged data" in said


def test_what_is_predicted_is_written_after_a_signal(tmp_path):
    rng, (height, width) = np.random.default_rng(0), (600, 800)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)

    def write_until_stopped() -> None:
        with Outputs(tmp_path, read_classes("voc", 21), 0, ["masks", "overlays"]) as outputs:
            for number in range(MAX_WAITING):
                outputs.write(str(number), image, image[..., 0] % 21, None)
            raise Stopped

    with pytest.raises(Stopped):
        write_until_stopped()
    assert len(list(tmp_path.glob("masks/*.png"))) == MAX_WAITING

"""pseudo.py on plain folders (--dataset Folder), and on files whose names have an ending."""

import shlex
from pathlib import Path

import pytest
from conftest import TINY, read_metrics
from test_layout import put
from test_pseudo_run import pixels

import pseudo
import train
from data.demo import draw_sample

SHORT = (
    "layers",
    "pretrained",
    "crop_size",
    "epochs",
    "warmup_epochs",
    "workers",
    "device",
    "batchsize",
    "log_interval",
)
PLACES = {
    "images/SPLIT": ("images/{split}/{name}.jpg", "{kind}/{split}/{name}.png", "{split}/{name}.png"),
    "SPLIT/images": ("{split}/images/{name}.jpg", "{split}/{kind}/{name}.png", "{name}.png"),
    "list": ("images/{name}.jpg", "{kind}/{name}.png", "{name}.png"),
    "one folder": ("{split}/{name}_sat.jpg", "{split}/{name}_{kind}.png", "{name}_{kind}.png"),
}
NAMES = {"train": ["a b", "sub/c"], "val": ["d"]}
VOC = {"train": ["a", "b"], "val": ["d"]}  # without spaces or folders


def draw(root: Path, image_at: str, label_at: str, *, splits: dict = NAMES, lists: str = "") -> None:
    """Images, "masks" and "strokes". lists: folder of the lists; "": none."""
    for number, (split, name) in enumerate((split, name) for split, names in splits.items() for name in names):
        image, mask, scribble, _ = draw_sample(number)
        put(root / image_at.format(split=split, name=name), image)
        for kind, label in (("masks", mask), ("strokes", scribble)):
            put(root / label_at.format(split=split, name=name, kind=kind), label)
    for split, names in splits.items() if lists else ():
        (root / lists).mkdir(parents=True, exist_ok=True)
        (root / lists / f"{split}.txt").write_text("\n".join(names))


def run(root: Path, out: Path, *more: object) -> int:
    fixed = ["--dataset_path", root, "--output", out, "--numclasses", 5, "--workers", 0, "--device", "cpu"]
    return pseudo.main([*map(str, fixed), *map(str, more)])


def paste(printed: str, logdir: Path) -> list[dict]:
    """Train for an epoch with the printed command. Returns the lines of metrics.jsonl about the validation."""
    words = shlex.split(printed.splitlines()[-1].partition("to train on them: ")[2])[2:]
    short = [word for name in SHORT for word in (f"--{name}", str(TINY[name]))]
    assert train.main([*words, *short, "--logdir", str(logdir)]) == 0
    return read_metrics(next(logdir.iterdir()), "val")


@pytest.mark.parametrize("place", list(PLACES))
def test_the_printed_command_trains_on_labels_of_plain_folders(tmp_path, capsys, place):
    image_at, label_at, expected = PLACES[place]
    root, out = tmp_path / "my data", tmp_path / "my labels"
    draw(root, image_at, label_at, lists="." if place == "list" else "")
    flags = ["--dataset", "Folder", "--train_path", "strokes"]
    if place == "one folder":  # validation reads the strokes, too: the ending holds for all labels
        flags = ["--dataset", "Folder", "--image_path", ".", "--train_path", ".", "--val_path", "."]
        flags += ["--image_suffix", "_sat", "--label_suffix", "_strokes"]
    assert run(root, out, *flags) == 0
    said = capsys.readouterr().out
    for name in NAMES["train"]:
        values = {"split": "train", "name": name, "kind": "strokes"}
        label, scribble = (pixels(path / at.format(**values)) for path, at in ((out, expected), (root, label_at)))
        assert (label[scribble != 255] == scribble[scribble != 255]).all()
        assert (label != 255).mean() > (scribble != 255).mean()
    # Strokes that stand where the masks would be are not scored against themselves.
    assert ("against 2 dense masks" in said) == (place != "one folder")
    assert paste(said, tmp_path / "log")[0]["pixels"] > 0


def test_labels_have_the_ending_that_training_looks_for(tmp_path, capsys):
    root = tmp_path / "data"
    draw(root, "JPEGImages/{name}.jpg", "{kind}/{name}_gt.png", splits=VOC, lists="ImageSets/Segmentation")
    assert run(root, tmp_path / "out", "--train_path", "strokes", "--val_path", "masks", "--label_suffix", "_gt") == 0
    assert paste(capsys.readouterr().out, tmp_path / "log")

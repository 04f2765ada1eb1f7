"""train.py --task test and --task predict."""

import json

import pytest
from conftest import flags, read_metrics, start_group, succeed

import train
from support.errors import UserError


@pytest.fixture(scope="module")
def trained(demo_root, tmp_path_factory):
    """A folder with a run "mine-first" by a config of two stages, and that config."""
    folder = tmp_path_factory.mktemp("task")
    words = flags(dataset_path=demo_root, logdir=folder / "log", epochs=1, val_batchsize=1)
    values = dict(zip((word[2:] for word in words[::2]), words[1::2], strict=True))
    lines = [f"{name}: {value}" for name, value in values.items()]
    config = folder / "mine.yaml"
    config.write_text("\n".join([*lines, "stages:", "  first: {seed: 1}", "  second: {seed: 2}", ""]))
    train.main(["--config", str(config), "--stage", "first", "--task", "train"])
    return folder, ["--config", str(config), "--stage", "first"]


def test_test_scores_the_newest_run_of_the_config(trained, tmp_path):
    folder, words = trained
    outputs = ["--json", str(tmp_path / "scores.json"), "--save_dir", str(tmp_path / "masks")]  # not train.py's alias
    assert train.main([*words, "--task", "test", *outputs, "--epochs", "5", "--flip"]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["checkpoint"] == str(folder / "log" / "mine-first" / "best.pt")
    assert len(list((tmp_path / "masks").glob("*.png"))) == 3


def test_test_gives_the_scores_that_the_run_logged(trained, tmp_path):
    """Also if the run was trained with other flags than its config has: here another --amp."""
    folder, words = trained
    train.main([*words, "--name", "half", "--amp", "bf16"])
    assert train.main([*words, "--name", "half", "--task", "test", "--json", str(tmp_path / "scores.json")]) == 0
    [logged] = read_metrics(folder / "log" / "half", "val")
    content = json.loads((tmp_path / "scores.json").read_text())
    assert content["miou"] == logged["miou"]
    assert content["iou"] == logged["iou"]


def test_predict_takes_the_data_sets_images_on_two_processes(trained, demo_root, tmp_path):
    _, words = trained
    words = [*words, "--task", "predict", "--output", "out", "--device", "cpu", "--workers", "0"]
    succeed(start_group(2, words, tmp_path))
    images = {path.stem for path in (demo_root / "JPEGImages").iterdir()}
    assert {path.stem for path in (tmp_path / "out" / "masks").iterdir()} == images


def test_predict_of_one_image_by_a_named_checkpoint(trained, demo_root, tmp_path):
    folder, _ = trained
    words = ["--task", "predict", "--checkpoint", str(folder / "log" / "mine-first" / "last.pt"), "--workers", "0"]
    image = demo_root / "JPEGImages" / "demo_0001.jpg"
    assert train.main([*words, "--input", str(image), "--output", str(tmp_path)]) == 0
    assert (tmp_path / "masks" / "demo_0001.png").is_file()


def test_the_file_sets_the_launch_flags_and_the_command_line_overrides_the_checkpoint(tmp_path, monkeypatch):
    file = tmp_path / "launch.yaml"
    launch = "ddp: {enabled: false, log_level: WARNING}\ndevice: cpu\nworkers: 1\ndist_timeout: 33\n"
    file.write_text(f"{launch}dataset_path: x\namp: bf16\n")
    seen: list = []
    monkeypatch.setattr("evaluate.run", lambda *values: seen.append(values) or 0)
    words = ["--checkpoint", "c.pt", "--workers", "2", "--val_batchsize", "7", "--epochs", "5", "--split", "train"]
    assert train.main(["--config", str(file), "--task", "test", *words]) == 0
    [(values, overrides)] = seen
    assert (values.checkpoint, values.split, values.distributed, values.log_level) == (
        "c.pt",
        "train",
        False,
        "WARNING",
    )
    assert (values.device, values.workers, values.dist_timeout) == ("cpu", 2, 33)
    assert overrides == {"val_batchsize": 7, "workers": 2}  # not --amp: the checkpoint has its own


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--task", "tset"], "did you mean test?"),
        (["--task", "test", "--name", "other"], "--task test: no run of --name other in --logdir"),
        (["--task", "test", "--resume", "x.pt"], "--resume x.pt with --task test: use --checkpoint FILE instead"),
        (["--task", "test", "--scals", "2"], "unknown flag --scals: did you mean --scales?"),
        (["--task", "test", "--overlay"], "unknown flag --overlay"),  # of predict.py
        (["--scales", "2"], "unknown flag --scales"),  # no task of its own
    ],
)
def test_wrong_tasks_are_named(trained, words, named):
    with pytest.raises(UserError) as caught:
        train.main([*trained[1], *words])
    assert named in str(caught.value)

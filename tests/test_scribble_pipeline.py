"""The chain from strokes to a scored model: whole, and killed at random moments and started again."""

import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPO, refused, wait_until
from PIL import Image
from test_layout import put

from data.demo import draw_dataset
from support.errors import STOPPED, UserError
from support.files import lock_file, write_atomic
from tools.scribbles import chain
from tools.scribbles import pipeline as scribble_pipeline
from tools.scribbles.__main__ import main as simulate
from tools.scribbles.drawn_strokes import Pass

pytestmark = [pytest.mark.slow, pytest.mark.full_size]  # some of its processes are new interpreters
KILLS = 2
TINY = shlex.split(
    "--config configs/demo.yaml --epochs 2 --crop_size 33 --batchsize 4 --workers 0 --save_step_frequency 1 "
    "--ema 0.5 --device cpu"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Dense masks without scribbles: the chain simulates them."""
    root = tmp_path_factory.mktemp("scribbles") / "demo"
    draw_dataset(root, num_train=8, num_val=2)
    for folder in ("pascal_2012_scribble", "bmp_pseudolabel"):
        shutil.rmtree(root / folder)
    return root


def start(data: Path, work: Path, *more: str, **env: str) -> subprocess.Popen:
    command = ["bash", "scripts/scribble_pipeline.sh", str(data), str(work), "--pseudo=--flip", "--budget=3", *TINY]
    env = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | env
    with (work.parent / f"{work.name}.txt").open("a") as output:
        return subprocess.Popen(
            [*command, *more, "--classes", f"{data}/classes.txt"],
            cwd=REPO, env=env, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip


def results(work: Path) -> dict[str, object]:
    """What the chain makes: the bytes of each label, and the weights and scores of each checkpoint."""
    found: dict[str, object] = {str(path.relative_to(work)): path.read_bytes() for path in work.rglob("*.png")}
    for name in ("round_0", "round_1"):
        content = torch.load(work / name / "best.pt", weights_only=True)
        weights = b"".join(content["ema"][key].numpy().tobytes() for key in sorted(content["ema"]))
        found[name] = hashlib.sha256(weights).hexdigest(), content["step"], content["best_score"]
    return found


def test_the_chain_killed_and_started_again_ends_with_the_same_files(data, tmp_path, python):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    assert start(data, whole, **python.env).wait(timeout=300) == 0, (tmp_path / "whole.txt").read_text()
    seconds = time.monotonic() - began
    expected = results(whole)
    for folder in ("strokes/", "pseudo_1/"):
        assert sum(name.startswith(folder) for name in expected) == 8
    assert json.loads((whole / "pseudo_1/pseudo.json").read_text())["flip"] is True
    assert (whole / "report/index.html").is_file()
    assert (whole / "next/next.csv").is_file()

    chance = random.Random(0)
    for _ in range(KILLS):
        process = start(data, killed)  # new interpreters: a kill of the group reaches no fork of the server
        time.sleep(chance.uniform(0, seconds / 2))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # New interpreters here as well: they must find their modules by themselves.
    assert start(data, killed).wait(timeout=300) == 0, (tmp_path / "killed.txt").read_text()
    assert results(killed) == expected
    assert (killed / "next/next.csv").read_bytes() == (whole / "next/next.csv").read_bytes()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "the following arguments are required: DATA, OUT"),
        (["nowhere", "work"], "nowhere: no such folder"),
        (["DRAWN", "work", "--rounds", "0"], "--rounds 0: must be at least 1"),
        (["DRAWN", "work", "--name", "x"], "--name: the pipeline sets this flag of train.py itself"),
        (["DRAWN", "work", "--pseudo=--output x"], "--pseudo --output: the pipeline sets this flag of pseudo.py"),
        (["DRAWN", "work", "--pseudo=--scales 0"], "--pseudo: --scales"),
        (["DRAWN", "work", "--simulate=--length 0.5"], "has scribbles, so none are simulated: drop this flag"),
        (["BARE", "work", "--simulate=--widht 5"], "--simulate: unknown flag --widht: did you mean --width?"),
        (["BARE", "work", "--simulate='--width"], """--simulate="'--width": no closing quotation: correct"""),
        (["BARE", "work", "--pseudo=--x\\"], r"--pseudo='--x\\': no escaped character: correct the quotes"),
        (["DRAWN", "work", "--simulate=--list=x"], "--simulate --list: the pipeline sets this flag of tools"),
        (["DRAWN", "work"], "DRAWN/ImageSets/Segmentation/train.txt: no such list"),
        (["BARE", "work"], "BARE: has neither pascal_2012_scribble, with strokes, nor SegmentationClass, with"),
        (["UNNAMED", "work"], "UNNAMED/classes.txt: no such file: list the class names there"),
        (["UNNAMED", "work", "--numclasses", "3"], "pascal_2012_scribble: no image has a stroke: draw some"),
    ],
)
def test_a_user_error_is_one_line(words, expected, tmp_path, monkeypatch):
    (tmp_path / "DRAWN/pascal_2012_scribble").mkdir(parents=True)
    for name in ("BARE", "UNNAMED"):
        lists = tmp_path / name / "ImageSets/Segmentation"
        lists.mkdir(parents=True)
        for split in ("train", "val"):
            (lists / f"{split}.txt").write_text("a\n")
    put(tmp_path / "UNNAMED/JPEGImages/a.jpg")
    put(tmp_path / "UNNAMED/pascal_2012_scribble/a.png", np.full((2, 2), 255, np.uint8))
    monkeypatch.chdir(tmp_path)
    with refused(expected):
        scribble_pipeline.main(words)


def test_a_step_that_fails_ends_the_chain_with_its_status(data, tmp_path):
    """Here train.py, after the strokes were drawn."""
    words = [str(data), str(tmp_path / "work"), "--pretrained", "nowhere.pth"]
    assert scribble_pipeline.main([*words, "--simulate", "--width 5"]) == 2
    assert json.loads((tmp_path / "work/strokes/.made_from.json").read_text())["width"] == 5
    assert len(list((tmp_path / "work/strokes").glob("*.png"))) == 8


def test_a_step_that_a_signal_ended_is_told(data, tmp_path, monkeypatch, capsys):
    (tmp_path / "killed.py").write_text("import os; os.kill(os.getpid(), 9)")
    run = chain.run
    monkeypatch.setattr(chain, "run", lambda *_, **__: run(str(tmp_path / "killed.py")))
    assert scribble_pipeline.main([str(data), str(tmp_path / "work")]) == 128 + signal.SIGKILL
    assert "the last command was ended by signal 9 " in capsys.readouterr().err


STEP = """import os, signal, sys, time
send = lambda: os.kill(os.getppid(), int(sys.argv[1]))
signal.signal(signal.SIGTERM, lambda *_: (send(), time.sleep(0.3), sys.exit(75)))
send()
time.sleep(30)"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_any_signal_is_passed_on_to_the_step(tmp_path, number):
    """The step sends the chain a signal, gets SIGTERM, and sends the signal once more while it saves."""
    (tmp_path / "step.py").write_text(STEP)
    code = f"import signal, sys; signal.signal({number:d}, signal.SIG_DFL); "  # nohup and & let tests ignore it
    code += "from tools.scribbles import chain, pipeline; pipeline.run_steps = lambda *_: "
    code += (
        f"chain.run({str(tmp_path / 'step.py')!r}, {number:d}); sys.exit(pipeline.main([{str(tmp_path)!r}, 'work']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (STOPPED, "stopped; to continue, run scribble_pipeline again as before\n")


def test_each_step_gets_its_flags_and_a_folder_has_results_of_one_command(data, tmp_path, monkeypatch, capsys):
    commands: list[list[str]] = []
    monkeypatch.setattr(chain, "run", lambda *words, **_: commands.append(list(map(str, words))))
    work, root = tmp_path / "work", shutil.copytree(data, tmp_path / "data")
    (root / "SegmentationClassAug").rename(root / "my_masks")
    (root / "ImageSets/SegmentationAug").rename(root / "my_lists")
    (root / "my_lists/train.txt").rename(root / "my_lists/few.txt")
    words = [str(root), str(work), "--val_path", "my_masks", "--list_path", "my_lists", "--train_split", "few"]
    own = ["--model_type", "docs/examples/networks.py:SmallUNet"]  # programs that read such a model need its name
    words += ["--rounds", "2", *own]
    assert scribble_pipeline.main([*words, "--workers", "0"]) == 0
    strokes, *_, label, _, score = commands
    assert str(root / "my_masks") in strokes
    assert str(work / "masks.txt") in strokes
    programs = " ".join(command[0] for command in commands[1:])
    assert programs == "train.py pseudo.py train.py pseudo.py train.py evaluate.py"
    assert [" ".join(own) in " ".join(command) for command in commands[1:]] == [True] * 6
    assert label[-8:] == ["--workers", "0", *own, "--scales", "1", "1.5", "--flip"]
    assert score[-4:] == ["--workers", "0", *own]
    assert "better model" not in capsys.readouterr().err
    for number, miou in enumerate((0.4, 0.5, 0.45)):
        lines = [{"kind": "val", "step": step, "miou": miou - 0.1 * step} for step in (0, 1)]
        write_atomic(work / f"round_{number}/metrics.jsonl", "\n".join(map(json.dumps, lines)), parents=True)
    (work / "round_0/last.pt").touch()
    assert scribble_pipeline.main([*words, "--workers", "1"]) == 0  # does not change the model
    better = f"{work / 'round_1/best.pt'} is the better model"
    assert f"round_1 scored 50.00% in validation, and round_2 45.00%: {better}\n" in capsys.readouterr().err
    changes = {"--epochs 99": "epochs", "--pseudo=--flip": "pseudo", "--l_crf 0": "given flags"}
    for more, named in changes.items():
        with pytest.raises(UserError, match=rf"work: has results made with other settings \({named}\), see .*chain"):
            scribble_pipeline.main([*words, *more.split()])
    file, listed = root / "classes.txt", (root / "my_lists/few.txt").read_text()
    original, names = file.read_text(), listed.split()
    file.write_text(original.replace("square", "box"))
    with pytest.raises(UserError, match=r"other settings \(class names\)"):
        scribble_pipeline.main(words)
    file.write_text(original)
    (root / "my_lists/few.txt").write_text(f"{listed}\n{names[0]}")
    with pytest.raises(UserError, match=r"other settings \(lists\)"):
        scribble_pipeline.main(words)
    (root / "my_lists/few.txt").write_text(listed)
    held = lock_file(work / "chain.lock")
    with refused(f"{work}: another scribble_pipeline works there: wait until it ends"):
        scribble_pipeline.main(words)
    held.close()
    first = (root / "my_lists/val.txt").read_text().split()[0]
    for file, named in ((f"my_masks/{first}.png", "validation masks"), (f"JPEGImages/{names[0]}.jpg", "images")):
        content = (root / file).read_bytes()
        (root / file).write_bytes(content + b"0")
        with pytest.raises(UserError, match=rf"other settings \({named}\)"):
            scribble_pipeline.main(words)
        (root / file).write_bytes(content)
    for name in names:
        put(root / f"pascal_2012_scribble/{name}.bmp", np.zeros((2, 2), np.uint8))
    with pytest.raises(UserError, match=r"other settings \(scribbles\)"):
        scribble_pipeline.main(words)
    assert "more than half of the pixels are labelled" in capsys.readouterr().err


def test_out_may_be_a_folder_of_its_own_in_the_data_set_only(data, tmp_path, monkeypatch):
    monkeypatch.setattr(chain, "run", lambda *_, **__: None)
    root = shutil.copytree(data, tmp_path / "data")
    before = sorted(root.rglob("*"))
    for out in (root, root / "JPEGImages/work", root / "SegmentationClassAug"):
        with refused(f"OUT {out}: lies in {root}"):
            scribble_pipeline.main([str(root), str(out)])
    assert sorted(root.rglob("*")) == before
    assert scribble_pipeline.main([str(root), str(root / "work")]) == 0
    for file in (root / "JPEGImages").iterdir():
        file.rename(root / file.name)
    assert scribble_pipeline.main([str(root), str(root / "beside"), "--image_path", "."]) == 0


def test_strokes_are_drawn_from_masks_that_are_named_otherwise_than_their_images(data, tmp_path, monkeypatch):
    def run(program: str, *words: object, num_processes: int = 1) -> None:
        assert "simulate" not in words or simulate([*map(str, words), "--workers", "0"]) == 0

    monkeypatch.setattr(chain, "run", run)
    root = shutil.copytree(data, tmp_path / "data")
    for folder, ending in {"JPEGImages": "_img", "SegmentationClassAug": "_m"}.items():
        for file in list((root / folder).iterdir()):
            put(root / folder / "sub" / f"{file.stem}{ending}{file.suffix}", np.array(Image.open(file)))
            file.unlink()
    for file in (root / "ImageSets/SegmentationAug").iterdir():
        file.write_text("".join(f"sub/{name}\n" for name in file.read_text().split()))
    flags = ["--image_suffix", "_img", "--label_suffix", "_m"]
    assert scribble_pipeline.main([str(root), str(tmp_path / "work"), *flags]) == 0
    _, cfg = scribble_pipeline.read_flags(flags, root)
    strokes = Pass(tmp_path / "work", tmp_path / "work/strokes").strokes(cfg)  # as train.py finds them
    assert len(strokes) == 8
    assert all(file.name.endswith("_m.png") for file in strokes.values())


def test_a_signal_stops_all_processes_of_a_step(data, tmp_path):
    process = start(data, tmp_path / "work", "--processes", "2", "--epochs", "500")
    wait_until((tmp_path / "work/round_0/last.pt").is_file, [process])
    process.terminate()
    assert process.wait(timeout=60) == STOPPED
    said = (tmp_path / "work.txt").read_text()
    assert said.endswith("stopped; to continue, run scribble_pipeline again as before\n")
    assert "Traceback" not in said


def test_classes_are_the_data_sets_own(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("building\ncar\nsky\n")
    recipe, of_config = tmp_path / "recipe.yaml", ["--config", str(tmp_path / "recipe.yaml")]
    recipe.write_text("epochs: 1\n")
    flags, cfg = scribble_pipeline.read_flags(of_config, tmp_path)
    assert flags == ["--numclasses", "3", "--classes", str(file), *of_config]
    assert (cfg.numclasses, cfg.classes, cfg.background) == (3, str(file), "none")  # as train.py's recipe chooses
    assert scribble_pipeline.read_flags(["--background", "0"], tmp_path)[1].background == "0"
    recipe.write_text("numclasses: 3\n")
    assert scribble_pipeline.read_flags(of_config, tmp_path)[0] == ["--classes", str(file), *of_config]
    recipe.write_text("numclasses: 4\n")
    with pytest.raises(UserError, match=r"classes\.txt: has 3 classes, but --classes or --numclasses say 4: drop"):
        scribble_pipeline.read_flags(of_config, tmp_path)
    file.write_text("background\ncar\nsky\n")
    assert scribble_pipeline.read_flags([], tmp_path)[1].background == "0"
    named = ["--classes", str(file)]  # says the number, too; --numclasses has a default
    assert scribble_pipeline.read_flags(named, tmp_path)[1].numclasses == 3
    with pytest.raises(UserError, match=r"classes\.txt: has 3 classes, but --classes or --numclasses say 11: drop"):
        scribble_pipeline.read_flags(["--classes", "camvid"], tmp_path)
    file.unlink()
    assert scribble_pipeline.read_flags(["--classes", "camvid"], tmp_path)[1].numclasses == 11

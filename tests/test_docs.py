"""Every command that the documents show is run, with settings under which it takes a second."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import REPO, free_port
from documents import (
    DOCUMENTS,
    commands,
    config_to_train_first,
    launch_and_flags,
    reduced,
    runs_named,
    trains,
)
from PIL import Image
from python_server import PythonServer

from data import demo, distance

# What is not run here, and why.
NOT_RUN = {
    r"make (train|test|lint)\b": "sets up .venv from the network; CI and people run it. The target is looked up",
    r"tensorboard ": "a server that goes on until it is stopped",
    r"(python -m )?pip install ": "needs the network",
    r"python scripts/chaos\.py": "takes minutes; tests/test_resume.py kills and resumes",
    r"python benchmarks/": "takes minutes, to make figures",
    r"(python -m )?pytest\b": "starts the tests themselves",
}
OUTPUTS = ("json", "save_dir", "report", "output")  # flags that name what a program writes
FOLDERS = (
    "config",
    "configs",
    "data",
    "distributed",
    "docs",
    "evaluation",
    "exporting",
    "losses",
    "models",
    "prediction",
    "runs",
    "scripts",
)  # that commands use
SOURCES = [
    *REPO.glob("*.py"),
    *REPO.glob("data/*.py"),
    *REPO.glob("scripts/*.py"),
    *REPO.glob("*.sh"),
    *REPO.glob("scripts/*.sh"),
]


def shown() -> dict[str, str]:
    """Every command that is shown: {command: the first file that shows it}."""
    found: dict[str, str] = {}
    for path in (*DOCUMENTS, *sorted(SOURCES)):
        for command in commands(path):
            found.setdefault(command, path.relative_to(REPO).as_posix())
    return found


def reason_not_to_run(command: str) -> str:
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, command)), "")


SHOWN = shown()
RUN = [command for command in SHOWN if not reason_not_to_run(command)]
launched: set[str] = set()  # the ways to start programs that were tried
done: set[tuple[str, str]] = set()  # these with the flags that were tried


@pytest.fixture(scope="session")
def workplace(tmp_path_factory, python) -> Path:
    """A folder with the repository's files, the data that the documents name, and a run log/demo."""
    folder = tmp_path_factory.mktemp("docs") / "segtrain"
    folder.mkdir()
    for path in REPO.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
        elif path.name in FOLDERS:
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    draw_data(folder)
    run_in(folder, reduced("python train.py"), python)
    return folder


@pytest.fixture(scope="session")
def exported(workplace, python) -> Path:
    """What `python export.py` makes of the run, with which the workplace then has it, too."""
    command = reduced("python export.py --checkpoint log/demo/best.pt")
    run_in(workplace, command, python)
    done.add(launch_and_flags(command))
    return workplace / "log/demo/best.onnx"


@pytest.fixture
def sandbox(workplace, tmp_path) -> Path:
    """A copy of the workplace for one command; the files of the run are links, which a program replaces, not changes."""

    def copy(source: str, target: str) -> None:
        (os.link if source.endswith(".pt") else shutil.copy)(source, target)

    folder = tmp_path / "segtrain"
    shutil.copytree(workplace, folder, symlinks=True, copy_function=copy)
    (tmp_path / "shared/data").mkdir(parents=True)
    (tmp_path / "shared/data/camvid").symlink_to(folder / "dataset/camvid")
    return folder


def draw_data(root: Path, num_train: int = 16, num_val: int = 2) -> None:
    """The demo's drawings, a third as large and with four classes, in both layouts and under every name."""
    samples = [
        [part[1::3, 1::3] if part.ndim == 3 else _four_classes(part[1::3, 1::3]) for part in demo.draw_sample(number)]
        for number in range(num_train + num_val)
    ]
    names = [f"image_{number:02d}" for number in range(len(samples))]
    voc = root / "VOC2012"
    folders = ("SegmentationClassAug", "pascal_2012_scribble", "bmp_pseudolabel")
    for name in ("ImageSets/SegmentationAug", "JPEGImages", *folders, "distance_map", "distance_pseudo"):
        (voc / name).mkdir(parents=True)
    (voc / "ImageSets/SegmentationAug/train.txt").write_text("\n".join(names[:num_train]))
    (voc / "ImageSets/SegmentationAug/val.txt").write_text("\n".join(names[num_train:]))
    (voc / "ImageSets/Segmentation").symlink_to("SegmentationAug")
    (voc / "SegmentationClass").symlink_to("SegmentationClassAug")
    plain = root / "MyData"
    for number, (name, (image, *labels)) in enumerate(zip(names, samples, strict=True)):
        split = "train" if number < num_train else "val"
        _write(voc / "JPEGImages" / f"{name}.jpg", image)
        _write(plain / "images" / split / f"{name}.jpg", image)
        _write(plain / "masks" / split / f"{name}.png", labels[0])
        maps = [distance.scribble_distance(labels[1]), distance.pseudo_distance(labels[2])]
        for kind, label in zip((*folders, "distance_map", "distance_pseudo"), [*labels, *maps], strict=True):
            _write(voc / kind / f"{name}.png", label)
    (root / "dataset").mkdir()
    for name in ("demo", "camvid", "VOC2012"):
        (root / "dataset" / name).symlink_to(voc)
    (voc / "classes.txt").write_text("\n".join(demo.CLASSES))
    _write(root / "photos/one.jpg", samples[0][0])
    _write(root / "photos/more/two.JPG", samples[1][0])
    film = cv2.VideoWriter(str(root / "film.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 5, samples[0][0].shape[1::-1])
    for image, *_ in samples[:3]:
        film.write(np.ascontiguousarray(image))
    film.release()


def _four_classes(label: np.ndarray) -> np.ndarray:
    return np.where(label == 4, 3, label).astype(np.uint8)


def _write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def run_in(folder: Path, command: str, python: PythonServer) -> str:
    """Run a command as a shell does. Returns what it said."""
    command = re.sub(r"\bPORT\b", str(free_port()), command)
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env |= python.env | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    with subprocess.Popen(
        ["bash", "-euc", command], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    # data.check: 1 is warnings, such as that so small a data set lacks a class.
    assert process.returncode in ((0, 1) if "data.check" in command else (0,)), f"{command}\n{said}"
    return said


@pytest.mark.parametrize("command", RUN, ids=lambda command: f"{SHOWN[command]}: {command[:60]}")
def test_command_runs(command, sandbox, python, monkeypatch, request):
    monkeypatch.chdir(sandbox)
    if "export.py" in command or ".onnx" in command:
        request.getfixturevalue("exported")
    if SHOWN[command].endswith(".md"):
        shutil.rmtree("photos")  # a reader has no such folder
    for name in re.findall(r"\S+\.(?:mp4|onnx)\b", command):  # of the reader's own names
        if not Path(name).exists():
            os.symlink("film.mp4" if name.endswith(".mp4") else request.getfixturevalue("exported"), name)
    layout = re.search(r"--dataset[= ](\w+)", command)
    if "MyData" in command and layout and layout[1] != "Folder":  # the reader's data, in the layout that is named
        shutil.rmtree("MyData")
        os.symlink("VOC2012", "MyData")
    for name in runs_named(command):
        if not Path("log", name).exists():
            os.symlink("demo", f"log/{name}")
    first = config_to_train_first(command)
    if first:
        run_in(sandbox, reduced(f"python train.py --config {first}"), python)
    tiny = reduced(command)
    launch, flags = launch_and_flags(tiny)
    if (launch, flags) in done:
        return
    if launch in launched:  # two processes once for each way to start them
        tiny = reduced(command, most_processes=1)
    before = {path: path.stat().st_mtime_ns for path in sandbox.rglob("last.pt")}
    run_in(sandbox, tiny, python)
    if trains(command):
        assert {path: path.stat().st_mtime_ns for path in sandbox.rglob("last.pt")} != before
    else:
        for path in re.findall(rf"--(?:{'|'.join(OUTPUTS)})[= ](\S+)", command):
            assert (sandbox / path).exists(), path
    launched.add(launch)
    done.add((launch, flags))


def test_what_is_not_run_is_there():
    """A command of NOT_RUN starts a file or a target of make that exists."""
    targets = re.findall(r"^(\w+):", (REPO / "Makefile").read_text(), re.MULTILINE)
    for command in set(SHOWN) - set(RUN):
        words = shlex.split(command)
        if words[0] == "make":
            assert words[1] in targets, command
        for word in words:
            assert not word.endswith((".py", ".txt")) or (REPO / word).is_file(), command


def test_commands_are_found():
    """Not fewer than there are: each line of a bash block, docstrings, scripts, and exports before what they are for."""
    assert "python train.py --config configs/demo.yaml --resume auto" in SHOWN
    assert "bash train_torchrun.sh --dataset_path VOC2012" in commands(REPO / "train.py")
    assert "NUM_GPUS=2 bash train_ddp.sh --dataset_path VOC2012" in commands(REPO / "train_ddp.sh")

"""Every command that the documents show is run, with settings under which it takes a second."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import annotated
import numpy as np
import pytest
from annotated import Picture
from conftest import REPO, free_port
from documents import program_of, reduced, shown, task_of
from PIL import Image
from test_convert import drawn, usable

from data import demo
from data.classes import voc_colours
from flags import parse_flags

pytestmark = pytest.mark.slow

# What is not run here, and why.
NOT_RUN = {
    r"make (train|scribble-demo|test|lint)\b": "sets up .venv from the network; CI and people run it",
    r"bash scripts/scribble_pipeline\.sh ": "takes a minute; tests/test_scribble_pipeline.py runs it",
    r"tensorboard ": "a server that goes on until it is stopped",
    r"(python -m )?pip install ": "needs the network",
    r"python tests/chaos\.py": "takes minutes; tests/test_resume.py kills and resumes",
    r"python -m benchmarks\.": "needs a trained run; takes minutes",
    r"python benchmarks/": "takes minutes, to make figures",
    r"(python -m )?pytest\b": "starts the tests themselves",
}
# Names in the docstrings of programs: what the sandbox has.
LINKS = {"annotated": "labelme_photos", "strokes": "labelme_photos", "train2017": "exports/coco/images"}
LINKS |= {"instances_train2017.json": "exports/coco/instances.json"}
SHOWN = shown()
RUN = [command for command in SHOWN if not any(re.match(pattern, command) for pattern in NOT_RUN)]
launched: set[str] = set()  # the ways to start programs that were tried
done: set[str] = set()  # the commands that were tried


@pytest.fixture(scope="session")
def workplace(tmp_path_factory, python) -> Path:
    """A folder with the repository's files, the data that the documents name, and a run log/demo."""
    folder = tmp_path_factory.mktemp("docs") / "segtrain"
    folder.mkdir()
    for path in REPO.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
        elif (path / "__init__.py").exists() or path.name in ("configs", "docs", "scripts"):
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    draw_data(folder)
    run_in(folder, reduced("python train.py"), python)
    return folder


@pytest.fixture(scope="session")
def exported(workplace, python) -> Path:
    """The ONNX file of log/demo, which the workplace then has, too."""
    run_in(workplace, reduced("python export.py --checkpoint log/demo/best.pt"), python)
    return workplace / "log/demo/best.onnx"


@pytest.fixture
def sandbox(workplace, tmp_path, monkeypatch) -> Path:
    """A copy of the workplace for one command, as current folder; checkpoints are links, which no program writes to."""

    def copy(source: str, target: str) -> None:
        (os.link if source.endswith(".pt") else shutil.copy)(source, target)

    folder = tmp_path / "segtrain"
    shutil.copytree(workplace, folder, symlinks=True, copy_function=copy)
    (tmp_path / "shared/data").mkdir(parents=True)
    (tmp_path / "shared/data/camvid").symlink_to(folder / "dataset/camvid")
    monkeypatch.chdir(folder)
    return folder


def draw_data(root: Path) -> None:
    """The demo's drawings, a third as large and with four classes, in both layouts and under every name."""
    voc = root / "VOC2012"
    demo.draw_dataset(voc, num_train=16, num_val=2)
    for path in voc.glob("*/demo_*"):
        pixels = np.array(Image.open(path))[1::3, 1::3]
        if path.suffix == ".png":
            pixels[pixels == 4] = 3
        Image.fromarray(pixels).save(path)
    for split in ("train", "val"):
        for name in (voc / f"ImageSets/SegmentationAug/{split}.txt").read_text().split():
            sources = {"images": f"JPEGImages/{name}.jpg", "masks": f"SegmentationClassAug/{name}.png"}
            for folder, source in (sources | {"strokes": f"pascal_2012_scribble/{name}.png"}).items():
                (root / "MyData" / folder / split).mkdir(parents=True, exist_ok=True)
                shutil.copy(voc / source, root / "MyData" / folder / split)
    shutil.copytree(root / "MyData/images", root / "MyObject/images")
    for path in (root / "MyData/masks").rglob("*.png"):
        target = root / "MyObject/masks" / path.relative_to(root / "MyData/masks")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.where(np.array(Image.open(path)) > 0, 255, 0).astype(np.uint8)).save(target)
    (root / "MyObject/classes.txt").write_text("background\ncar\n")
    (voc / "ImageSets/Segmentation").symlink_to("SegmentationAug")
    (voc / "SegmentationClass").symlink_to("SegmentationClassAug")
    (root / "dataset").mkdir()
    for name in ("demo", "camvid", "VOC2012"):
        (root / "dataset" / name).symlink_to(voc)
    draw_exports(root)


def draw_exports(root: Path) -> None:
    """labelme_photos, exports/KIND for each kind of python -m tools.convert, and exports/voc with VOC's colours."""
    pictures = list(map(usable, annotated.draw_pictures(20, kinds="polygon")))
    photos = [picture._replace(name=f"photo_{number:03d}") for number, picture in enumerate(pictures)]
    annotated.write_labelme(root / "labelme_photos", photos)
    (root / "exports").mkdir()
    names = ["background", *annotated.CLASSES]
    (root / "project.txt").write_text("\n".join(names))
    for kind in ("labelme", "coco", "yolo", "cvat"):
        getattr(annotated, f"write_{kind}")(root / "exports" / kind, pictures)
    annotated.write_colours(root / "exports/colours", pictures, drawn)
    annotated.save_images(root / "exports/voc/images", pictures)
    painted = [Picture(picture.name, voc_colours()[drawn(picture)], []) for picture in pictures]
    annotated.save_images(root / "exports/voc/masks", painted)
    annotated.save_images(root / "exports/labelmap/JPEGImages", pictures)
    annotated.save_images(root / "exports/labelmap/SegmentationClass", painted)
    (root / "exports/labelmap/labelmap.txt").write_text("".join(f"{name}:::\n" for name in names))


def run_in(folder: Path, command: str, python) -> str:
    """Run a command as a shell does; it must succeed. What it said."""
    command = re.sub(r"\bPORT\b", str(free_port()), command)
    env = os.environ | python.env | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(["bash", "-euc", command], cwd=folder, env=env, **streams) as process:
        try:
            output, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    # tools.check: 1 is warnings, for example that so small a data set lacks a class.
    assert process.returncode in ((0, 1) if "tools.check" in command else (0,)), f"{command}\n{output}"
    return output


@pytest.mark.parametrize("command", RUN, ids=lambda command: f"{SHOWN[command]}: {command[:60]}")
def test_command_runs(command, sandbox, python, request):
    provide(command, sandbox, python, request)
    tiny = reduced(command)
    if same(tiny) in done:
        return
    launcher = tiny.split(program_of(tiny)[0] or " ")[0]
    if launcher in launched:  # two processes once for each way to start them
        tiny = reduced(command, most_processes=1)
    before = {path: path.stat().st_mtime_ns for path in sandbox.rglob("last.pt")}
    run_in(sandbox, tiny, python)
    if task_of(command) == "train":
        assert {path: path.stat().st_mtime_ns for path in sandbox.rglob("last.pt")} != before
    else:
        for path in re.findall(r"--(?:json|report|output)[= ](\S+)", command):  # what a program writes
            assert (sandbox / path).exists(), path
    launched.add(launcher)
    done.add(same(reduced(command)))


def same(command: str) -> str:
    """A command in one form, whatever the order of its flags."""
    return " ".join(sorted(shlex.split(command.replace("=", " "))))


def provide(command: str, sandbox: Path, python, request) -> None:
    """Put what a command reads into the sandbox, under the names it uses."""
    if "export.py" in command or ".onnx" in command:
        exported = request.getfixturevalue("exported")
    for name in re.findall(r"\S+\.onnx\b", command):
        if not Path(name).exists():
            os.symlink(exported, name)
    if not SHOWN[command].endswith(".md"):  # a reader of the documents has no such folder
        for name in ("photos/one.jpg", "photos/more/two.JPG"):
            Path(name).parent.mkdir(exist_ok=True)
            shutil.copy("VOC2012/JPEGImages/demo_0000.jpg", name)
        for name, source in LINKS.items():
            os.symlink(source, name)
    layout = re.search(r"--dataset[= ](\w+)", command)
    if "MyData" in command and layout and layout[1] != "Folder":
        shutil.rmtree("MyData")
        os.symlink("VOC2012", "MyData")
    if "check MyScribbles" in command or "suggest MyScribbles" in command:
        os.symlink("VOC2012", "MyScribbles")
    if "suggest MyScribbles" in command:
        os.makedirs("log/scribbles")
        os.symlink("../demo", "log/scribbles/round_1")
        os.symlink("../demo/best.pt", "log/scribbles/best.pt")
    if "suggest photos" in command:
        shutil.copytree("VOC2012/JPEGImages", "photos", dirs_exist_ok=True)
    if "MyPhotos" in command and "tools.convert" not in command:
        run_in(sandbox, "python -m tools.convert labelme labelme_photos MyPhotos", python)
        if "tools.split" not in command:
            run_in(sandbox, "python -m tools.split MyPhotos", python)
    if "tools.compare" in command:
        os.makedirs("log/sweep")
        os.symlink("../demo", "log/sweep/lr_0.01")
    words = program_of(command)[1]
    named = " ".join(words)
    if task_of(command) == "train":
        named += " " + parse_flags(words).pretrained
    for name in re.findall(r"log/([\w.-]+)/\w+\.pt", named):
        if not Path("log", name).exists():
            os.symlink("demo", f"log/{name}")
    if task_of(command) in ("test", "predict") and "--checkpoint" not in words:  # it takes the newest run's
        first = words[words.index("--config") + 1] if "--config" in words else "configs/demo.yaml"
        run_in(sandbox, reduced(f"python train.py --config {first}"), python)


def test_notebook_runs(sandbox, python, monkeypatch):
    """Its commands as a shell runs them, its Python in one process; without the cells that clone and install."""
    notebook = json.loads((REPO / "docs/first_page.ipynb").read_text(encoding="utf-8"))
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for name in ("IPython", "IPython.display"):  # Jupyter's own
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(HTML=str))
    shutil.rmtree("log/demo")  # the notebook trains it
    names: dict = {}
    last: dict[str, object] = {}  # what a notebook shows below a cell
    for cell in codes:
        if "installation" in cell["metadata"].get("tags", ()):
            continue
        source = "".join(cell["source"])
        if source.startswith("!"):
            run_in(sandbox, reduced(source.removeprefix("!")), python)
            continue
        *body, shown_last = ast.parse(source).body
        exec(compile(ast.Module(body, []), cell["id"], "exec"), names)
        last[cell["id"]] = eval(ast.unparse(shown_last), names)
    assert str(last["report"]).count("<iframe") == 1
    assert last["own"].height > 40  # with a legend
    assert last["overlay"].height > 40  # with a legend
    assert names["result"].mask.shape == (40, 53)

"""The wheel of `pip install .`: one package, which works beside other projects' modules of the same names."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO, random_checkpoint
from PIL import Image

import predict
from scripts.build_package import rewrite

pytestmark = pytest.mark.slow
OWN = {path.stem for path in (*REPO.glob("*.py"), *(init.parent for init in REPO.glob("*/__init__.py")))} - {"segtrain"}

USE = """
import multiprocessing, pathlib, pkgutil, subprocess, sys
import numpy as np
import segtrain
from segtrain.support import shell
import utils

def predicted(file):
    return model().predict(file)

def model():
    return segtrain.load(sys.argv[1], device="cpu")

if __name__ == "__main__":
    for module in pkgutil.walk_packages(segtrain.__path__, "segtrain."):
        __import__(module.name)
    result = model().predict("a.png")
    result.save("mask.png")
    assert utils.MINE and result.plot(legend=False).shape == (60, 80, 3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        [other] = pool.map(predicted, ["a.png"])
    assert np.array_equal(other.mask, result.mask) and type(other) is segtrain.Result
    assert shell.python_command("train.py", "--lr", 1).endswith(" -m segtrain.train --lr 1")
    assert pathlib.Path(shell.document("docs/cli.md")).is_file()
    assert shell.install_command("export").endswith(" -m pip install 'segtrain[export]'")
    print(*sorted(name for name in OWN if name in sys.modules))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return the folder into which pip installed the repository."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
    build = [*pip, "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder / "wheel"]
    subprocess.run(build, cwd=REPO, check=True, capture_output=True)
    [wheel] = (folder / "wheel").iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel], check=True)
    return folder / "site"


@pytest.fixture
def project(tmp_path, monkeypatch, installed) -> Path:
    """Return the folder of another project, which has a module of each of our names, and what pip installed."""
    for name in OWN:
        (tmp_path / f"{name}.py").write_text("MINE = True")
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: object) -> str:
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_other_name_is_installed_and_the_clone_stays_clean(installed):
    assert {path.name.partition("-")[0] for path in installed.iterdir()} == {"segtrain"}
    assert not (REPO / "build").exists()
    # As many modules as in the clone, and each data file that a module reads.
    modules = [*REPO.glob("*.py"), *(path for name in OWN for path in (REPO / name).rglob("*.py"))]
    modules.append(REPO / "scripts/launch.py")  # starts the processes of tools.scribbles.pipeline
    assert len(list(installed.rglob("*.py"))) == len(modules) > 100
    named = {name for path in modules for name in re.findall(r"document\(['\"]([^'\"#]+)", path.read_text("utf-8"))}
    assert {"docs/your_data.md", "CHANGELOG.md"} <= named
    files = "inference/report.html tools/page.html docs/coming_from.md configs/demo.yaml configs/classes/voc.txt"
    for name in {*files.split(), *named}:
        assert (installed / "segtrain" / name).read_bytes() == (REPO / name).read_bytes()


@pytest.mark.full_size  # the package has no thin networks
def test_it_works_beside_modules_of_the_same_names(project):
    checkpoint = random_checkpoint(project / "best.pt", num_classes=5)
    (project / "use.py").write_text(f"OWN = {OWN}\n{USE}")
    assert run("use.py", checkpoint) == "utils\n"
    words = ["--checkpoint", str(checkpoint), "--input", "a.png", "--output"]
    assert predict.main([*words, "clone", "--workers", "0"]) == 0
    assert (project / "mask.png").read_bytes() == (project / "clone/masks/a.png").read_bytes()
    run("-m", "segtrain.predict", *words, "package", "--workers", "1")
    assert "score a model from images and scribbles" in run("-m", "segtrain.tools.scribbles.pipeline", "--help")
    assert (project / "mask.png").read_bytes() == (project / "package/masks/a.png").read_bytes()


def test_printed_commands_name_the_package():
    text = rewrite(b"python -m tools.split or python train.py", {"tools", "train"})
    assert text == b"python -m segtrain.tools.split or python -m segtrain.train"

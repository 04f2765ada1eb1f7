"""Build the package: pyproject.toml names this backend, and `pip install .` installs the root's modules as `segtrain`.

The modules stay at the root and import each other by names such as `flags` and `utils`, so that a clone runs without
being installed. Installed under these names, they would hide other projects' modules. The wheel therefore gets copies
with rewritten imports: `from segtrain.flags import Config`. Import hooks or changes of sys.path would need no copies,
but pickle, spawned processes, debuggers and type checkers need plain modules.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

from setuptools import build_meta

# `pip install -e .` installs the dependencies and no module: a clone's modules import each other from its root only.
# There is no build_sdist: the source is the clone.
from setuptools.build_meta import build_editable, prepare_metadata_for_build_editable

__all__ = ["build_editable", "build_wheel", "prepare_metadata_for_build_editable"]

PACKAGE = "segtrain"  # segtrain.py at the root becomes segtrain/__init__.py
SUFFIXES = (".py", ".txt", ".html", ".yaml", ".md", ".sbatch")


def build_wheel(wheel_directory: str, config_settings=None, metadata_directory=None) -> str:
    """Write the wheel of the current folder to wheel_directory and return its name, as PEP 517 says."""
    root, wheel_directory = Path.cwd(), os.path.abspath(wheel_directory)
    # setuptools would leave a folder build/ in the clone, and its next wheel would have the modules deleted since then.
    with tempfile.TemporaryDirectory() as stage:
        write_package(root, Path(stage, PACKAGE))
        for name in ("pyproject.toml", "requirements.txt", "LICENSE", "README.md"):
            shutil.copy(root / name, stage)
        os.chdir(stage)
        try:
            return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
        finally:
            os.chdir(root)


def write_package(root: Path, package: Path) -> None:
    """Write a rewritten copy of the root's modules and its packages with their data files to `package`.

    It also gets configs/, docs/ without pictures, and the other files that modules start or name in messages.
    """
    folders = [init.parent for top in root.glob("*/__init__.py") for init in top.parent.rglob("__init__.py")]
    files = [*root.glob("*.py"), *(file for folder in folders for file in folder.iterdir())]
    modules = {file.relative_to(root).with_suffix("").parts[0] for file in files} - {PACKAGE}
    files += [root / name for name in ("CHANGELOG.md", "scripts/launch.py", "scripts/slurm.sbatch")]
    for file in (*files, *(root / "configs").rglob("*"), *(root / "docs").iterdir()):
        if file.suffix in SUFFIXES:
            name = file.relative_to(root).as_posix()
            copy = package / ("__init__.py" if name == f"{PACKAGE}.py" else name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(rewrite(file.read_bytes(), modules) if file.suffix == ".py" else file.read_bytes())


def rewrite(source: bytes, modules: set[str]) -> bytes:
    """Return a module's source whose imports and printed commands name the root's `modules` as parts of the package."""
    text, names = source.decode(), "|".join(sorted(modules))
    # `import a.b` loads a.b and binds a: no product module has it, nor two modules in one statement (ruff: E401).
    assert not re.search(rf"^ *import ({names})[.,]", text, re.MULTILINE)
    for old, new in (
        (rf"^( *)import (?=({names})\b)", rf"\1from {PACKAGE} import "),
        (rf"^( *)from (?=({names})\b[\w.]* import )", rf"\1from {PACKAGE}."),
        (rf"\bpython -m (?=({names})\b)", f"python -m {PACKAGE}."),
        (rf"\bpython ({names})\.py\b", rf"python -m {PACKAGE}.\1"),
    ):
        text = re.sub(old, new, text, flags=re.MULTILINE)
    return text.encode()

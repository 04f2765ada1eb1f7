"""Load what the user names as code: FILE.py:NAME, or PACKAGE.MODULE:NAME. Nothing else runs code that a text names."""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from support.errors import UserError, in_one_line
from support.files import sha256

SMP = "smp:"  # in front of the name of a network of segmentation_models.pytorch
_CODE = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")
REPO = Path(__file__).resolve().parent.parent
OUR_FOLDERS = ("data", "losses", "models", "support")  # where the user's code is called
_beside: dict[str, list[str]] = {}  # {imported file: names of the modules that it imported from its folder}
NOT_MODULES = ("timm", "smp")  # timm:NAME and smp:NAME name networks


class UserCode(NamedTuple):
    """An object that the user named, and the SHA-256 of its file, in hexadecimal; "" if it is in no file."""

    value: Any
    digest: str


def is_code(text: str) -> bool:
    """Return whether a flag's value names code: FILE.py:NAME or PACKAGE.MODULE:NAME."""
    match = _CODE.fullmatch(text)
    return match is not None and match["place"] not in NOT_MODULES


def code_name(text: str) -> str:
    """Return NAME of FILE.py:NAME, PACKAGE.MODULE:NAME or smp:NAME; other text as it is."""
    return text.rpartition(":")[2] if is_own_network(text) else text


def is_own_network(model_type: str) -> bool:
    """Return whether --model_type names a whole network, by code or as smp:NAME, instead of a head."""
    return model_type.startswith(SMP) or is_code(model_type)


def load(flag: str, text: str) -> UserCode:
    """Import the file or module that `text` names, once per process, and return the object NAME in it.

    flag: for messages, such as "--model_type". Raises UserError if that fails.
    """
    place, _, name = text.rpartition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for a module of the current folder; last, so that our modules come first
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # of any class: it is the user's code
        raise UserError(f"{flag} {text}: cannot be imported: {describe(error)}") from None
    if not hasattr(module, name):
        present = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise UserError(f"{flag} {text}: {place} has no {name}; it has {', '.join(present) or 'nothing'}")
    file = getattr(module, "__file__", None)
    return UserCode(getattr(module, name), sha256(Path(file)) if file else "")


def describe(error: BaseException) -> str:
    """Return an error of the user's code in one line: its class and text, and the line of that code, if any."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    last = [frame for frame in frames if "torch" not in Path(frame.filename).parts][-1:] or frames[-1:]
    where = f" ({last[0].filename} line {last[0].lineno})" if last else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename} line {error.lineno})"
    return f"{in_one_line(error)}{where}"


def _is_ours(file: str) -> bool:
    """Return whether a file is a module of this repository, or of the import system."""
    return file.startswith("<frozen") or (Path(file).parent.parent == REPO and Path(file).parent.name in OUR_FOLDERS)


def _import_file(path: Path) -> ModuleType:
    """Import a file under a name of its own, so that it cannot replace a module of ours such as utils.

    What it imports beside it, such as helper.py, is its own, although another file's helper.py may be imported already.
    """
    path = path.expanduser().resolve()
    module_name = f"segtrain_user_{os.fsencode(path).hex()}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look a class's module up
    hidden = {name: sys.modules.pop(name) for folder in _beside.values() for name in folder if name in sys.modules}
    before, folder = set(sys.modules), str(path.parent)
    sys.path.append(folder)  # last, so that our modules come first
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    finally:
        sys.path.remove(folder)
        files = {name: str(getattr(sys.modules[name], "__file__", "")) for name in set(sys.modules) - before}
        _beside[module_name] = [name for name, file in files.items() if file.startswith(folder + os.sep)]
        sys.modules |= {name: other for name, other in hidden.items() if name not in sys.modules}
    return module

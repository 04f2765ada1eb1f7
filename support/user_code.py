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

SMP = "smp:"  # in front of the name of a network of segmentation_models.pytorch
_CODE = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")
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
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # of any class: it is the user's code
        raise UserError(f"{flag} {text}: cannot be imported: {describe(error)}") from None
    if not hasattr(module, name):
        present = (
            ", ".join(key for key, value in vars(module).items() if callable(value) and key[0] != "_") or "nothing"
        )
        raise UserError(f"{flag} {text}: {place} has no {name}; it has {present}")
    import hashlib  # loads OpenSSL, which --help need not wait for

    file = getattr(module, "__file__", None)
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    return UserCode(getattr(module, name), digest)


def describe(error: BaseException) -> str:
    """Return an error of the user's code in one line: its class and text, and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({last[0].filename} line {last[0].lineno})" if last else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename} line {error.lineno})"
    return f"{in_one_line(error)}{where}"


def _import_file(path: Path) -> ModuleType:
    """Import a file under a name of its own, so that it cannot replace a module of ours such as utils."""
    path = path.resolve()
    module_name = f"segtrain_user_{os.fsencode(path).hex()}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    if not path.is_file():
        raise FileNotFoundError("no such file")
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look a class's module up
    sys.path.append(str(path.parent))  # for what it imports beside it; last, so that our modules come first
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module

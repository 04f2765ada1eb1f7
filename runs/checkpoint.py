"""Checkpoint files: whole or absent, checked by their SHA-256, and read without running anything from them.

A file is what torch.save writes, a zip archive, with a comment at its end as that format allows: the optimizer
step and the SHA-256 of the file without the comment. torch.load reads it like any other.
"""

import errno
import hashlib
import io
import os
import pickle
import re
import struct
import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from distributed.signals import WRITER
from errors import UserError

FORMAT = 2  # of a run's checkpoint, runs.state.TrainState.capture()

_COMMENT = re.compile(rb"segtrain step=(\d{12}) sha256=([0-9a-f]{64})")
_COMMENT_LENGTH = len(b"segtrain step=%012d sha256=%064d" % (0, 0))
_NUMBERED = re.compile(r"(step|epoch)_(\d+)\.pt")

# numpy._core was numpy.core before NumPy 2, and files name the one they were written with.
_multiarray = getattr(np, "_core", None) or np.core
NUMPY_VALUES: list = [
    np.ndarray, np.dtype, np.dtypes.Float64DType, np.dtypes.Int64DType,
    *(
        (function, f"numpy.{core}.multiarray.{function.__name__}")
        for function in (_multiarray.multiarray.scalar, _multiarray.multiarray._reconstruct)
        for core in ("core", "_core")
    ),
]  # fmt: skip


class Writer:
    """Writes checkpoints in a thread, from a copy on the CPU, while training goes on. One at a time.

    What goes wrong in a write is raised by the next call of any method; earlier files stay whole.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, content: dict, paths: list[Path], keep: dict[str, int]) -> None:
        """Begin to write content, which has its "step", to all of the paths.

        keep: {"step" or "epoch": how many files of that kind, such as step_00000100.pt, stay: the newest}.
        """
        self.wait()
        copy = _copy_to_cpu(content)
        self._thread = threading.Thread(target=self._write, args=(copy, paths, keep), name=WRITER)
        self._thread.start()

    def wait(self) -> None:
        """Return when the last write is done."""
        if self._thread:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self._error:
            raise self._error

    def _write(self, content: dict, paths: list[Path], keep: dict[str, int]) -> None:
        try:
            data = to_bytes(content)
            for path in paths:
                write(path, data)
                _drop_older(path, keep)
        except Exception as error:
            self._error = error


def _copy_to_cpu(value):
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copy_to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy_to_cpu(item) for item in value)
    return value


def to_bytes(content: dict) -> memoryview:
    """A checkpoint file's bytes. content: tensors and plain values, with its "step"."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    comment = b"segtrain step=%012d sha256=%s" % (content["step"], digest.encode())
    buffer.seek(-2, os.SEEK_END)
    assert buffer.read() == b"\0\0"  # the length of the archive's comment, none so far
    buffer.seek(-2, os.SEEK_END)
    buffer.write(struct.pack("<H", len(comment)) + comment)
    return buffer.getbuffer()


def write(path: Path, data: memoryview) -> None:
    """Write a file so that `path` always is a whole one: to a temporary one, synced, then renamed."""
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        _sync_folder(path.parent)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        needed = f"; it has {len(data) / 2**20:.0f} MiB" if error.errno == errno.ENOSPC else ""
        raise UserError(
            f"{path}: the checkpoint cannot be written ({error.strerror}{needed}). Earlier files are intact: make room"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder last through a power cut (POSIX; elsewhere there is no such call)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
                raise
        finally:
            os.close(descriptor)


def _drop_older(path: Path, keep: dict[str, int]) -> None:
    """Delete all but the newest files of the path's kind, if it has a number and its kind a limit."""
    match = _NUMBERED.fullmatch(path.name)
    if not match or not keep.get(match[1]):
        return
    numbered = [(int(other[2]), file) for file in path.parent.iterdir() if (other := _NUMBERED.fullmatch(file.name))
                and other[1] == match[1]]  # fmt: skip
    for _, file in sorted(numbered)[: -keep[match[1]]]:
        file.unlink(missing_ok=True)


def step_of(path: Path) -> int | None:
    """The optimizer step in the comment of a checkpoint; None where there is no such comment."""
    try:
        with path.open("rb") as file:
            file.seek(-min(path.stat().st_size, _COMMENT_LENGTH), os.SEEK_END)
            match = _COMMENT.fullmatch(file.read())
    except OSError:
        return None
    return int(match[1]) if match else None


def is_whole(path: Path) -> bool:
    """Whether the file is as it was written, by its SHA-256."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    match = _COMMENT.fullmatch(data[-_COMMENT_LENGTH:])
    if not match:
        return False
    hashed = hashlib.sha256(memoryview(data)[: -_COMMENT_LENGTH - 2])
    hashed.update(b"\0\0")  # where the comment's length is, and was 0
    return hashed.hexdigest().encode() == match[2]


def files_of_run(folder: Path) -> list[Path]:
    """last.pt, best.pt and the numbered checkpoints in a run's folder."""
    return [
        file for file in folder.glob("*.pt") if file.name in ("last.pt", "best.pt") or _NUMBERED.fullmatch(file.name)
    ]


def newest_whole(folder: Path) -> tuple[Path | None, list[Path]]:
    """The whole checkpoint of a run's folder with most steps, and the damaged ones that were newer or unreadable."""
    files = files_of_run(folder)
    steps = {file: step for file in files if (step := step_of(file)) is not None}
    damaged = [file for file in files if file not in steps]
    # Of equal ones last.pt, which is written last.
    for file in sorted(steps, key=lambda file: (steps[file], file.name == "last.pt"), reverse=True):
        if is_whole(file):
            return file, damaged
        damaged.append(file)
    return None, damaged


def read_run(path: Path) -> dict:
    """The content of a checkpoint of a run, checked by its SHA-256. Raises UserError on any other file."""
    content = read_whole(path)
    if "ranks" not in content:
        raise UserError(f"{path}: no checkpoint of a run; to start from its weights use --pretrained {path}")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path}: of another version of this project (format {content.get('format')}, here {FORMAT}); to start from its "
            f"weights use --pretrained {path}"
        )
    if step_of(path) is None:
        raise UserError(
            f"{path}: truncated, or not of this project: its SHA-256 is missing; to start from its weights use --pretrained"
        )
    return content


def read_whole(path: Path) -> dict:
    """As read(), but a file of this project is checked by its SHA-256 first."""
    if step_of(path) is not None and not is_whole(path):
        raise UserError(f"{path}: damaged: its SHA-256 is not the one that was written with it")
    return read(path)


def read(path: Path) -> dict:
    """The content of a .pt or .pth file, on the CPU. Never runs code from it. Raises UserError on any other file."""
    try:
        # Released CDSP files also hold scores as NumPy numbers; to rebuild those runs no code of the file's.
        with path.open("rb") as file, torch.serialization.safe_globals(NUMPY_VALUES):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError):
        # torch's own messages speak of formats of its own, or suggest to run what the file says.
        raise UserError(
            f"{path}: not a whole checkpoint of tensors and plain values: it is truncated or another kind of file"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a checkpoint but a {type(content).__name__}")
    return content

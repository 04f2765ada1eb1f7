"""Checkpoint files: written atomically, verified by checksums, and read without running code from them.

A file is the zip archive that torch.save writes, with the optimizer step as the archive's comment. torch.load reads it
like any other.
"""

import io
import math
import re
import threading
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from support.errors import UserError, WriteError
from support.files import write_atomic
from support.log import log
from support.signals import WRITER
from training import checkpoint_content
from training.checkpoint_content import FORMAT, Checkpoint, ModelFile

T = TypeVar("T")

COMMENT = "segtrain step={step:012d}"
_COMMENT = re.compile(rb"segtrain step=(\d{12})")
_NUMBERED = re.compile(r"(step|epoch)_\d+\.pt")

# What pickles of NumPy call. NumPy 2 renamed numpy.core to numpy._core; a file has the name of its time.
NUMPY_VALUES: list = [np.ndarray, np.dtype, np.dtypes.Float64DType, np.dtypes.Int64DType]
for _value, _name in ((np.float64(0), "scalar"), (np.empty(0), "_reconstruct")):
    NUMPY_VALUES += [(_value.__reduce__()[0], f"numpy.{core}.multiarray.{_name}") for core in ("core", "_core")]


class DamagedError(UserError):
    """A checkpoint file is truncated or corrupt, or cannot be parsed."""


class Writer:
    """Write checkpoints in a thread, from a copy in CPU memory, while training continues. One write at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(
        self, content: Checkpoint, paths: list[Path], keep: dict[str, int], report: Callable[[], object] = lambda: None
    ) -> None:
        """Start to write `content` to all of the paths, after the previous write is done.

        keep: {"step" or "epoch": number of newest files of that kind, such as step_00000100.pt, to keep; 0: all}.
        report: writes the report. It is called first, so that a run resumed from these files has its report. Raises
        the error of the previous write.
        """
        self.wait()
        copy = _copy_to_cpu(vars(content))
        thread = threading.Thread(target=self._write, args=(copy, paths, keep, report), name=WRITER)
        thread.start()
        self._thread = thread  # only now: a thread that could not start cannot be joined

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` until the last write is done or has failed."""
        if self._thread:
            self._thread.join(seconds)

    def wait(self) -> None:
        """Wait until the last write is done. Raises the error of a failed write."""
        if self._thread:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of a failed write, if there is one. Does not wait."""
        if self._error:
            raise self._error

    def _write(self, content: dict, paths: list[Path], keep: dict[str, int], report: Callable[[], object]) -> None:
        try:
            report()
            data = to_bytes(content)
            for path in paths:
                write(path, data)
                drop_older(path.parent, keep)
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
    """Return the bytes of a checkpoint file. content: a dict of tensors and plain values, among them "step", an int."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = COMMENT.format(step=content["step"]).encode()
    return buffer.getbuffer()


def write(path: Path, data: memoryview) -> None:
    """Write the bytes of a checkpoint atomically and flush the file to disk. Raises WriteError if writing fails."""
    try:
        write_atomic(path, data, sync=True)
    except WriteError as error:
        needed = f"the checkpoint needs {len(data) / 2**20:.0f} MiB"
        needed += ", and has not replaced the earlier one" if path.exists() else ""
        raise WriteError(f"{error}; {needed}") from error


def drop_older(folder: Path, keep: dict[str, int]) -> None:
    """Delete all but the keep[kind] newest files of each kind, such as step_00000100.pt. Keep all with a limit of 0."""
    for kind, number in keep.items():
        numbered = [file for file in folder.glob(f"{kind}_*.pt") if _NUMBERED.fullmatch(file.name)]
        by_number = sorted(numbered, key=lambda file: int(file.stem.partition("_")[2]))
        for file in by_number[:-number]:  # with number 0, this slice is empty
            file.unlink(missing_ok=True)


def step_of(file: Path | io.BytesIO) -> int | None:
    """Return the optimizer step in a checkpoint's comment, or None if the file has no such comment."""
    match = _COMMENT.match(_of_archive(file, lambda archive: archive.comment) or b"")
    return int(match[1]) if match else None


def fingerprint(file: Path) -> str | None:
    """Return the checksums of a checkpoint's parts as text, or None if the file is missing or damaged."""
    return _of_archive(file, lambda archive: " ".join(f"{part.CRC:x}" for part in archive.infolist()))


def _of_archive(file: Path | io.BytesIO, read: Callable[[zipfile.ZipFile], T]) -> T | None:
    """Return read(archive) of a checkpoint's zip archive, or None if the file is missing or damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            return read(archive)
    except Exception:  # zipfile has no common class for what it raises on damaged archives
        return None


def files_of_run(folder: Path) -> list[Path]:
    """List last.pt, best.pt and the numbered checkpoints in a run's folder."""
    names = ("last.pt", "best.pt")
    return [file for file in folder.glob("*.pt") if file.name in names or _NUMBERED.fullmatch(file.name)]


def read_newest(folder: Path) -> tuple[Path | None, Checkpoint | None]:
    """Return (path, Checkpoint) of the intact file with the most steps in a run's folder; (None, None) without one.

    Warns of damaged ones. Raises UserError if all are damaged.
    """
    # A file without a step is damaged. Among equals last.pt is preferred: it is written last.
    ranked = [
        (math.inf if (step := step_of(file)) is None else step, file.name == "last.pt", file)
        for file in files_of_run(folder)
    ]
    damaged: list[Path] = []
    for _, _, file in sorted(ranked, reverse=True):
        try:
            content = read_run(file)
        except DamagedError:
            damaged.append(file)
            continue
        for other in damaged:
            log.warning(f"{other}: damaged; using {file} instead")
        return file, content
    if damaged:
        names = ", ".join(file.name for file in damaged)
        raise UserError(f"{folder}: all checkpoints are damaged ({names}): delete them to start the run again")
    return None, None


def read_run(path: Path) -> Checkpoint:
    """Return the Checkpoint in a run's file. Raises UserError on any other file, DamagedError on a damaged one."""
    content, step = _read(path)
    if "ranks" not in content:
        raise UserError(f"{path}: not a checkpoint of a run; to start from its weights use --pretrained {path}")
    version = content.get("format")
    if type(version) is not int or version != FORMAT:
        version = version if type(version) is int and 0 <= version < 1000 else "unknown"
        raise UserError(
            f"{path}: written by another version of this project (format {version}, here {FORMAT}); "
            f"to start from its weights use --pretrained {path}"
        )
    with checkpoint_content.naming(path):
        checked = checkpoint_content.check_run(content)
    if checked.step != step:
        raise DamagedError(f"{path}: damaged: its end is missing or wrong; use another checkpoint of the run")
    return checked


def read_model(path: Path) -> ModelFile:
    """Return what a file says of its model. Raises UserError as read() does, or for a wrong entry."""
    content = read(path)
    with checkpoint_content.naming(path):
        return checkpoint_content.check_model(content)


def read(path: Path) -> dict:
    """Return the dict in a .pt or .pth file, in CPU memory, without running code from the file.

    Files of this project are also checked against their checksums (CRC-32); torch.load does not check. Raises
    DamagedError if the file is damaged, UserError if the file cannot be read, or holds no dict or unusual weights.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[dict, int | None]:
    """Return what read() returns, and step_of() the same bytes: a run that still trains may replace the file."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a file")
    try:
        data = io.BytesIO(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    _check_archive(path, data)
    try:
        # Released CDSP files also contain scores as NumPy numbers; these types run no code of the file.
        with torch.serialization.safe_globals(NUMPY_VALUES), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, on old and other kinds of files
            content = torch.load(data, map_location="cpu", weights_only=True)
    except Exception:  # torch.load() has no common class for what it raises
        # torch's own messages suggest to run code from the file.
        raise DamagedError(
            f"{path}: not an intact checkpoint of tensors and plain values: it is truncated or another kind of file"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a checkpoint but a {type(content).__name__}")
    flags = content.get("config")
    if isinstance(flags, dict) and isinstance(stats := flags.get("image_stats"), str) and stats:
        raise UserError(f"{path}: trained with --image_stats by an earlier version: images must now be 8-bit RGB")
    with checkpoint_content.naming(path):
        checkpoint_content.check_weights(content)
    return content, step_of(data)


def _check_archive(path: Path, data: io.BytesIO) -> None:
    """Raise UserError if records are compressed or overlap, as they could fill the memory; DamagedError as read()."""
    is_plain, is_intact, is_script = True, step_of(data) is None, False
    try:
        with zipfile.ZipFile(data) as archive:
            records = archive.infolist()
            is_script = any(record.filename.endswith("/constants.pkl") for record in records)
            is_plain = sum(record.file_size for record in records) <= data.getbuffer().nbytes
            is_plain = is_plain and not any(record.compress_type for record in records)
            pickles = [archive.read(record) for record in records if is_plain and record.filename.endswith("data.pkl")]
            is_plain = is_plain and not any(b"bytearray" in text for text in pickles)  # its size is in the file alone
            # A CRC covers the content of a record, not its attributes, where one bit turns it into a folder.
            attributes = any(record.external_attr for record in records)
            is_intact = is_intact or (is_plain and archive.testzip() is None and not attributes)
    except Exception:  # zipfile has no common class for what it raises on damaged archives
        pass
    data.seek(0)
    if is_script:
        raise UserError(f"{path}: a TorchScript file, which holds code: give the checkpoint that it was made from")
    if not is_plain:
        raise UserError(
            f"{path}: has compressed records or a bytearray, which may fill memory: save it by torch.save()"
        )
    if not is_intact:
        raise DamagedError(f"{path}: damaged: its checksum is wrong; use another checkpoint of the run")

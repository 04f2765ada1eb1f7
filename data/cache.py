"""A cache of decoded samples in one memory-mapped file, shared by all loader workers and ranks of a machine.

The file has the maps of each sample; a JSON text; and the text's CRC-32 and length, 4 and 8 bytes. Maps are uint8, but
images of other types begin at a multiple of their size. A damaged bit in a map is not noticed: maps have no checksum.
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import mmap
import os
import platform
import shutil
import struct
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.memory import available_memory
from support.errors import UserError
from support.files import check_writable, remove_scratch, writing
from support.threads import ThreadPool

FORMAT = 3  # raise it if the file or the computed maps change
MEMORY_SHARE, MOST_MEMORY = 0.5, 0.9  # of the available memory: what a cache takes unless told otherwise, and at most
DISK_SHARE = 0.9  # of the free space on disk
_END = struct.Struct("<IQ")  # CRC-32 and length of the JSON text

log = logging.getLogger("segtrain.every_rank")  # one process of each machine builds
Maps = dict[str, np.ndarray]


class Cache:
    """The decoded maps of a data set's first samples: len(cache) of them, and cache[index] is {name: array}.

    The arrays are read-only views of the file `path`. stamp: what the file was built from, see fingerprint(). A pickled
    cache opens the file again. keep: an open file that `path` leads to, if it has no name.
    """

    def __init__(self, path: Path, keep: BinaryIO | None = None):
        self.path, self._keep = path, keep
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        checksum, length = _END.unpack(self._memory[-_END.size :])
        text = self._memory[-_END.size - length : -_END.size]
        index = json.loads(text) if zlib.crc32(text) == checksum else {}  # damaged: KeyError
        self.stamp: str = index["stamp"]
        self.channels: dict[str, int] = index["channels"]
        self.sizes: list[tuple[int, int]] = index["sizes"]  # (height, width) of each sample
        self.next_size: int = index["next_size"]  # bytes of samples if there were one more; 0: all samples are here
        self._types = dict.fromkeys(self.channels, np.dtype(np.uint8)) | {"image": np.dtype(index["image_dtype"])}
        a_pixel = sum(self._types[name].itemsize * channels for name, channels in self.channels.items())
        sizes = [_aligned(height * width * a_pixel, self._types["image"]) for height, width in self.sizes]
        self._starts = np.cumsum([0, *sizes])
        self._values = np.frombuffer(self._memory, np.uint8)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Maps:
        (height, width), start, maps = self.sizes[index], int(self._starts[index]), {}
        for name, channels in self.channels.items():
            end = start + height * width * channels * self._types[name].itemsize
            shape = (height, width, channels) if name == "image" else (height, width)
            maps[name] = self._values[start:end].view(self._types[name]).reshape(shape)
            start = end
        return maps

    def __reduce__(self) -> tuple:
        return Cache, (self.path,)

    @property
    def num_bytes(self) -> int:
        return len(self._memory)

    @property
    def address(self) -> tuple[str, Path, str]:
        """Return what open_shared() needs in another process: where the path is valid ("": see there), path, stamp."""
        return "" if self._keep is None else _machine(), self.path, self.stamp


class Builder:
    """A writer of caches.

    read: function from an index to all maps of a sample, called in threads. num_samples: number of samples.
    budget: largest size in bytes, beyond which samples are not cached; 0: MEMORY_SHARE of the available memory, or
    DISK_SHARE of the free disk. MOST_MEMORY and DISK_SHARE limit any budget. stamp: stored in the cache. stop: asked
    between samples; if it returns True, no cache is written. bar: wraps the iterable of samples to show progress.
    """

    def __init__(
        self,
        read: Callable[[int], Mapping[str, np.ndarray]],
        num_samples: int,
        *,
        budget: float = 0,
        stamp: str = "",
        stop: Callable[[], bool] = lambda: False,
        bar: Callable[[Iterable], Iterable] = iter,
    ):
        self.read, self.num_samples, self.budget, self.stamp = read, num_samples, budget, stamp
        self.stop, self.bar = stop, bar
        self.used = 0  # bytes of samples written so far

    def in_memory(self) -> Cache | None:
        """Return a cache in memory, or None if stopped. The kernel frees it when the last process that has it ends.

        Other processes of this machine open it by its `path` as long as this process keeps it. Raises UserError if the
        system cannot do this, or if memory runs out.
        """
        if not hasattr(os, "memfd_create"):
            raise UserError("--cache ram needs Linux: use --cache disk")
        file = os.fdopen(os.memfd_create("segtrain-cache"), "w+b")
        try:
            available = available_memory()  # the kernel would kill a process that takes more
            budget = min(self.budget or MEMORY_SHARE * available, MOST_MEMORY * available)
            written = self._write(file, budget)
            file.flush()
        except OSError as error:
            raise UserError(f"--cache ram: {error.strerror}: lower --cache_gb, or use --cache disk") from None
        return Cache(Path(f"/proc/{os.getpid()}/fd/{file.fileno()}"), keep=file) if written else None

    def on_disk(self, path: Path) -> Cache | None:
        """Return the cache in the file `path`, or None if stopped before there is one.

        The file is whole or absent at any moment. It is written if it is not of this stamp, or if it lacks samples of
        which the budget now allows one more; it stays if the budget is smaller now. If the disk gets full, fewer
        samples are cached. Raises UserError if the file cannot be written.
        """
        old = find(path, self.stamp)
        if old is not None and not (old.next_size and os.access(path.parent, os.W_OK)):
            return old
        least = 0 if old is None else old.next_size
        del old  # Windows cannot replace an open file
        check_writable(path.parent, "--cache_dir")
        remove_scratch(path.parent.glob(f".*.part{path.suffix}"))  # not below: the folder may be anyone's home
        budget = min(self.budget or math.inf, DISK_SHARE * shutil.disk_usage(path.parent).free)
        while budget >= least and not self._fill(path, budget):
            budget = DISK_SHARE * self.used
            sizes = f"full after {self.used / 1e9:.3g} GB of images: caching at most {budget / 1e9:.3g} GB"
            log.warning(f"--cache disk: {path.parent}: {sizes}; make room, or name another --cache_dir")
        return find(path, self.stamp)

    def _fill(self, path: Path, budget: float) -> bool:
        """Write the file `path` unless stopped; return False if the disk got full.

        The caller starts again then: after a failed write, some network file systems lose earlier ones, too.
        """
        try:
            with contextlib.suppress(_Stopped), writing(path, sync=True) as scratch, scratch.open("wb") as file:
                if not self._write(file, budget):
                    raise _Stopped
        except UserError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
            if not (full and self.used):
                raise
            return False
        return True

    def _write(self, file: BinaryIO, budget: float) -> bool:
        """Write a cache of at most `budget` bytes of samples; return False if stopped before its end."""
        sizes, channels, next_size, dtype, self.used = [], {}, 0, np.dtype(np.uint8), 0
        with contextlib.closing(self._decoded()) as samples:
            for maps in self.bar(samples):
                if self.stop():
                    return False
                dtype, num_bytes = maps["image"].dtype, sum(values.nbytes for values in maps.values())
                size = self.used + _aligned(num_bytes, dtype)
                if size > budget:
                    next_size = size
                    break
                sizes.append(maps["image"].shape[:2])
                channels = {name: values.size // (values.shape[0] * values.shape[1]) for name, values in maps.items()}
                for values in maps.values():
                    file.write(np.ascontiguousarray(values).data)
                file.write(bytes(size - self.used - num_bytes))
                self.used = size
        index = {"stamp": self.stamp, "channels": channels, "image_dtype": dtype.name, "sizes": sizes}
        text = json.dumps(index | {"next_size": next_size}).encode()
        file.write(text + _END.pack(zlib.crc32(text), len(text)))
        return True

    def _decoded(self) -> Generator[Mapping[str, np.ndarray], None, None]:
        """Yield the maps of each sample in order, read in threads: decoders do not hold Python's lock."""
        threads = os.cpu_count() or 1
        waiting: deque[Future] = deque()
        with ThreadPool(threads) as pool:
            for index in range(self.num_samples):
                waiting.append(pool.submit(self.read, index))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


def _aligned(size: int, dtype: np.dtype) -> int:
    return -(-size // dtype.itemsize) * dtype.itemsize


class _Stopped(Exception):
    """Leaves writing() without a file."""


def find(path: Path, stamp: str) -> Cache | None:
    """Return the cache in a file if it was built from what `stamp` describes, else None."""
    with contextlib.suppress(OSError, ValueError, KeyError, struct.error):
        cache = Cache(path)
        if cache.stamp == stamp:
            return cache
    return None


def open_shared(addresses: Iterable[tuple[str, Path, str] | None]) -> Cache | None:
    """Return the first cache that this process can open, from Cache.address of all processes; None without one.

    A cache in memory must be of this machine. A file may be of any: containers of a machine often share the data set.
    """
    for machine, path, stamp in filter(None, addresses):
        if machine in ("", _machine()) and (cache := find(path, stamp)) is not None:
            return cache
    return None


def _machine() -> str:
    """Return a name of what shares process numbers: on Linux, the running kernel and the PID namespace.

    Containers of one machine have the same kernel, but /proc/PID is another process in each.
    """
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{kernel} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def fingerprint(files: list[dict[str, Path]], settings: str) -> tuple[str, str]:
    """Return (name, stamp) of a cache of these files, in hexadecimal.

    The name depends on the paths and the settings; the stamp also on size and time of change of each file.
    """
    paths = [[FORMAT, settings], *([name, str(path.absolute())] for maps in files for name, path in maps.items())]
    changes = [[status.st_size, status.st_mtime_ns] for maps in files for status in map(os.stat, maps.values())]
    name, stamp = (hashlib.sha256(json.dumps(content).encode()).hexdigest() for content in (paths, [paths, changes]))
    return name[:16], stamp

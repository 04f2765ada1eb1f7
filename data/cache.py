"""A cache of decoded samples in one memory-mapped file, shared by all loader workers and ranks of a machine.

The file has the maps of each sample; a JSON text; and the text's CRC-32 and length, 4 and 8 bytes. Maps are uint8, but
images of other types begin at a multiple of their size. A damaged bit in a map is not noticed: maps have no checksum.
"""

import contextlib
import hashlib
import json
import mmap
import os
import shutil
import struct
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

import numpy as np

from support.errors import UserError
from support.files import check_writable, remove_scratch, writing
from support.threads import ThreadPool

FORMAT = 4  # raise it if the file or the computed maps change
NUM_MEASURED = 16  # samples from which the size of the file is estimated
_END = struct.Struct("<IQ")  # CRC-32 and length of the JSON text

Maps = Mapping[str, np.ndarray]


class Cache:
    """The decoded maps of a data set's samples: cache[index] is {name: array}.

    The arrays are read-only views of the file `path`. stamp: what the file was built from, see fingerprint(). A pickled
    cache opens the file again. Raises KeyError, OSError, ValueError or struct.error if the file is no whole cache.
    """

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        checksum, length = _END.unpack(self._memory[-_END.size :])
        text = self._memory[-_END.size - length : -_END.size]
        index = json.loads(text) if zlib.crc32(text) == checksum else {}  # damaged: KeyError
        self.stamp: str = index["stamp"]
        self.channels: dict[str, int] = index["channels"]
        self.sizes: list[tuple[int, int]] = index["sizes"]  # (height, width) of each sample
        self._types = dict.fromkeys(self.channels, np.dtype(np.uint8)) | {"image": np.dtype(index["image_dtype"])}
        a_pixel = sum(self._types[name].itemsize * channels for name, channels in self.channels.items())
        sizes = [_aligned(height * width * a_pixel, self._types["image"]) for height, width in self.sizes]
        self._starts = np.cumsum([0, *sizes])
        self._values = np.frombuffer(self._memory, np.uint8)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
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


def build(
    path: Path,
    stamp: str,
    read: Callable[[int], Maps],
    num_samples: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    bar: Callable[[Iterable], Iterable] = iter,
) -> Cache | None:
    """Return the cache in the file `path`; write the file if it is not of this stamp. None if stopped.

    The file is whole or absent at any moment. read: function from an index to all maps of a sample, called in threads.
    stop: asked between samples. bar: wraps the iterable of samples to show progress. Raises UserError if the file
    cannot be written, or if the disk has no room for it.
    """
    if cache := find(path, stamp):
        return cache
    check_writable(path.parent, "--cache_dir")
    remove_scratch(path.parent.glob(f".*.part{path.suffix}"))  # not below: the folder may be anyone's home
    _check_room(path.parent, read, num_samples)
    with (
        contextlib.suppress(_Stopped),
        writing(path, sync=True) as scratch,
        scratch.open("wb") as file,
        contextlib.closing(_decoded(read, num_samples)) as samples,
    ):
        _write(file, stamp, bar(samples), stop)
    return find(path, stamp)


def _check_room(folder: Path, read: Callable[[int], Maps], num_samples: int) -> None:
    """Raise UserError if the disk has no room for the maps of all samples, estimated from some of them."""
    some = range(0, num_samples, -(-num_samples // NUM_MEASURED))
    sizes = [sum(values.nbytes for values in read(index).values()) for index in some]
    need, free = sum(sizes) / len(sizes) * num_samples, shutil.disk_usage(folder).free
    if need > free:
        raise UserError(
            f"--cache disk: {folder}: needs about {need / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free: make room, "
            "name another --cache_dir, or drop --cache"
        )


def _write(file: BinaryIO, stamp: str, samples: Iterable[Maps], stop: Callable[[], bool]) -> None:
    """Write a cache of the samples. Raises _Stopped if stop() returns True."""
    sizes, channels, dtype = [], {}, np.dtype(np.uint8)
    for maps in samples:
        if stop():
            raise _Stopped
        dtype, num_bytes = maps["image"].dtype, sum(values.nbytes for values in maps.values())
        sizes.append(maps["image"].shape[:2])
        channels = {name: values.size // (values.shape[0] * values.shape[1]) for name, values in maps.items()}
        for values in maps.values():
            file.write(np.ascontiguousarray(values).data)
        file.write(bytes(_aligned(num_bytes, dtype) - num_bytes))
    index = {"stamp": stamp, "channels": channels, "image_dtype": dtype.name, "sizes": sizes}
    text = json.dumps(index).encode()
    file.write(text + _END.pack(zlib.crc32(text), len(text)))


def _decoded(read: Callable[[int], Maps], num_samples: int) -> Generator[Maps, None, None]:
    """Yield the maps of each sample in order, read in threads: decoders do not hold Python's lock."""
    threads = os.cpu_count() or 1
    waiting: deque[Future] = deque()
    with ThreadPool(threads) as pool:
        for index in range(num_samples):
            waiting.append(pool.submit(read, index))
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


def fingerprint(files: list[dict[str, Path]], settings: str) -> tuple[str, str]:
    """Return (name, stamp) of a cache of these files, in hexadecimal.

    The name depends on the paths and the settings; the stamp also on size and time of change of each file.
    """
    paths = [[FORMAT, settings], *([name, str(path.absolute())] for maps in files for name, path in maps.items())]
    changes = [[status.st_size, status.st_mtime_ns] for maps in files for status in map(os.stat, maps.values())]
    name, stamp = (hashlib.sha256(json.dumps(content).encode()).hexdigest() for content in (paths, [paths, changes]))
    return name[:16], stamp

"""Decode run-length encoded masks, as COCO, CVAT and Label Studio write them. InputError if the lengths do not fit."""

from collections.abc import Sequence

import numpy as np

from support.errors import InputError


def from_runs(runs: Sequence[int | str], num_pixels: int, where: str) -> np.ndarray:
    """Return a mask (num_pixels,) bool of run lengths that are 0, 1, 0, ... in turn, beginning with a run of zeros."""
    try:
        lengths = np.array(runs, np.int64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: run lengths that are not whole numbers") from None
    if lengths.ndim != 1 or (lengths < 0).any() or int(lengths.sum()) != num_pixels:
        raise InputError(f"{where}: run lengths of {lengths.sum()} pixels in all, but the mask has {num_pixels}")
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)


def coco_counts(text: str, where: str) -> list[int]:
    """Return the run lengths of COCO's compressed RLE.

    The code of each character, minus 48, has 6 bits: 5 of the number, lowest first, and one that says whether more
    follow. The highest bit is the sign. From the fourth number on, the text has the difference to the number two before
    (cocodataset/cocoapi, common/maskApi.c, rleFrString).
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise InputError(f"{where}: {character!r} is no character of COCO's compressed RLE")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise InputError(f"{where}: the compressed RLE is cut off")
    return counts


def decode_label_studio(rle: Sequence[int], num_values: int, where: str) -> np.ndarray:
    """Return the values (num_values,) uint8 of Label Studio's brush RLE, which is thi.ng's rle-pack.

    A stream of bits: the number of values (32 bits), the bits of a value minus 1 (5), and the bits of a length minus 1,
    in four sizes (4 each). Then runs: whether the value repeats (1), which of the four sizes (2), the length minus 1,
    and one value or, if it does not repeat, `length` values (HumanSignal/label-studio-converter, brush.py, decode_rle).
    """
    try:
        data = bytes(rle)
    except (TypeError, ValueError):
        raise InputError(f"{where}: an RLE that is not a list of bytes") from None
    position, end = 0, 8 * len(data)

    def read(count: int) -> int:
        nonlocal position
        if position + count > end:
            raise InputError(f"{where}: the brush RLE is cut off")
        last = position + count
        value = int.from_bytes(data[position // 8 : (last + 7) // 8], "big") >> (-last % 8)
        position = last
        return value & ((1 << count) - 1)

    found, word = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    if found != num_values or word != 8:
        raise InputError(f"{where}: a brush RLE of {found} values of {word} bits, but the image has {num_values} of 8")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    values = np.zeros(num_values, np.uint8)
    start = 0
    while start < num_values:
        repeated = read(1)
        stop = start + 1 + read(sizes[read(2)])
        if stop > num_values:
            raise InputError(f"{where}: a run of the brush RLE ends past the last pixel")
        if repeated:
            values[start:stop] = read(8)
        else:
            length = 8 * (stop - start)
            if position + length > end:
                raise InputError(f"{where}: the brush RLE is cut off")
            values[start:stop] = np.packbits(bits[position : position + length])
            position += length
        start = stop
    return values

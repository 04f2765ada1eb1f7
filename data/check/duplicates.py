"""Pictures that a data set has more than once: equal by the hash of their pixels, or nearly by a difference hash."""

import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data.check.findings import Findings
from data.check.measure import Facts

NEAR_BITS = 2  # of 64: re-encoded and resized copies differ in so few, other pictures in about 32

_BITS_SET = np.array([bin(number).count("1") for number in range(2**16)], np.uint8)


def find_duplicates(facts: list[Facts], show: Callable[[Path], str], findings: Findings) -> None:
    """Equal pictures within and across splits, and nearly equal ones across splits."""
    same = defaultdict(list)
    for item in facts:
        if item.image.sha:
            same[item.image.sha].append(item.sample)
    for samples in same.values():
        if len(samples) > 1:
            splits = {split for sample in samples for split in sample.splits}
            first, *others = (show(sample.image) for sample in samples)
            findings.add(
                "duplicate-across-splits" if len(splits) > 1 else "duplicate", first, "is " + ", ".join(others)
            )
    by_split = defaultdict(list)
    for item in facts:
        if item.image.near is not None and len(item.sample.splits) == 1:
            by_split[item.sample.splits[0]].append(item)
    for one, other in itertools.combinations(by_split.values(), 2):
        _find_near(one, other, show, findings)


def _find_near(first: list[Facts], second: list[Facts], show: Callable[[Path], str], findings: Findings) -> None:
    """For each picture of the second split, the nearest of the first, if it is near and not the same."""
    hashes = np.array([item.image.near for item in first], np.uint64)
    shas = np.array([item.image.sha for item in first])
    for item in second:
        differing = hamming(hashes, item.image.near or 0)
        differing[shas == item.image.sha] = 64
        nearest = int(differing.argmin())
        if differing[nearest] <= NEAR_BITS:
            note = f"like {show(first[nearest].sample.image)}, {differing[nearest]} of 64 bits differ"
            findings.add("near-duplicate", show(item.sample.image), note)


def hamming(hashes: np.ndarray, other: int) -> np.ndarray:
    """The number of bits in which each 64-bit hash (N,) differs from another: (N,) int."""
    return _BITS_SET[(hashes ^ np.uint64(other)).view(np.uint16)].reshape(len(hashes), 4).sum(axis=1, dtype=np.int64)

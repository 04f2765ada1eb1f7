"""Find pictures that a data set has more than once: equal by SHA-256 of their pixels, or similar by difference hash."""

import itertools
from collections import defaultdict

import numpy as np

from tools.check.findings import Findings
from tools.check.measure import Facts, ImageFacts

NEAR_BITS = 2  # of 64: re-encoded and resized copies differ in this many at most, other pictures in about 32

_BITS_SET = np.array([bin(number).count("1") for number in range(2**16)], np.uint8)


def find_duplicates(facts: list[Facts], findings: Findings) -> None:
    """Add a finding for each group of equal pictures, and for each picture like one in another split.

    Equal pictures have one SHA-256. Similar pictures have difference hashes that differ in at most NEAR_BITS bits.
    """
    same = defaultdict(list)
    by_split = defaultdict(list)
    for item in facts:
        if item.image.sha:
            same[item.image.sha].append(item)
        if item.image.near is not None and len(item.splits) == 1:
            by_split[item.splits[0]].append(item.image)
    for items in same.values():
        if len(items) > 1:
            splits = {split for item in items for split in item.splits}
            first, *others = (item.image.path for item in items)
            code = "duplicate-across-splits" if len(splits) > 1 else "duplicate"
            findings.add(code, first, f"is {', '.join(map(findings.show, others))}")
    for first_split, second_split in itertools.combinations(by_split.values(), 2):
        _find_similar(first_split, second_split, findings)


def _find_similar(first: list[ImageFacts], second: list[ImageFacts], findings: Findings) -> None:
    """Add a finding for each picture in `second` whose nearest picture in `first` is similar but not equal."""
    hashes = np.array([image.near for image in first], np.uint64)
    shas = np.array([image.sha for image in first])
    for image in second:
        differing = hamming(hashes, image.near or 0)
        differing[shas == image.sha] = 64
        nearest = int(differing.argmin())
        if differing[nearest] <= NEAR_BITS:
            note = f"like {findings.show(first[nearest].path)}, {differing[nearest]} of 64 bits differ"
            findings.add("near-duplicate", image.path, note)


def hamming(hashes: np.ndarray, other: int) -> np.ndarray:
    """Return the number of bits in which each 64-bit hash differs from `other`, (N,) int64. hashes: (N,) uint64."""
    return _BITS_SET[(hashes ^ np.uint64(other)).view(np.uint16)].reshape(len(hashes), 4).sum(axis=1, dtype=np.int64)

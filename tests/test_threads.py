"""A process can fork as soon as a pool's `with` block is left: its threads have ended."""

import sys
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

from support.processes import ThreadPool


def count_pixels(_: int) -> int:
    """Call OpenCV, and return the number of the thread."""
    cv2.calcHist([np.zeros((120, 160), np.uint8)], [0], None, [256], [0, 256])
    return threading.get_native_id()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists threads in /proc, and forks loader workers")
def test_threads_have_ended_when_a_pool_is_left():
    left = 0
    for _ in range(200):  # 200 of Python 3.11's ThreadPoolExecutors left 150 to 180 threads
        with ThreadPool(4) as pool:
            ids = set(pool.map(count_pixels, range(20)))
        left += sum(Path(f"/proc/self/task/{number}").exists() for number in ids)
    assert left == 0

"""train.py in float64, where a sum's order shows in the last digits only; with $SAMPLES, notes the samples it reads.

Started by test_distributed.py and test_resume.py. $SAMPLES.RANK gets a line "epoch index" a training sample.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import errors
import train
from data.dataset import SegmentationDataset

if "SAMPLES" in os.environ:
    read_sample = SegmentationDataset.__getitem__

    def read_and_note(dataset, key):
        if isinstance(key, tuple):
            with open(f"{os.environ['SAMPLES']}.{os.environ['RANK']}", "a") as notes:
                notes.write(f"{key[0]} {key[1]}\n")
        return read_sample(dataset, key)

    SegmentationDataset.__getitem__ = read_and_note  # type: ignore[method-assign]

torch.set_default_dtype(torch.float64)
if __name__ == "__main__":  # not in loader workers that start by spawn
    sys.exit(errors.run(train.main))

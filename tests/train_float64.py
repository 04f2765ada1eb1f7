"""train.py in float64: the order of a sum then shows in the last digits only.

$SAMPLES: write a line "epoch index" to $SAMPLES.RANK for each training sample. $STOP_AT_STEP: send SIGTERM there.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import train
from data.dataset import TrainSet
from support import program
from tests.stopping import stop
from training.state import TrainState

if "SAMPLES" in os.environ:
    read_batch = TrainSet.__getitems__

    def read_and_note(dataset, keys):
        with open(f"{os.environ['SAMPLES']}.{os.environ['RANK']}", "a") as notes:
            notes.writelines(f"{key[0]} {key[1]}\n" for key in keys)
        return read_batch(dataset, keys)

    TrainSet.__getitems__ = read_and_note  # type: ignore[method-assign]

if "STOP_AT_STEP" in os.environ:
    update = TrainState.optimizer_step

    def update_and_stop(state, *args):
        update(state, *args)
        if state.step == int(os.environ["STOP_AT_STEP"]):
            stop()

    TrainState.optimizer_step = update_and_stop  # type: ignore[method-assign]

torch.set_default_dtype(torch.float64)
if __name__ == "__main__":  # not in loader workers that start by spawn
    program.run_and_exit(train.main)

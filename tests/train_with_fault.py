"""train.py with a fault in it, for tests: train_with_fault.py FAULT RANK [flags of train.py].

FAULT is the name of a function below, RANK the rank on which it strikes, or "all".
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import cv2
import numpy as np
import torch
import torchvision
from torch import nn

import program

sys.path.insert(0, str(Path(__file__).parent.parent))
import errors
import train
import utils
from data.dataset import SegmentationDataset
from data.sampler import TrainSampler
from distributed.group import Group
from distributed.lifeline import Watch
from losses.criterion import Criterion
from runs import checkpoint
from runs.state import TrainState
ON_ALL_RANKS = ("a_buffer", "blocked_destroy", "slow_write")
STEP = 6  # of 4 an epoch: in the middle of the second


def before(owner, name: str, action: Callable[..., None]) -> None:
    """Call action with the arguments of owner.name each time before it."""
    original = getattr(owner, name)

    def replacement(*args, **kwargs):
        action(*args)
        return original(*args, **kwargs)

    setattr(owner, name, replacement)


def at_step(number: int, action: Callable[[], None]) -> None:
    """Call action in optimizer step `number`, counted from 1, before the weights change."""
    before(TrainState, "update", lambda state, *_: action() if state.step + 1 == number else None)


def once(action: Callable[[], None]) -> Callable[..., None]:
    calls: list = []

    def wrapper(*_) -> None:
        calls.append(None)
        if len(calls) == 1:
            action()

    return wrapper


def stop() -> None:
    os.kill(os.getpid(), getattr(signal, os.environ.get("SIGNAL", "SIGTERM")))
    time.sleep(0.1)  # for the thread that notes it


# A signal in each phase


def signal_in_startup() -> None:
    before(train, "get_state", once(stop))


def signal_in_first_step() -> None:
    at_step(1, stop)


def signal_mid_epoch() -> None:
    at_step(STEP, stop)


def signal_group_mid_epoch() -> None:
    os.setsid()
    at_step(STEP, lambda: os.killpg(0, signal.SIGTERM))


def stuck_after_signal() -> None:
    def wait() -> None:
        Path("stuck").touch()
        time.sleep(30)

    at_step(2, wait)


def no_relay() -> None:
    """The other ranks are told to stop by the all-reduce of the next step alone."""
    tell = Watch._tell

    def tell_but_stop(watch, message, but=None):
        if not message.startswith("stop"):
            tell(watch, message, but)

    Watch._tell = tell_but_stop  # type: ignore[method-assign]


def slow_after_signal() -> None:
    def wait() -> None:
        Path(f"slow.{os.environ['RANK']}").touch()
        time.sleep(3)

    at_step(2, wait)


def signal_to_workers() -> None:
    def send() -> None:
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGTERM)
        time.sleep(0.1)

    at_step(2, send)


def signal_in_last_step_of_an_epoch() -> None:
    at_step(4, stop)


def signal_in_validation() -> None:
    before(train.Predictor, "labels", once(stop))


def signal_while_saving() -> None:
    before(checkpoint, "write", once(stop))


def huge_loss_scale() -> None:
    """Start with a scale that overflows in the first steps only."""
    init = torch.amp.GradScaler.__init__

    def huge(scaler, device, **options) -> None:
        init(scaler, device, init_scale=2.0**17, **options)

    torch.amp.GradScaler.__init__ = huge  # type: ignore[method-assign]


def other_host() -> None:
    """This process is on a machine of its own, by its name."""
    socket.gethostname = lambda: "other"


# What must be named on every rank


def wrapper_lost() -> None:
    Group.wrap = lambda self, raw_model, **options: raw_model  # type: ignore[method-assign]


def other_numpy() -> None:
    np.__version__ = "1.0"


def other_opencv() -> None:
    cv2.__version__ = "1.0"


def other_order() -> None:
    TrainSampler.order = lambda sampler, epoch: np.arange(len(sampler.dataset))  # type: ignore[method-assign]


def add_to_model(add: Callable[[nn.Module], None]) -> None:
    build = utils.models.build

    def replacement(*args, **kwargs):
        model = build(*args, **kwargs)
        add(model)
        return model

    utils.models.build = replacement


def unused_parameter() -> None:
    add_to_model(lambda model: model.register_parameter("spare", nn.Parameter(torch.zeros(3))))


def weight_changed_on_one_rank() -> None:
    def change(state: TrainState, *_) -> None:
        with torch.no_grad():
            state.raw_model.head.aspp.conv1.weight[0] += 1e-7

    before(TrainState, "update", change)


def weight_changed_in_step_2() -> None:
    def change(state: TrainState, *_) -> None:
        if state.step == 1:
            with torch.no_grad():
                state.raw_model.head.aspp.conv1.weight[0] += 1e-7

    before(TrainState, "update", change)


def buffer_changed_on_one_rank() -> None:
    def change(state: TrainState, *_) -> None:
        state.raw_model.centre += 1

    before(TrainState, "update", change)


def a_buffer() -> None:
    add_to_model(lambda model: model.register_buffer("centre", torch.zeros(3)))


def dataset_raises() -> None:
    def fail(dataset, key) -> None:
        raise KeyError(f"no such sample: {key}")

    before(SegmentationDataset, "__getitem__", fail)


# Two errors at step 2, after which the tests look at what is left


def strike(error: BaseException) -> Callable[[], None]:
    """Note the loader's workers in workers.RANK, then raise the error."""

    def action() -> None:
        note = Path(f"workers.{os.environ['RANK']}")
        note.with_suffix(".tmp").write_text(" ".join(str(child.pid) for child in multiprocessing.active_children()))
        note.with_suffix(".tmp").rename(note)
        raise error

    return action


def user_error() -> None:
    at_step(2, strike(errors.UserError("the file is wrong")))


def bug() -> None:
    at_step(2, strike(RuntimeError("an index is wrong")))


def interrupt() -> None:
    at_step(2, strike(KeyboardInterrupt()))


def leave() -> None:
    at_step(2, strike(SystemExit(3)))


def signal_before_the_error() -> None:
    at_step(2, stop)


def blocked_destroy() -> None:
    """As NCCL's shutdown, which waits for collectives that a dead rank never joins."""
    torch.distributed.destroy_process_group = lambda *_: time.sleep(600)


def slow_download() -> None:
    """ImageNet's weights come later than --dist_timeout allows a collective to take."""

    def download(*_, **__) -> dict:
        time.sleep(11)
        return torchvision.models.resnet18().state_dict()

    torch.hub.load_state_dict_from_url = download


def broken_download() -> None:
    def download(*_, **__) -> None:
        time.sleep(1)
        raise URLError("no route to host")

    torch.hub.load_state_dict_from_url = download


def slow_write() -> None:
    before(checkpoint, "write", lambda *_: time.sleep(1))


def out_of_memory() -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    at_step(STEP, fail)


def out_of_memory_on_the_cpu() -> None:
    at_step(STEP, lambda: torch.empty(2**52))


def loss_not_finite() -> None:
    calls: list = []
    original = Criterion.__call__

    def replacement(*args):
        calls.append(None)
        return original(*args) * (float("nan") if len(calls) == STEP else 1.0)

    Criterion.__call__ = replacement  # type: ignore[method-assign]


def last_write_fails() -> None:
    def fail(*_) -> None:
        time.sleep(1)
        raise errors.UserError("the disk is gone")

    checkpoint.write = fail  # type: ignore[assignment]


def halted() -> None:
    at_step(STEP, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def killed() -> None:
    at_step(STEP, lambda: os.kill(os.getpid(), signal.SIGKILL))


def killed_in_first_step() -> None:
    at_step(1, lambda: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    fault, rank = sys.argv[1:3]
    for name in fault.split("+"):
        if rank == "all" or rank == os.environ.get("RANK", "0") or name in ON_ALL_RANKS:
            globals()[name]()
    sys.exit(program.run(lambda: train.main(sys.argv[3:])))

"""train.py with a fault: train_with_fault.py FAULT RANK [flags of train.py].

FAULT is a name in FAULTS, or several as in a_buffer+bug. RANK is the rank that it strikes, or "all".
"""

import atexit
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torchvision
from torch import nn
from torch.amp import GradScaler

sys.path.insert(0, str(Path(__file__).parent.parent))
import distributed.precision
import models.compiled
import train
import utils
from data.dataset import TrainSet
from distributed import rank_checks
from distributed.group import Group
from distributed.lifeline import Lifeline
from losses.criterion import Criterion
from support import errors, program
from support.signals import StopRequest
from tests.drawing import make_draw
from training import checkpoint
from training.state import TrainState

ON_ALL_RANKS = ("a_buffer", "blocked_destroy", "slow_write")
STEP = 6  # of 4 an epoch: in the middle of the second
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
requests: list[StopRequest] = []  # of this process


def before(owner, name: str, action: Callable[..., None]) -> None:
    """Call action with the arguments of owner.name before each of its calls."""
    original = getattr(owner, name)

    def replacement(*args, **kwargs):
        action(*args)
        return original(*args, **kwargs)

    setattr(owner, name, replacement)


before(StopRequest, "__init__", lambda request, *_: requests.append(request))


def stop(whole_group: bool = False) -> None:
    """Send a signal, and wait until it is noted: the step after which this process stops is then certain.

    The signal is $SIGNAL, or SIGTERM. whole_group: send it to all processes of the process group.
    """
    (os.killpg if whole_group else os.kill)(os.getpid(), getattr(signal, os.environ.get("SIGNAL", "SIGTERM")))
    deadline = time.monotonic() + 30
    while not any(requests) and time.monotonic() < deadline:  # a thread notes it
        time.sleep(0.01)


def before_update(action: Callable[[TrainState], object], step: int | None = None) -> Callable[[], None]:
    """A fault: action in optimizer step `step`, counted from 1, or in each, before the weights change."""
    return lambda: before(
        TrainState, "optimizer_step", lambda state, *_: step in (None, state.step + 1) and action(state)
    )


def in_step(number: int, action: Callable[[], object]) -> Callable[[], None]:
    return before_update(lambda state: action(), number)


def once(action: Callable[[], None]) -> Callable[..., None]:
    actions = [action]
    return lambda *_: actions.pop()() if actions else None


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def wait(name: str, seconds: float) -> Callable[[], None]:
    """Write a file, for the test to see, and sleep."""
    return lambda: (Path(name + os.environ.get("RANK", "")).touch(), time.sleep(seconds))  # type: ignore[return-value]


def strike(error: BaseException) -> Callable[[], None]:
    """Write the pids of the loader's workers to workers.RANK, then raise the error, in step 2."""

    def action() -> None:
        note = Path(f"workers.{os.environ['RANK']}")
        note.with_suffix(".tmp").write_text(" ".join(str(child.pid) for child in multiprocessing.active_children()))
        note.with_suffix(".tmp").rename(note)
        raise error

    return in_step(2, action)


def add_to_model(add: Callable[[nn.Module], None]) -> Callable[[], None]:
    def install() -> None:
        build = models.build

        def replacement(*args, **kwargs):
            model = build(*args, **kwargs)
            add(model)
            return model

        models.build = replacement

    return install


@torch.no_grad()
def change_weight(state: TrainState) -> None:
    state.raw_model.head.aspp.conv1.weight[0] += 1e-7


def replace(owner, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def download_slowly(*_, **__) -> dict:
    """Take longer than --dist_timeout allows for a collective."""
    time.sleep(11)
    return torchvision.models.get_model("resnet18").state_dict()


def write_in_vain(*_) -> None:
    time.sleep(1)
    raise errors.UserError("the disk is gone")


def signal_group_mid_epoch() -> None:
    """The whole process group gets SIGTERM, with the loader's workers."""
    os.setsid()
    in_step(STEP, lambda: stop(whole_group=True))()


def no_relay() -> None:
    """The other ranks learn of a signal only by the all-reduce of the next step."""
    send = Lifeline._send

    def send_but_stop(lifeline, message, but=None):
        if not message.startswith("stop"):
            send(lifeline, message, but)

    Lifeline._send = send_but_stop  # type: ignore[method-assign]


def loss_not_finite() -> None:
    calls: list = []
    original = Criterion.__call__

    def replacement(*args):
        calls.append(None)
        factor = float("nan") if len(calls) == STEP else 1.0
        return tuple(value * factor for value in original(*args))

    Criterion.__call__ = replacement  # type: ignore[method-assign]


def float64() -> None:
    """Train in float64: the order of a sum then shows in the last digits only.

    $SAMPLES: write a line "epoch index" to $SAMPLES.RANK for each training sample. $STOP_AT_STEP: send SIGTERM there.
    """

    def note(dataset: TrainSet, keys: list[tuple]) -> None:
        with open(f"{os.environ['SAMPLES']}.{os.environ['RANK']}", "a") as notes:
            notes.writelines(f"{key[0]} {key[1]}\n" for key in keys)

    torch.set_default_dtype(torch.float64)
    if "SAMPLES" in os.environ:
        before(TrainSet, "__getitems__", note)
    if "STOP_AT_STEP" in os.environ:
        in_step(int(os.environ["STOP_AT_STEP"]), stop)()


def graphs() -> None:
    """CUDA graphs without a GPU."""
    import pytest  # imported here: the other faults do not need it, and each start waits for its imports

    from tests import recorded_graphs

    recorded_graphs.install(pytest.MonkeyPatch())
    atexit.register(lambda: print(f"{recorded_graphs.Graph.replays} replays", flush=True))


OF_THEIR_OWN = (signal_group_mid_epoch, no_relay, loss_not_finite, float64, graphs)
CODE = rank_checks.code_digests()
FAULTS: dict[str, Callable[[], None]] = {install.__name__: install for install in OF_THEIR_OWN}
FAULTS |= {
    # A signal in each phase
    "signal_in_startup": lambda: before(utils, "get_state", once(stop)),
    "signal_in_first_step": in_step(1, stop),
    "signal_mid_epoch": in_step(STEP, stop),
    "stuck_after_signal": in_step(2, wait("stuck", 30)),
    "signal_in_last_step_of_an_epoch": in_step(4, stop),
    "signal_in_validation": lambda: before(train.Predictor, "labels", once(stop)),
    "signal_while_saving": lambda: before(checkpoint, "write", once(stop)),
    # What must be named on every rank
    "other_host": replace(socket, "gethostname", lambda: "other"),  # as on a machine of its own
    "other_numpy": replace(np, "__version__", "1.0"),
    "other_code": replace(rank_checks, "code_digests", partial(dict, CODE, **{"train.py": "1234"})),
    "wrapper_lost": replace(Group, "wrap", lambda self, raw_model, **options: raw_model),
    "unused_parameter": add_to_model(lambda model: model.register_parameter("spare", nn.Parameter(torch.zeros(3)))),
    "draws": add_to_model(lambda model: make_draw(model.backbone)),
    "weight_changed_on_one_rank": before_update(change_weight),
    "a_buffer": add_to_model(lambda model: model.register_buffer("centre", torch.zeros(3))),
    "buffer_changed_on_one_rank": before_update(lambda state: state.raw_model.centre.add_(1)),
    "out_of_memory": in_step(STEP, mock.Mock(side_effect=OUT_OF_MEMORY)),
    "slow_download": replace(torch.hub, "load_state_dict_from_url", download_slowly),
    "slow_write": lambda: before(checkpoint, "write", lambda *_: time.sleep(1)),
    "last_write_fails": replace(checkpoint, "write", write_in_vain),
    # A value that overflows in the first steps only
    "huge_loss_scale": replace(GradScaler, "__init__", partialmethod(GradScaler.__init__, init_scale=2.0**17)),
    "has_bf16": replace(distributed.precision, "has_native_bf16", lambda device: True),
    "no_bf16": replace(distributed.precision, "has_native_bf16", lambda device: False),
    "traced": replace(models.compiled, "BACKEND", "aot_eager"),  # compiled without a compiler of kernels
    "no_compiler": lambda: os.environ.update(PATH="/nonesuch"),
    "gpu_of_70_GiB": replace(utils, "gpu_memory", lambda device: (70.0, 80.0)),
    "gpu_of_1_GiB": replace(utils, "gpu_memory", lambda device: (1.0, 80.0)),
    # The end of a rank
    "user_error": strike(errors.UserError("the file is wrong")),
    "bug": strike(RuntimeError("an index is wrong")),
    "interrupt": strike(KeyboardInterrupt()),
    "halted": in_step(STEP, send(signal.SIGSTOP)),
    "killed": in_step(STEP, send(signal.SIGKILL)),
    "killed_in_first_step": in_step(1, send(signal.SIGKILL)),
    # As NCCL's shutdown, which waits for collectives that a dead rank never joins
    "blocked_destroy": replace(torch.distributed, "destroy_process_group", lambda *_: time.sleep(600)),
}


if __name__ == "__main__":
    names, rank = sys.argv[1:3]
    for name in reversed(names.split("+")):  # the last one installed acts first
        if rank == "all" or rank == os.environ.get("RANK", "0") or name in ON_ALL_RANKS:
            FAULTS[name]()
    program.run_and_exit(lambda: train.main(sys.argv[3:]))

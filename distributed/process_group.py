"""How a process joins the process group, and how an error of one rank ends all of them."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import NoReturn

import torch.distributed as dist

from distributed import rendezvous
from distributed.device import choose_backend, find_device
from distributed.group import Group
from distributed.lifeline import WRITE_SECONDS, Lifeline
from distributed.rank_checks import check_gpus
from support import launched_by, signals
from support.errors import UserError, in_one_line, reason, report
from support.signals import StopRequest, exit_at_once, stop_request
from support.terminal import warn

# Guides name these variables, but no library reads one.
UNREAD_VARIABLES = ("NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT", "GLOO_TIMEOUT", "DDP_TIMEOUT")
WATCH_SECONDS = 0.5  # how often a process looks for its parent
LIFELINE_SECONDS = 3.0  # how long a broken collective waits for the lifeline to name the rank that is gone


@contextlib.contextmanager
def process_group(
    *,
    distributed: bool | None = None,
    device: str = "auto",
    backend: str = "auto",
    dist_url: str = "env://",
    world_size: int = 0,
    rank: int = -1,
    local_rank: int = -1,
    timeout: float = 600.0,
) -> Iterator[Group]:
    """Join the process group for the body of a `with`, and yield the Group.

    distributed: True joins, False never does, None joins under a launcher (support.launched_by). With True and no
    launcher, world_size and rank define the group; by default this process is alone. The other arguments are flags of
    the same names, and `timeout` is --dist_timeout in seconds.

    If the body raises on one of several ranks, every process ends with that error's message and exit status. In a group
    of one the exception propagates. Raises UserError on invalid settings.
    """
    if distributed is False or (distributed is None and not launched_by.find(os.environ)):
        if distributed is None and (world_size > 1 or rank > 0):
            raise UserError(
                f"--world_size {world_size}, --rank {rank} without a launcher: add --distributed to join a group"
            )
        with stop_request() as stop:
            yield Group(find_device(device, 0, 1), stop=stop)
        return

    place = launched_by.find_or_make(os.environ, world_size, rank, local_rank)
    if dist_url == "env://":
        dist_url = rendezvous.find_address(os.environ, place)
    with stop_request(f" on rank {place.rank}") as stop:
        hint = launched_by.alone(os.environ)
        if hint and place.world_size > 1:  # on each rank: variables that are left over may name any
            cause = f"{place.launcher} make this process rank {place.rank} of a group of {place.world_size}"
            warn(f"{cause}, which waits for the others{hint}")
        if place.launcher == "torchrun":
            threading.Thread(target=_watch_parent, args=(stop, os.getppid()), daemon=True).start()
        deadline = rendezvous.Deadline(timeout, stop, hint)
        store = rendezvous.connect(dist_url, place.rank, place.world_size, deadline)
        lifeline = Lifeline(place.rank, place.world_size, stop, timeout)
        try:
            lifeline.connect(store, dist_url, deadline)
            group = _join(place, store, lifeline, device, backend, timeout)
            yield group
            group.barrier()  # a rank that leaves early would end collectives of the others
            lifeline.leave()
        except BaseException as error:
            if place.world_size > 1:
                _end_all_ranks(lifeline, error, place.rank, timeout)
            raise
        finally:
            lifeline.close()
            if dist.is_initialized():
                dist.destroy_process_group()


def _watch_parent(stop: StopRequest, parent: int) -> None:
    """Ask all ranks to stop once torchrun, the parent process, is gone: nobody would restart or end them any more."""
    while os.getppid() == parent:  # always so on Windows
        time.sleep(WATCH_SECONDS)
    stop.ask(f"the end of torchrun (process {parent})")


def _join(
    place: launched_by.Launch, store: dist.Store, line: Lifeline, device_name: str, backend: str, timeout: float
) -> Group:
    """Choose this process's device and backend, initialize torch's process group, and return the Group."""
    rank, world_size = place.rank, place.world_size
    here = rendezvous.ranks_of_this_machine(store, world_size)
    local_rank = place.local_rank if place.local_rank >= 0 else here.index(rank)
    local_world_size = place.local_world_size or len(here)
    device = find_device(device_name, local_rank, local_world_size)
    backend = choose_backend(backend, device)
    rendezvous.choose_gloo_interface(store, rank, line.own_address())
    # CPU tensors always use gloo: their small sums then need not wait for the GPU.
    backends = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend
    wait = timedelta(seconds=timeout + LIFELINE_SECONDS)  # the lifeline, which names the rank, comes first
    signals.has_joined_group = True
    for name in {*UNREAD_VARIABLES} & {*os.environ} if rank == 0 else ():
        warn(f"warning: nothing reads {name}: use --dist_timeout (now {timeout:g} s)")
    dist.init_process_group(backends, timeout=wait, store=store, rank=rank, world_size=world_size)
    notes = partial(setattr, line, "place"), partial(setattr, line, "advice")
    group = Group(device, rank, local_rank, world_size, backend, line.stop, local_world_size, place.launcher, *notes)
    check_gpus(group)
    return group


def _end_all_ranks(lifeline: Lifeline, error: BaseException, rank: int, timeout: float) -> NoReturn:
    """Print the error, send it to the other ranks, and end this process.

    It must end here: destroy_process_group() and NCCL's destructors wait for collectives that ended ranks never join.
    """
    status = 1
    try:
        text = in_one_line(error)
        if isinstance(error, dist.DistError) or "gloo" in text:
            time.sleep(LIFELINE_SECONDS)  # if a lost rank caused it, the lifeline names that rank and ends this process
            if "timed out" in text.lower():
                error = UserError(
                    f"rank {rank} waited {timeout:g} s (--dist_timeout) for the other ranks; one of them hangs: {text}"
                )
        lifeline.stop_listening()  # if all ranks fail, each prints its own error, once
        status = report(error, str(rank))
        lifeline.publish(status, reason(error))
        if isinstance(error, Exception) and not isinstance(error, UserError):
            # By now the other ranks have left, so this traceback is the last output.
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        exit_at_once(status, write_seconds=WRITE_SECONDS)

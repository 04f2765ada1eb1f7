"""Run a launcher of torch on every GPU of this machine: launch.py MODULE [options of the launcher] PROGRAM [flags].

NUM_GPUS: number of processes; by default one for each GPU, or 2 without a GPU. OMP_NUM_THREADS: by default 1.
MASTER_PORT: the port of rank 0's machine; by default a free one if there is one machine, else 29500.
CONFIG, TASK: train.py's --config and --task.
The exit status comes from the process that failed first, and a user's error is the last line. A signal leaves the
processes 30 s to save; the status is 75 if all of them stopped and saved.
"""

import argparse
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an import; the launcher sets its own handler

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support import program
from support.errors import STOPPED, UserError, in_one_line
from support.terminal import warn

COUNT = r"[1-9]\d*"
VARIABLES = {
    "NUM_GPUS": f"{COUNT}|auto|gpu|cpu|xpu",
    "NNODES": COUNT,
    "NODE_RANK": r"\d+",
    "MASTER_PORT": COUNT,
    "PET_MASTER_PORT": COUNT,
}
# SIGUSR1 reaches the processes too, which then save and stop. torchrun's default has the others.
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


class StoreWithoutLibuv(dist.TCPStore):
    """torch for Windows has no libuv, but its launchers use it whatever USE_LIBUV says (torch 2.4 to at least 2.15).

    https://github.com/pytorch/pytorch/issues/148283
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options | {"use_libuv": False})


class Process(subprocess.Popen):
    """A process that the launcher of torch starts. After a signal, torch does not say how its processes ended."""

    started: ClassVar[list["Process"]] = []  # of the last attempt, if there is --max_restarts

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.attempt = options["env"].get("TORCHELASTIC_RESTART_COUNT")
        Process.started = [process for process in Process.started if process.attempt == self.attempt] + [self]


def main(module: str, *words: str) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.platform == "win32":
        os.environ["USE_LIBUV"] = "0"
    if os.environ.get("USE_LIBUV") == "0":
        dist.TCPStore = StoreWithoutLibuv  # type: ignore[misc]
    for name, pattern in VARIABLES.items():
        if (value := os.environ.get(name, "")) and not re.fullmatch(pattern, value):
            raise UserError(f"environment variable {name} is {value!r}: set it to a number")
    words = (*words, *(word for name in ("CONFIG", "TASK") for word in _flag_of(name, words)))
    num_gpus = os.environ.get("NUM_GPUS") or str(torch.cuda.device_count() or 2)
    signals = [] if sys.platform == "win32" else ["--signals_to_handle", SIGNALS]
    # 0: not set. The default of torch 2.11, 29500, looks like a port that the user chose.
    port = os.environ.get("MASTER_PORT") or os.environ.get("PET_MASTER_PORT") or "0"
    words = ("--nproc_per_node", num_gpus, *signals, "--master_port", port, *words)
    args = importlib.import_module(module).parse_args(words)
    if args.standalone and (os.environ.get("NNODES") or "1") != "1":
        raise UserError(f"NNODES is {os.environ['NNODES']}, but this script is for one machine: use run_ddp")
    choose_port(args)
    subprocess_handler.Popen = Process  # type: ignore[misc]
    try:
        importlib.import_module("torch.distributed.run").run(args)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        # errors.report() leaves its line, except in a process that was ended before; torch's lines have covered it.
        lines = [str(other.message) for other in (failure, *error.failures.values())]
        for line in [line for line in lines if line.startswith("error")][:1]:
            warn(line)
        return _status(failure.exitcode)
    except SignalException:
        codes = {process.wait() for process in Process.started} or {STOPPED}
        return _status(max(codes - {0, STOPPED}, default=max(codes)))
    except dist.DistError as error:  # the port was taken after choose_port(), or a machine is missing
        address = args.rdzv_endpoint or f"{args.master_addr}:{args.master_port}"
        where = f"no group at {address} ({in_one_line(error)})"
        raise UserError(f"{where}: check MASTER_ADDR, MASTER_PORT and that all machines have started") from None
    return 0


def _status(code: int) -> int:
    """Return the exit status in a shell for a code of subprocess: -9, for example, is SIGKILL."""
    return code if code >= 0 else 128 - code


def _flag_of(variable: str, words: tuple[str, ...]) -> list[str]:
    """Return the words --config $CONFIG or --task $TASK for train.py, unless the command line has the flag."""
    flag, value = f"--{variable.lower()}", os.environ.get(variable)
    is_given = any(word == flag or word.startswith(f"{flag}=") for word in words)
    return [flag, value] if value and not is_given and any(Path(word).name == "train.py" for word in words) else []


def choose_port(args: argparse.Namespace) -> None:
    """Choose a free port if none is set. Raise UserError where torch would hang or print dozens of lines."""
    if args.rdzv_backend != "static" or args.rdzv_endpoint:
        return
    if args.nnodes.isdecimal() and args.node_rank >= int(args.nnodes):
        raise UserError(f"NODE_RANK {args.node_rank} with NNODES {args.nnodes}: it must be below NNODES")
    is_alone = args.nnodes in ("1", "1:1")
    if not is_alone and args.master_addr == "localhost" and not os.environ.get("MASTER_ADDR"):
        raise UserError("MASTER_ADDR: set it to the address of the machine with NODE_RANK 0")
    args.standalone = is_alone and not args.master_port
    port = args.master_port = args.master_port or 29500
    if args.standalone or args.node_rank:  # torch finds a free port, or node 0 listens
        return
    both = socket.has_dualstack_ipv6()
    try:
        family = socket.AF_INET6 if both else socket.AF_INET
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OverflowError:
        raise UserError(f"port {port}: must be below 65536 (MASTER_PORT)") from None
    except OSError as error:  # create_server() puts the address in brackets behind the cause
        cause = str(error.strerror).split(" (")[0].lower()
        raise UserError(f"port {port}: {cause}: set MASTER_PORT to another port") from None


if __name__ == "__main__":
    program.run_and_exit(lambda: main(*sys.argv[1:]))

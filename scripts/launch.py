"""Run a launcher of torch on every GPU of this machine: launch.py MODULE [options of the launcher] PROGRAM [flags].

NUM_GPUS: number of processes; by default one for each GPU, or 2 without a GPU. OMP_NUM_THREADS: by default 1.
The exit status is that of the process that failed first, and a user's error is the last line. After a signal, the
processes have 30 s to save, and it is 75.
"""

import os
import runpy
import signal
import sys
import warnings
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an import; the launcher sets its own handler

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support.errors import STOPPED
from support.terminal import warn

# SIGUSR1 reaches the processes too, which then save and stop. torchrun's default has the others.
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


class StoreWithoutLibuv(dist.TCPStore):
    """torch for Windows has no libuv, but its launchers use it whatever USE_LIBUV says (torch 2.4 to at least 2.15).

    https://github.com/pytorch/pytorch/issues/148283
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options | {"use_libuv": False})


def main(module: str, *words: str) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.platform == "win32":
        os.environ["USE_LIBUV"] = "0"
    if os.environ.get("USE_LIBUV") == "0":
        dist.TCPStore = StoreWithoutLibuv  # type: ignore[misc]
    num_gpus = os.environ.get("NUM_GPUS") or str(torch.cuda.device_count() or 2)
    signals = [] if sys.platform == "win32" else ["--signals_to_handle", SIGNALS]
    sys.argv = [module, "--nproc_per_node", num_gpus, *signals, *words]
    # No flag of ours is about what torch.distributed.launch warns of, in seven lines.
    warnings.filterwarnings("ignore", "The module torch.distributed.launch is deprecated", FutureWarning)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        # errors.report() leaves its line, except in a process that was ended before; torch's lines have covered it.
        lines = [str(other.message) for other in (failure, *error.failures.values())]
        for line in [line for line in lines if line.startswith("error")][:1]:
            warn(line)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)
    except SignalException:
        sys.exit(STOPPED)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Import every module of the repository, and train, where what Windows lacks is not there: without_posix.py [flags]."""

import concurrent.futures.process
import importlib
import multiprocessing.shared_memory
import os
import signal
import sys
from pathlib import Path

import cv2
import numpy
import PIL.Image
import torch.utils.tensorboard
import torchvision
import tqdm
import yaml

# What the libraries above took is theirs; ours is imported below.
THEIRS = (concurrent, cv2, multiprocessing, numpy, PIL, torch, torchvision, tqdm, yaml)
REPO = Path(__file__).parent.parent
MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
SIGNALS = ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2")
FUNCTIONS = (
    "fork", "getpgid", "geteuid", "getuid", "killpg", "mkfifo", "posix_fadvise", "register_at_fork", "sched_getaffinity",
    "setpgid", "setsid", "uname", "O_DIRECTORY",
)  # fmt: skip


def main() -> int:
    for name in MODULES:
        sys.modules[name] = None
    for owner, names in ((os, FUNCTIONS), (signal, SIGNALS)):
        for name in names:
            delattr(owner, name)
    sys.path.insert(0, str(REPO))
    files = [
        *REPO.glob("*.py"),
        *(
            path
            for name in (
                "config",
                "data",
                "distributed",
                "evaluation",
                "exporting",
                "losses",
                "models",
                "prediction",
                "runs",
            )
            for path in REPO.glob(f"{name}/**/*.py")
        ),
    ]
    for file in files:
        importlib.import_module(".".join(file.relative_to(REPO).with_suffix("").parts))
    print(f"{len(files)} modules")
    return sys.modules["train"].main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

"""Import every module, then train, without what Windows lacks: without_posix.py [flags of train.py]."""

import concurrent.futures.process  # noqa: F401
import importlib
import multiprocessing.shared_memory  # noqa: F401
import os
import signal
import sys
from pathlib import Path

import cv2  # noqa: F401
import numpy  # noqa: F401
import PIL.Image  # noqa: F401
import torch.utils.tensorboard  # noqa: F401
import torchvision  # noqa: F401
import tqdm  # noqa: F401
import yaml  # noqa: F401

# The libraries above may use all of it: they are imported before it goes. Ours are imported below.
REPO = Path(__file__).parent.parent
MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
SIGNALS = ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2")
FUNCTIONS = (
    "fork getpgid geteuid getuid killpg mkfifo posix_fadvise register_at_fork sched_getaffinity setpgid setsid uname"
)
FUNCTIONS += " O_DIRECTORY"


def main() -> int:
    for name in MODULES:
        sys.modules[name] = None
    for owner, names in ((os, FUNCTIONS.split()), (signal, SIGNALS)):
        for name in names:
            delattr(owner, name)
    sys.path.insert(0, str(REPO))
    packages = {path.parent for path in REPO.glob("*/__init__.py")} - {REPO / "tests"}
    files = [*REPO.glob("*.py"), *(file for folder in packages for file in folder.rglob("*.py"))]
    for file in files:
        importlib.import_module(".".join(file.relative_to(REPO).with_suffix("").parts))
    print(f"{len(files)} modules")
    return sys.modules["train"].main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

"""The device of a process, and the backend for collectives on it."""

import sys

import torch
import torch.distributed as dist

from support.errors import UserError


def find_device(name: str, local_rank: int, local_world_size: int) -> torch.device:
    """Return the torch.device that --device `name` means for this process; a CUDA device becomes the current one.

    Raises UserError if the name is unknown or the machine has no such device.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        known = device.type in ("cpu", "cuda")
    except (RuntimeError, TypeError):  # TypeError: of Python code
        known = False
    if not known:
        raise UserError(f"--device {name}: not a device; use auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    num_gpus, index = torch.cuda.device_count(), device.index
    if index is not None and local_world_size > 1:
        raise UserError(f"--device {name}: use cuda:N for one process; else cuda")
    if index is None:  # a process that sees one GPU has it to itself, as with srun --gpus-per-task
        index = local_rank if num_gpus > 1 else 0
    if index >= num_gpus:
        raise UserError(
            f"--device {name}: {local_world_size} process(es) on this machine but {num_gpus} CUDA device(s) visible, "
            f"local rank {local_rank}: start fewer processes, check CUDA_VISIBLE_DEVICES and LOCAL_RANK, which counts "
            "from 0 on each machine, or use --device cpu"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


class AsyncCopy:
    """A copy of a tensor to CPU memory, which the CPU reads later, when the device has already been given more work.

    The copy starts at once, behind the work that is queued then. Reading waits for that copy alone. A plain tolist()
    would also wait for the later work, and leave the device idle after it.
    """

    def __init__(self, values: torch.Tensor):
        self._values = values.to("cpu", non_blocking=True)  # from CUDA: into pinned memory
        self._copied = torch.cuda.Event() if values.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def tolist(self) -> list:
        if self._copied is not None:
            self._copied.synchronize()
        return self._values.tolist()


def choose_backend(name: str, device: torch.device) -> str:
    """Return "nccl" or "gloo" for --backend `name` and this device. Raises UserError if NCCL cannot work here."""
    has_nccl = device.type == "cuda" and dist.is_nccl_available() and sys.platform != "win32"
    if name == "nccl" and not has_nccl:
        raise UserError(f"--backend nccl on device {device}: needs CUDA and NCCL, and not Windows: use --backend gloo")
    return name if name != "auto" else "nccl" if has_nccl else "gloo"

"""The device of a process, and the backend for collectives on it."""

import sys

import torch
import torch.distributed as dist

from support.errors import UserError


def only_gpu(name: str) -> str:
    """Return the UUID of the GPU if the process sees exactly one and --device `name` is auto or cuda; else ""."""
    if name not in ("auto", "cuda") or torch.cuda.device_count() != 1:
        return ""
    return str(torch.cuda.get_device_properties(0).uuid)


def find_device(name: str, local_rank: int, local_world_size: int, *, own_gpu: bool = False) -> torch.device:
    """Return the torch.device that --device `name` means for this process; a CUDA device becomes the current one.

    own_gpu: each process of this machine sees one GPU, different from the others', as with srun --gpus-per-task. Raises
    UserError if the name is unknown or the machine has no such device.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise UserError(f"--device {name}: not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise UserError(f"--device {name}: use auto, cpu, cuda or cuda:N")
    num_gpus = torch.cuda.device_count()
    if local_world_size > num_gpus and not own_gpu:
        raise UserError(
            f"--device {name}: {local_world_size} process(es) on this machine but {num_gpus} CUDA device(s) visible; "
            "start fewer processes, check CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
    index = device.index
    if index is not None and (index >= num_gpus or local_world_size > 1):
        raise UserError(f"--device {name}: use cuda:N for one process and N below {num_gpus}; else cuda")
    if index is None:
        index = 0 if own_gpu else local_rank
    if index >= num_gpus:
        raise UserError(
            f"--device {name}: local rank {local_rank} with {num_gpus} CUDA device(s) visible: number the processes of "
            "each machine from 0 (LOCAL_RANK or --local_rank), or set neither"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


class LateRead:
    """Values of a tensor for the CPU to read later, when the device has already been given more work.

    The copy to CPU memory starts at once, behind the work that the device has then. Reading waits for that copy alone.
    A plain tolist() would be queued behind the later work, and leave the device idle after it.
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
    """Return "nccl" or "gloo" for --backend `name` and this device.

    Raises UserError if NCCL is asked for but cannot work.
    """
    has_nccl = dist.is_nccl_available() and sys.platform != "win32"
    if name == "auto":
        return "nccl" if device.type == "cuda" and has_nccl else "gloo"
    if name == "nccl" and device.type != "cuda":
        raise UserError(f"--backend nccl on device {device}: NCCL needs CUDA, use --backend gloo")
    if name == "nccl" and not has_nccl:
        raise UserError("--backend nccl: PyTorch has no NCCL here, as on Windows; use --backend gloo")
    return name

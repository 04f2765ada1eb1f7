"""Checkpoints: whole or absent, and read without running anything from the file."""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from errors import UserError

FORMAT = 1

# numpy._core was numpy.core before NumPy 2, and files name the one they were written with.
_multiarray = getattr(np, "_core", None) or np.core
NUMPY_VALUES: list = [
    np.ndarray, np.dtype, np.dtypes.Float64DType, np.dtypes.Int64DType,
    *(
        (function, f"numpy.{core}.multiarray.{function.__name__}")
        for function in (_multiarray.multiarray.scalar, _multiarray.multiarray._reconstruct)
        for core in ("core", "_core")
    ),
]  # fmt: skip


@dataclass
class TrainState:
    """All of a run that changes from step to step. A checkpoint holds it; restore() puts it back in place."""

    raw_model: nn.Module
    model: nn.Module  # the DDP wrapper of raw_model, or raw_model itself
    optimizer: Optimizer
    schedule: LambdaLR
    scaler: GradScaler
    epoch: int = 0  # epochs done
    step: int = 0  # optimizer steps done
    best_miou: float = -1.0  # none yet


def to_dict(state: TrainState, rng: list[dict], config: dict) -> dict:
    """A checkpoint's content: tensors and plain values. rng: rng_state() of every rank."""
    return {
        "format": FORMAT,
        "model": state.raw_model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "schedule": {"step": state.schedule.last_epoch, "lr": state.schedule.get_last_lr()},
        "scaler": state.scaler.state_dict(),
        "epoch": state.epoch,
        "step": state.step,
        "best_miou": state.best_miou,
        "rng": rng,
        "config": config,
    }


def save(path: Path, content: dict) -> None:
    """Write a checkpoint so that `path` always is a whole file: to a temporary one, synced, then renamed."""
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        with scratch.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        scratch.unlink(missing_ok=True)
        if isinstance(error.__context__, KeyboardInterrupt):  # torch's writer fails on its way out of it
            raise KeyboardInterrupt from None
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path}: the checkpoint cannot be written ({reason}); an earlier one is still whole"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder last through a power cut (POSIX; elsewhere there is no such call)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read(path: Path) -> dict:
    """The content of a .pt or .pth file, on the CPU. Never runs code from it. Raises UserError on any other file."""
    try:
        # Released CDSP files also hold scores as NumPy numbers; to rebuild those runs no code of the file's.
        with path.open("rb") as file, torch.serialization.safe_globals(NUMPY_VALUES):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError):
        # torch's own messages speak of formats of its own, or suggest to run what the file says.
        raise UserError(
            f"{path}: not a whole checkpoint of tensors and plain values: it is truncated or another kind of file"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a checkpoint but a {type(content).__name__}")
    return content


def restore(path: Path, state: TrainState, steps_per_epoch: int, rank: int, device: torch.device) -> dict:
    """Put a run back to where it was saved, and this rank's random numbers. Returns the config it had.

    Learning rate, momentum, weight decay and schedule are those of now, at the epoch reached; if nothing
    was changed, they are those of then.
    """
    content = read(path)
    if content.get("format") != FORMAT or "rng" not in content:
        raise UserError(f"{path}: no checkpoint of a run; to start from its weights use --pretrained {path}")
    chosen = ("initial_lr", "momentum", "weight_decay")
    now = [{name: group[name] for name in chosen} for group in state.optimizer.param_groups]
    try:
        state.raw_model.load_state_dict(content["model"])
        state.optimizer.load_state_dict(content["optimizer"])
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{path}: does not fit this model, check --model_type, --layers, --numclasses ({reason})"
        ) from None
    state.epoch, state.step, state.best_miou = content["epoch"], content["step"], content["best_miou"]
    state.schedule.last_epoch = state.epoch * steps_per_epoch
    for group, values, factor in zip(state.optimizer.param_groups, now, state.schedule.lr_lambdas, strict=True):
        group.update(values, lr=values["initial_lr"] * factor(state.schedule.last_epoch))
    state.schedule._last_lr = [group["lr"] for group in state.optimizer.param_groups]
    if content["scaler"] and state.scaler.is_enabled():
        state.scaler.load_state_dict(content["scaler"])
    if rank < len(content["rng"]):
        set_rng_state(content["rng"][rank], device)
    return content["config"]


def rng_state(device: torch.device) -> dict:
    """torch's random number generators of this process: dropout is the only user of them."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict, device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)

"""Checkpoints: whole or absent, and read without running anything from the file."""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from errors import UserError

FORMAT = 1


@dataclass
class TrainState:
    """All of a run that changes from step to step. A checkpoint holds it; restore() puts it back in place."""

    raw_model: nn.Module
    model: nn.Module  # the DDP wrapper of raw_model, or raw_model itself
    optimizer: Optimizer
    schedule: LRScheduler
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
        "schedule": state.schedule.state_dict(),
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
        with path.open("rb") as file:
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


def restore(path: Path, state: TrainState, rank: int) -> dict:
    """Put a run back to where it was saved, and this rank's random numbers. Returns the config it had."""
    content = read(path)
    if content.get("format") != FORMAT:
        raise UserError(f"{path}: no checkpoint of a run; to start from its weights use --pretrained {path}")
    try:
        state.raw_model.load_state_dict(content["model"])
        state.optimizer.load_state_dict(content["optimizer"])
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{path}: does not fit this model, check --model_type, --layers, --numclasses ({reason})"
        ) from None
    state.schedule.load_state_dict(content["schedule"])
    state.scaler.load_state_dict(content["scaler"])
    state.epoch, state.step, state.best_miou = content["epoch"], content["step"], content["best_miou"]
    if rank < len(content["rng"]):
        set_rng_state(content["rng"][rank])
    return content["config"]


def rng_state() -> dict:
    """torch's random number generators of this process: dropout is the only user of them."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])

"""All of a run that changes from step to step, as one object, and as the content of a checkpoint."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from distributed.group import Group
from errors import UserError
from models.amp import LossScaler
from runs.checkpoint import FORMAT


@dataclass
class TrainState:
    """What the next step depends on. capture() makes a checkpoint's content of it, restore() puts it back in place."""

    raw_model: nn.Module
    model: nn.Module  # the DDP wrapper of raw_model, or raw_model itself
    optimizer: Optimizer
    lr_at: Callable[[float], float]  # the lr by position; has no state of its own
    scaler: LossScaler
    ema: AveragedModel | None = None
    epoch: int = 0  # epochs done, with validation
    samples: int = 0  # samples of the current epoch that all ranks together have trained on
    step: int = 0  # optimizer steps done
    validated: int = 0  # the step that the last validation was at
    best_miou: float = -1.0  # none yet
    origin: dict[str, float] = field(default_factory=dict)  # what the lr of a resumed run depends on (optimizer.begin)
    listing: str = ""  # digest of the training list
    class_weights: list[float] | None = None  # of --class_weights, which a resumed run need not count again
    steps_here: int = 0  # optimizer steps that this process did

    @property
    def models(self) -> list[nn.Module]:
        """raw_model, and the average of its weights where there is one."""
        return [self.raw_model] if self.ema is None else [self.raw_model, self.ema.module]

    def update(self, lr: float, num_samples: int) -> None:
        """The optimizer step, after the backward passes of num_samples samples of all ranks.

        A step that the scaler skips counts like any other, also for the lr. It leaves the weights as they are, and the
        average moves towards these.
        """
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = lr
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update_parameters(self.raw_model)
        self.step += 1
        self.steps_here += 1
        self.samples += num_samples

    def capture(self, group: Group) -> dict:
        """A checkpoint's content, on every rank; collective. Its tensors are the live ones.

        "model" and "ema" hold the mean over ranks of batch norm's running statistics, as a validation at this
        point would use them; "ranks" holds what differs between ranks, those statistics included.
        """
        names = {name for name, buffer in self.raw_model.named_buffers() if buffer.is_floating_point()}
        buffers = {name: value for name, value in self.raw_model.state_dict().items() if name in names}
        own = _rng_state(group.device) | {"buffers": {name: buffer.cpu() for name, buffer in buffers.items()}}
        ranks = group.gather(own)
        mean = {
            name: (sum(rank["buffers"][name].double() for rank in ranks) / len(ranks)).to(buffer.dtype)
            for name, buffer in buffers.items()
        }

        def averaged(module: nn.Module) -> dict[str, Tensor]:
            return {name: mean.get(name, value) for name, value in module.state_dict().items()}

        return {
            "format": FORMAT,
            "model": averaged(self.raw_model),
            "ema": None if self.ema is None else averaged(self.ema.module),
            "optimizer": self._optimizer_state(),
            "scaler": self.scaler.state_dict(),
            "epoch": self.epoch,
            "samples": self.samples,
            "step": self.step,
            "validated": self.validated,
            "best_miou": self.best_miou,
            "origin": self.origin,
            "listing": self.listing,
            "class_weights": self.class_weights,
            "ranks": ranks,
        }

    def _optimizer_state(self) -> dict:
        """The state for all parameters, whichever rank has it: on rank 0 at least."""
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            self.optimizer.consolidate_state_dict(to=0)
            return self.optimizer.state_dict() if self.optimizer.rank == 0 else {}
        return self.optimizer.state_dict()

    def restore(self, content: dict, group: Group, *, optimizer: bool = True, position: bool = True) -> None:
        """Put all back that capture() took, or without the optimizer's and scaler's state, or without the position.

        Momentum and weight decay stay those of now, and so does the learning rate, which each step sets. On
        another number of ranks, each gets the mean of batch norm's statistics; random numbers (dropout)
        continue on the ranks that there were.
        """
        try:
            self.raw_model.load_state_dict(content["model"])
            if self.ema is not None:
                self.ema.module.load_state_dict(content["ema"] or content["model"])
                self.ema.n_averaged.fill_(content["step"])  # at 0, the first update copies the weights
            if optimizer:
                now = [
                    {name: part[name] for name in ("momentum", "weight_decay")} for part in self.optimizer.param_groups
                ]
                # ZeroRedundancyOptimizer drops what is other ranks' from the dict that it is given.
                self.optimizer.load_state_dict({name: copy(part) for name, part in content["optimizer"].items()})
                for part, values in zip(self.optimizer.param_groups, now, strict=True):
                    part.update(values)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"the checkpoint does not fit this model, check --model_type, --layers, --numclasses, or whether the losses "
                f"train other parameters than then (--reset_optimizer) ({reason})"
            ) from None
        if optimizer and content["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(content["scaler"], counts=position)
        if not position:
            return
        self.epoch, self.samples, self.step = content["epoch"], content["samples"], content["step"]
        # Files from before there was --val_step_frequency have none.
        self.validated = content.get("validated", self.step)
        self.best_miou = content["best_miou"]
        ranks = content["ranks"]
        if len(ranks) == group.world_size:
            for module in self.models:
                module.load_state_dict(ranks[group.rank]["buffers"], strict=False)
        if group.rank < len(ranks):
            _set_rng_state(ranks[group.rank], group.device)


def _rng_state(device: torch.device) -> dict:
    """torch's random number generators of this process: dropout is the only user of them."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_rng_state(state: dict, device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)

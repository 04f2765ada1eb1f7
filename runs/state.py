"""Everything in a run that changes from step to step, as one object and as the content of a checkpoint."""

from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distributed.group import Group
from errors import UserError
from models.amp import LossScaler
from models.average import WeightAverage
from runs.checkpoint import FORMAT


@dataclass
class TrainState:
    """The state of training between two steps: model, optimizer, loss scaler, EMA, position and best score.

    capture() returns the state as a checkpoint's content; restore() loads that content.
    """

    raw_model: nn.Module
    model: nn.Module  # the DDP wrapper of raw_model, or raw_model itself
    optimizer: Optimizer
    scaler: LossScaler
    ema: WeightAverage | None = None
    epoch: int = 0  # epochs done, including their validation
    samples: int = 0  # samples of the current epoch that all ranks together have trained on
    step: int = 0  # optimizer steps done
    validated: int = 0  # the step of the last validation
    best_miou: float = -1.0  # -1: none yet
    origin: dict[str, float] = field(default_factory=dict)  # schedule.LearningRate.origin
    listing: str = ""  # digest of the training list
    class_weights: list[float] | None = None  # of --class_weights: a resumed run need not count labels again
    steps_here: int = 0  # optimizer steps that this process did

    @property
    def models(self) -> list[nn.Module]:
        """Return [raw_model], and with --ema also the module with averaged weights."""
        return [self.raw_model] if self.ema is None else [self.raw_model, self.ema.module]

    @property
    def eval_model(self) -> nn.Module:
        """Return the model to validate: with --ema the one with averaged weights, else raw_model."""
        return self.models[-1]

    def update(self, lr: float, num_samples: int) -> None:
        """Do an optimizer step with this lr, after the backward passes of num_samples samples of all ranks.

        A step that the scaler skips also counts, for `step` and the learning rate. A skipped step does not change the
        weights, but updates their EMA.
        """
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = lr
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.raw_model)
        self.step += 1
        self.steps_here += 1
        self.samples += num_samples

    def note_score(self, miou: float) -> bool:
        """Record a validation's mIoU. Return whether the mIoU is above all earlier ones of the run."""
        is_best = miou > self.best_miou
        self.validated, self.best_miou = self.step, max(self.best_miou, miou)
        return is_best

    def capture(self, group: Group) -> dict:
        """Return a checkpoint's content as a dict, on every rank. Its tensors are live ones, not copies. Collective.

        "model" and "ema" have batch norm's running statistics averaged over ranks, as a validation would use them.
        "ranks" is a list with each rank's random states and own statistics. "optimizer" may be empty on other ranks
        than 0 with --zero1.
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
            "optimizer": self._optimizer_state(group),
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

    def _optimizer_state(self, group: Group) -> dict:
        """Return the optimizer's state dict for all parameters. With --zero1, it is {} on other ranks than 0.

        Collective.
        """
        if hasattr(self.optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer, whose import takes a second
            self.optimizer.consolidate_state_dict(to=0)
            return self.optimizer.state_dict() if group.is_main else {}
        return self.optimizer.state_dict()

    def restore(self, content: dict, group: Group, *, optimizer: bool = True, position: bool = True) -> None:
        """Load the content that capture() returned.

        optimizer: also load the optimizer and loss scaler. position: also load epoch, step, best score, random states
        and each rank's own statistics. The optimizer keeps the settings of its flags, such as momentum. With another
        number of ranks, each rank keeps the averaged batch-norm statistics, and random states are restored on ranks
        that existed before. Raises UserError if the content does not fit the model.
        """
        try:
            self.raw_model.load_state_dict(content["model"])
            if self.ema is not None:
                self.ema.module.load_state_dict(content["ema"] or content["model"])
                self.ema.num_updates = content["step"]  # at 0, the first update copies the weights
            if optimizer:
                now = [
                    {name: value for name, value in part.items() if name not in ("params", "lr")}
                    for part in self.optimizer.param_groups
                ]
                # Copied: ZeroRedundancyOptimizer deletes other ranks' state from the dict it gets.
                self.optimizer.load_state_dict({name: copy(part) for name, part in content["optimizer"].items()})
                for part, values in zip(self.optimizer.param_groups, now, strict=True):
                    part.update(values)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                "the checkpoint does not fit this model: check --model_type, --layers and --numclasses; if the "
                f"losses now train other parameters, use --reset_optimizer ({reason})"
            ) from None
        if optimizer and content["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(content["scaler"], counts=position)
        if not position:
            return
        self.epoch, self.samples, self.step = content["epoch"], content["samples"], content["step"]
        # Checkpoints written before --val_step_frequency existed lack it.
        self.validated = content.get("validated", self.step)
        self.best_miou = content["best_miou"]
        ranks = content["ranks"]
        if len(ranks) == group.world_size:
            for module in self.models:
                module.load_state_dict(ranks[group.rank]["buffers"], strict=False)
        if group.rank < len(ranks):
            _set_rng_state(ranks[group.rank], group.device)


def _rng_state(device: torch.device) -> dict:
    """Return {"cpu": state, and on a GPU "cuda": state} of torch's random number generators, used by dropout only."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_rng_state(state: dict, device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)

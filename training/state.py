"""The state of training: everything that changes from step to step, and that a checkpoint keeps."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distributed import rank_checks
from distributed.group import Group
from distributed.precision import LossScaler
from models.pretrained import load_weights
from support.best_score import is_better
from support.errors import UserError
from support.log import log
from training.average import WeightAverage
from training.checkpoint_content import Checkpoint

POSITION = ("epoch", "samples", "step", "validated", "best_score", "validations_since_best")
RESET = "or start without the optimizer's state by --reset_optimizer"


@dataclass
class TrainState:
    """The state of training between two steps: model, optimizer, loss scaler, EMA, position and best score."""

    raw_model: nn.Module
    model: nn.Module  # the DDP wrapper of raw_model, or raw_model itself
    optimizer: Optimizer
    scaler: LossScaler
    ema: WeightAverage | None = None
    epoch: int = 0  # epochs done, including their validation
    samples: int = 0  # samples of the current epoch that all ranks together have trained on
    step: int = 0  # optimizer steps done
    validated: int = 0  # the step of the last validation
    best_score: float = -1.0  # of deciding_score(); -1: none yet
    validations_since_best: int = 0
    keeps_gradients: bool = False  # zero_grad() sets them to 0, not to None: CUDA graphs need it
    clip_grad: float = 0.0  # of --clip_grad; 0: gradients are not clipped
    grad_norm: Tensor | None = None  # of the last step, before clipping; None without clip_grad
    origin: dict[str, float] = field(default_factory=dict)  # Schedule.origin
    listing: str = ""  # digest of the training list
    steps_in_process: int = 0  # optimizer steps that this process did

    @property
    def all_models(self) -> list[nn.Module]:
        """Return [raw_model], and with --ema also the module with averaged weights."""
        return [self.raw_model] if self.ema is None else [self.raw_model, self.ema.module]

    @property
    def eval_model(self) -> nn.Module:
        """Return the model to validate: with --ema the one with averaged weights, else raw_model."""
        return self.all_models[-1]

    def seed_forward(self, seed: int, sample: int, device: torch.device) -> None:
        """Seed the random numbers of a forward pass, such as dropout's, by --seed, the epoch and the batch's position.

        sample: number of the batch's first sample among this step's samples, counted over all ranks. A resumed run
        draws the same numbers. So does a run on fewer ranks that accumulates batches of the same size instead.
        """
        own = int(np.random.SeedSequence((seed, self.epoch, self.samples + sample)).generate_state(1, np.uint64)[0])
        torch.default_generator.manual_seed(own)  # torch.manual_seed() takes 0.3 ms where CUDA is not in use
        if device.type == "cuda":
            torch.cuda.manual_seed(own)

    def optimizer_step(self, lr: float, num_samples: int) -> None:
        """Update the weights with this lr, after the backward passes of num_samples samples of all ranks.

        Each parameter group gets lr times its "lr_factor". Gradients are clipped first, and cleared afterwards. A step
        that the scaler skips does not change the weights, but counts as a step and updates the EMA.
        """
        for part in self.optimizer.param_groups:
            part["lr"] = lr * part.get("lr_factor", 1.0)
        if self.clip_grad:  # every rank has all gradients, summed over ranks, and computes the same norm
            self.scaler.unscale_(self.optimizer)
            parameters = [parameter for part in self.optimizer.param_groups for parameter in part["params"]]
            self.grad_norm = nn.utils.clip_grad_norm_(parameters, self.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        if self.ema is not None:
            self.ema.update(self.raw_model)
        self.step += 1
        self.steps_in_process += 1
        self.samples += num_samples

    def average_batch_norm(self, group: Group) -> None:
        """Average batch-norm statistics over ranks, then check that all ranks have equal weights. Collective.

        Each rank has seen other images, but all must validate and save the same model.
        """
        for model in self.all_models:
            group.average_buffers(model)
        rank_checks.check_weights(group, self.raw_model, compare_batch_norm=True)
        if group.world_size > 1:
            log.debug(f"epoch {self.epoch + 1}: weights are equal on all {group.world_size} ranks")

    def record_score(self, score: float) -> bool:
        """Record the score of a validation. Return whether it is above all earlier ones of the run."""
        is_best = is_better(score, self.best_score)
        self.validated, self.best_score = self.step, score if is_best else self.best_score
        self.validations_since_best = 0 if is_best else self.validations_since_best + 1
        return is_best

    def stops_early(self, patience: int) -> bool:
        """Return whether the last `patience` validations did not improve the best score. patience 0: False."""
        return 0 < patience <= self.validations_since_best

    def checkpoint(self, group: Group, **others: Any) -> Checkpoint:
        """Return the Checkpoint of this state, on every rank. Its tensors are live ones, not copies. Collective.

        others: the fields that the state does not know: config, texts and run. Random numbers have no state:
        seed_forward() gives them.
        """
        names = {name for name, buffer in self.raw_model.named_buffers() if buffer.is_floating_point()}
        buffers = {name: value for name, value in self.raw_model.state_dict().items() if name in names}
        ranks = group.gather({"buffers": {name: buffer.cpu() for name, buffer in buffers.items()}})
        mean = {
            name: (sum(rank["buffers"][name].double() for rank in ranks) / len(ranks)).to(buffer.dtype)
            for name, buffer in buffers.items()
        }

        def averaged(module: nn.Module) -> dict[str, Tensor]:
            return {name: mean.get(name, value) for name, value in module.state_dict().items()}

        return Checkpoint(
            model=averaged(self.raw_model),
            ema=None if self.ema is None else averaged(self.ema.module),
            optimizer=self.optimizer.state_dict(),
            scaler=self.scaler.state_dict(),
            **{name: getattr(self, name) for name in POSITION},
            origin=self.origin,
            listing=self.listing,
            ranks=ranks,
            **others,
        )

    def restore(self, saved: Checkpoint, group: Group, *, optimizer: bool = True, position: bool = True) -> None:
        """Load a Checkpoint.

        optimizer: also load the optimizer and loss scaler. position: also load epoch, step, best score and each rank's
        own statistics. The optimizer keeps the settings of its flags, such as momentum. With another number of ranks,
        each rank keeps the averaged batch-norm statistics. Raises UserError if the checkpoint does not fit the model or
        the optimizer.
        """
        ranks = saved.ranks if position else []
        own = ranks[group.rank]["buffers"] if len(ranks) == group.world_size else {}
        for module, weights in zip(self.all_models, (saved.model, saved.ema or saved.model), strict=False):
            _, missing, unused = load_weights(module, weights | own)
            for name in missing + unused:
                raise UserError(
                    "the checkpoint does not fit this model: check --model_type, --backbone, --layers and --numclasses "
                    f"({name} is missing or has another shape or type)"
                )
        if self.ema is not None:
            self.ema.num_updates = saved.step  # at 0, the next update would overwrite the average
        if optimizer:
            _restore_optimizer(self.optimizer, saved.optimizer)
        if optimizer and saved.scaler and self.scaler.is_enabled():
            self.scaler.load_state_dict(saved.scaler)
        if not position:
            return
        for name in POSITION:
            setattr(self, name, getattr(saved, name))


def _restore_optimizer(optimizer: Optimizer, saved: dict) -> None:
    """Load the state from an optimizer's state dict, but no settings, such as momentum.

    Raises UserError if the state belongs to another optimizer or to other parameter groups.
    """
    groups, saved_groups = optimizer.param_groups, saved["param_groups"]
    saved_kind, kind = ("adamw" if "betas" in part[0] else "sgd" for part in (saved_groups, groups))
    if saved_kind != kind:
        raise UserError(
            f"--optimizer {kind}: the checkpoint has the state of {saved_kind}: use --optimizer {saved_kind}, {RESET}"
        )
    try:
        # With the new settings, since torch converts a state to what its group's settings, such as fused, need.
        settings = [
            {name: value for name, value in group.items() if name != "params"}
            | {"params": part["params"], "lr": part["lr"]}
            for group, part in zip(groups, saved_groups, strict=True)
        ]
        optimizer.load_state_dict({"state": saved["state"], "param_groups": settings})
        parameters = [parameter for group in groups for parameter in group["params"]]
        if not all(_fits(optimizer.state.get(parameter, {}), parameter, kind) for parameter in parameters):
            raise ValueError
        # Only damage makes these negative. Read the saved copy, because reading a GPU's would make the CPU wait.
        entries = [entry for state in saved["state"].values() for entry in state.items() if entry[1] is not None]
        if any(bool((value < 0).any()) for name, value in entries if name in ("step", "exp_avg_sq")):
            raise ValueError
    except (TypeError, ValueError):
        raise UserError(
            "the checkpoint's optimizer has other groups of parameters: use the losses and the flags of the optimizer "
            f"in its config.yaml, {RESET}"
        ) from None


def _fits(state: dict[str, Tensor | None], parameter: Tensor, kind: str) -> bool:
    """Return whether this is what the optimizer of this kind, "sgd" or "adamw", keeps of a parameter; {}: nothing."""
    names = {"adamw": {"step", "exp_avg", "exp_avg_sq"}, "sgd": {"momentum_buffer"}}[kind]
    values = {name: value for name, value in state.items() if value is not None or kind == "adamw"}
    return set(state) in (names, set()) and all(
        value is not None and value.shape == (() if name == "step" else parameter.shape)
        for name, value in values.items()
    )

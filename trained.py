"""A trained model from a checkpoint: its flags, its weights, and how it is to predict."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import config
import models
from config import Config
from config.reader import FlagReader
from config.shared import DataFlags, InferenceFlags, ModelFlags
from errors import UserError
from evaluation.predictor import Predictor
from models.pretrained import STRIDE_IS_SET, load_weights, needs_stride_in_1x1, released_type, weights_in
from runs import checkpoint

TOO_MUCH = "lower --val_batchsize, use a --window such as 465, or --amp bf16"

PATHS = ("list_path", "image_path", "val_path")  # below --dataset_path

# What a checkpoint says itself, and a program's command line may say otherwise.
OF_A_RUN = {item.name for shared in (DataFlags, ModelFlags) for item in dataclasses.fields(shared)}


def read_given(reader: FlagReader, argv: list[str] | None) -> tuple[dict, dict]:
    """A program's flags that are given, and of those the ones of DataFlags and ModelFlags, to go over a checkpoint's own.

    --config FILE is a run's YAML file here, too; of its values these, and the command line goes over them.
    """
    given, config_file, _ = reader.command_line(argv)
    changes = config.READER.yaml_file(config_file, []) if config_file else {}
    return given, changes | {name: value for name, value in given.items() if name in OF_A_RUN}


def read_flags(reader: FlagReader, argv: list[str] | None) -> tuple[Any, dict]:
    """A program's flags, and what goes over a checkpoint's own, as of read_given()."""
    given, changes = read_given(reader, argv)
    flags = reader.declared(**given)
    changes |= {"workers": flags.workers, "val_workers": -1}
    return flags, changes


class Checkpoint:
    """A checkpoint file: `cfg`, the training flags that go with it, and `content`.

    changes: values of training flags that override the file's own. A released CDSP file turns stride_in_1x1 on, and `say`
    gets a line about it. Raises UserError where the file cannot be used.
    """

    def __init__(self, path: str, changes: dict, say: Callable[[str], None] = print):
        if not path:
            raise UserError("--checkpoint is not set: name the FILE of a run, such as log/NAME/best.pt")
        self.path = Path(path)
        self.content = checkpoint.read(self.path)
        saved = self.content.get("config")
        if not isinstance(saved, dict):
            if "numclasses" not in changes:
                raise UserError(
                    f"--checkpoint {path}: it does not say which model its weights are of: give the run's --config, or "
                    "--model_type, --layers and --numclasses"
                )
            saved = {}
        if changes.get("dataset", saved.get("dataset")) != saved.get("dataset"):
            saved = {name: value for name, value in saved.items() if name not in PATHS}  # they are of that layout
        for training_only in ("optimizer", "ranks"):
            self.content.pop(training_only, None)
        # A checkpoint may be of an earlier version, with other flags: those that are gone had to do with training.
        self.cfg = Config(**{name: value for name, value in saved.items() if name in config.FLAGS} | changes)
        needed = needs_stride_in_1x1(weights_in(self.content), f"--checkpoint {path}")
        if needed and not self.cfg.stride_in_1x1:
            say(STRIDE_IS_SET.format(path=f"--checkpoint {path}"))
            self.cfg = dataclasses.replace(self.cfg, stride_in_1x1=True)

    def state_dict(self, weights: str) -> tuple[str, dict[str, torch.Tensor]]:
        """Which weights --weights auto, raw or ema means, and these."""
        has_average = self.content.get("ema") is not None
        if weights == "ema" and not has_average:
            raise UserError(
                f"--weights ema: {self.path} has no average of weights; train with --ema, or use --weights raw"
            )
        averaged = has_average and weights != "raw"
        return "ema" if averaged else "raw", weights_in(self.content, averaged=averaged)

    def model(self, weights: str, device: torch.device) -> models.Segmenter:
        """The model with these weights, in eval mode."""
        cfg = self.cfg
        model = models.build(
            cfg.model_type, layers=cfg.layers, num_classes=cfg.numclasses, stride_in_1x1=cfg.stride_in_1x1
        )
        state_dict = self.state_dict(weights)[1]
        _, missing, _ = load_weights(model, state_dict)
        missing = [name for name in missing if not name.startswith("lorm.")]  # for training only
        if missing:
            released = released_type(state_dict)
            of_other_type = released and released.removesuffix("_lorm") != cfg.model_type.removesuffix("_lorm")
            raise UserError(
                f"--checkpoint {self.path}: {len(missing)} weights of a {cfg.model_type} with --layers {cfg.layers} and "
                f"--numclasses {cfg.numclasses} are not in it, or have other shapes, such as {missing[0]}"
                + (f"; its names are those of a released file: use --model_type {released}" if of_other_type else "")
            )
        broken = next((name for name, value in model.state_dict().items() if not value.isfinite().all()), None)
        if broken:
            raise UserError(f"--checkpoint {self.path}: its weights are not finite ({broken}): take an earlier one")
        return model.eval().to(device).to(memory_format=torch.channels_last)

    def predictor(self, flags: InferenceFlags, device: torch.device) -> Predictor:
        """The model of this checkpoint, predicting as the flags say."""
        return Predictor(
            self.model(flags.weights, device), scales=flags.scales, flip=flags.flip, long_side=flags.long_side,
            window=flags.window, stride_rate=flags.stride_rate, batch_size=self.cfg.val_batchsize, amp=self.cfg.amp,
        )  # fmt: skip

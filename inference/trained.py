"""Load the model of a checkpoint for your own Python code; for evaluate.py, predict.py and export.py: TrainedModel.

import segtrain
model = segtrain.load("log/demo/best.pt")
mask = model.predict("photo.jpg").mask  # (height, width) uint8: class numbers
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import models
from data.classes import Classes, read_classes
from data.images.reader import ImageReader
from distributed import rank_checks
from distributed.device import find_device
from distributed.group import Group, Stopped
from distributed.precision import resolve, resolve_amp
from distributed.process_group import process_group
from flags import READER, Config, own_code
from flags.conflicts import check_effects
from flags.declare import per_rank
from flags.programs import PREDICT
from flags.reader import FlagReader
from flags.shared import DataFlags, ImageFlags, InferenceFlags, LaunchFlags, ModelFlags
from inference.api import LoadedModel
from inference.predictor import Predictor
from models.pretrained import is_cdsp_file, load_weights, refuse_other_head, released_type
from support import program
from support.errors import STOPPED, UserError
from support.files import sha256
from support.log import log
from support.user_code import is_code
from support.user_code import load as load_code
from training import checkpoint
from training.checkpoint_content import naming_flag
from training.data_flags import warn_of_other_class_names
from training.record.log import start_logging

OUT_OF_MEMORY_ADVICE = "lower --val_batchsize, use a --window such as 465, or --amp bf16"
LAYOUT = ("list_path", "image_path", "val_path", "val_split", "image_suffix", "label_suffix", "label_map")
LOADER_FLAGS = ("workers", "pin_memory", "prefetch_factor")
CPU = torch.device("cpu")

# Flags of train.py that these programs have too. A checkpoint saves them; the command line overrides them.
SAVED_FLAGS = {item.name for shared in (DataFlags, ImageFlags, ModelFlags) for item in dataclasses.fields(shared)}


def read_overrides(reader: FlagReader, argv: list[str] | None) -> tuple[dict, dict, list[str]]:
    """Return ({flag: value} of a program, {training flag: value} that override a checkpoint's, notes for the user).

    Both come from --config FILE and the command line, which takes precedence. Of the file's flags, the program itself
    has those on device and processes.
    """
    values, config_file, notes = reader.command_line(argv)
    saved = READER.yaml_file(config_file).values if config_file else {}  # its notes are on training
    launch = {item.name for item in dataclasses.fields(LaunchFlags)} if issubclass(reader.declared, LaunchFlags) else {}
    overrides = saved | {name: value for name, value in values.items() if name in SAVED_FLAGS}
    return {name: value for name, value in saved.items() if name in launch} | values, overrides, notes


def run_program(reader: FlagReader, argv: list[str] | None, work: Callable[[Any, dict, Group], int | None]) -> int:
    """Read a command line, join the process group, and call work(flags, overrides, group).

    flags: the program's, an InferenceFlags. overrides: {training flag: value} that override a checkpoint's. Returns
    work's status or 0; STOPPED after a signal.
    """
    values, overrides, notes = read_overrides(reader, argv)
    flags = reader.declared(**values)
    overrides |= {name: getattr(flags, name) for name in LOADER_FLAGS} | {"val_workers": -1}
    with process_group(**flags.group_options) as group, program.explain_errors(str(group.device), OUT_OF_MEMORY_ADVICE):
        start_logging(flags.log_level, is_main=group.is_main)
        for note in notes:
            log.info(note)
        rank_checks.compare_flags(group, vars(flags), per_rank(flags))
        try:
            return work(flags, overrides, group) or 0
        except Stopped as stop:
            hint = " (--overwrite would delete its files)" if hasattr(flags, "overwrite") else ""
            log.info(f"stopped by {stop}; to finish, run the same command again{hint}")
            return STOPPED


def inference_settings(flags: InferenceFlags) -> dict:
    """Return {name: value} of the flags that Predictor takes and a checkpoint does not save: scales and flip."""
    return {name: getattr(flags, name) for name in ("scales", "flip")}


class TrainedModel:
    """A checkpoint file: `cfg`, the training flags saved in the file, and `file`, its step and weights.

    overrides: {training flag: value} that replace the saved ones. Weights released by CDSP turn stride_in_1x1 on.
    Raises UserError if the file cannot be used.
    """

    def __init__(self, path: str | Path, overrides: dict | None = None):
        if not str(path):
            raise UserError("--checkpoint is not set: name the FILE of a run, such as log/NAME/best.pt")
        overrides = overrides or {}
        self.path = Path(path)
        with naming_flag("--checkpoint", self.path, "name the FILE of a run, such as log/NAME/best.pt"):
            self.file = checkpoint.read_model(self.path)
        saved = self.file.config
        if saved is None:
            if "numclasses" not in overrides:
                raise UserError(
                    f"--checkpoint {path}: it does not say which model its weights belong to: add the run's --config, "
                    "or --model_type, --layers and --numclasses"
                )
            saved = {}
        if overrides.get("dataset", saved.get("dataset")) != saved.get("dataset"):
            # They fit the saved layout only.
            saved = {name: value for name, value in saved.items() if name not in LAYOUT}
        own_code.refuse_unnamed({"model_type": saved.get("model_type", "")}, overrides, f"--checkpoint {path}")
        named, digest = overrides.get("model_type", ""), self.file.texts.get("model_type", "")
        is_same = is_code(named) and named == saved.get("model_type") and digest
        if is_same and load_code("--model_type", named).digest != digest:
            log.warning(f"--model_type {named}: its file has changed since {path} was written")
        if (
            overrides.get("bands", saved.get("bands")) != saved.get("bands")
            and len(saved.get("value_range", ())) == 6
            and "value_range" not in overrides
        ):
            given = f"--bands {' '.join(map(str, overrides['bands']))}"
            raise UserError(f"{given}: {path} has a --value_range for its own bands: add --value_range for these")
        texts = {name: text for name, text in self.file.texts.items() if name in saved and name not in overrides}
        self.cfg = Config(**saved | overrides, texts=texts)
        check_effects(self.cfg, SAVED_FLAGS & set(overrides))
        if "classes" in saved and not {"classes"} & {*texts, *overrides}:
            self._find_names()
        refuse_other_head(self.file.best_weights, f"--checkpoint {path}", self.cfg.model_type)
        if is_cdsp_file(self.file.best_weights) and not self.cfg.stride_in_1x1:
            log.info(f"--checkpoint {path} has the weight names of a released CDSP file: --stride_in_1x1 is set")
            self.cfg = dataclasses.replace(self.cfg, stride_in_1x1=True)

    @property
    def classes(self) -> Classes:
        """Return the names and colours of the classes. Raises UserError if the file of --classes cannot be used."""
        return read_classes(self.cfg.classes, self.cfg.numclasses, self.cfg.texts.get("classes"))

    def _find_names(self) -> None:
        """Drop --classes of a checkpoint that an earlier version wrote, without names, if its file cannot be used."""
        try:
            read_classes(self.cfg.classes, self.cfg.numclasses)
        except UserError as error:
            log.warning(f"{self.path}: an earlier version saved no class names, so classes are numbers: {error}")
            self.cfg = dataclasses.replace(self.cfg, classes="")

    def resolve_weights(self, weights: str) -> str:
        """Return "raw" or "ema" for --weights auto, raw or ema.

        Raises UserError on ema if the file has no EMA weights.
        """
        has_average = self.file.averaged is not None
        if weights == "ema" and not has_average:
            raise UserError(
                f"--weights ema: {self.path} has no average of weights; train with --ema, or use --weights raw"
            )
        return "ema" if has_average and weights != "raw" else "raw"

    def model(self, weights: str = "auto", device: torch.device = CPU) -> models.Segmenter:
        """Return the model with --weights auto, raw or ema on the device, in eval mode.

        Raises UserError if weights are missing, have other shapes or are not finite.
        """
        cfg = self.cfg
        model = models.build(cfg.model_type, **cfg.architecture)
        state_dict = self.file.best_weights if self.resolve_weights(weights) == "ema" else self.file.weights
        _, missing, _ = load_weights(model, state_dict)
        missing = [name for name in missing if not name.startswith("lorm.")]  # used in training only
        if missing:
            released = released_type(state_dict)
            differs = released and released.removesuffix("_lorm") != cfg.model_type.removesuffix("_lorm")
            backbone = f"--layers {cfg.layers}" if cfg.backbone == models.RESNET else f"--backbone {cfg.backbone}"
            backbone = f"--model_args {' '.join(cfg.model_args)}" if is_code(cfg.model_type) else backbone
            raise UserError(
                f"--checkpoint {self.path}: {len(missing)} weights of a {cfg.model_type} with {backbone} "
                f"and --numclasses {cfg.numclasses} are missing or have other shapes or types, such as {missing[0]}"
                + (f"; it is a released CDSP file: use --model_type {released}" if differs else "")
            )
        broken = next((name for name, value in model.state_dict().items() if not value.isfinite().all()), None)
        if broken:
            raise UserError(f"--checkpoint {self.path}: {broken} is not finite: use an earlier checkpoint")
        return model.eval().to(device).to(memory_format=torch.channels_last)

    def warn_of_other_class_names(self, remedy: str, folder: Path | None = None) -> None:
        """Log a warning if the data set's class file has other names than the model.

        folder: the data set; None: --dataset_path.
        """
        cfg = self.cfg if folder is None else dataclasses.replace(self.cfg, dataset_path=str(folder))
        warn_of_other_class_names(cfg, self.classes, self.file.config or {}, remedy)

    def settings(self, flags: InferenceFlags) -> dict[str, Any]:
        """Return all that predictions depend on, {name: value}: the settings of an output folder."""
        names = ("model_type", "stride_in_1x1", "amp")
        own = {name: getattr(self.cfg, name) for name in names} | self.cfg.window_options | self.cfg.reading
        own |= inference_settings(flags)
        colours = self.classes.colours[: self.cfg.numclasses].tolist()
        return {"checkpoint": sha256(self.path), "weights": flags.weights, **own, "colours": colours}

    def predictor(self, weights: str = "auto", device: torch.device = CPU, **settings) -> Predictor:
        """Return a Predictor of the model at the sizes of `cfg`. settings: scales and flip, as in Predictor."""
        cfg, model = self.cfg, self.model(weights, device)
        amp = resolve(cfg.amp, device)
        settings |= cfg.window_options | {"source": f"{self.path} with ", "reader": ImageReader(**cfg.reading)}
        return Predictor(model, batch_size=cfg.val_batchsize, amp=amp, **settings)


def load_on_ranks(flags: InferenceFlags, overrides: dict, group: Group) -> tuple[TrainedModel, Predictor]:
    """Return the model of --checkpoint and its Predictor, with one precision and the same weights on all ranks.

    Collective. overrides: {training flag: value} that replace the saved ones.
    """
    trained = TrainedModel(flags.checkpoint, overrides)
    trained.cfg = dataclasses.replace(trained.cfg, amp=resolve_amp(trained.cfg.amp, group))
    predictor = trained.predictor(flags.weights, group.device, **inference_settings(flags))
    rank_checks.check_weights(group, predictor.model, compare_batch_norm=True)
    return trained, predictor


def load(
    path: str | Path,
    *,
    device: str = "auto",
    weights: str = "auto",
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    long_side: int | None = None,
    window: int | None = None,
    stride_rate: float | None = None,
    amp: str | None = None,
    classes: str | None = None,
    model_type: str | None = None,
) -> LoadedModel:
    """Return the model of a checkpoint file, ready to predict.

    Each argument is predict.py's flag of that name (docs/cli.md); None: as in training. A checkpoint runs no code: if
    its model is code of your own, name that in model_type. Raises UserError if the file or
    a value cannot be used.
    """
    values: dict[str, Any] = {"weights": weights, "flip": flip}
    values["scales"] = list(scales) if isinstance(scales, Iterable) and not isinstance(scales, str) else scales
    saved = {"long_side": long_side, "window": window, "stride_rate": stride_rate, "amp": amp, "classes": classes}
    saved["model_type"] = model_type
    values |= {name: value for name, value in saved.items() if value is not None}
    values = {name: PREDICT.flags[name].convert(value, name) for name, value in values.items()}
    path = PREDICT.flags["checkpoint"].convert(str(path) if isinstance(path, Path) else path, "path")
    place = find_device(device, local_rank=0, local_world_size=1)
    with program.explain_errors(str(place), "use device='cpu'"):
        trained = TrainedModel(path, {name: values.pop(name) for name in saved if name in values})
        predictor, read, cfg = trained.predictor(device=place, **values), trained.classes, trained.cfg
    return LoadedModel(predictor, place, read.names, read.colours, cfg.background_class)

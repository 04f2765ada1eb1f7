"""train.py --task test and --task predict: the command that trained a run also scores it and predicts by it."""

import dataclasses
import importlib
from pathlib import Path

import config
from config import Config
from config.flags import FlagReader
from config.shared import LaunchFlags
from errors import UserError
from runs import folder as run_folder
from utils import find_masks

PROGRAMS = {"test": "evaluate", "predict": "predict"}


def hand_over(argv: list[str] | None) -> int | None:
    """Run the program that --task names, and return its exit status; None where the task is to train.

    The words may be flags of train.py, which with --config say what run it is, and of that program, which get their values;
    the rest is as the checkpoint says. Without --checkpoint it is best.pt of the newest run of that name; without --input
    the folder of the images for validation, which in VOC's layout is that of all images.
    """
    task = config.READER.peek(argv, "task")
    if task == "train":
        return None
    program = importlib.import_module(PROGRAMS[task])
    given, config_file, notes = _reader(program.READER).command_line(argv)
    cfg = config.build({name: value for name, value in given.items() if name in config.FLAGS}, config_file, notes)
    if cfg.resume:
        raise UserError(f"--resume {cfg.resume} with --task {task}: name the file by --checkpoint")
    # How to launch is the file's word, as in training.
    launch = {item.name: getattr(cfg, item.name) for item in dataclasses.fields(LaunchFlags)}
    values = {name: value for name, value in launch.items() if value != config.FLAGS[name].default}
    values |= {name: value for name, value in given.items() if name in program.READER.fields}
    if not values.get("checkpoint") and not values.get("model"):
        values["checkpoint"] = str(_best(cfg, task))
    if task == "predict" and "input" not in values:
        values["input"] = (str(find_masks(cfg, "val").folders["image"]),)
    return program.main(program.READER.words(values))


def _reader(of_program: FlagReader) -> FlagReader:
    """A reader of the flags of train.py and of the program."""
    both = dataclasses.make_dataclass("Flags", [], bases=(Config, of_program.declared))
    aliases = {name: ours for name, ours in config.ALIASES.items() if name not in of_program.fields}
    return FlagReader(both, aliases, "python train.py", of_program.parser.description or "")


def _best(cfg: Config, task: str) -> Path:
    """best.pt of the newest run."""
    folder = run_folder.newest(Path(cfg.logdir), cfg.name)
    if folder is None or not (folder / "best.pt").is_file():
        raise UserError(
            f"--task {task}: no run of --name {cfg.name} in --logdir {cfg.logdir} has a best.pt: train first, or give "
            "--checkpoint FILE"
        )
    return folder / "best.pt"

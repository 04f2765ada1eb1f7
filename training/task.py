"""--task test and predict: the command line of the program that does it."""

import os
from pathlib import Path

from flags import READER, Config, as_words
from flags.reader import ConfigFile
from support.launched_by import rank_of
from support.log import log
from training.data import find_masks
from training.record import folder
from training.record.log import start_logging


def task_arguments(cfg: Config) -> list[str]:
    """Return the command line of evaluate.py or predict.py for --task, by default with best.pt of the flags' run.

    Log the notes on the flags. Raises UserError if there is no best.pt.
    """
    start_logging(cfg.log_level, is_main=rank_of(os.environ) in ("", "0"))
    for note in cfg.notes:
        if note.startswith("--"):  # the others are on flags of training in the file
            log.info(note)
    flags = dict(cfg.task_flags)
    if "checkpoint" not in flags:
        flags["checkpoint"] = str(folder.find_best(Path(cfg.logdir), cfg.name))
    if cfg.task == "predict" and "input" not in flags:
        run = _of_run(cfg, Path(flags["checkpoint"]))
        flags["input"] = tuple(str(files["image"]) for files in find_masks(run, run.val_split).files)
    if cfg.task == "predict" and "output" not in flags:
        flags |= {"output": str(Path(flags["checkpoint"]).parent / "predictions"), "overlay": True}
    log.info(f"--task {cfg.task}: {'evaluate.py' if cfg.task == 'test' else 'predict.py'} with {flags['checkpoint']}")
    return program_words(cfg, flags)


def _of_run(cfg: Config, checkpoint: Path) -> Config:
    """Return the flags in the config.yaml beside a checkpoint, such as the layout, with those that the user sets."""
    saved = checkpoint.with_name("config.yaml")
    if not saved.is_file():
        return cfg
    values = READER.yaml_file(ConfigFile(saved, ""), of_run=True).values
    return Config(**READER.merge(values, {name: getattr(cfg, name) for name in cfg.given}))


def program_words(cfg: Config, flags: dict) -> list[str]:
    """Return the command line that gives a program {flag: value}, and the file of --config."""
    path, stage = cfg.config_file or ("", "")
    files = {"config": path, "stage": stage}
    return as_words({name: value for name, value in files.items() if value} | flags)

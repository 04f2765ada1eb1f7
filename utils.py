"""What every program builds from its flags: get_loader, get_model and their like, and how a run starts."""

import contextlib
import logging
import os
from pathlib import Path

import torch

from data import demo
from data.layout import pair_files
from distributed.group import Group
from distributed.join import process_group
from flags import Config, program_words
from flags.shared import LaunchFlags
from support.launchers import rank_of
from training.class_weights import get_class_weights
from training.data import find_masks, get_eval_loader, get_loader, make_loader
from training.model import get_model
from training.parts import get_criterion, get_optimizer, get_state
from training.record import folder
from training.record.log import start_logging
from training.settle import DEMO_ROOT, prepare_demo_data, share_batch

log = logging.getLogger("segtrain")


def set_deterministic(deterministic: bool) -> None:
    """Turn torch's deterministic algorithms on or off. If on, an operation without one raises RuntimeError."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # takes time


def join_group(cfg: LaunchFlags) -> contextlib.AbstractContextManager[Group]:
    """Return a context manager that joins the process group that the flags ask for, if any, and yields the Group."""
    names = ("distributed", "device", "backend", "dist_url", "world_size", "rank", "local_rank")
    return process_group(**{name: getattr(cfg, name) for name in names}, timeout=cfg.dist_timeout)


def validation_images(cfg: Config) -> tuple[str, ...]:
    """Return the paths of the validation images. Raises UserError if folders, lists or files are missing."""
    _, files = pair_files(find_masks(cfg, cfg.val_split))
    return tuple(str(paths["image"]) for paths in files)


def task_words(cfg: Config) -> list[str]:
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
        flags["input"] = validation_images(cfg)
    if cfg.task == "predict" and "output" not in flags:
        flags |= {"output": str(Path(flags["checkpoint"]).parent / "predictions"), "overlay": True}
    log.info(f"--task {cfg.task}: {'evaluate.py' if cfg.task == 'test' else 'predict.py'} with {flags['checkpoint']}")
    return program_words(cfg, flags)

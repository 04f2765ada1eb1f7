"""Settle what a run does, before anything is built: the final flags, what it resumes and what it starts from."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data.classes import PRESET_FOLDERS, Classes, read_classes, read_preset
from data.dataset import SegmentationDataset
from data.images.deep import any_header
from data.images.resize import suggest_long_side
from data.label_check import check_sample, spread
from data.layout import Split
from distributed import rank_checks
from distributed.group import Group
from distributed.precision import resolve_amp
from flags import Config, as_dict, check_flags, describe, own_code
from flags.auto_recipe import CPU, CUDA, LEARNING, LENGTH, NUM_SIZES, RECIPE_FLAGS, Recipe
from flags.conflicts import check_backbone, check_effects
from flags.declare import per_rank
from flags.shared import BACKBONE_FLAGS, HEAD_FLAGS
from models.memory import gpu_memory
from support.errors import UserError
from support.files import check_place
from support.log import log
from support.user_code import load
from training import checkpoint
from training.checkpoint_content import Checkpoint
from training.data import find_masks, find_training_files, prepare_demo_data, reading_options
from training.data_flags import choose_classes, choose_image_reading, choose_layout, warn_of_other_class_names
from training.network_flags import fit_network, keep_network, new_part
from training.plan import Plan
from training.record import folder, messages
from training.start_weights import read_start_file, read_start_weights


def settle(cfg: Config, group: Group) -> Plan:
    """Return the Plan of a run from the flags as the user gave them. No flag changes after it. Collective.

    Raises UserError if ranks have different flags, if a file is missing or wrong, or if flags do not fit each other.
    """
    messages.log_launch(cfg, group)
    # Ranks with different flags would call different collectives, and hang. So compare flags first.
    rank_checks.compare_flags(group, vars(cfg), per_rank(cfg))

    # 1. What the flags name: the checkpoint to resume or start from, the files of both splits, the classes.
    prepare_demo_data(cfg, group)
    cfg = choose_layout(cfg, group)
    run_folder, resumed = find_run(cfg, group)  # with --reset_data_offset, run_folder is None
    # The recipe fits the batch and the optimizer to the network. Start weights are prepared for the final flags, below.
    start_content, network = ({}, {}) if resumed else read_start_file(cfg, group)
    cfg = keep_network(cfg, resumed) if resumed else fit_network(cfg, network)
    # Check the network's flags before labels are read, which takes time. check_flags() below checks all flags.
    check_backbone(cfg)
    check_effects(cfg, cfg.typed & {*BACKBONE_FLAGS, *HEAD_FLAGS})
    files = {"train": find_training_files(cfg), "val": find_masks(cfg, cfg.val_split)}
    if run_folder is None and group.is_main:  # if this raises, the other ranks end too (distributed/lifeline.py)
        data = [path for split in files.values() for path in split.folders.values()]
        check_place(Path(cfg.logdir, cfg.name), "--logdir/--name", data)
        folder.check_name(Path(cfg.logdir), cfg.name)
    cfg = choose_image_reading(cfg, group, files, resumed)
    cfg, shares = choose_classes(cfg, group, files, resumed)
    cfg = read_texts(cfg, resumed)  # of --classes, of --label_map, of the user's code
    classes = read_classes(cfg.classes, cfg.numclasses, cfg.texts["classes"])
    if resumed:
        warn_of_other_class_names(cfg, classes, resumed.config, "use --pretrained instead of --resume")
    check_data(cfg, group, files)

    # 2. The flags that depend on these and on the device.
    cfg = take_recipe(cfg, group, files["train"], classes, shares, resumed, new_part(cfg, network))
    cfg = split_batchsize(cfg, group)
    cfg = dataclasses.replace(cfg, amp=resolve_amp(cfg.amp, group, resumed.config["amp"] if resumed else ""))
    start_weights = None if resumed else read_start_weights(cfg, group, start_content, network)
    check_flags(cfg, is_final=True)
    return Plan(cfg, classes, files, run_folder, resumed, start_weights)


def check_data(cfg: Config, group: Group, files: dict[str, Split]) -> None:
    """Raise UserError if ranks have different files or versions, or if check_sample() finds an invalid label.

    check_sample() reads some labels now, because training finds a wrong one only when its image is drawn. Collective.
    """
    options = reading_options(cfg)
    sets = {name: SegmentationDataset(split, cfg.numclasses, **options) for name, split in files.items()}
    train_images = {paths["image"] for paths in files["train"].files}  # names may be equal in two folders
    if shared := [paths["image"] for paths in files["val"].files if paths["image"] in train_images]:
        problem = f"{len(shared)} validation image(s) are in the training list, too, such as {shared[0]}"
        log.warning(f"{problem}: their scores say nothing about new images")
    rank_checks.check_setup(group, {"training list": sets["train"], "validation list": sets["val"]})
    command = messages.data_check_command(cfg)
    check_sample(files["train"].files, files["val"].files, cfg.numclasses, command, group.share_work, **options)


def find_run(cfg: Config, group: Group) -> tuple[Path | None, Checkpoint | None]:
    """Return the folder and the checkpoint of the run that --resume names, on every rank; None for what is not there.

    The run continues in the checkpoint's folder. With --reset_data_offset a new run starts from the checkpoint, and the
    folder is None. "auto" is the newest intact checkpoint of the newest run; a run that was killed before its first
    checkpoint has only a folder. Collective. Raises UserError if the checkpoint is missing or unusable.
    """
    run_folder: Path | None = None
    path: Path | None = None
    resumed: Checkpoint | None = None
    if group.is_main and cfg.resume == "auto":  # if this raises, the other ranks end too
        run_folder = folder.newest(Path(cfg.logdir), cfg.name)
        path, resumed = checkpoint.read_newest(run_folder) if run_folder else (None, None)
    elif group.is_main and cfg.resume:
        run_folder, path = Path(cfg.resume).parent, Path(cfg.resume)
        if not path.is_file():
            raise UserError(
                f"--resume {cfg.resume}: no such file: check the path, or name the run: --resume auto --name NAME"
            )
    run_folder, path = group.broadcast((run_folder, path))
    if cfg.reset_data_offset:
        run_folder = None
    named, is_named = Path(cfg.logdir, cfg.name), not cfg.typed.isdisjoint(("logdir", "name"))
    if run_folder and cfg.resume != "auto" and is_named and run_folder.resolve() != named.resolve():
        remedy = f"to start a new run in {named} from step 1, add --reset_data_offset"
        log.info(f"the run goes on in {run_folder}, not in {named}: {remedy}")
    if path is not None:
        # Without a shared disk, other machines may have no copy, or another one. Rank 0 then sends its checkpoint.
        all_have_it = len(set(group.gather(checkpoint.fingerprint(path)))) == 1
        if group.is_main or all_have_it:
            resumed = resumed or checkpoint.read_run(path)  # with "auto", rank 0 has read it already
        resumed = resumed if all_have_it else group.broadcast(resumed)
        assert resumed
        where = f"epoch {resumed.epoch + 1}, {resumed.samples} samples into it, step {resumed.step}"
        log.info(f"resuming {path}: {where}")
    return run_folder, resumed


def read_texts(cfg: Config, resumed: Checkpoint | None) -> Config:
    """Return the flags with the texts of --classes and --label_map, and the digests of the user's own code files.

    Checkpoints hold them. A resumed run reads the files again, because they describe the labels and code that are there
    now, and logs a warning if one has changed. If a text's file is gone, the run uses the checkpoint's text, or names
    classes by their numbers if an earlier version saved none. The user's code is imported here. Raises UserError if a
    file cannot be read and nothing replaces it, or if the code cannot be imported.
    """
    texts: dict[str, str] = {}
    for flag in PRESET_FOLDERS:
        chosen = getattr(cfg, flag)
        kept = resumed.texts.get(flag) if resumed and resumed.config.get(flag) == chosen else None
        try:
            texts[flag] = read_preset(flag, chosen)
        except UserError as error:
            is_older = resumed and not resumed.texts and resumed.config[flag] == chosen
            if kept is None and not (is_older and flag == "classes"):
                raise
            instead = "classes are named by their numbers" if kept is None else "using its text in the checkpoint"
            log.warning(f"{error}; {instead}")
            if kept is None:
                cfg = dataclasses.replace(cfg, classes="")
        text = texts.setdefault(flag, kept or "")
        if kept is not None and kept != text:
            log.warning(f"--{flag} {chosen}: has changed since the checkpoint; from here on the file is used")
    for flag, named in own_code.sources(vars(cfg)).items():
        texts[flag] = " ".join(load(f"--{flag}", source).digest for source in named)
        if resumed and resumed.texts.get(flag, texts[flag]) != texts[flag]:
            log.warning(f"--{flag} {getattr(cfg, flag)}: its file has changed since the checkpoint")
    return dataclasses.replace(cfg, texts=texts)


def take_recipe(
    cfg: Config,
    group: Group,
    files: Split,
    classes: Classes,
    shares: np.ndarray,
    resumed: Checkpoint | None,
    new: str,
) -> Config:
    """Return the flags with the recipe's values for those that are not set. Collective.

    files: the training data. shares: see choose_classes(). new: see network_flags.new_part(). A resumed run keeps the
    checkpoint's values.
    """
    given = cfg.given

    def choose() -> tuple[dict[str, tuple[Any, str]], dict[str, tuple[Any, str]]]:
        """Return {flag: (value, reason)} of the choices, and of those that only a typed length prevents."""
        if resumed:
            names = RECIPE_FLAGS - given - ({"max_steps"} if "epochs" in given else set())  # --epochs replaces it
            kept = {name: value for name, value in resumed.config.items() if name in names}
            return {name: (value, "as before") for name, value in kept.items() if value != getattr(cfg, name)}, {}
        images = dict.fromkeys(paths["image"] for paths in spread(files.files, NUM_SIZES))
        sizes = [any_header(path).size for path in images]
        device, memory = CPU, 0.0
        if group.device.type == "cuda":
            device, (_, memory) = CUDA, gpu_memory(group.device)
        long_side, _ = suggest_long_side(sizes, cfg.crop_size if "crop_size" in given else device.crop_size)
        options: dict = {"memory": memory, "world_size": group.world_size, "large": long_side}
        options |= {"class_names": classes.names if cfg.classes else (), "shares": shares.tolist()}
        options |= {"new_part": new, "device": device, "num_images": len(files.files), "sizes": sizes}
        recipe = partial(Recipe, as_dict(cfg), **options)
        choices = recipe(given=given).choose_flags()
        without_length = recipe(given=given - (LENGTH & cfg.typed)).choose_flags()
        return choices, {name: choice for name, choice in without_length.items() if name in LEARNING - {*choices}}

    # On rank 0 only: other machines may have other GPUs, and a choice must be the same on all ranks.
    is_open = bool(RECIPE_FLAGS - given)  # else no image need be read
    choices, prevented = group.broadcast(group.run_on_rank_0(choose, "choosing flags") if is_open else ({}, {}))
    if choices:
        log.info(f"chosen from the {'checkpoint' if resumed else 'data and the device'}: {describe(choices)}")
    if prevented:
        length = ", ".join(f"--{name}" for name in sorted(LENGTH & cfg.typed))
        log.info(f"not chosen because of {length}: {describe(prevented)}; set them yourself if you want them")
    return dataclasses.replace(cfg, **{name: value for name, (value, _) in choices.items()})


def split_batchsize(cfg: Config, group: Group) -> Config:
    """Return the flags with --batchsize set to one forward pass's share of --total_batchsize, if that is set.

    Raises UserError if processes x --accum_steps does not divide --total_batchsize.
    """
    if not cfg.total_batchsize:
        return cfg
    parts = cfg.accum_steps * group.world_size
    if cfg.total_batchsize % parts:
        multiple = max(1, cfg.total_batchsize // parts) * parts
        raise UserError(
            f"--total_batchsize {cfg.total_batchsize} is not divisible by {group.world_size} process(es) x "
            f"--accum_steps {cfg.accum_steps}: use {multiple} or another multiple of {parts}"
        )
    return dataclasses.replace(cfg, batchsize=cfg.total_batchsize // parts)

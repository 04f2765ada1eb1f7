"""The flags of all programs, without torch: each is declared once, with type, default, help, choices and aliases.

A value comes from the default, then a YAML file (`--config FILE`), then the command line.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import yaml

from flags import own_code
from flags.conflicts import check as check_flags
from flags.conflicts import idle_flags
from flags.programs import READER, TASKS
from flags.reader import ConfigFile, Parsed
from flags.shared import MODEL_TYPES, DataFlags
from flags.training import Config
from support.errors import UserError
from support.labels import MAPS
from support.shell import document
from support.user_code import code_name

FLAGS = READER.flags
DEMO_NOTE = "no --dataset_path: training on the demo (configs/demo.yaml); for your own data: "
DEMO_CONFIG = Path(__file__).parent.parent / "configs" / "demo.yaml"


def parse_flags(argv: list[str] | None = None) -> Config:
    """Read the flags of train.py from the command line (default: sys.argv) and the YAML file of --config.

    Return a Config. Without --config and --dataset_path, the YAML file is configs/demo.yaml, or config.yaml of the run
    to --resume. With --task test or predict, flags of evaluate.py or predict.py are read too; the Config has them in
    task_flags. Raises UserError on unknown flags and invalid values.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    first, saved = _first_flags(words), None
    # Without the file, if only help is asked for.
    file = ConfigFile(Path(first.config), first.stage) if first.config and not {"-h", "--help"} & set(words) else None
    content = READER.yaml_file(file) if file else Parsed({}, None, [])
    task = first.task or content.values.get("task", "train")
    reader = TASKS.get(task, TASKS["train"])[0]
    overrides, config_file, notes = reader.command_line(words)
    notes = notes + content.notes
    if file is None and "dataset_path" not in overrides:
        flag = "resume" if task == "train" else "checkpoint"
        run = overrides.get(flag) or "auto"
        saved = _config_of_run(flag, run)
        file = ConfigFile(saved or DEMO_CONFIG, "")
        content = READER.yaml_file(file, of_run=saved is not None)
        if task == "train" and saved:
            notes.append(f"no --config: using {saved} of the run to resume")
        elif task == "train" and run == "auto":  # else the checkpoint is missing, and settle() ends the run
            notes.append(DEMO_NOTE + document("docs/your_data.md"))
        notes += content.notes
    file_values = content.values
    if file:
        name, stage = file_values.get("name") or file.path.stem, file.stage
        file_values = file_values | {"name": f"{name}-{stage}" if stage else name}  # each stage is a run of its own
    task_flags: dict[str, Any] = {}
    if task != "train":
        overrides, task_flags, unused = _split_task_flags(task, overrides)
        notes = [note for note in notes if not note.startswith("--batch_size")] + unused
    merged = READER.merge(file_values, overrides)
    if saved:
        own_code.refuse_unnamed(content.values, overrides, str(saved))
    # If the command line disables a flag of the file, a note says so. A flag idle in the file alone is an error.
    typed = set(overrides) | (set() if saved else set(idle_flags(Config(**file_values), file_values)))
    notes += _unused_notes(merged, overrides)
    given = frozenset(merged)
    is_open = Config(**merged, given=given).leaves_layout_open
    if "model_type" not in merged and not is_open:
        merged["model_type"] = usual_model(Config(**merged))
    cfg = Config(**merged, given=given, typed=frozenset(typed), config_file=config_file, task_flags=task_flags)
    of_flags = f"{cfg.dataset}_{code_name(cfg.model_type)}"
    of_data = (Path(cfg.dataset_path).resolve().name or "data") if is_open else of_flags
    cfg = dataclasses.replace(cfg, name=cfg.name or of_data)
    check_flags(cfg)
    if file and not saved:
        idle = idle_flags(cfg, set(file_values) - typed)
        notes += [f"{name} of {file.path} has no effect without {needed}" for name, needed in idle.items()]
    return dataclasses.replace(cfg, notes=notes)


def _first_flags(words: list[str]) -> argparse.Namespace:
    """Return the values of --config, --stage and --task, "" if not set: they decide how the others are read."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", "stage", "task"):
        parser.add_argument(f"--{name}", nargs="?", const="", default="")
    return parser.parse_known_args([word for word in words if word != "--"])[0]  # launchers pass it on


def _split_task_flags(task: str, overrides: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the flags of train.py, the flags of the program that --task runs, and a note on flags it does not use.

    overrides: {flag: value} of the command line.
    """
    program = TASKS[task][1]
    # A flag that the program knows by another name, such as --batchsize, has the program's meaning.
    own = {name: value for name, value in overrides.items() if name not in program.aliases}
    renamed = {program.aliases[name]: value for name, value in overrides.items() if name in program.aliases}
    overrides = own | renamed | own  # if both are set, the flag's own name counts
    used = {*program.flags, "task", "name", "logdir", *(item.name for item in dataclasses.fields(DataFlags))}
    unused = [f"--{name}" for name in overrides if name not in used]
    task_flags = {name: value for name, value in overrides.items() if name in program.flags}
    overrides = {name: value for name, value in overrides.items() if name in FLAGS}
    return overrides, task_flags, [f"--task {task} does not use {', '.join(unused)}"] if unused else []


def _unused_notes(merged: dict[str, Any], overrides: dict[str, Any]) -> list[str]:
    """Return notes on flags that have no effect because of another flag.

    merged: {flag: value}. overrides: those of the command line.
    """
    notes = []
    if "layers" in merged and merged.get("backbone", "resnet") != "resnet":
        notes.append(f"--layers {merged['layers']} is not used: --backbone {merged['backbone']} has a depth of its own")
    return notes + [
        f"--{item.replaces} is not used: --{item.name} {merged[item.name]} replaces it"
        for item in FLAGS.values()
        if {item.replaces, item.name} <= set(overrides) and merged[item.name] != item.default
    ]


def _config_of_run(flag: str, run: str) -> Path | None:
    """Return the config.yaml beside `run`, a checkpoint. None if `run` is "auto", or if there is no such file.

    Raises UserError if a checkpoint is there without its config.yaml: the demo's flags would be wrong.
    """
    saved = Path(run).parent / "config.yaml"
    if run != "auto" and not saved.is_file() and Path(run).is_file():
        raise UserError(f"--{flag} {run}: no config.yaml beside it: add the run's --config FILE")
    return saved if run != "auto" and saved.is_file() else None


def usual_model(cfg: Config) -> str:
    """Return the --model_type for --backbone and --dataset."""
    # A timm network is not dilated to stride 8, and a head that sees only its deepest features learns slowly.
    return fit_lorm("res50_ASPP" if cfg.backbone == "resnet" else "deeplabv3p_multi", cfg.dataset)


def fit_lorm(model_type: str, dataset: str) -> str:
    """Return a --model_type with LoRM if there is such a form and --dataset has pseudo-labels, else without."""
    with_lorm = f"{without_lorm(model_type)}_lorm"
    return with_lorm if with_lorm in MODEL_TYPES and "pseudo" in MAPS[dataset] else without_lorm(model_type)


def without_lorm(model_type: str) -> str:
    """Return a --model_type without its ending: LoRM is no part of the head."""
    return model_type.removesuffix("_lorm")


def as_dict(cfg: Config) -> dict:
    """Return {flag: value} for all flags of train.py, except those that belong to one launch, such as --resume."""
    return {name: getattr(cfg, name) for name, item in FLAGS.items() if not item.per_launch}


def as_words(values: dict[str, Any]) -> list[str]:
    """Return the words of a command line that give flags these values."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no_{name}")
        else:
            texts = [*map(str, value if isinstance(value, tuple) else [value])]
            # argparse takes -mask for a flag, and -1e-05 too.
            is_like_flag = any(text.startswith("-") for text in texts)
            words += [f"--{name}={','.join(texts)}"] if is_like_flag else [f"--{name}", *texts]
    return words


def describe(choices: dict[str, tuple[Any, str]]) -> str:
    """Return {flag: (value, reason)} as a text: "--crop_size 81 (shows the whole image), ..."."""
    return ", ".join(f"{' '.join(as_words({name: value}))} ({reason})" for name, (value, reason) in choices.items())


def without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return those of {flag of train.py: value} that are not the default."""
    return {name: value for name, value in values.items() if value != FLAGS[name].default}


def dump(cfg: Config) -> str:
    """Return the flags and their values as YAML text, to repeat the run with `--config`."""
    return yaml.safe_dump(as_dict(cfg), sort_keys=False)


def changes(saved: dict, cfg: Config) -> str:
    """Return the flags whose values in `saved` (from as_dict()) differ from `cfg`, as "flag: old -> new, ..." or ""."""
    now = as_dict(cfg)
    # An older checkpoint lacks newer flags.
    return ", ".join(f"{name}: {old} -> {now[name]}" for name, old in saved.items() if now.get(name, old) != old)

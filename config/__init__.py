"""The flags of all programs, without torch: each is declared once, with type, default, help, choices and aliases.

A value comes from the default, then a YAML file (`--config FILE`), then the command line.
"""

from pathlib import Path

import yaml

from config.checks import check
from config.programs import READER
from config.reader import ConfigFile
from config.training import Config
from support.errors import UserError
from support.shell import document

FLAGS = READER.flags
DEMO_CONFIG = Path(__file__).parent.parent / "configs" / "demo.yaml"


def parse(argv: list[str] | None = None) -> Config:
    """Read the flags of train.py from the command line (default: sys.argv) and the YAML file of --config.

    Return a Config. Without --config and --dataset_path, the YAML file is configs/demo.yaml, or config.yaml of the run
    to --resume. Raises UserError on unknown flags and invalid values.
    """
    overrides, config_file, notes = READER.command_line(argv)
    resume = overrides.get("resume") or "auto"
    saved = None if resume == "auto" else Path(resume).parent / "config.yaml"
    if config_file is None and "dataset_path" not in overrides:
        if saved and saved.is_file():
            config_file = ConfigFile(saved, "")
            notes.append(f"no --config: using {saved} of the run to resume")
        elif saved and Path(resume).is_file():  # the demo's flags would be wrong
            raise UserError(f"--resume {resume}: no config.yaml beside it: add the run's --config FILE")
        else:
            config_file = ConfigFile(DEMO_CONFIG, "")
            notes.append(
                "no --dataset_path: training on the demo (configs/demo.yaml); for your own data: "
                + document("docs/your_data.md")
            )
    of_run = config_file is not None and config_file.path == saved
    file_values = READER.yaml_file(config_file, notes, of_run=of_run) if config_file else {}
    if config_file:
        name, stage = file_values.get("name") or config_file.path.stem, config_file.stage
        file_values["name"] = f"{name}-{stage}" if stage else name  # each stage is a run of its own
    merged = READER.merge(file_values, overrides)
    if "layers" in merged and merged.get("backbone", "resnet") != "resnet":
        notes.append(f"--layers {merged['layers']} is not used: --backbone {merged['backbone']} has a depth of its own")
    if {"epochs", "max_steps"} <= set(overrides):
        notes.append(f"--epochs {merged['epochs']} is not used: --max_steps {merged['max_steps']} sets the length")
    cfg = Config(**merged, notes=notes, given=frozenset(merged))
    if "model_type" not in merged and "Pseudo" not in cfg.dataset:
        cfg.model_type = "res50_ASPP"  # LoRM needs pseudo-labels
    cfg.name = cfg.name or f"{cfg.dataset}_{cfg.model_type}"
    check(cfg)
    return cfg


def as_dict(cfg: Config) -> dict:
    """Return {flag: value} for all flags of train.py, except those that belong to one launch, such as --resume."""
    return {name: getattr(cfg, name) for name, item in FLAGS.items() if not item.per_launch}


def dump(cfg: Config) -> str:
    """Return the flags and their values as YAML text, to repeat the run with `--config`."""
    return yaml.safe_dump(as_dict(cfg), sort_keys=False)


def changes(saved: dict, cfg: Config) -> str:
    """Return the flags whose values in `saved` (from as_dict()) differ from `cfg`, as "flag: old -> new, ..." or ""."""
    now = as_dict(cfg)
    # An older checkpoint lacks newer flags.
    return ", ".join(f"{name}: {old} -> {now[name]}" for name, old in saved.items() if now.get(name, old) != old)

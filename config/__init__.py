"""Every flag, declared once: name, type, default, help, choices.

A value comes from the default, then a YAML file (`--config FILE`), then the command line (flags.py reads both).
"""

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from config.aliases import ALIASES, INSTEAD
from config.flags import ConfigFile, FlagReader, flag
from config.shared import DataFlags, LaunchFlags, ModelFlags
from data.histogram import given_weights
from errors import UserError
from losses.label_losses import parse_loss

DEMO_CONFIG = Path(__file__).parent.parent / "configs" / "demo.yaml"


@dataclass
class Config(LaunchFlags, ModelFlags, DataFlags):
    """The flags of train.py."""

    # Data
    train_path: str = flag(
        "",
        "folder of the training labels [pascal_2012_scribble; Dense: SegmentationClassAug, else SegmentationClass; Folder: masks]",
    )
    pseudo_path: str = flag("bmp_pseudolabel", "folder of the pseudo-labels")
    distancemap_s: str = flag("", "folder of the distance maps to the scribble [computed on the fly]")
    distancemap_c: str = flag("", "folder of the distance maps to the pseudo-label's contour [computed on the fly]")
    crop_size: int = flag(465, "height and width of a training crop, in pixels", at_least=16)
    augment: bool = flag(
        True, "scale, turn, crop, blur and mirror training images at random; --no_augment: their middle"
    )
    val_workers: int = flag(-1, "loader processes of validation [--workers]", at_least=-1)
    prefetch_factor: int = flag(2, "batches that each loader process has ready or on their way", at_least=1)
    pin_memory: bool | None = flag(None, "load batches into page-locked memory [on CUDA]; --no_pin_memory never does")

    # Model
    pretrained: str = flag(
        "imagenet",
        "start weights: imagenet (torchvision's newest: V2 for ResNet-50, 101 and 152), imagenet_v1 (V1, as CDSP used), none, "
        "or a FILE: ours, torchvision's or a released CDSP one",
    )
    head_init: str = flag(
        "default",
        "initialisation of a new head and LoRM; default: torch's; release: as in CDSP's code, N(0, 2 / (k^2 C_out))",
        choices=("default", "release"),
    )
    sync_bn: str = flag("auto", "synchronise batch norm over processes; auto: on CUDA", choices=("auto", "on", "off"))
    freeze_bn: bool = flag(False, "batch norm uses its stored statistics and does not update them")
    grad_checkpointing: bool = flag(
        False, "compute the backbone's features a second time in the backward pass: less memory, same result"
    )

    # Losses: total = sum of weight * loss over the terms that --dataset has labels for
    loss: str = flag("ce", "losses on scribbles or dense masks, added up: ce, focal, ohem, dice, lovasz, 0.5*dice")
    class_weights: str = flag(
        "none", "of the classes in ce, focal and ohem: none, balanced (by their share), 1,2,0.5 or a FILE, one a line"
    )
    focal_gamma: float = flag(2.0, "power of 1 - p in focal", at_least=0)
    ohem_fraction: float = flag(0.25, "share of each image's labelled pixels that ohem keeps, above 0, at most 1")
    l_seg: float = flag(1.0, "weight of all of --loss", at_least=0)
    l_pseudo: float = flag(1.0, "weight of cross entropy on pseudo-labels", at_least=0)
    l_lorm: float = flag(1.0, "weight of the localization rectification loss (models *_lorm)", at_least=0)
    lorm_scope: str = flag(
        "foreground",
        "positions that the LoRM loss sums over; all, as in the release, also pulls background features to 0",
        choices=("foreground", "all"),
    )
    l_ds: float = flag(1.0, "weight of entropy near the scribble", at_least=0)
    l_dc: float = flag(1.0, "weight of entropy away from the pseudo-label's contour", at_least=0)
    label_smooth: float = flag(0.1, "label smoothing of the pseudo-label loss, 0 to below 1", at_least=0)

    # Optimisation
    epochs: int = flag(50, "number of passes over the training list", at_least=1)
    max_steps: int = flag(0, "number of optimizer steps, instead of --epochs; 0: --epochs", at_least=0)
    batchsize: int = flag(
        16, "images per process and forward pass; global batch = batchsize * accum_steps * processes", at_least=1
    )
    total_batchsize: int = flag(
        0,
        "global batch, divided over processes and --accum_steps; a new run then keeps --lr as given; 0: --batchsize",
        at_least=0,
    )
    accum_steps: int = flag(1, "forward passes per optimizer step", at_least=1)
    lr: float = flag(1e-3, "base learning rate of SGD, before --lr_scaling", at_least=0)
    lr_scaling: str = flag(
        "linear",
        "scale the lr of a new run by the world size, of a resumed run by the change of its global batch",
        choices=("linear", "sqrt", "none"),
    )
    warmup_epochs: float = flag(
        -1.0, "epochs of linear warm-up; cosine decay to 0 follows [a tenth of the run]", at_least=-1
    )
    warmup_steps: int = flag(
        -1, "optimizer steps of warm-up, instead of --warmup_epochs [--warmup_epochs]", at_least=-1
    )
    momentum: float = flag(0.9, "momentum of SGD", at_least=0)
    wdecay: float = flag(5e-4, "weight decay", at_least=0)
    ema: float = flag(
        0.0,
        "decay of an average of the weights, such as 0.999, that is validated and saved besides them; 0: none",
        at_least=0,
    )
    zero1: bool = flag(
        False,
        "share the optimizer's momentum out over the processes (ZeroRedundancyOptimizer): less memory, same result",
    )
    seed: int = flag(0, "seed of the initial weights, the order of samples and their augmentation", at_least=0)
    deterministic: bool = flag(
        False, "the same bits in every run on CUDA, too, where that is slower (docs/reliability.md)"
    )

    # Run folder
    task: str = flag(
        "train",
        "train; or test or predict: hand over to evaluate.py or predict.py, with best.pt of the newest run of --name",
        choices=("train", "test", "predict"),
        per_launch=True,
    )
    logdir: str = flag("log", "folder that runs are written to")
    name: str = flag("", "name of the run's folder in --logdir [the config's name, else dataset and model]")
    resume: str = flag(
        "",
        "continue a run: a checkpoint FILE, or auto = the newest run of this name, if any [a new run]",
        per_launch=True,
    )
    reset_optimizer: bool = flag(
        False, "with --resume: without the optimizer's momentum, to fine-tune from that checkpoint", per_launch=True
    )
    reset_data_offset: bool = flag(
        False,
        "with --resume: from epoch 1 and step 1, in a new folder, to fine-tune from that checkpoint",
        per_launch=True,
    )
    save_step_frequency: int = flag(
        0, "write last.pt and step_NNNNNNNN.pt every N optimizer steps; 0: never", at_least=0
    )
    save_epoch_frequency: int = flag(
        0, "keep epoch_NNNN.pt every N epochs, besides last.pt and best.pt; 0: never", at_least=0
    )
    keep: int = flag(
        -1, "newest step_*.pt and epoch_*.pt to keep, of each; 0: all [3 of step_*.pt, all of epoch_*.pt]", at_least=-1
    )
    val_epoch_frequency: int = flag(1, "validate every N epochs, and at the end; 0: only then", at_least=0)
    val_step_frequency: int = flag(0, "also validate every N optimizer steps; 0: not", at_least=0)
    val_start_epoch: int = flag(0, "do not validate in this many first epochs", at_least=0)
    log_interval: int = flag(10, "optimizer steps between two lines of metrics.jsonl", at_least=1)
    report_training_batch_acc: bool = flag(
        False, "log the share of labelled pixels of the training batches that are predicted right, too"
    )
    wandb: bool = flag(
        False, "log to Weights & Biases, too (extra wandb; WANDB_MODE=offline and its other variables rule)"
    )

    # Checks of the process group
    check_sync_frequency: int = flag(
        0,
        "check every N steps that gradients and weights are equal on all ranks; after the first step it is always done",
        at_least=0,
    )
    find_unused_parameters: bool = flag(
        False, "let DistributedDataParallel look for parameters that a loss does not use"
    )
    static_graph: bool = flag(False, "tell DistributedDataParallel that every step uses the same parameters")

    # Not flags: filled in by parse()
    notes: list[str] = field(default_factory=list)  # lines to log once the run has started


READER = FlagReader(Config, ALIASES, "python train.py", "Train a semantic-segmentation model.", INSTEAD)
FLAGS = READER.fields


def parse(argv: list[str] | None = None) -> Config:
    """Build the Config from `--config`'s file and the command line (default: sys.argv).

    Without `--config` and `--dataset_path` it is the demo's, or with `--resume FILE` that run's. Raises UserError.
    """
    return build(*READER.command_line(argv))


def build(given: dict, config_file: ConfigFile | None, notes: list[str]) -> Config:
    """The Config of what a command line gives, as READER.command_line() returns it."""
    saved = Path(given.get("resume", "")).parent / "config.yaml"
    if config_file is None and "dataset_path" not in given:
        if given.get("resume", "auto") != "auto" and saved.is_file():
            config_file = ConfigFile(saved, "")
            notes.append(f"no --config: using {saved} of the run that --resume names")
        else:
            config_file = ConfigFile(DEMO_CONFIG, "")
            notes.append(
                "no --dataset_path: training on the demo (configs/demo.yaml); for your own data: docs/your_data.md"
            )
    of_file = READER.yaml_file(config_file, notes) if config_file else {}
    if config_file and of_file.get("task", "train") != "train":
        raise UserError(f"{config_file.path}: task: {of_file['task']}: it belongs on the command line, as --task")
    if config_file and config_file.stage and of_file.get("name"):
        of_file["name"] += f"-{config_file.stage}"  # stages are runs of their own
    cfg = Config(**READER.merge(of_file, given), notes=notes)
    if not cfg.name:
        cfg.name = config_file.name if config_file else f"{cfg.dataset}_{cfg.model_type}"
    _check(cfg)
    return cfg


def as_dict(cfg: Config) -> dict:
    """The flags and their values, without those that belong to one launch."""
    return {name: getattr(cfg, name) for name, item in FLAGS.items() if not item.metadata["per_launch"]}


def dump(cfg: Config) -> str:
    """The resolved config as YAML, to repeat the run with `--config`."""
    return yaml.safe_dump(as_dict(cfg), sort_keys=False)


def changes(saved: dict, cfg: Config) -> str:
    """What differs between a saved config (as_dict) and this one, as "flag: old -> new, ..."."""
    now = as_dict(cfg)
    # A flag that the file does not know has come since.
    return ", ".join(f"{name}: {was} -> {now[name]}" for name, was in saved.items() if now.get(name, was) != was)


def _check(cfg: Config) -> None:
    """Raise UserError on values that are out of range or do not go together."""
    if not cfg.dist_timeout <= 2_592_000:
        raise UserError(f"--dist_timeout {cfg.dist_timeout:g}: must be at most 2592000 seconds, a month")
    if not 0 < cfg.ohem_fraction <= 1:
        raise UserError(f"--ohem_fraction {cfg.ohem_fraction}: must be above 0 and at most 1")
    try:
        parse_loss(cfg.loss)
    except ValueError as error:
        raise UserError(f"--loss {cfg.loss}: {error}") from None
    given_weights(cfg.class_weights, cfg.numclasses)
    if cfg.numclasses > 255:
        raise UserError(f"--numclasses {cfg.numclasses}: labels are 8 bit and 255 is 'ignore', so at most 255")
    if cfg.ema >= 1:
        raise UserError(f"--ema {cfg.ema}: must be below 1")
    if cfg.static_graph and cfg.accum_steps > 1:
        raise UserError(
            f"--static_graph with --accum_steps {cfg.accum_steps}: DistributedDataParallel cannot leave gradients unsummed "
            "in a static graph; drop one"
        )
    for name in ("reset_optimizer", "reset_data_offset"):
        if getattr(cfg, name) and not cfg.resume:
            raise UserError(f"--{name} without --resume: name the checkpoint to start from")
    if cfg.reset_data_offset and cfg.resume == "auto":
        raise UserError("--reset_data_offset with --resume auto: name the checkpoint, or each start begins at step 1")
    if cfg.label_smooth >= 1:
        raise UserError(f"--label_smooth {cfg.label_smooth}: must be below 1")
    if cfg.seed >= 2**63:
        raise UserError(f"--seed {cfg.seed}: must be below 2**63")
    if not cfg.max_steps and cfg.warmup_steps < 0 and not cfg.warmup_epochs < cfg.epochs:
        raise UserError(
            f"--warmup_epochs {cfg.warmup_epochs:g} with --epochs {cfg.epochs}: the learning rate would never "
            "reach --lr; give fewer warm-up epochs, or a number of optimizer steps by --warmup_steps"
        )
    if cfg.stride_in_1x1 and cfg.layers < 50:
        raise UserError(
            f"--stride_in_1x1 with --layers {cfg.layers}: only ResNet 50, 101 and 152 have 1x1 convolutions to carry it"
        )
    if not cfg.dataset_path:
        raise UserError("--dataset_path is not set: give the data set's root folder (docs/your_data.md)")
    if "/" in cfg.name or cfg.name in (".", ".."):
        raise UserError(f"--name {cfg.name}: a folder name, without '/'; --logdir says where it lies")

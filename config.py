"""Every flag, declared once: name, type, default, help, choices.

A value comes from the default, then a YAML file (`--config FILE`), then the command line (flags.py reads both).
"""

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from errors import UserError
from flags import FlagReader, flag

DEMO_CONFIG = Path(__file__).parent / "configs" / "demo.yaml"

# Names of earlier launch scripts, and ours.
ALIASES = {
    "pesudo_path": "pseudo_path",
    "l_pesudo": "l_pseudo",
    "l_segs": "l_seg",
    "warmup": "warmup_epochs",
    "warmup_epoch": "warmup_epochs",
    "chk_interval": "save_epoch_frequency",
    "val_epoch": "val_start_epoch",
    "model_path": "pretrained",
    "ddp": "distributed",
}


# What may differ between the ranks of a run: paths, and what belongs to a machine or a process.
LOCAL = (
    "dataset_path", "logdir", "classes", "resume", "workers", "device", "distributed", "dist_url", "world_size", "rank",
    "local_rank", "notes",
)  # fmt: skip


@dataclass
class Config:
    # Data
    dataset: str = flag(
        "ScribblePseudoDsDc",
        "which labels to train on",
        choices=(
            "Folder", "Dense", "ScribbleOnly", "PseudoOnly", "ScribblePseudo",
            "ScribblePseudoDs", "ScribblePseudoDc", "ScribblePseudoDsDc",
        ),
    )  # fmt: skip
    dataset_path: str = flag("", "root folder of the data set; the folders below are relative to it [the demo]")
    list_path: str = flag(
        "", "folder of train.txt and val.txt [ImageSets/SegmentationAug, else ImageSets/Segmentation; Folder: the root]"
    )
    image_path: str = flag("", "folder of the images [JPEGImages; Folder: images]")
    train_path: str = flag("", "folder of the training labels [pascal_2012_scribble; Dense, Folder: as --val_path]")
    val_path: str = flag("", "folder of the dense masks [SegmentationClassAug, else SegmentationClass; Folder: masks]")
    pseudo_path: str = flag("bmp_pseudolabel", "folder of the pseudo-labels")
    distancemap_s: str = flag("", "folder of the distance maps to the scribble [computed on the fly]")
    distancemap_c: str = flag("", "folder of the distance maps to the pseudo-label's contour [computed on the fly]")
    numclasses: int = flag(21, "number of classes, background included; labels are 0..numclasses-1, and 255 = ignore")
    classes: str = flag("", "names for tables and TensorBoard: voc, camvid, or a FILE with one a line [numbers]")
    crop_size: int = flag(465, "height and width of a training crop, in pixels")
    workers: int = flag(
        -1, "loader processes of each process; 0 loads in the process itself [4, or its share of the cores]"
    )

    # Model
    model_type: str = flag(
        "res50_ASPP_lorm",
        "architecture; --layers sets the depth whatever the name says",
        choices=("res50_ASPP_lorm", "res50_ASPP", "deeplabv3", "deeplabv3p", "deeplabv3p_lorm", "deeplabv2"),
    )
    layers: int = flag(50, "depth of the ResNet", choices=(18, 34, 50, 101, 152))
    pretrained: str = flag(
        "imagenet",
        "start weights: imagenet (torchvision's), none, or a FILE: ours, torchvision's or a released CDSP one",
    )
    stride_in_1x1: bool = flag(False, "stride of layer2's first block on its 1x1 convolution, as released CDSP weights")
    sync_bn: str = flag("auto", "synchronise batch norm over processes; auto: on CUDA", choices=("auto", "on", "off"))
    freeze_bn: bool = flag(False, "batch norm uses its stored statistics and does not update them")

    # Losses: total = sum of weight * loss over the terms that --dataset has labels for
    l_seg: float = flag(1.0, "weight of cross entropy on scribbles or dense masks")
    l_pseudo: float = flag(1.0, "weight of cross entropy on pseudo-labels")
    l_lorm: float = flag(1.0, "weight of the localization rectification loss (models *_lorm)")
    l_ds: float = flag(1.0, "weight of entropy near the scribble")
    l_dc: float = flag(1.0, "weight of entropy away from the pseudo-label's contour")
    label_smooth: float = flag(0.1, "label smoothing of the pseudo-label loss, 0 to below 1")

    # Optimisation
    epochs: int = flag(50, "number of passes over the training list")
    batchsize: int = flag(16, "images per process and forward pass; global batch = batchsize * accum_steps * processes")
    accum_steps: int = flag(1, "forward passes per optimizer step")
    lr: float = flag(1e-3, "base learning rate of SGD, before --lr_scaling")
    lr_scaling: str = flag(
        "linear", "multiply the lr by the world size, by its square root, or not", choices=("linear", "sqrt", "none")
    )
    warmup_epochs: float = flag(-1.0, "epochs of linear warm-up; cosine decay to 0 follows [a tenth of --epochs]")
    momentum: float = flag(0.9, "momentum of SGD")
    wdecay: float = flag(5e-4, "weight decay")
    amp: str = flag("none", "mixed precision; fp16 scales the loss", choices=("none", "bf16", "fp16"))
    ema: float = flag(
        0.0, "decay of an average of the weights, such as 0.999, that is validated and saved besides them; 0: none"
    )
    seed: int = flag(0, "seed of the initial weights, the order of samples and their augmentation")
    deterministic: bool = flag(
        False, "the same bits in every run on CUDA, too, where that is slower (docs/reliability.md)"
    )
    device: str = flag("auto", "auto (CUDA if there is one, else CPU), cpu, cuda or cuda:N")

    # Run folder
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
    save_step_frequency: int = flag(0, "write last.pt and step_NNNNNNNN.pt every N optimizer steps; 0: never")
    save_epoch_frequency: int = flag(0, "keep epoch_NNNN.pt every N epochs, besides last.pt and best.pt; 0: never")
    keep: int = flag(-1, "newest step_*.pt and epoch_*.pt to keep, of each; 0: all [3 of step_*.pt, all of epoch_*.pt]")
    val_epoch_frequency: int = flag(1, "validate every N epochs, and after the last one")
    val_start_epoch: int = flag(0, "do not validate in this many first epochs")
    log_interval: int = flag(10, "optimizer steps between two lines of metrics.jsonl")

    # Launch
    distributed: bool | None = flag(None, "join a process group [only under a launcher]; --no_distributed never does")
    backend: str = flag(
        "auto", "of the process group; auto: nccl on CUDA, gloo elsewhere", choices=("auto", "nccl", "gloo")
    )
    dist_url: str = flag("env://", "where processes meet: env://, tcp://HOST:PORT or file:///PATH", per_launch=True)
    world_size: int = flag(0, "number of processes [from the launcher]", per_launch=True)
    rank: int = flag(-1, "rank of this process [from the launcher]", per_launch=True)
    local_rank: int = flag(-1, "rank of this process on its machine [from the launcher, else --rank]", per_launch=True)
    dist_timeout: float = flag(600.0, "seconds to wait for other processes before giving up")
    check_sync_frequency: int = flag(
        0,
        "check every N steps that gradients and weights are equal on all ranks; after the first step it is always done",
    )
    find_unused_parameters: bool = flag(
        False, "let DistributedDataParallel look for parameters that a loss does not use"
    )
    static_graph: bool = flag(False, "tell DistributedDataParallel that every step uses the same parameters")

    # Not flags: filled in by parse()
    notes: list[str] = field(default_factory=list)  # lines to log once the run has started


READER = FlagReader(Config, ALIASES, "python train.py", "Train a semantic-segmentation model.")
FLAGS = READER.fields


def parse(argv: list[str] | None = None) -> Config:
    """Build the Config from `--config`'s file and the command line (default: sys.argv).

    Without `--config` and `--dataset_path` it is the demo's, or with `--resume FILE` that run's. Raises UserError.
    """
    given, config_file, notes = READER.command_line(argv)
    saved = Path(given.get("resume", "")).parent / "config.yaml"
    if config_file is None and "dataset_path" not in given:
        if given.get("resume", "auto") != "auto" and saved.is_file():
            config_file = saved
            notes.append(f"no --config: using {saved} of the run that --resume names")
        else:
            config_file = DEMO_CONFIG
            notes.append(
                "no --dataset_path and no --config: training on the demo data with configs/demo.yaml. "
                "For your own: --dataset_path DIR (README, 'Your own data')"
            )
    values = (READER.yaml_file(config_file, notes) if config_file else {}) | given
    cfg = Config(**values, notes=notes)
    if not cfg.name:
        cfg.name = config_file.stem if config_file else f"{cfg.dataset}_{cfg.model_type}"
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
    return ", ".join(f"{name}: {saved.get(name)} -> {now[name]}" for name in now if saved.get(name) != now[name])


# Smallest value allowed; the other numbers may be anything their type allows.
_AT_LEAST = {
    "numclasses": 2, "crop_size": 16, "workers": -1, "epochs": 1, "batchsize": 1, "accum_steps": 1, "lr": 0,
    "momentum": 0, "wdecay": 0, "label_smooth": 0, "l_seg": 0, "l_pseudo": 0, "l_lorm": 0, "l_ds": 0, "l_dc": 0,
    "seed": 0, "save_epoch_frequency": 0, "save_step_frequency": 0, "keep": -1, "ema": 0, "check_sync_frequency": 0, "val_epoch_frequency": 1, "val_start_epoch": 0, "log_interval": 1,
    "world_size": 0, "dist_timeout": 1,
}  # fmt: skip


def _check(cfg: Config) -> None:
    """Raise UserError on values that are out of range or do not go together."""
    for name, least in _AT_LEAST.items():
        if not getattr(cfg, name) >= least:  # also catches nan
            raise UserError(f"--{name} {getattr(cfg, name)}: must be at least {least}")
    if not cfg.dist_timeout <= 2_592_000:
        raise UserError(f"--dist_timeout {cfg.dist_timeout:g}: must be at most 2592000 seconds, a month")
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
    if not cfg.warmup_epochs < cfg.epochs:
        raise UserError(
            f"--warmup_epochs {cfg.warmup_epochs:g} with --epochs {cfg.epochs}: the learning rate would never "
            "reach --lr; give fewer warm-up epochs"
        )
    if cfg.stride_in_1x1 and cfg.layers < 50:
        raise UserError(
            f"--stride_in_1x1 with --layers {cfg.layers}: only ResNet 50, 101 and 152 have 1x1 convolutions to carry it"
        )
    if not cfg.dataset_path:
        raise UserError("--dataset_path is not set: give the data set's root folder (README, 'Your own data')")
    if "/" in cfg.name or cfg.name in (".", ".."):
        raise UserError(f"--name {cfg.name}: a folder name, without '/'; --logdir says where it lies")

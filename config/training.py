"""The flags of train.py."""

import re
from dataclasses import dataclass, field

from config.flags import flag
from config.losses import parse_loss, read_class_weights
from config.shared import DataFlags, LaunchFlags, ModelFlags, SizeFlags
from errors import UserError


@dataclass
class TrainDataFlags(SizeFlags):
    """Training data."""

    train_split: str = flag("train", "training split: name of its list or subfolder")
    train_path: str = flag("", "folder of the training labels [pascal_2012_scribble; Dense, Folder: as --val_path]")
    pseudo_path: str = flag("bmp_pseudolabel", "folder of the pseudo-labels", aliases="pesudo_path")
    distancemap_s: str = flag("", "folder of the distance maps to the scribble [computed on the fly]")
    distancemap_c: str = flag("", "folder of the distance maps to the pseudo-label's contour [computed on the fly]")
    crop_size: int = flag(465, "height and width of a training crop, in pixels", ge=16)
    augment: bool = flag(
        True, "scale, rotate, crop, blur and mirror at random; --no_augment: centre crop", aliases="use_augment"
    )
    val_workers: int = flag(
        -1, "loader processes of validation [--workers]", ge=-1, per_rank=True, aliases="valid_num_workers"
    )
    prefetch_factor: int = flag(2, "batches that each loader process loads in advance", ge=1)
    pin_memory: bool | None = flag(None, "load batches into page-locked memory [on CUDA]", aliases="pin_mem")
    cache: str = flag(
        "none",
        "decode training images once; ram: keep them in memory for this run (Linux); disk: in a file, for later runs",
        choices=("none", "ram", "disk"),
    )
    cache_gb: float = flag(
        0.0, "most GB (1e9 bytes) for a new --cache; 0: half of the available memory, or 90 % of the free disk", ge=0
    )
    cache_dir: str = flag(
        "", "folder for --cache disk; may be deleted at any time [.segtrain_cache in --dataset_path]", per_rank=True
    )


@dataclass
class TrainModelFlags:
    """Model in training."""

    pretrained: str = flag(
        "imagenet",
        "start weights: imagenet (torchvision's newest: V2 for ResNet-50, 101 and 152), imagenet_v1 (V1, as CDSP), "
        "none, or a FILE: ours, torchvision's or a released CDSP one",
        aliases="model_path",
    )
    head_init: str = flag(
        "default", "initial head and LoRM; release: as in CDSP, N(0, 2 / (k^2 C_out))", choices=("default", "release")
    )
    sync_bn: str = flag("auto", "synchronise batch norm over processes; auto: on CUDA", choices=("auto", "on", "off"))
    freeze_bn: bool = flag(False, "batch norm uses its stored statistics and does not update them")
    compile: bool = flag(
        False, "compile the model in training by torch.compile; the first step then takes minutes; needs a C++ compiler"
    )
    grad_checkpointing: bool = flag(
        False, "recompute backbone features in the backward pass to save memory", aliases="gradient_checkpointing"
    )


@dataclass
class LossFlags:
    """Losses (total = sum of weight * loss over the losses that --dataset has labels for)."""

    loss: str = flag("ce", "losses on scribbles or dense masks, added up: ce, focal, ohem, dice, lovasz, 0.5*dice")
    class_weights: str = flag(
        "none", "for ce, focal, ohem: none, balanced (by frequency), 1,2,0.5 or a FILE, one a line"
    )
    focal_gamma: float = flag(2.0, "power of 1 - p in focal", ge=0)
    ohem_fraction: float = flag(0.25, "fraction of each image's labelled pixels that ohem keeps", gt=0, le=1)
    l_seg: float = flag(1.0, "weight of --loss", ge=0, aliases="l_segs")
    l_pseudo: float = flag(1.0, "weight of cross entropy on pseudo-labels", ge=0, aliases="l_pesudo")
    l_lorm: float = flag(1.0, "weight of the localization rectification loss (models *_lorm)", ge=0)
    lorm_scope: str = flag(
        "foreground", "positions in the LoRM loss; all, as in CDSP: background too", choices=("foreground", "all")
    )
    l_ds: float = flag(1.0, "weight of the entropy loss on pixels near the scribble", ge=0)
    l_dc: float = flag(1.0, "weight of the entropy loss on pixels away from the pseudo-label's contour", ge=0)
    label_smooth: float = flag(0.1, "label smoothing of the pseudo-label loss", ge=0, lt=1)


@dataclass
class OptimFlags:
    """Optimization."""

    epochs: int = flag(50, "passes over the training list", ge=1, aliases="max_epochs num_train_epochs")
    max_steps: int = flag(0, "optimizer steps, instead of --epochs; 0: --epochs", ge=0, replaces="epochs")
    batchsize: int = flag(
        16,
        "images per process and forward pass (of all processes: --total_batchsize)",
        ge=1,
        aliases="batch_size per_device_train_batch_size samples_per_gpu",
    )
    total_batchsize: int = flag(
        0, "global batch, divided over processes; a new run keeps --lr; 0: --batchsize", ge=0, replaces="batchsize"
    )
    accum_steps: int = flag(
        1,
        "forward passes per optimizer step",
        ge=1,
        aliases="accumulation_steps grad_accumulation_steps gradient_accumulation_steps accumulate_grad_batches",
    )
    lr: float = flag(1e-3, "base learning rate of SGD, before --lr_scaling", ge=0, aliases="learning_rate lr0")
    lr_scaling: str = flag(
        "linear", "scale --lr by the world size; after --resume, by the batch ratio", choices=("linear", "sqrt", "none")
    )
    warmup_epochs: float = flag(
        -1.0,
        "epochs of linear warm-up (steps: --warmup_steps); cosine decay to 0 follows [a tenth of the run]",
        ge=-1,
        aliases="warmup warmup_epoch lr_warmup_epochs",
    )
    warmup_steps: int = flag(-1, "optimizer steps of warm-up [--warmup_epochs]", ge=-1, replaces="warmup_epochs")
    momentum: float = flag(0.9, "momentum of SGD", ge=0)
    wdecay: float = flag(5e-4, "weight decay", ge=0, aliases="wd weight_decay")
    ema: float = flag(
        0.0,
        "decay of an exponential moving average of the weights, such as 0.999; 0: no average",
        ge=0,
        lt=1,
        aliases="model_ema_decay",
    )
    zero1: bool = flag(False, "shard SGD's momentum over the processes (ZeroRedundancyOptimizer) to save memory")
    seed: int = flag(0, "seed of initial weights, sample order and augmentation", ge=0, lt=2**63)
    deterministic: bool = flag(
        False,
        "use deterministic algorithms: runs repeat bit for bit on CUDA too, but are slower there",
        aliases="use_deterministic_algorithms",
    )


@dataclass
class RunFlags:
    """Run folder."""

    task: str = flag(
        "train",
        "test runs evaluate.py, predict predict.py, both on best.pt of the newest run",
        choices=("train", "test", "predict"),
        per_launch=True,
    )
    logdir: str = flag("log", "folder of all runs", per_rank=True, aliases="logs save_dir")
    name: str = flag("", "the run's folder in --logdir [the config's name, else dataset and model]")
    resume: str = flag(
        "",
        "checkpoint FILE to resume, or auto: the newest run of --name, if any [a new run]",
        per_launch=True,
        per_rank=True,
        aliases="resume_from resume_from_checkpoint",
    )
    reset_optimizer: bool = flag(False, "--resume without the optimizer's momentum, to fine-tune", per_launch=True)
    reset_data_offset: bool = flag(False, "--resume in a new folder from step 1, to fine-tune", per_launch=True)
    save_step_frequency: int = flag(0, "save last.pt and step_NNNNNNNN.pt every N steps; 0: never", ge=0)
    save_epoch_frequency: int = flag(0, "keep epoch_NNNN.pt every N epochs; 0: never", ge=0, aliases="chk_interval")
    keep: int = flag(-1, "newest step_*.pt and epoch_*.pt to keep; 0: all [3 of step_*.pt, all of epoch_*.pt]", ge=-1)
    val_epoch_frequency: int = flag(
        1, "validate every N epochs; 0: at the end", ge=0, aliases="valid_epoch_interval check_val_every_n_epoch"
    )
    val_step_frequency: int = flag(0, "also validate every N steps; 0: never", ge=0, aliases="valid_step_interval")
    val_start_epoch: int = flag(0, "do not validate in the first N epochs", ge=0, aliases="val_epoch")
    log_interval: int = flag(10, "optimizer steps between two lines of metrics.jsonl", ge=1)
    report_training_batch_acc: bool = flag(False, "also log the pixel accuracy on training batches")
    wandb: bool = flag(False, "also log to Weights & Biases; WANDB_* variables apply", aliases="log_wandb")


@dataclass
class CheckFlags:
    """Checks of the process group."""

    check_sync_frequency: int = flag(0, "check every N steps that ranks agree on gradients and weights; 0: once", ge=0)
    find_unused_parameters: bool = flag(False, "let DistributedDataParallel look for parameters that no loss uses")
    static_graph: bool = flag(
        False, "set static_graph=True in DistributedDataParallel: every step must use the same parameters"
    )


@dataclass
class Config(
    DataFlags, TrainDataFlags, ModelFlags, TrainModelFlags, LossFlags, OptimFlags, RunFlags, CheckFlags, LaunchFlags
):
    """The flags of train.py."""

    notes: list[str] = field(default_factory=list)  # not a flag: lines to log once the run has started


def check(cfg: Config) -> None:
    """Raise UserError if flags contradict each other or --loss, --class_weights, --dataset_path or --name is bad."""
    try:
        parse_loss(cfg.loss)
    except ValueError as error:
        raise UserError(f"--loss {cfg.loss}: {error}") from None
    read_class_weights(cfg.class_weights, cfg.numclasses)
    if cfg.static_graph and cfg.accum_steps > 1:
        raise UserError(
            f"--static_graph with --accum_steps {cfg.accum_steps}: DistributedDataParallel cannot accumulate gradients "
            "in a static graph; drop one"
        )
    for name in ("reset_optimizer", "reset_data_offset"):
        if getattr(cfg, name) and not cfg.resume:
            raise UserError(f"--{name} without --resume: add --resume FILE, the checkpoint to start from")
    for name in ("cache_gb", "cache_dir"):
        if getattr(cfg, name) and cfg.cache == "none":
            raise UserError(f"--{name} without --cache: add --cache ram or disk, or drop it")
    if cfg.cache_dir and cfg.cache == "ram":
        raise UserError(f"--cache_dir {cfg.cache_dir} with --cache ram, which has no file: use disk, or drop it")
    for name in ("distancemap_s", "distancemap_c"):
        if getattr(cfg, name) and cfg.long_side:
            raise UserError(
                f"--{name} {getattr(cfg, name)} with --long_side {cfg.long_side}: the distances in the files are in "
                "pixels of the images as they are: drop it, and they are computed at that size"
            )
    if cfg.reset_data_offset and cfg.resume == "auto":
        raise UserError("--reset_data_offset with --resume auto: give a FILE, or each start begins at step 1")
    if not cfg.max_steps and cfg.warmup_steps < 0 and not cfg.warmup_epochs < cfg.epochs:
        raise UserError(
            f"--warmup_epochs {cfg.warmup_epochs:g} with --epochs {cfg.epochs}: the learning rate would never "
            "reach --lr; give fewer warm-up epochs, or a number of optimizer steps by --warmup_steps"
        )
    check_backbone(cfg)
    if cfg.stride_in_1x1 and cfg.layers < 50:
        raise UserError(
            f"--stride_in_1x1 with --layers {cfg.layers}: only ResNet-50, 101 and 152 have 1x1 convolutions"
        )
    if not cfg.dataset_path:
        raise UserError("--dataset_path is not set: give the data set's root folder (docs/your_data.md)")
    if "/" in cfg.name or cfg.name in (".", ".."):
        raise UserError(f"--name {cfg.name}: must be a folder name without '/'; --logdir is its parent folder")


def check_backbone(cfg: Config) -> None:
    """Raise UserError if --backbone is not known or contradicts other flags."""
    if cfg.backbone != "resnet" and not re.fullmatch(r"timm:.+", cfg.backbone):
        raise UserError(f"--backbone {cfg.backbone}: use resnet, with --layers, or timm:NAME, such as timm:resnet50")
    if cfg.backbone == "resnet" and cfg.output_stride not in (0, 8):
        raise UserError(
            f"--output_stride {cfg.output_stride}: torchvision's ResNet has 8: use --backbone timm:resnet{cfg.layers}"
        )
    if cfg.backbone != "resnet" and cfg.stride_in_1x1:
        raise UserError(f"--stride_in_1x1 with --backbone {cfg.backbone}: only torchvision's ResNet has it: drop one")

"""The flags of train.py."""

from dataclasses import dataclass, field

from config.augmentation import AugmentationFlags
from config.flags import flag
from config.optimisation import OptimFlags
from config.shared import DataFlags, LaunchFlags, ModelFlags, SizeFlags


@dataclass
class TrainDataFlags(SizeFlags):
    """Training data."""

    train_split: str = flag("train", "training split: name of its list or subfolder")
    train_path: str = flag("", "folder of the training labels [pascal_2012_scribble; Dense, Folder: as --val_path]")
    pseudo_path: str = flag("bmp_pseudolabel", "folder of the pseudo-labels", aliases="pesudo_path")
    distancemap_s: str = flag("", "folder of the distance maps to the scribble [computed on the fly]")
    distancemap_c: str = flag("", "folder of the distance maps to the pseudo-label's contour [computed on the fly]")
    crop_size: int = flag(465, "height and width of a training crop, in pixels [recipe]", ge=16)


@dataclass
class TrainModelFlags:
    """Model in training."""

    pretrained: str = flag(
        "imagenet",
        "start weights: imagenet (torchvision's newest: V2 for ResNet-50, 101 and 152), imagenet_v1 (V1, as CDSP), "
        "coco (a whole deeplabv3_torchvision with VOC's classes), none, or a FILE: ours, torchvision's or a released "
        "CDSP one",
        aliases="model_path",
    )
    head_init: str = flag(
        "default", "initial head and LoRM; release: as in CDSP, N(0, 2 / (k^2 C_out))", choices=("default", "release")
    )
    sync_bn: str = flag("auto", "synchronise batch norm over processes; auto: on CUDA", choices=("auto", "on", "off"))
    freeze_bn: bool = flag(False, "batch norm uses its stored statistics and does not update them")
    freeze_backbone: int = flag(
        0,
        "freeze the backbone's first N parts: conv1 and layer1 to layer4 of a ResNet, stem and stages of a timm "
        "network, embedding and blocks of a ViT",
        ge=0,
    )
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
class RunFlags:
    """Run folder."""

    task: str = flag(
        "train",
        "test runs evaluate.py, predict predict.py, both on best.pt of the newest run",
        choices=("train", "test", "predict"),
        per_launch=True,
    )
    logdir: str = flag("log", "folder of all runs", per_rank=True)
    name: str = flag("", "the run's folder in --logdir [the config's name, else dataset and model]")
    resume: str = flag(
        "",
        "checkpoint FILE to resume, or auto: the newest run of --name, if any [a new run]",
        per_launch=True,
        per_rank=True,
        aliases="resume_from_checkpoint",
    )
    reset_optimizer: bool = flag(False, "--resume without the optimizer's state, to fine-tune", per_launch=True)
    reset_data_offset: bool = flag(False, "--resume in a new folder from step 1, to fine-tune", per_launch=True)
    save_step_frequency: int = flag(0, "save last.pt and step_NNNNNNNN.pt every N steps; 0: never", ge=0)
    save_epoch_frequency: int = flag(0, "keep epoch_NNNN.pt every N epochs; 0: never", ge=0, aliases="chk_interval")
    keep: int = flag(-1, "newest step_*.pt and epoch_*.pt to keep; 0: all [3 of step_*.pt, all of epoch_*.pt]", ge=-1)
    val_epoch_frequency: int = flag(1, "validate every N epochs; 0: at the end", ge=0)
    val_step_frequency: int = flag(0, "also validate every N steps; 0: never [recipe]", ge=0)
    val_start_epoch: int = flag(0, "do not validate in the first N epochs", ge=0, aliases="val_epoch")
    patience: int = flag(0, "end the run when N validations in a row have not improved the best mIoU; 0: never", ge=0)
    log_interval: int = flag(10, "optimizer steps between two lines of metrics.jsonl", ge=1)
    report_training_batch_acc: bool = flag(False, "also log the pixel accuracy on training batches")
    wandb: bool = flag(False, "also log to Weights & Biases; WANDB_* variables apply")


@dataclass
class CheckFlags:
    """Checks of the process group."""

    check_sync_frequency: int = flag(0, "check every N steps that ranks agree on gradients and weights; 0: once", ge=0)
    find_unused_parameters: bool = flag(False, "let DistributedDataParallel look for parameters that no loss uses")


@dataclass
class Config(
    DataFlags, TrainDataFlags, AugmentationFlags, ModelFlags, TrainModelFlags, LossFlags, OptimFlags, RunFlags,
    CheckFlags, LaunchFlags,
):  # fmt: skip
    """The flags of train.py."""

    # Not flags:
    notes: list[str] = field(default_factory=list)  # lines to log once the run has started
    given: frozenset[str] | None = None  # names of the flags that are set; None: all of them

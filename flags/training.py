"""The flags of train.py."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flags.declare import flag
from flags.loss_weights import LOSSES
from flags.shared import MODEL_TYPES, DataFlags, ImageFlags, LaunchFlags, ModelFlags
from support.labels import MAPS

DOWNLOADED = ("imagenet", "imagenet_v1", "coco")  # values of --pretrained: weights of torchvision's networks, or timm's


def of_map(name: str) -> Callable:
    """Return flag() for flags of a training map: they need a --dataset that has the map."""
    datasets = [dataset for dataset, maps in MAPS.items() if name in maps]
    return partial(flag, needs=(f"--dataset {', '.join(datasets)}", lambda flags: flags.dataset in datasets))


def has_lorm(flags: Any) -> bool:
    return flags.model_type in MODEL_TYPES and flags.model_type.endswith("_lorm") and "pseudo" in MAPS[flags.dataset]


_of_label, _of_pseudo, _of_distance_s, _of_distance_c = map(of_map, ("label", "pseudo", "distance_s", "distance_c"))
_of_lorm = partial(flag, needs=("a --model_type *_lorm and a --dataset with pseudo-labels", has_lorm))
_augment = partial(flag, needs=("--augment", lambda flags: flags.augment))
_on_resume = partial(flag, per_launch=True, needs=("--resume FILE", lambda flags: flags.resume))
SGD, ADAMW = ((f"--optimizer {name}", lambda flags, name=name: flags.optimizer == name) for name in ("sgd", "adamw"))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TrainDataFlags(ImageFlags):
    """Training data."""

    train_split: str = flag("train", "training split: name of its list or subfolder")
    train_path: str = flag("", "folder of the training labels [pascal_2012_scribble; Dense, Folder: as --val_path]")
    pseudo_path: str = _of_pseudo(
        "bmp_pseudolabel",
        "folder of the pseudo-labels",
        never_empty=True,
        renamed={"pesudo_path": "--pseudo_path here"},
    )
    distancemap_s: str = _of_distance_s("", "folder of the distance maps to the scribble [computed on the fly]")
    distancemap_c: str = _of_distance_c(
        "", "folder of the distance maps to the pseudo-label's contour [computed on the fly]"
    )
    stretch: tuple[float, ...] = flag(
        (),
        "percentiles of the training images' values that become 0 and 255 [2 98 if images have more than 8 bits]",
        ge=0,
        le=100,
    )
    crop_size: int = flag(465, "height and width of a training crop, in pixels [recipe]", ge=16, le=16384)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AugmentationFlags:
    """Augmentation."""

    augment: bool = flag(True, "change training samples at random; --no_augment: centre crop", aliases="use_augment")
    scale: tuple[float, ...] = _augment((0.5, 2.0), "least and largest scale factor; 1 1: keep the size", gt=0)
    rotation: float = _augment(
        10.0, "largest angle in degrees, both ways; half of the samples are rotated", ge=0, le=180
    )
    flip_horizontal: bool = _augment(True, "flip half of the samples left to right")
    flip_vertical: bool = _augment(
        False, "flip half of the samples upside down (images without a top, such as aerial ones)"
    )
    quarter_turns: bool = _augment(False, "turn by 0, 90, 180 or 270 degrees (images without a top)")
    transform: str = flag("", "augmentation of your own: FILE.py:NAME or PACKAGE.MODULE:NAME, after the others")
    blur: float = _augment(0.5, "share of the samples with a 5x5 Gaussian blur", ge=0, le=1)
    brightness: float = _augment(0.0, "multiply values by a random factor from 1 - N to 1 + N [recipe]", ge=0, le=1)
    contrast: float = _augment(0.0, "scale differences from the mean colour by 1 - N to 1 + N [recipe]", ge=0, le=1)
    saturation: float = _augment(0.0, "scale differences from grey by 1 - N to 1 + N (RGB images) [recipe]", ge=0, le=1)
    hue: float = _augment(
        0.0, "shift hues by up to N of the colour circle, either way (RGB images) [recipe]", ge=0, le=0.5
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TrainModelFlags:
    """Model in training."""

    pretrained: str = flag(
        "imagenet",
        "start weights: imagenet (torchvision's newest: V2 for ResNet-50, 101 and 152), imagenet_v1 (V1, as CDSP), "
        "coco (a whole deeplabv3_torchvision with VOC's classes), none, or a FILE: ours, torchvision's or a released "
        "CDSP one, which also sets the flags of its network that you do not set",
        never_empty=True,
        synonyms={name: name for name in (*DOWNLOADED, "none")},  # IMAGENET is no file
        renamed={"model_path": "--pretrained here, for start weights"},
    )
    head_init: str = flag(
        "default", "initial head and LoRM; release: as in CDSP, N(0, 2 / (k^2 C_out))", choices=("default", "release")
    )
    sync_bn: str = flag(
        "auto",
        "synchronise batch norm over processes; auto: on CUDA",
        choices=("auto", "on", "off"),
        needs=("--no_freeze_bn", lambda flags: not flags.freeze_bn),
    )
    freeze_bn: bool = flag(False, "batch norm uses its stored statistics and does not update them")
    freeze_backbone: int = flag(
        0,
        "freeze the backbone's first N parts: conv1 and layer1 to layer4 of a ResNet, stem and stages of a timm "
        "network, embedding and blocks of a ViT",
        ge=0,
    )
    fused_blocks: str = flag(
        "auto",
        "fuse batch norm, ReLU and convolution, so that the backward pass keeps about half as much; off is faster on a "
        "GPU; auto: off for a ResNet on a GPU with enough memory, else on",
        choices=("auto", "on", "off"),
    )
    cuda_graph: bool = flag(
        False,
        "capture the network as CUDA graphs in training, so that the GPU does not wait for a slow CPU; with several "
        "GPUs, add --sync_bn off",
        needs=("--no_grad_checkpointing", lambda flags: not flags.grad_checkpointing),
    )
    compile: bool = flag(
        False, "compile the model in training by torch.compile; the first step then takes minutes; needs a C++ compiler"
    )
    grad_checkpointing: bool = flag(
        False, "recompute backbone features in the backward pass to save memory", aliases="gradient_checkpointing"
    )

    @property
    def start_file(self) -> str:
        """Return the file that --pretrained names; "" if it names none."""
        return "" if self.pretrained in (*DOWNLOADED, "none") else self.pretrained


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LossFlags:
    """Losses (total = sum of weight * loss over the losses whose maps --dataset has)."""

    # --l_NAME is the weight of the term NAME of losses/terms.py.

    loss: str = _of_label(
        "ce", f"losses on scribbles or dense masks, added up: {', '.join(LOSSES)}, 0.5*dice, FILE.py:NAME [recipe]"
    )
    class_weights: str = _of_label("none", "for ce: none, balanced (by frequency), or numbers, one a class: 1,2,0.5")
    l_seg: float = _of_label(1.0, "weight of --loss", ge=0, renamed={"l_segs": "--l_seg here"})
    l_pseudo: float = _of_pseudo(
        1.0, "weight of cross entropy on pseudo-labels", ge=0, renamed={"l_pesudo": "--l_pseudo here"}
    )
    l_lorm: float = _of_lorm(1.0, "weight of the localization rectification loss (models *_lorm)", ge=0)
    lorm_scope: str = _of_lorm(
        "foreground", "positions in the LoRM loss; all, as in CDSP: background too", choices=("foreground", "all")
    )
    l_ds: float = _of_distance_s(1.0, "weight of the entropy loss on pixels near the scribble", ge=0)
    l_dc: float = _of_distance_c(1.0, "weight of the entropy loss on pixels away from the pseudo-label's contour", ge=0)
    l_crf: float = flag(
        0.0, "weight of the CRF loss (neighbours of one colour get one class), reached in mid-run [recipe]", ge=0
    )
    label_smooth: float = _of_pseudo(0.1, "label smoothing of the pseudo-label loss", ge=0, lt=1)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OptimFlags:
    """Optimization."""

    epochs: int = flag(50, "epochs of the run [recipe: steps instead]", ge=1, aliases="max_epochs")
    max_steps: int = flag(0, "optimizer steps, instead of --epochs; 0: --epochs [recipe]", ge=0, replaces="epochs")
    repeat: int = flag(
        1,
        "passes over the training list in an epoch, each in another order and augmented anew [recipe]",
        ge=1,
        le=10**6,
    )
    batchsize: int = flag(
        16,
        "images per process and forward pass (of all processes: --total_batchsize) [recipe]",
        ge=1,
        le=65536,
        renamed={"batch_size": "images per process here; for all processes use --total_batchsize"},
    )
    total_batchsize: int = flag(
        0,
        "global batch, divided over processes; a new run keeps --lr; 0: --batchsize",
        ge=0,
        le=2**24,
        replaces="batchsize",
    )
    accum_steps: int = flag(
        1,
        "forward passes per optimizer step [recipe: 1, if the GPU has room]",
        ge=1,
        aliases="gradient_accumulation_steps grad_accumulation_steps accumulation_steps",
    )
    optimizer: str = flag("sgd", "sgd (with --momentum) or adamw (with --betas) [recipe]", choices=("sgd", "adamw"))
    lr: float = flag(1e-3, "base learning rate, before --lr_scaling [recipe]", ge=0, aliases="learning_rate")
    lr_scaling: str = flag(
        "linear",
        "scale --lr by the world size; after --resume, by the batch ratio [linear; recipe for adamw]",
        choices=("linear", "sqrt", "none"),
    )
    warmup_epochs: float = flag(
        -1.0,
        "epochs of linear warm-up (steps: --warmup_steps); --schedule follows [a tenth of the run]",
        ge=-1,
        renamed={"warmup": "epochs here; for steps use --warmup_steps", "warmup_epoch": "--warmup_epochs here"},
    )
    warmup_steps: int = flag(-1, "optimizer steps of warm-up [--warmup_epochs]", ge=-1, replaces="warmup_epochs")
    schedule: str = flag(
        "cosine",
        "learning rate after the warm-up: cosine to 0, poly (to 0, with power 0.9) or constant",
        choices=("cosine", "poly", "constant"),
    )
    momentum: float = flag(0.9, "momentum of sgd", ge=0, needs=SGD)
    betas: tuple[float, ...] = flag(
        (0.9, 0.999), "decay rates of adamw's averages of gradients and of their squares", ge=0, lt=1, needs=ADAMW
    )
    wdecay: float = flag(5e-4, "weight decay [5e-4; recipe for adamw]", ge=0, aliases="weight_decay wd")
    decay_norm_bias: bool = flag(
        True, "--no_decay_norm_bias: no weight decay on norms and biases, nor on a ViT's position embeddings and tokens"
    )
    head_lr_factor: float = flag(1.0, "multiply the learning rate of the head and LoRM by this [1; recipe]", gt=0)
    clip_grad: float = flag(
        0.0, "clip the gradient to this 2-norm over all parameters; 0: off", ge=0, aliases="max_grad_norm"
    )
    ema: float = flag(
        0.0, "decay of an exponential moving average of the weights, such as 0.999; 0: no average", ge=0, lt=1
    )
    seed: int = flag(0, "seed of initial weights, sample order and augmentation", ge=0, lt=2**63)
    deterministic: bool = flag(
        False, "use deterministic algorithms: runs repeat bit for bit on CUDA too, but are slower there"
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class RunFlags:
    """Run folder."""

    task: str = flag(
        "train",
        "train; test: score best.pt of the run --name by evaluate.py; predict: use it by predict.py",
        choices=("train", "test", "predict"),
        per_launch=True,
    )
    logdir: str = flag(
        "log",
        "folder of all runs",
        never_empty=True,
        per_rank=True,
        aliases="logs",
        renamed={"save_dir": "folder of all runs here; this run is its subfolder --name"},
    )
    name: str = flag(
        "",
        "the run's folder in --logdir, such as a or sweep/a [the config's name, else dataset and model, or the data's "
        "folder]",
        never_empty=True,
    )
    resume: str = flag(
        "",
        "checkpoint FILE to resume, or auto: the newest run of --name, if any [a new run]",
        never_empty=True,
        per_launch=True,
        per_rank=True,
        aliases="resume_from_checkpoint",
    )
    reset_optimizer: bool = _on_resume(False, "--resume without the optimizer's state, to fine-tune")
    reset_data_offset: bool = _on_resume(False, "--resume in a new folder from step 1, to fine-tune")
    save_step_frequency: int = flag(0, "save last.pt and step_NNNNNNNN.pt every N steps; 0: never", ge=0)
    save_epoch_frequency: int = flag(
        0, "keep epoch_NNNN.pt every N epochs; 0: never", ge=0, renamed={"chk_interval": "--save_epoch_frequency here"}
    )
    keep: int = flag(
        -1,
        "newest step_*.pt and epoch_*.pt to keep; 0: all [3 of step_*.pt, all of epoch_*.pt]",
        ge=-1,
        needs=(
            "--save_step_frequency or --save_epoch_frequency",
            lambda flags: flags.save_step_frequency or flags.save_epoch_frequency,
        ),
    )
    val_epoch_frequency: int = flag(1, "validate every N epochs; 0: at the end", ge=0, aliases="valid_epoch_interval")
    val_step_frequency: int = flag(
        0, "also validate every N steps; 0: never [recipe]", ge=0, aliases="valid_step_interval"
    )
    val_start_epoch: int = flag(
        0,
        "do not validate in the first N epochs",
        ge=0,
        renamed={"val_epoch": "--val_start_epoch here"},
        needs=("--val_epoch_frequency above 0", lambda flags: flags.val_epoch_frequency),
    )
    val_workers: int = flag(
        -1, "loader processes of validation [as --workers]", ge=-1, per_rank=True, aliases="valid_num_workers"
    )
    patience: int = flag(
        0,
        "end the run when N validations in a row have not improved the best score; 0: never",
        ge=0,
        needs=(
            "--val_epoch_frequency or --val_step_frequency above 0",
            lambda flags: flags.val_epoch_frequency or flags.val_step_frequency,
        ),
    )
    log_interval: int = flag(10, "optimizer steps between two lines of metrics.jsonl", ge=1)
    report_training_batch_acc: bool = flag(False, "also log the pixel accuracy of training batches, as pixel_acc")
    wandb: bool = flag(False, "also log to Weights & Biases; WANDB_* variables work, such as WANDB_MODE=offline")

    @property
    def kept_files(self) -> dict[str, int]:
        """Return {"step" or "epoch": number of the newest step_*.pt or epoch_*.pt to keep; 0: all}."""
        return {"step": 3 if self.keep < 0 else self.keep, "epoch": max(0, self.keep)}


@dataclass(frozen=True, eq=False)  # to make __eq__ of so many fields would slow down --help
class Config(
    DataFlags, TrainDataFlags, AugmentationFlags, ModelFlags, TrainModelFlags, LossFlags, OptimFlags, RunFlags,
    LaunchFlags,
):  # fmt: skip
    """The flags of train.py."""

    # Not flags:
    notes: list[str] = field(default_factory=list)  # lines to log once the run has started
    given: frozenset[str] = frozenset()  # names of the flags that are set, on the command line or in the file
    typed: frozenset[str] = frozenset()  # of them, those whose lack of effect is an error: the command line's, mostly
    config_file: Any = None  # the reader.ConfigFile of --config, or None
    task_flags: dict[str, Any] = field(default_factory=dict)  # for the program that does --task test or predict
    # Once read: {"classes", "label_map": the text of its file}, and {a flag that names code: the digests of its files}.
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def leaves_layout_open(self) -> bool:
        """Whether --dataset and the folders are to be found in --dataset_path."""
        return self.given.isdisjoint(("dataset", "pseudo_path", "distancemap_s", "distancemap_c"))

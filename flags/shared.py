"""Flags that several programs share."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from flags.declare import flag
from support.errors import UserError
from support.labels import MAPS
from support.user_code import is_code, is_own_network

# {--model_type: whether --head_channels sets the width of its head}, as the classes in models/heads.py say.
MODEL_TYPES = {
    "res50_ASPP_lorm": False,
    "res50_ASPP": False,
    "deeplabv3": True,
    "deeplabv3_torchvision": True,
    "deeplabv3p": True,
    "deeplabv3p_lorm": True,
    "deeplabv3p_cdsp": False,
    "deeplabv3p_cdsp_lorm": False,
    "deeplabv2": False,
    "linear": False,
    "deeplabv3p_multi": True,
    "deeplabv3p_multi_lorm": True,
}
# The flags of a network. The weights of a head fit only the backbone that they were trained on.
BACKBONE_FLAGS = ("backbone", "layers", "output_stride", "stride_in_1x1")
HEAD_FLAGS = ("model_type", "model_args", "head_channels")
WIDE_HEADS = f"--model_type {', '.join(name for name, is_wide in MODEL_TYPES.items() if is_wide)}"


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DataFlags:
    """Data set."""

    dataset: str = flag(
        "ScribblePseudoDsDc", "labels to train on [train.py: found in --dataset_path]", choices=tuple(MAPS)
    )
    dataset_path: str = flag("", "data set's root folder; other folders are relative to it [the demo]", per_rank=True)
    list_path: str = flag("", "folder of the lists [ImageSets/SegmentationAug or ImageSets/Segmentation; Folder: root]")
    image_path: str = flag("", "folder of the images [JPEGImages; Folder: images]")
    val_path: str = flag(
        "",
        "folder of the dense masks [SegmentationClassAug or SegmentationClass; Folder: masks, labels or annotations]",
    )
    val_split: str = flag("val", "validation split: name of its list or subfolder")
    image_suffix: str = flag(
        "", "ending of image names, before .jpg or .png, that label names lack, such as _leftImg8bit"
    )
    label_suffix: str = flag("", "ending of label names, before .png, that image names lack, such as _mask")
    label_map: str = flag(
        "",
        "map label values to class numbers by ade20k, binary, cityscapes, cocostuff, threshold or a FILE [none]",
        per_rank=True,
    )


def check_reading(bands: tuple[int, ...], value_range: tuple[float, ...], stretch: tuple[float, ...] = ()) -> None:
    """Raise UserError if one of these flags has a wrong number of values, or a low value is not below the high one."""
    if len(bands) not in (0, 1, 3):
        raise UserError(f"--bands {' '.join(map(str, bands))}: give one band or three, such as --bands 4 3 2")
    pairs = zip(value_range[::2], value_range[1::2], strict=False)
    if len(value_range) not in (0, 2, 6) or any(low >= high for low, high in pairs):
        given = " ".join(f"{value:g}" for value in value_range)
        raise UserError(f"--value_range {given}: give LOW and a larger HIGH, or three such pairs")
    if stretch and (len(stretch) != 2 or stretch[0] >= stretch[1]):
        given = " ".join(f"{value:g}" for value in stretch)
        raise UserError(f"--stretch {given}: give a low and a higher percentile, such as --stretch 2 98")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ImageFlags:
    """Images."""

    bands: tuple[int, ...] = flag(
        (),
        "bands of image files for red, green and blue, counted from 1; or one for all three [the checkpoint's; "
        "train.py: 1 2 3, or 1 if there is no other]",
        ge=1,
        le=65536,
    )
    value_range: tuple[float, ...] = flag(
        (),
        "LOW HIGH, the values that become 0 and 255, or three such pairs in the order of --bands [the checkpoint's; "
        "train.py: none for 8-bit images, else measured by --stretch]",
    )
    long_side: int = flag(
        0,
        "resize images to this longer side, at least 16 pixels, at scale 1; 0: keep their size [0; train.py: recipe]",
        ge=0,
        le=65536,
    )
    window: int = flag(
        0,
        "predict by sliding windows of this height and width, at least 16 pixels; 0: the whole image at once",
        ge=0,
        le=65536,
    )
    stride_rate: float = flag(
        2 / 3,
        "step between windows, as a fraction of the window",
        gt=0,
        le=1,
        needs=("--window", lambda flags: flags.window),
    )

    def __post_init__(self) -> None:
        for name, no_limit in (("long_side", "keep the images' size"), ("window", "predict whole images")):
            if 0 < (pixels := getattr(self, name)) < 16:
                raise UserError(f"--{name} {pixels}: give 16 pixels or more, or 0 to {no_limit}")
        check_reading(self.bands, self.value_range)

    @property
    def window_options(self) -> dict[str, Any]:
        """Return the keyword arguments of inference.predictor.Predictor that these flags set."""
        return {"long_side": self.long_side, "window": self.window, "stride_rate": self.stride_rate}

    @property
    def reading(self) -> dict[str, Any]:
        """Return the keyword arguments of data.images.reader.ImageReader that these flags set."""
        return {"bands": self.bands, "value_range": self.value_range}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ModelFlags:
    """Model."""

    model_type: str = flag(
        "res50_ASPP_lorm",
        "architecture; res50_ASPP_lorm is CDSP's deeplabv2; or a network of your own: FILE.py:NAME, "
        "PACKAGE.MODULE:NAME or smp:NAME [the checkpoint's; train.py: res50_ASPP, or deeplabv3p_multi for "
        "timm, plus _lorm with pseudo-labels]",
        choices=tuple(MODEL_TYPES),
        accepts=("FILE.py:NAME, PACKAGE.MODULE:NAME or smp:NAME", is_own_network),
    )
    model_args: tuple[str, ...] = flag(
        (),
        "arguments of the function that builds your own network, NAME=VALUE ...; in YAML a section model_args",
        takes_mapping=True,
        needs=("--model_type FILE.py:NAME or smp:NAME", lambda flags: is_own_network(flags.model_type)),
    )
    backbone: str = flag(
        "resnet", "resnet: torchvision's, with --layers; timm:NAME: a network of timm (needs the package timm)"
    )
    layers: int = flag(50, "depth of the ResNet [50; train.py: recipe]", choices=(18, 34, 50, 101, 152))
    output_stride: int = flag(
        0,
        "stride of a timm network's deepest features; 0: 16, or its own if that cannot be changed; resnet has 8",
        choices=(0, 8, 16, 32),
    )
    head_channels: int = flag(
        256,
        f"channels of the head, with {WIDE_HEADS}",
        ge=8,
        le=8192,
        needs=(WIDE_HEADS, lambda flags: MODEL_TYPES.get(flags.model_type, False)),
    )
    stride_in_1x1: bool = flag(
        False,
        "put layer2's stride into its first 1x1 convolution; released CDSP files turn this on",
        needs=(
            "--backbone resnet of 50 --layers or more",
            lambda flags: flags.backbone == "resnet" and flags.layers >= 50 and flags.model_type in MODEL_TYPES,
        ),
    )
    numclasses: int = flag(
        21, "classes, background included; 255 = ignore [train.py: found]", ge=2, le=255, aliases="num_classes"
    )
    classes: str = flag(
        "",
        "class names and colours: voc, camvid, cityscapes, ade20k, cocostuff or a FILE [classes.txt of the data]",
        per_rank=True,
    )
    background: str = flag(
        "0", "class of the background; none: every class is an object [0; train.py: recipe]", choices=("0", "none")
    )
    amp: str = flag(
        "auto",
        "mixed precision; fp16 scales the loss; auto: as the checkpoint, if any; else bf16 if it is native, or none",
        choices=("auto", "none", "bf16", "fp16"),
        aliases="use_mixed_precision",
        synonyms={"true": "auto", "false": "none"},
    )
    val_batchsize: int = flag(
        4, "images of one size, or windows, per forward pass of validation", ge=1, le=65536, aliases="valid_batch_size"
    )

    @property
    def network(self) -> str:
        """Return the backbone's name for people: ResNet-50, timm:convnext_tiny, or "own" if it is the user's code."""
        if is_code(self.model_type):
            return "own"
        return f"ResNet-{self.layers}" if self.backbone == "resnet" else self.backbone

    @property
    def architecture(self) -> dict:
        """Return the keyword arguments of models.build() beside model_type that say which weights the model has."""
        names = (name for name in (*BACKBONE_FLAGS, *HEAD_FLAGS) if name != "model_type")
        return {name: getattr(self, name) for name in names} | {"num_classes": self.numclasses}

    @property
    def background_class(self) -> int | None:
        """Return --background as a class number; None for "none"."""
        return None if self.background == "none" else int(self.background)


_of_process = partial(flag, per_launch=True, per_rank=True)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LaunchFlags:
    """Device and processes."""

    device: str = flag("auto", "auto (CUDA if there is one, else CPU), cpu, cuda or cuda:N", per_rank=True)
    workers: int = flag(
        -1,
        "loader processes of each process; 0: load in the process itself [4, or its share of the cores]",
        ge=-1,
        per_rank=True,
        aliases="num_workers",
    )
    pin_memory: bool | None = flag(
        None, "load batches into page-locked memory, which a GPU copies faster; needs CUDA [on CUDA]", per_rank=True
    )
    prefetch_factor: int = flag(
        2,
        "batches that each loader process loads ahead",
        ge=1,
        per_rank=True,
        needs=("--workers other than 0", lambda flags: flags.workers),
    )
    distributed: bool | None = flag(
        None,
        "join a process group [if torchrun or srun started this process]",
        per_rank=True,
        aliases="use_ddp enabled",
        renamed={"ddp": "--distributed here; torchrun and srun imply it"},
    )
    backend: str = flag(
        "auto", "backend of the process group; auto: nccl on CUDA, else gloo", choices=("auto", "nccl", "gloo")
    )
    dist_url: str = _of_process("env://", "where processes connect: env://, tcp://HOST:PORT or file:///PATH")
    world_size: int = _of_process(0, "number of processes [from the launcher]", ge=0)
    rank: int = _of_process(-1, "rank of this process [from the launcher]", ge=-1)
    local_rank: int = _of_process(-1, "rank of this process on its machine [from the launcher, else counted]", ge=-1)
    log_level: str = flag("INFO", "lowest log level on the terminal", choices=("DEBUG", "INFO", "WARNING"))
    dist_timeout: float = flag(600.0, "seconds to wait for other processes", ge=1, le=2_592_000)

    @property
    def group_options(self) -> dict[str, Any]:
        """Return the keyword arguments of distributed.process_group.process_group()."""
        names = ("distributed", "device", "backend", "dist_url", "world_size", "rank", "local_rank")
        return {name: getattr(self, name) for name in names} | {"timeout": self.dist_timeout}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CheckpointFlags:
    """Checkpoint."""

    checkpoint: str = flag("", "FILE of a run, such as log/NAME/best.pt; other weights need --config", per_rank=True)
    weights: str = flag(
        "auto", "weights to load from the checkpoint; auto: ema if present, else raw", choices=("auto", "raw", "ema")
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class InferenceFlags(CheckpointFlags, LaunchFlags):
    """Prediction."""

    scales: tuple[float, ...] = flag((1.0,), "image scales to average probabilities over", gt=0, le=16)
    flip: bool = flag(False, "also predict the mirrored image, and average both")

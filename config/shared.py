"""Flags that several programs share, as mixins of their dataclasses."""

from dataclasses import dataclass

from config.flags import flag
from labels import MAPS

# What may differ between the ranks of a run: paths, and what belongs to a machine or a process.
LOCAL = (
    "dataset_path", "logdir", "classes", "resume", "workers", "val_workers", "device", "distributed", "dist_url", "world_size", "rank",
    "local_rank", "notes", "checkpoint", "compare", "json", "save_dir", "report",
)  # fmt: skip


@dataclass
class DataFlags:
    """Where the data set lies."""

    dataset: str = flag(
        "ScribblePseudoDsDc",
        "which labels there are to train on",
        choices=tuple(MAPS),
    )
    dataset_path: str = flag("", "root folder of the data set; the folders below are relative to it [the demo]")
    list_path: str = flag(
        "", "folder of train.txt and val.txt [ImageSets/SegmentationAug, else ImageSets/Segmentation; Folder: the root]"
    )
    image_path: str = flag("", "folder of the images [JPEGImages; Folder: images]")
    val_path: str = flag("", "folder of the dense masks [SegmentationClassAug, else SegmentationClass; Folder: masks]")


@dataclass
class ModelFlags:
    """The model, its classes, and how it computes."""

    model_type: str = flag(
        "res50_ASPP_lorm",
        "architecture, with a ResNet of --layers; CDSP's 'deeplabv2' is res50_ASPP(_lorm), its 'deeplabv3p' deeplabv3p_cdsp(_lorm)",
        choices=(
            "res50_ASPP_lorm", "res50_ASPP", "deeplabv3", "deeplabv3p", "deeplabv3p_lorm", "deeplabv3p_cdsp",
            "deeplabv3p_cdsp_lorm", "deeplabv2",
        ),
    )  # fmt: skip
    layers: int = flag(50, "depth of the ResNet", choices=(18, 34, 50, 101, 152))
    stride_in_1x1: bool = flag(
        False, "put the stride of layer2's first block on its 1x1 convolution, as in CDSP; a released CDSP file sets it"
    )
    numclasses: int = flag(
        21, "number of classes, background included; labels are 0..numclasses-1, and 255 = ignore", at_least=2
    )
    classes: str = flag(
        "", "names and colours of the classes: voc, camvid, cityscapes, ade20k, or a FILE with one a line [numbers]"
    )
    background: str = flag(
        "0", "background class of distance maps, LoRM and overlays; none: every class is an object",
        choices=("0", "none"),
    )  # fmt: skip
    amp: str = flag("none", "mixed precision; fp16 scales the loss", choices=("none", "bf16", "fp16"))
    val_batchsize: int = flag(
        4, "images of one size, or windows of them, in one forward pass of validation", at_least=1
    )

    @property
    def background_class(self) -> int | None:
        """--background as a class number; None for "none"."""
        return None if self.background == "none" else int(self.background)


@dataclass
class LaunchFlags:
    """Device, loader processes, and the process group of distributed.group."""

    device: str = flag("auto", "auto (CUDA if there is one, else CPU), cpu, cuda or cuda:N")
    workers: int = flag(
        -1,
        "loader processes of each process; 0 loads in the process itself [4, or its share of the cores]",
        at_least=-1,
    )
    distributed: bool | None = flag(None, "join a process group [only under a launcher]; --no_distributed never does")
    backend: str = flag(
        "auto", "of the process group; auto: nccl on CUDA, gloo elsewhere", choices=("auto", "nccl", "gloo")
    )
    dist_url: str = flag("env://", "where processes meet: env://, tcp://HOST:PORT or file:///PATH", per_launch=True)
    world_size: int = flag(0, "number of processes [from the launcher]", per_launch=True, at_least=0)
    rank: int = flag(-1, "rank of this process [from the launcher]", per_launch=True)
    local_rank: int = flag(-1, "rank of this process on its machine [from the launcher, else counted]", per_launch=True)
    log_level: str = flag(
        "INFO",
        "what the terminal shows; WARNING: bars and errors only; DEBUG: also what torch.distributed and NCCL say",
        choices=("DEBUG", "INFO", "WARNING"),
    )
    dist_timeout: float = flag(600.0, "seconds to wait for other processes before giving up", at_least=1)


@dataclass
class CheckpointFlags:
    """The trained model."""

    checkpoint: str = flag(
        "", "FILE of a run, such as log/NAME/best.pt, or with --config other weights of such a model"
    )
    weights: str = flag(
        "auto",
        "which of the checkpoint's; auto: the average of --ema where there is one",
        choices=("auto", "raw", "ema"),
    )


@dataclass
class InferenceFlags(CheckpointFlags, LaunchFlags):
    """How a trained model predicts: for evaluate.py and predict.py."""

    scales: tuple[float, ...] = flag((1.0,), "factors on the image's size; probabilities are averaged over them")
    long_side: int = flag(0, "pixels of the image's longer side at scale 1; 0: as it is", at_least=0)
    flip: bool = flag(False, "also average with the prediction for the mirrored image")
    window: int = flag(0, "height and width of sliding windows, in pixels; 0: the whole image at once", at_least=0)
    stride_rate: float = flag(
        2 / 3, "step from window to window, as part of the window; above 0, at most 1", at_least=0
    )

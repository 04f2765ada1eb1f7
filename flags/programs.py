"""The flags of evaluate.py, predict.py, pseudo.py and export.py."""

from dataclasses import dataclass

from flags.declare import flag
from flags.reader import FlagReader
from flags.shared import CheckpointFlags, DataFlags, ImageFlags, InferenceFlags, LaunchFlags, ModelFlags
from flags.training import Config
from support.shell import document


@dataclass(frozen=True, repr=False, eq=False)
class EvaluateFlags(InferenceFlags, DataFlags, ImageFlags, ModelFlags, LaunchFlags):
    """Evaluation."""

    split: str = flag("", "list of images to score, such as train or test [--val_split]")
    json: str = flag(
        "", "FILE for all scores, by class and by image, and the confusion matrix", never_empty=True, per_rank=True
    )
    report: str = flag(
        "", "folder for a web page: scores, curves, worst and best images", never_empty=True, per_rank=True
    )


@dataclass(frozen=True, repr=False, eq=False)
class PredictFlags(InferenceFlags, ImageFlags, ModelFlags, LaunchFlags):
    """Input and output."""

    model: str = flag("", "ONNX FILE written by export.py, instead of --checkpoint", never_empty=True)
    input: tuple[str, ...] = flag(
        (), "images, folders (with subfolders) or 'patterns' to predict, one or more", never_empty=True
    )
    output: str = flag(
        "predictions", "folder for masks/NAME.png and the files of --overlay and --probs", never_empty=True
    )
    overlay: bool = flag(
        False, "also paint classes (except --background) over each image, with a legend below: overlays/NAME.jpg"
    )
    probs: bool = flag(False, "also write probs/NAME.npy: probabilities (classes, height, width), float16")
    overwrite: bool = flag(False, "predict again what --output already has")


@dataclass(frozen=True, repr=False, eq=False)
class PseudoFlags(InferenceFlags, DataFlags, ImageFlags, ModelFlags, LaunchFlags):
    """Pseudo-labels."""

    train_path: str = flag("", "folder of the scribbles [the checkpoint's, or pascal_2012_scribble]", per_rank=True)
    split: str = flag("", "list of images to label [--train_split of the checkpoint, or train]")
    output: str = flag("", "folder for the labels NAME.png: class numbers, 255 = unlabelled", per_rank=True)
    overwrite: bool = flag(False, "remove the pseudo-labels in --output and make them again")


@dataclass(frozen=True, repr=False, eq=False)
class ExportFlags(CheckpointFlags, DataFlags, ModelFlags):
    """Export."""

    output: str = flag(
        "", "ONNX FILE to write, NAME.onnx, or a folder for it [the checkpoint's folder]", never_empty=True
    )
    probs: bool = flag(False, "also return probabilities (B, C, H, W) float32, besides label maps")
    logits: bool = flag(False, "also return logits (B, C, H, W) float32")
    opset: int = flag(20, "ONNX opset version", ge=18)
    device: str = flag("cpu", "run the check on this device: cpu, cuda or cuda:N; the file runs on any")


OF_CHECKPOINT = "Flags of data, image size and model default to the checkpoint's."
TRAIN = (
    "Train a semantic-segmentation model. [recipe]: chosen from the data and the device "
    f"({document('docs/recipes.md#the-recipe')})."
)
# Without --batchsize, the batch of these programs is --val_batchsize.
BATCH = {"batch_size": "val_batchsize", "batchsize": "val_batchsize"}
LOADER = BATCH | {"val_workers": "workers", "valid_num_workers": "workers"}

READER = FlagReader(Config, "train.py", TRAIN)
EVALUATE = FlagReader(EvaluateFlags, "evaluate.py", f"Score a checkpoint. {OF_CHECKPOINT}", LOADER)
PREDICT = FlagReader(PredictFlags, "predict.py", f"Predict label maps of images. {OF_CHECKPOINT}", LOADER)
PSEUDO = FlagReader(PseudoFlags, "pseudo.py", f"Make pseudo-labels from scribbles. {OF_CHECKPOINT}", LOADER)
EXPORT = FlagReader(ExportFlags, "export.py", f"Export a checkpoint to ONNX. {OF_CHECKPOINT}", BATCH)

# By --task of train.py: the reader of its command line, and that of the program that does the task.
TASKS = {
    "train": (READER, READER),
    "test": (FlagReader(EvaluateFlags, "train.py", "Score a trained run, as evaluate.py does.", also=Config), EVALUATE),
    "predict": (
        FlagReader(PredictFlags, "train.py", "Predict with a trained run, as predict.py does.", also=Config),
        PREDICT,
    ),
}
FlagReader.readers.update({reader.program: reader for reader in (READER, EVALUATE, PREDICT, PSEUDO, EXPORT)})

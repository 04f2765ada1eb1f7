"""Well-known data sets as they are released: how to recognise them, and the flags that read them."""

from dataclasses import dataclass
from pathlib import Path

from support.errors import UserError


@dataclass(frozen=True)
class Released:
    """A data set as its authors release it.

    markers: patterns of files and folders below its root by which it is recognised: each must match one. flags: what
    train.py needs to read it.
    """

    name: str
    markers: tuple[str, ...]
    flags: dict[str, str]

    @property
    def words(self) -> str:
        """Return the flags as words of a command line."""
        return " ".join(f"--{name} {value}" for name, value in self.flags.items())


CITYSCAPES = Released(
    "Cityscapes",
    ("leftImg8bit", "gtFine"),
    {
        "dataset": "Folder",
        "image_path": "leftImg8bit",
        "train_path": "gtFine",
        "val_path": "gtFine",
        "image_suffix": "_leftImg8bit",
        "label_suffix": "_gtFine_labelIds",
        "label_map": "cityscapes",
        "numclasses": "19",
        "classes": "cityscapes",
    },
)
ADE20K = Released(
    "ADE20K (SceneParsing)",
    ("images/training/ADE_train_*.jpg", "annotations/training/ADE_train_*.png"),
    {
        "dataset": "Folder",
        "train_split": "training",
        "val_split": "validation",
        "train_path": "annotations",
        "val_path": "annotations",
        "label_map": "ade20k",
        "numclasses": "150",
        "classes": "ade20k",
    },
)
VOC_IMAGE = "JPEGImages/2007_000032.jpg"  # the first one with a mask
_COCO = {"dataset": "Folder", "train_split": "train2017", "val_split": "val2017"}
_COCO_LABELS = {"label_map": "cocostuff", "numclasses": "171", "classes": "cocostuff"}
RELEASED = (
    CITYSCAPES,
    ADE20K,
    Released(
        "COCO-Stuff",
        ("images/train2017", "annotations/train2017/[0-9]*.png"),
        _COCO | {"train_path": "annotations", "val_path": "annotations"} | _COCO_LABELS,
    ),
    Released(
        "COCO-Stuff",
        ("train2017", "stuffthingmaps/train2017/[0-9]*.png"),
        _COCO | {"image_path": ".", "train_path": "stuffthingmaps", "val_path": "stuffthingmaps"} | _COCO_LABELS,
    ),
    Released(
        "Pascal VOC with SBD",
        ("JPEGImages", "SegmentationClass", "SegmentationClassAug", "ImageSets/Segmentation/trainaug.txt"),
        {
            "dataset": "Dense",
            "list_path": "ImageSets/Segmentation",
            "train_split": "trainaug",
            "train_path": "SegmentationClassAug",
            "val_path": "SegmentationClass",
            "numclasses": "21",
            "classes": "voc",
        },
    ),
    Released(
        "Pascal VOC",
        (VOC_IMAGE, "SegmentationClass"),
        {"dataset": "Dense", "numclasses": "21", "classes": "voc"},
    ),
)


def recognise(root: Path) -> Released | None:
    """Return the well-known data set in the folder `root`, or None."""
    return next((known for known in RELEASED if all(any(root.glob(marker)) for marker in known.markers)), None)


def is_voc(root: Path) -> bool:
    """Return whether a folder has the images of PASCAL VOC, with whichever labels."""
    return (root / VOC_IMAGE).is_file()


def check_released(root: Path, problem: str) -> None:
    """Raise UserError, with the flags to use, if the folder `root` holds a well-known data set as released.

    problem: what is wrong, to begin the message with.
    """
    known = recognise(root)
    if known:
        raise UserError(f"{problem}; it is {known.name} as released: use {known.words} (docs/known_datasets.md)")

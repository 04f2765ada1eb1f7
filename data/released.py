"""Well-known data sets as they are released: how to recognise them, and the flags that read them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Released:
    """A data set as its authors release it.

    markers: patterns of files and folders below its root by which it is recognised: each must match one. words: the
    flags that train.py needs to read it.
    """

    name: str
    markers: tuple[str, ...]
    words: str

    @property
    def flags(self) -> dict[str, str]:
        """Return {flag: value} of the words."""
        words = self.words.split()
        return dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2], strict=True))


CITYSCAPES = Released(
    "Cityscapes",
    ("leftImg8bit", "gtFine"),
    "--dataset Folder --image_path leftImg8bit --train_path gtFine --val_path gtFine --image_suffix _leftImg8bit "
    "--label_suffix _gtFine_labelIds --label_map cityscapes --numclasses 19 --classes cityscapes",
)
ADE20K = Released(
    "ADE20K (SceneParsing)",
    ("images/training/ADE_train_*.jpg", "annotations/training/ADE_train_*.png"),
    "--dataset Folder --train_split training --val_split validation --train_path annotations --val_path annotations "
    "--label_map ade20k --numclasses 150 --classes ade20k",
)
VOC_IMAGE = "JPEGImages/2007_000032.jpg"  # the first one with a mask
_COCO = "--dataset Folder --train_split train2017 --val_split val2017"
_COCO_LABELS = "--label_map cocostuff --numclasses 171 --classes cocostuff"
RELEASED = (
    CITYSCAPES,
    ADE20K,
    Released(
        "COCO-Stuff",
        ("images/train2017", "annotations/train2017/[0-9]*.png"),
        f"{_COCO} --train_path annotations --val_path annotations {_COCO_LABELS}",
    ),
    Released(
        "COCO-Stuff",
        ("train2017", "stuffthingmaps/train2017/[0-9]*.png"),
        f"{_COCO} --image_path . --train_path stuffthingmaps --val_path stuffthingmaps {_COCO_LABELS}",
    ),
    Released(
        "Pascal VOC with SBD",
        ("JPEGImages", "SegmentationClass", "SegmentationClassAug", "ImageSets/Segmentation/trainaug.txt"),
        "--dataset Dense --list_path ImageSets/Segmentation --train_split trainaug --train_path SegmentationClassAug "
        "--val_path SegmentationClass --numclasses 21 --classes voc",
    ),
    Released("Pascal VOC", (VOC_IMAGE, "SegmentationClass"), "--dataset Dense --numclasses 21 --classes voc"),
)


def recognise(root: Path) -> Released | None:
    """Return the well-known data set in the folder `root`, or None."""
    return next((known for known in RELEASED if all(any(root.glob(marker)) for marker in known.markers)), None)


def is_voc(root: Path) -> bool:
    """Return whether a folder has the images of PASCAL VOC, with whichever labels."""
    return (root / VOC_IMAGE).is_file()

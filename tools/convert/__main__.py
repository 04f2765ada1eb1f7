"""Convert labels of other formats to images, palette PNGs and classes.txt, as --dataset Folder reads them.

    python -m tools.convert annotated Photos
    python -m tools.convert labelme annotated Photos
    python -m tools.convert coco instances_train2017.json COCO --images train2017 --split train

Exit status: 0 done, 1 done, except for what is named, 2 an error that stopped the program.
"""

import sys
from pathlib import Path

if not __package__:  # started as a file from another folder: python PATH/data/convert
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from support import program, shell
from tools.arguments import Parser
from tools.convert.kinds import KINDS
from tools.convert.running import Layout, run

EPILOG = """Without KIND, the program finds the kind of the labels in IN and prints it.

kinds:
{kinds}

A pixel belongs to a polygon, rectangle or ellipse if its centre is inside; the centre of pixel (0, 0) is (0.5, 0.5).
Where shapes overlap, a later shape covers an earlier one. Shapes are drawn in the order of the file, in CVAT by z_order
first. Details of each kind: docs/converting.md."""


def main(argv: list[str] | None = None) -> int:
    return run(parser().parse_args(argv), Layout("images", "masks", str, lambda out, _: next_lines(out)))


def next_lines(out: Path) -> list[str]:
    """Return lines with the commands that come next: the split, unless there is one, and the check."""
    check = f"to check it: {shell.python_command('-m', 'tools.check', out)}"
    folders = {path.name for path in (out / "images").iterdir() if path.is_dir()}
    lists = all((out / f"{split}.txt").is_file() for split in ("train", "val"))
    if lists or {"train", "val"} <= folders:
        return [check]
    if "train" in folders or "val" in folders:
        missing = "val" if "train" in folders else "train"
        return [f"training needs images/train and images/val: convert {missing} too, with --split {missing}", check]
    return [f"to split it: {shell.python_command('-m', 'tools.split', out, '--val', 0.2)}", check]


def parser() -> Parser:
    kinds = "\n".join(f"  {name:12} {kind.about}" for name, kind in KINDS.items())
    parser = Parser(
        "tools.convert", "Convert labels to images and masks for --dataset Folder.", EPILOG.format(kinds=kinds)
    )
    add = parser.add_argument
    add("kind", nargs="?", metavar="KIND", choices=KINDS, help="format of the labels [found from the files]")
    add("source", type=Path, metavar="IN", help="file or folder of the labels")
    add("out", type=Path, metavar="OUT", help="folder to write: images, masks and classes.txt; must be new")
    classes = (
        "classes in order, with colours: voc, camvid, cityscapes, ade20k, cocostuff, or a FILE [the format's own order]"
    )
    add("--classes", default="", metavar="FILE", help=classes)
    unlabelled = (
        "pixels without a label: the class background (0, if --classes is not given), or 255 [panoptic: ignore; else "
    )
    add("--unlabelled", default="", choices=("background", "ignore"), help=unlabelled + "background]")
    unlisted = "what shapes and colours of classes that --classes lacks become [ignore, and name each]"
    add("--unlisted", default="", choices=("background", "ignore"), help=unlisted)
    add("--images", type=Path, metavar="DIR", help="folder of the images [beside the labels, or where the labels say]")
    add("--copy", action="store_true", help="copy images; without it, OUT has hard links to them if the disk can link")
    add("--split", default="", metavar="NAME", help="write to images/NAME and masks/NAME; OUT may have other splits")
    add(
        "--image_suffix",
        default="",
        metavar="TEXT",
        help="colours, binary: end of the images' names, as in _leftImg8bit",
    )
    add("--label_suffix", default="", metavar="TEXT", help="colours, binary: end of the masks' names, such as _mask")
    add(
        "--threshold",
        type=int,
        metavar="N",
        help="binary: values of at least N are the object; JPEG masks are then read, too",
    )
    add("--line_width", type=float, default=10.0, metavar="PIXELS", help="width of lines, diameter of points")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 converts in this process [number of cores]")
    return parser


if __name__ == "__main__":
    program.run_and_exit(main)

"""python -m tools.scribbles convert: draw lines of annotation tools as scribbles, for --dataset ScribbleOnly.

Formats, classes and images are those of tools.convert. What is drawn there as an area, such as a polygon or a mask of a
brush, is an area here too: its pixels have a label, and all others are 255.
"""

import re
from pathlib import Path

from data.layout import LISTS, SCRIBBLES
from support import shell
from support.errors import UserError
from support.files import write_atomic
from tools.arguments import Parser
from tools.convert.kinds import KINDS
from tools.convert.running import Layout, run

LINES = ("scribblesup", "labelme", "labelstudio", "cvat", "supervisely")  # formats that have lines or brush strokes
EPILOG = """kinds:
{kinds}

Lines and points are drawn --line_width wide; polygons, boxes and brush masks are drawn as they are. A class named
background becomes class 0. Pixels without a stroke are 255. Names of images get "_" in place of "/" and spaces."""


def main(argv: list[str]) -> int:
    layout = Layout("JPEGImages", SCRIBBLES, lambda name: re.sub(r"[\s/]+", "_", name), _finish)
    return run(parser().parse_args(argv), layout)


def _finish(out: Path, names: list[str]) -> list[str]:
    """Add the names that no list has to the training list, and return the next commands as lines of text."""
    folder = out / LISTS[-1]
    lists = {path: _read(path) for path in sorted(folder.glob("[!.]*.txt"))}
    listed = {name for present in lists.values() for name in present}
    target = folder / "train.txt"
    lines = lists.get(target, []) + [name for name in names if name not in listed]
    if lines != lists.get(target):
        write_atomic(target, "".join(f"{name}\n" for name in lines), parents=True)
    check = shell.python_command("-m", "tools.check", out, "--dataset", "ScribbleOnly", "--splits", "train")
    return [f"{target}: {len(lines)} name(s)", f"to check them: {check}"]


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the list cannot be read ({getattr(error, 'strerror', error)})") from None


def parser() -> Parser:
    kinds = "\n".join(f"  {name:12} {KINDS[name].about}" for name in LINES)
    parser = Parser(
        "tools.scribbles convert", "Draw lines of annotation tools as scribbles.", EPILOG.format(kinds=kinds)
    )
    add = parser.add_argument
    add("kind", metavar="KIND", choices=LINES, help="format of the lines")
    add("source", type=Path, metavar="IN", help="file or folder of the lines")
    add(
        "out",
        type=Path,
        metavar="OUT",
        help="folder to write: JPEGImages, pascal_2012_scribble, ImageSets, classes.txt; must be new",
    )
    classes = "classes in order, with colours: voc, camvid, ..., or a FILE [background, then the format's own order]"
    add("--classes", default="", metavar="FILE", help=classes)
    unlisted = "what lines of classes that --classes lacks become [ignore, and name each]"
    add("--unlisted", default="", choices=("ignore",), help=unlisted)
    add("--images", type=Path, metavar="DIR", help="folder of the images [beside the lines, or where the labels say]")
    add("--copy", action="store_true", help="copy images; without it, OUT has hard links to them if the disk can link")
    add(
        "--line_width",
        type=float,
        default=3.0,
        metavar="PIXELS",
        help="width of lines, diameter of points; ScribbleSup's is 3",
    )
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 converts in this process [number of cores]")
    parser.set_defaults(
        unlabelled="ignore", split="", image_suffix="", label_suffix="", threshold=None, layout="scribbles"
    )
    return parser

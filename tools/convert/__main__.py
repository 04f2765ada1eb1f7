"""Convert labels of other formats to images, palette PNGs and classes.txt, as --dataset Folder reads them.

    python -m tools.convert annotated Photos
    python -m tools.convert labelme annotated Photos
    python -m tools.convert coco instances_train2017.json COCO --images train2017 --split train
    python -m tools.convert labelme strokes Scribbles --scribbles

Exit status: 0 done, 1 done, except for what is named, 2 an error that stopped the program.
"""

import sys
from pathlib import Path

if not __package__:  # started as a file from another folder: python PATH/tools/convert
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from data.layout import LISTS, read_list
from flags.reader import FlagReader
from support import program, shell
from support.files import write_atomic
from support.terminal import say
from tools.convert.formats import KINDS
from tools.convert.running import ConvertFlags, run

LIST = "\n".join(f"  {name:12} {kind.about}" for name, kind in KINDS.items())
ABOUT = f"""Convert labels to images and masks for --dataset Folder, or to scribbles for --dataset ScribbleOnly.

Without KIND, the program finds the kind of the labels in SOURCE and prints it.

kinds:
{LIST}

A pixel belongs to a polygon, rectangle or ellipse if its centre is inside; the centre of pixel (0, 0) is (0.5, 0.5).
Where shapes overlap, a later shape covers an earlier one. Shapes are drawn in the order of the file, in CVAT by z_order
first. Details of each kind: {shell.document("docs/converting.md")}.
"""
READER = FlagReader(ConvertFlags, "-m tools.convert", ABOUT, has_config=False)


def main(argv: list[str] | None = None) -> int:
    args = ConvertFlags(**READER.command_line(argv).values)
    status, names = run(args)
    say(*(_list_scribbles(args.out, names) if args.scribbles else _next_lines(args.out)))
    return status


def _next_lines(out: Path) -> list[str]:
    """Return lines with the commands that come next: the split, unless there is one, and the check."""
    check = f"to check it: {shell.python_command('-m', 'tools.check', out)}"
    folders = {path.name for path in (out / "images").iterdir() if path.is_dir()}
    lists = all((out / f"{split}.txt").is_file() for split in ("train", "val"))
    if lists or {"train", "val"} <= folders:
        return [check]
    start, words = "to split it", ["--val", 0.2]
    if part := next((name for name in ("train", "val") if name in folders), ""):
        start = "training needs images/train and images/val: convert the other one, or divide this"
        words += ["--image_path", f"images/{part}", "--label_path", f"masks/{part}"]
    return [f"{start}: {shell.python_command('-m', 'tools.split', out, *words)}", check]


def _list_scribbles(out: Path, names: list[str]) -> list[str]:
    """Add the names that no list has to the training list, and return the next commands as lines of text."""
    folder = out / LISTS[-1]
    lists = {path: read_list(path) for path in sorted(folder.glob("[!.]*.txt"))}
    listed = {name for present in lists.values() for name in present}
    target = folder / "train.txt"
    lines = lists.get(target, []) + [name for name in names if name not in listed]
    if lines != lists.get(target):
        write_atomic(target, "".join(f"{name}\n" for name in lines), parents=True)
    check = shell.python_command("-m", "tools.check", out, "--dataset", "ScribbleOnly", "--splits", "train")
    return [f"{target}: {len(lines)} name(s)", f"to check them: {check}"]


if __name__ == "__main__":
    program.run_and_exit(main)

"""Check a data set: read every file, report what is in it and what is wrong, and change nothing.

    python -m tools.check MyData
    python -m tools.check VOC2012 --numclasses 21 --classes voc --json voc.json

Exit status: 0 clean, 1 warnings, 2 errors, which would stop training, or make it or its scores wrong.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if not __package__:  # started as a file from another folder: python PATH/tools/check
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from data.classes import read_classes
from data.label_map import read_label_map
from flags import READER
from flags.reader import ConfigFile
from support import program, shell
from support.errors import UserError
from support.files import check_file, write_atomic
from support.labels import MAPS
from support.processes import work_on
from support.terminal import say
from tools.arguments import Parser
from tools.check.commands import conversion, fix_lines, training_lines
from tools.check.findings import Findings
from tools.check.guess import guess_flags
from tools.check.measure import measure
from tools.check.rules import check_classes, find_faults, infer_num_classes
from tools.check.summary import Summary, report_lines
from tools.check.survey import Paths, survey


def check(
    root: Path,
    *,
    dataset: str = "",
    num_classes: int | None = None,
    classes: str = "",
    paths: Paths | None = None,
    splits: Sequence[str] = (),
    workers: int = 0,
) -> tuple[Summary, Findings]:
    """Check a data set and return (summary, findings): its numbers, and what is wrong with it.

    root: the data set's folder. The other arguments are the flags --dataset, --numclasses, --classes, those of Paths,
    --splits and --workers. "" and None infer a value from the data. workers: number of processes; 0 reads in this
    process. Raises UserError if root holds no data set, or if a flag or the data set's file of classes is invalid.
    """
    findings, paths = Findings(root), paths or Paths()
    dataset, paths = guess_flags(root, dataset, paths)
    present, samples = survey(root, dataset, paths, splits or paths.splits, findings)
    if not any(sample.labels for sample in samples) and (problem := conversion(root)):
        raise UserError(f"{root}: {problem}")
    summary = Summary(str(root), dataset, num_classes_given=num_classes is not None, splits=paths.splits)
    summary.repeats = findings.repeats
    summary.flags = {name: value for name, value in dataclasses.asdict(paths).items() if value}
    summary.class_file = classes or _class_file(root)
    if summary.class_file:
        num_classes = len(read_classes(summary.class_file, num_classes).names)
    label_map = read_label_map(paths.label_map, num_classes)
    if label_map and num_classes is None:
        num_classes = max(label_map.num_classes, 2)
    facts = work_on(partial(measure, label_map=label_map), samples, workers, "image", "reading")
    named = read_classes(summary.class_file, num_classes or infer_num_classes(facts))
    find_faults(facts, named, findings)
    summary.count(facts, present, named.names)
    check_classes(summary, findings)
    return summary, findings


def _class_file(root: Path) -> str:
    """Return the path of root/classes.txt or of Roboflow's _classes.csv, or "" without one."""
    files = [root / "classes.txt", root / "_classes.csv", *sorted(root.glob("*/_classes.csv"))]
    return next((str(path) for path in files if path.is_file()), "")


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.numclasses is not None and not 2 <= args.numclasses <= 255:
        raise UserError(f"--numclasses {args.numclasses}: must be 2 to 255")
    if args.json:
        folders = [args.root / name for name in (args.image_path, args.train_path, args.val_path) if name]
        check_file(args.json, "--json", mark='"findings": [', inputs=folders, suffix=".json")
    values = READER.yaml_file(ConfigFile(args.config, "")).values if args.config else {}
    values |= {name: value for name, value in vars(args).items() if value not in ("", None)}
    paths = Paths(**{item.name: values.get(item.name, "") for item in dataclasses.fields(Paths)})
    options = {name: values.get(name, "") for name in ("dataset", "classes", "splits")}
    numbers = {"num_classes": values.get("numclasses"), "workers": args.workers}
    summary, findings = check(args.root, paths=paths, **options, **numbers)
    say(*report_lines(summary, findings))
    if args.json:
        listed = [dataclasses.asdict(finding) for finding in findings.sorted()]
        content = {"status": findings.status} | dataclasses.asdict(summary) | {"findings": listed}
        write_atomic(args.json, json.dumps(content, indent=1) + "\n")
    if findings.status == 2:
        lines = fix_lines(summary, findings)
    elif args.config:  # it has the settings, too
        words = ["train.py", "--config", args.config, "--dataset_path", args.root]
        lines = [f"to train: {shell.python_command(*words)}"]
    else:
        lines = training_lines(summary)
    say(*lines)
    return findings.status


def parser() -> Parser:
    parser = Parser("tools.check", "Check a data set; change nothing.")
    add = parser.add_argument
    add("root", type=Path, metavar="PATH", help="root of the data set, train.py's --dataset_path")
    add("--config", type=Path, metavar="FILE", help="YAML file of train.py's flags; the command line overrides it")
    add("--dataset", default="", choices=MAPS, help="labels to train on [guessed from the folders]")
    add("--numclasses", type=int, metavar="N", help="number of classes [inferred from the labels]")
    names = "names and colours: voc, camvid, cityscapes, ade20k, cocostuff, or a FILE [PATH/classes.txt]"
    add("--classes", default="", metavar="FILE", help=names)
    add("--splits", nargs="+", default=[], metavar="NAME", help="splits [--train_split and --val_split]")
    for item in dataclasses.fields(Paths):
        metavar = "DIR" if item.name.endswith("_path") else "FILE" if item.name == "label_map" else "NAME"
        about = f"as train.py's --{item.name} [guessed from the folders]"
        add(f"--{item.name}", default="", metavar=metavar, help=about)
    add("--json", type=Path, metavar="FILE", help="write everything to this file, with all file names")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 reads in this process [number of cores]")
    return parser


if __name__ == "__main__":
    program.run_and_exit(main)

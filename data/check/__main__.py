"""The data doctor: reads every file of a data set, says what is in it and what is wrong, and changes nothing.

    python -m data.check MyData
    python -m data.check VOC2012 --numclasses 21 --classes voc --json voc.json

Exit status: 0 clean, 1 warnings, 2 errors, with which training would stop, or go or be scored wrong.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tqdm import tqdm

if not __package__:  # started as a file, from another folder: python PATH/data/check
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import program
import shell
from data.check.duplicates import find_duplicates
from data.check.findings import Findings
from data.check.measure import Facts, Sample, measure
from data.check.report import class_table, finding_lines, summary_lines
from data.check.rules import check_agreement, check_images, check_labels, check_values, infer_num_classes
from data.check.summary import Summary, check_classes, summarise
from data.check.survey import Paths, Survey, survey
from data.classes import Classes, read_classes
from errors import UserError

# As of train.py.
DATASETS = (
    "Folder", "Dense", "ScribbleOnly", "PseudoOnly", "ScribblePseudo",
    "ScribblePseudoDs", "ScribblePseudoDc", "ScribblePseudoDsDc",
)  # fmt: skip
BATCHSIZE = 16  # train.py's default
CHUNK = 8  # samples that a process takes at once


def check(
    root: Path, *, dataset: str = "", num_classes: int | None = None, classes: str = "", paths: Paths | None = None,
    splits: Iterable[str] = ("train", "val"), workers: int = 0,
) -> tuple[Summary, Findings]:  # fmt: skip
    """Examine a data set. dataset: as of train.py, "" to find out. num_classes: None to infer. workers: processes, 0 none."""
    findings = Findings()
    classes = classes or _class_file(root, num_classes, findings)
    known = read_classes(classes, num_classes) if classes else None
    if known is not None:
        num_classes = len(known.names)
    found = survey(root, dataset, paths or Paths(), list(splits), findings)
    facts = _measure_all(found.samples, workers)
    given = num_classes is not None
    num_classes = num_classes or infer_num_classes(facts)
    known = known or read_classes("", num_classes)
    _judge(found, facts, num_classes, given, classes, known, findings)
    summary = summarise(found, facts, num_classes, given, classes, known.names)
    check_classes(summary, findings)
    return summary, findings


def _class_file(root: Path, num_classes: int | None, findings: Findings) -> str:
    """The path of the data set's classes.txt; "" where there is none, or it cannot be used."""
    path = root / "classes.txt"
    if not path.is_file():
        return ""
    try:
        read_classes(str(path), num_classes)
    except UserError as error:
        findings.add("class-file", path.name, str(error).removeprefix("--classes "))
        return ""
    return str(path)


def _measure_all(samples: list[Sample], workers: int) -> list[Facts]:
    """What measure says of each sample, in order."""

    def with_bar(facts: Iterable[Facts]) -> list[Facts]:
        return list(tqdm(facts, total=len(samples), unit="image", desc="reading"))

    if workers == 0:
        return with_bar(map(measure, samples))
    try:
        with ProcessPoolExecutor(workers) as pool:
            return with_bar(pool.map(measure, samples, chunksize=CHUNK))
    except BrokenProcessPool:
        raise UserError(
            f"a process of --workers {workers} was ended, for want of memory? Lower --workers, or use --workers 0 to see more"
        ) from None


def _judge(
    found: Survey, facts: list[Facts], num_classes: int, given: bool, classes: str, known: Classes, findings: Findings
) -> None:
    def show(path: Path) -> str:
        return path.relative_to(found.root).as_posix() if path.is_relative_to(found.root) else str(path)

    colours = {f"#{bytes(known.colours[number]).hex()}": number for number in reversed(range(num_classes))}
    check_images(facts, show, findings)
    check_labels(facts, show, colours, findings)
    check_values(facts, num_classes, given, classes, show, findings)
    check_agreement(facts, show, findings)
    find_duplicates(facts, show, findings)


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.numclasses is not None and not 2 <= args.numclasses <= 255:
        raise UserError(f"--numclasses {args.numclasses}: must be 2 to 255")
    if args.json and args.json.resolve().is_relative_to(args.root.resolve()):
        raise UserError(f"--json {args.json}: lies in the data set, where nothing is written; name another folder")
    workers = args.workers
    if workers < 0:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    paths = Paths(**{item.name: getattr(args, item.name) for item in dataclasses.fields(Paths)})
    summary, findings = check(
        args.root, dataset=args.dataset, num_classes=args.numclasses, classes=args.classes, paths=paths,
        splits=args.splits, workers=workers,
    )  # fmt: skip
    print("\n".join([*summary_lines(summary), *class_table(summary), "", *finding_lines(findings)]))
    if args.json:
        _write_json(args.json, summary, findings)
    if findings.status < 2:
        print("\n".join(next_lines(summary, paths)))
    return findings.status


def next_lines(summary: Summary, paths: Paths) -> list[str]:
    """What to do next with data without errors; the last line ends with the command."""
    folders = [word for name, folder in dataclasses.asdict(paths).items() if folder for word in (f"--{name}", folder)]
    if not {"train", "val"} <= set(summary.images):
        command = shell.python_command("-m", "data.check", summary.root, "--dataset", summary.dataset, *folders)
        return [f"training needs the splits train and val; to check both: {command}"]
    words = ["--dataset", summary.dataset, "--dataset_path", summary.root, "--numclasses", summary.num_classes]
    words += ["--classes", summary.class_file] if summary.class_file else []
    words += [*folders, "--model_type", "res50_ASPP_lorm" if "Pseudo" in summary.dataset else "res50_ASPP"]
    if summary.images["train"] < BATCHSIZE:
        words += ["--batchsize", summary.images["train"]]
    return [
        "training downloads its start weights once; without a network, add --pretrained none to the command",
        f"to train: {shell.python_command('train.py', *words)}",
    ]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data.check", description="Examine a data set; change nothing.")
    parser.add_argument("root", type=Path, metavar="PATH", help="root of the data set, train.py's --dataset_path")
    parser.add_argument(
        "--dataset", default="", choices=DATASETS, help="labels to train on [found out from the folders]"
    )
    parser.add_argument("--numclasses", type=int, metavar="N", help="number of classes [inferred from the labels]")
    parser.add_argument(
        "--classes",
        default="",
        metavar="FILE",
        help="names and colours: voc, camvid, cityscapes, ade20k, or a FILE [PATH/classes.txt]",
    )
    parser.add_argument("--splits", nargs="+", default=["train", "val"], metavar="NAME", help="splits [train val]")
    for item in dataclasses.fields(Paths):
        parser.add_argument(f"--{item.name}", default="", metavar="DIR", help="folder, as of train.py")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file, with all file names")
    parser.add_argument("--workers", type=int, default=-1, metavar="N", help="processes; 0: none but this [the cores]")
    return parser


def _write_json(path: Path, summary: Summary, findings: Findings) -> None:
    listed = [
        {
            "code": finding.code, "severity": finding.severity, "count": finding.count, "what": finding.what,
            "do": finding.advice, "files": finding.files, "notes": finding.notes,
        }
        for finding in findings.sorted()
    ]  # fmt: skip
    content = {"status": findings.status} | summary.as_dict() | {"findings": listed}
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--json {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(program.run(main))

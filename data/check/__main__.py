"""The data check: reads every file of a data set, reports what is in it and what is wrong, and changes nothing.

    python -m data.check MyData
    python -m data.check VOC2012 --numclasses 21 --classes voc --json voc.json

Exit status: 0 clean, 1 warnings, 2 errors, which would stop training, or make it or its scores wrong.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.concurrent import process_map

if not __package__:  # started as a file from another folder: python PATH/data/check
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import program
import shell
from data.check.duplicates import find_duplicates
from data.check.findings import Findings
from data.check.measure import Facts, measure
from data.check.report import class_table, finding_lines, summary_lines
from data.check.rules import check_agreement, check_images, check_labels, check_values, infer_num_classes
from data.check.summary import Summary, check_classes
from data.check.survey import Paths, Sample, guess_dataset, survey
from data.classes import read_classes
from data.resize import large_images
from errors import UserError
from labels import MAPS

BATCHSIZE, CROP_SIZE = 16, 465  # train.py's defaults
CHUNK = 8  # samples that a process takes at once


def check(
    root: Path,
    *,
    dataset: str = "",
    num_classes: int | None = None,
    classes: str = "",
    paths: Paths | None = None,
    splits: Sequence[str] = ("train", "val"),
    workers: int = 0,
) -> tuple[Summary, Findings]:
    """Check a data set and return (summary, findings): its numbers, and what is wrong with it. Write nothing.

    root: the data set's folder. The other arguments are the flags --dataset, --numclasses, --classes, folders, --splits
    and --workers. "" and None infer a value from the data. workers: number of processes; 0 reads in this process.
    Raises UserError if root holds no data set or `classes` is invalid.
    """
    findings, paths = Findings(root), paths or Paths()
    classes = classes or _class_file(root, num_classes, findings)
    if classes:
        num_classes = len(read_classes(classes, num_classes).names)
    dataset = dataset or guess_dataset(root, paths)
    found, samples = survey(root, dataset, paths, splits, findings)
    facts = _measure_all(samples, workers)

    inferred = num_classes is None
    known = read_classes(classes, num_classes or infer_num_classes(facts))
    num_classes = len(known.names)
    colours = {f"#{bytes(known.colours[number]).hex()}": number for number in reversed(range(num_classes))}
    check_images(facts, findings)
    check_labels(facts, colours, findings)
    check_values(facts, num_classes, inferred, classes, findings)
    check_agreement(facts, findings)
    find_duplicates(facts, findings)
    layout = {"Folder": "Folder", "Dense": "VOC"}.get(dataset, "ScribbleSup")
    summary = Summary(str(root), layout, dataset, num_classes, not inferred, classes)
    summary.count(facts, found, known.names)
    check_classes(summary, findings)
    return summary, findings


def _class_file(root: Path, num_classes: int | None, findings: Findings) -> str:
    """Return the path of root/classes.txt, or "" if the file is missing or invalid; an invalid file is a finding."""
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
    """Return the Facts of each sample, in order. workers: number of processes; 0 measures in this process.

    Raises UserError if a worker process is killed.
    """
    if workers == 0:
        return [measure(sample) for sample in tqdm(samples, unit="image", desc="reading")]
    try:
        return process_map(measure, samples, max_workers=workers, chunksize=CHUNK, unit="image", desc="reading")
    except BrokenProcessPool:
        raise UserError(
            f"a process of --workers {workers} was killed, out of memory? Lower --workers, or use --workers 0"
        ) from None


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.numclasses is not None and not 2 <= args.numclasses <= 255:
        raise UserError(f"--numclasses {args.numclasses}: must be 2 to 255")
    if args.json and args.json.resolve().is_relative_to(args.root.resolve()):
        raise UserError(f"--json {args.json}: is in the data set, which the check does not change; use another folder")
    workers = args.workers
    if workers < 0:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    paths = Paths(**{item.name: getattr(args, item.name) for item in dataclasses.fields(Paths)})
    options = {"dataset": args.dataset, "num_classes": args.numclasses, "classes": args.classes, "splits": args.splits}
    summary, findings = check(args.root, paths=paths, workers=workers, **options)
    print("\n".join([*summary_lines(summary), *class_table(summary), "", *finding_lines(findings)]))
    if args.json:
        _write_json(args.json, summary, findings)
    if findings.status < 2:
        print("\n".join(next_lines(summary, paths)))
    return findings.status


def next_lines(summary: Summary, paths: Paths) -> list[str]:
    """Return lines of text that say how to train on data without errors; the last line ends with the command.

    If train or val was not checked, the command checks both splits instead.
    """
    folders = [word for name, folder in dataclasses.asdict(paths).items() if folder for word in (f"--{name}", folder)]
    if not {"train", "val"} <= set(summary.images):
        command = shell.python_command("-m", "data.check", summary.root, "--dataset", summary.dataset, *folders)
        return [f"training needs the splits train and val; to check both: {command}"]
    words = ["--dataset", summary.dataset, "--dataset_path", summary.root, "--numclasses", summary.num_classes]
    words += ["--classes", summary.class_file] if summary.class_file else []
    words += [*folders, "--model_type", "res50_ASPP_lorm" if "Pseudo" in summary.dataset else "res50_ASPP"]
    long_side, advice = large_images(summary.image_sizes, CROP_SIZE)
    words += ["--long_side", long_side] if long_side else []
    words += ["--batchsize", summary.images["train"]] if summary.images["train"] < BATCHSIZE else []
    return [
        *([advice] if advice else []),
        "training downloads its start weights once; without a network, add --pretrained none to the command",
        f"to train: {shell.python_command('train.py', *words)}",
    ]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data.check", description="Check a data set; change nothing.")
    add = parser.add_argument
    add("root", type=Path, metavar="PATH", help="root of the data set, train.py's --dataset_path")
    add("--dataset", default="", choices=MAPS, help="labels to train on [guessed from the folders]")
    add("--numclasses", type=int, metavar="N", help="number of classes [inferred from the labels]")
    names = "names and colours: voc, camvid, cityscapes, ade20k, or a FILE [PATH/classes.txt]"
    add("--classes", default="", metavar="FILE", help=names)
    add("--splits", nargs="+", default=["train", "val"], metavar="NAME", help="splits [train val]")
    for item in dataclasses.fields(Paths):
        add(f"--{item.name}", default="", metavar="DIR", help=f"folder, as train.py's --{item.name}")
    add("--json", type=Path, metavar="FILE", help="write everything to this file, with all file names")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 reads in this process [number of cores]")
    return parser


def _write_json(path: Path, summary: Summary, findings: Findings) -> None:
    listed = [dataclasses.asdict(finding) | {"count": finding.count} for finding in findings.sorted()]
    content = {"status": findings.status} | dataclasses.asdict(summary) | {"findings": listed}
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--json {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(program.run(main))

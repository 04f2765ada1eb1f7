"""Check a data set: read every file, report what is in it and what is wrong, and change nothing.

    python -m tools.check MyData
    python -m tools.check VOC2012 --numclasses 21 --classes voc --json voc.json

Exit status: 0 clean, 1 warnings, 2 errors, which would stop training, or make it or its scores wrong.
"""

import contextlib
import dataclasses
import itertools
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # started as a file from another folder: python PATH/tools/check
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from data.classes import read_classes
from data.guess import GUESSED, NoDataSetError, class_file, guess_flags
from data.images.deep import any_header, read_values
from data.images.reader import ImageReader
from data.images.stretch import NUM_IMAGES, READING, choose_reading
from data.images.to_8_bits import HAVE_8_BITS
from data.label_check import holds_only_255, infer_num_classes, seems_soft, spread
from data.label_map import LabelMap, read_label_map
from data.plain import find_flags
from flags import describe
from flags.declare import flag
from flags.programs import READER as TRAIN
from flags.reader import FlagReader
from support import program, shell
from support.errors import InputError, UserError
from support.files import check_file, write_atomic
from support.labels import DENSE, MAPS
from support.processes import ThreadPool, work_on
from support.progress import progress_bar
from support.terminal import say
from tools.check.commands import conversion, fix_lines, training_lines
from tools.check.counts import Counts
from tools.check.detect import check_classes, find_faults
from tools.check.facts import Sample, read_facts
from tools.check.files import WHOLE, Paths, find_files
from tools.check.report import report_lines
from tools.check.rules import Findings

NUM_THREADS = 4  # to look at images before all files are measured


@dataclass(frozen=True)
class CheckFlags(Paths):
    """Check."""

    root: Path = flag(None, "root of the data set, train.py's --dataset_path", is_argument=True)
    dataset: str = flag("", "labels to train on [guessed from the folders]", choices=tuple(MAPS))
    numclasses: int | None = flag(
        None, "number of classes [inferred from the labels]", ge=2, le=255, aliases="num_classes"
    )
    classes: str = flag(
        "", "names and colours: voc, camvid, cityscapes, ade20k, cocostuff, or a FILE [ROOT/classes.txt]"
    )
    splits: tuple[str, ...] = flag((), "splits [--train_split and --val_split]")
    json: Path | None = flag(None, "write everything to this file, with all file names")
    workers: int = flag(-1, "processes; 0 reads in this process [number of cores]", ge=-1)


READER = FlagReader(CheckFlags, "-m tools.check", "Check a data set; change nothing.")


def check(root: Path, *, workers: int = 0, **flags: Any) -> tuple[Counts, Findings]:
    """Check a data set and return (counts, findings): its numbers, and what is wrong with it.

    root, workers, flags: fields of CheckFlags. Raises UserError if root holds no data set, or if a flag or the data
    set's file of classes is invalid.
    """
    args, findings = CheckFlags(**flags), Findings(root)
    try:
        dataset, guessed = guess_flags(root, args.dataset, {name: getattr(args, name) for name in GUESSED})
    except NoDataSetError as error:
        problem = conversion(root)
        raise UserError(f"{root}: {problem}" if problem else str(error).removesuffix(find_flags(root))) from None
    paths: CheckFlags = dataclasses.replace(args, **guessed)  # type: ignore[arg-type]  # all of them are str
    present, samples = find_files(root, dataset, paths, args.splits or paths.split_names, findings)
    if not any(sample.labels for sample in samples) and (problem := conversion(root)):
        raise UserError(f"{root}: {problem}")
    counts = Counts(str(root), dataset, num_classes_given=args.numclasses is not None, splits=paths.split_names)
    counts.repeats = findings.repeats
    names = [item.name for item in dataclasses.fields(Paths)]
    counts.flags = {name: value for name in names if (value := getattr(paths, name))}
    names = ["dataset", "numclasses", "classes", *names]
    counts.given = {name: value for name in names if (value := getattr(args, name))}
    counts.class_file, num_classes = args.classes or class_file(root), args.numclasses
    if counts.class_file:
        num_classes = len(read_classes(counts.class_file, num_classes).names)
    label_map = read_label_map(paths.label_map, num_classes)
    if label_map and num_classes is None:
        num_classes = max(label_map.num_classes, 2)
    of_train = {paths.split_names[0], WHOLE}
    train_images = [item.image.path for item in samples if of_train & set(item.splits)]
    others = [item.image.path for item in samples if not of_train & set(item.splits)]
    reader = choose_reader(paths, train_images, others, counts)

    def read(label_map: LabelMap | None) -> list[Sample]:
        work = partial(read_facts, reader=reader, label_map=label_map)
        return work_on(work, samples, workers, "image", "reading")

    facts = read(label_map)
    if dataset in DENSE and not label_map and num_classes in (None, 2):
        train = [item.labels["mask"] for item in facts if of_train & set(item.splits) and "mask" in item.labels]
        is_painted = any(mask.colours for mask in train)  # white may be one of the colours then
        values = [mask.values for mask in train]
        preset = ""
        if holds_only_255(values):  # as train.py
            preset, note = "binary", "masks hold only 0 and 255: 255 is read as class 1"
        elif seems_soft(values):
            preset, note = "threshold", "masks show an object with soft edges: values from 128 on are read as class 1"
        if preset and not is_painted:
            counts.flags["label_map"], num_classes = preset, 2
            facts = read(read_label_map(preset, num_classes))
            counts.notes.append(note)
    if not num_classes:
        num_classes = infer_num_classes({v for item in facts for label in item.labels.values() for v in label.classes})
    named = read_classes(counts.class_file, num_classes)
    find_faults(facts, named, findings)
    counts.fill_in(facts, present, named.names)
    check_classes(counts, findings)
    return counts, findings


def choose_reader(paths: Paths, images: list[Path], others: list[Path], counts: Counts) -> ImageReader:
    """Return the ImageReader that train.py would use, and note its flags in the counts.

    images, others: those of the training split and of the others. Files that cannot be read do not count: read_facts()
    finds them.
    """

    def is_readable(path: Path) -> bool:
        with contextlib.suppress(InputError):
            return any_header(path).dtype in HAVE_8_BITS or bool(read_values(path)[0].size)
        return False

    given = {name: getattr(paths, name) for name in READING}
    some = [*spread(images, NUM_IMAGES), *spread(others, NUM_IMAGES)]
    with ThreadPool(NUM_THREADS) as pool:
        bar = progress_bar(pool.map(is_readable, some), total=len(some), title="looking at images", unit="image")
        readable = set(itertools.compress(some, bar))
        train, val = ([path for path in split if path in readable] for split in (images, others))
        choices, warnings = choose_reading(train, val, given, pool.map) if train else ({}, [])
    counts.notes += [f"images are read with {describe(choices)}"] if choices else []
    counts.notes += warnings
    chosen = given | {name: value for name, (value, _) in choices.items()}
    return ImageReader(chosen["bands"], chosen["value_range"])


def main(argv: list[str] | None = None) -> int:
    parsed = READER.command_line(argv)
    values = TRAIN.yaml_file(parsed.config_file).values if parsed.config_file else {}
    of_data = {name: value for name, value in values.items() if name in READER.flags and name != "workers"}
    args = CheckFlags(**of_data | parsed.values)
    if args.json:
        folders = [args.root / name for name in (args.image_path, args.train_path, args.val_path) if name]
        check_file(args.json, "--json", mark='"findings": [', inputs=folders, suffix=".json")
    counts, findings = check(**vars(args))
    say(*report_lines(counts, findings))
    if args.json:
        listed = [dataclasses.asdict(finding) for finding in findings.sorted()]
        content = {"status": findings.status} | dataclasses.asdict(counts) | {"findings": listed}
        write_atomic(args.json, json.dumps(content, indent=1) + "\n")
    if findings.status == 2:
        lines = fix_lines(counts, findings)
    elif parsed.config_file:  # it has the settings, too
        config, stage = parsed.config_file
        stages = ["--stage", stage] if stage else []
        command = shell.python_command("train.py", "--config", config, *stages, "--dataset_path", args.root)
        lines = [f"to train: {command}"]
    else:
        lines = training_lines(counts)
    say(*lines)
    return findings.status


if __name__ == "__main__":
    program.run_and_exit(main)

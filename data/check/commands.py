"""The commands that the data check prints: what to run next, ready to be pasted."""

from pathlib import Path

import shell
from data.check.annotations import find_annotations
from data.check.findings import Findings
from data.check.summary import Summary
from data.released import ADE20K

BATCHSIZE = 16  # train.py's default


def training_lines(summary: Summary) -> list[str]:
    """Return lines of text that say how to train on data without errors; the last line ends with the command.

    If the training or the validation split was not checked, the command checks both splits instead.
    """
    flags = [word for name, value in summary.flags.items() for word in (f"--{name}", value)]
    if not set(summary.splits) <= set(summary.images):
        command = shell.python_command("-m", "data.check", summary.root, "--dataset", summary.dataset, *flags)
        return [f"training needs the splits {' and '.join(summary.splits)}; to check both: {command}"]
    words = ["--dataset", summary.dataset, "--dataset_path", summary.root, "--numclasses", summary.num_classes]
    words += ["--classes", summary.class_file] if summary.class_file else []
    words += [*flags, "--model_type", "res50_ASPP_lorm" if "Pseudo" in summary.dataset else "res50_ASPP"]
    num_train = summary.images[summary.splits[0]]
    words += ["--batchsize", num_train] if num_train < BATCHSIZE else []
    return [
        "training downloads its start weights once; without a network, add --pretrained none to the command",
        f"to train: {shell.python_command('train.py', *words)}",
    ]


def mending_lines(summary: Summary, findings: Findings) -> list[str]:
    """Return [the line with the command that mends the first fault that a command can mend], or []."""
    codes = {finding.code for finding in findings.sorted()}
    again = ["-m", "data.check", summary.root, "--dataset", summary.dataset]
    again += [word for name, value in summary.flags.items() for word in (f"--{name}", value)]
    if "mask-colour" in codes:
        words: list[object] = ["-m", "data.convert", "colours", summary.root, new_folder(Path(summary.root))]
    elif "label-binary-255" in codes:
        words = [*again, "--label_map", "binary"]
    elif "ade20k-labels" in codes:
        names = ("label_map", "numclasses", "classes")
        words = [*again, *(word for name in names for word in (f"--{name}", ADE20K.flags[name]))]
    elif "no-split" in codes:
        words = ["-m", "data.split", summary.root, "--val", "0.2"]
    else:
        return []
    return [f"to mend: {shell.python_command(*words)}"]


def conversion(root: Path) -> str:
    """Return what to do with a folder of annotation files, ending with the command; "" if it has none."""
    found = find_annotations(root)
    if not found:
        return ""
    kind, tool, path = found
    source = root if kind in ("labelme", "supervisely") else path
    command = shell.python_command("-m", "data.convert", kind, source, new_folder(root))
    return f"has no masks, but annotations of {tool} ({path}): draw masks from them: {command}"


def new_folder(root: Path) -> Path:
    """Return a folder beside root that does not exist."""
    root = root if root.name else root.absolute()
    names = (f"{root.name}_masks", *(f"{root.name}_masks{number}" for number in range(2, 100)))
    return next(folder for folder in map(root.with_name, names) if not folder.exists())

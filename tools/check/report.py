"""The report of the data check as text."""

import re

from data.classes import aligned
from tools.check.findings import Findings
from tools.check.summary import ClassRow, Summary

LAYOUTS = {"Folder": "plain folders", "Dense": "PASCAL VOC's layout"}
NUM_SIZES = 4
NUM_EXAMPLES = 3


def summary_lines(summary: Summary) -> list[str]:
    """Return lines of text with a data set's layout, splits, image sizes and number of classes."""
    layout = summary.known or LAYOUTS.get(summary.dataset, "ScribbleSup's layout (VOC with scribbles)")
    lines = [f"{summary.root}: {layout}, for --dataset {summary.dataset}"]
    read = [f"--{name} {value}" for name, value in summary.flags.items()]
    lines += [f"  read with {' '.join(read)}"] if read else []
    for split, count in summary.images.items():
        labels = ", ".join(f"{kind} {files}" for kind, files in summary.labels[split].items()) or "none"
        lines.append(
            f"  {split}: {count} images; labels: {labels}; {summary.ignored[split]:.1%} of their pixels ignored"
        )
    sizes = ", ".join(f"{size} ({count})" for size, count in list(summary.sizes.items())[:NUM_SIZES]) or "none"
    more = len(summary.sizes) - NUM_SIZES
    lines.append(f"  sizes: {sizes}" + (f", and {more} more" if more > 0 else ""))
    source = "as given" if summary.num_classes_given else "inferred from the labels: check it"
    source = "as released" if summary.known and not summary.num_classes_given else source
    source = f"named by {summary.class_file}" if summary.class_file else source
    lines.append(f"  classes: --numclasses {summary.num_classes} ({source})")
    if any(re.fullmatch("#[0-9a-f]{6}", row.name) for row in summary.classes):
        lines.append(
            f"  classes are named by colour: to rename them, edit the first word of each line of {summary.class_file}"
        )
    for kind, share in summary.agreement.items():
        name = {"scribble": "stroke pixels", "pseudo": "pseudo-label pixels"}[kind]
        lines.append(f"  {share:.1%} of the {name} have the class of the mask")
    return lines


def class_table(summary: Summary) -> list[str]:
    """Return a text table as lines, one row per class.

    The columns are, for each split, the share of the labelled pixels and the number of images with the class. ENet's
    weight and the share of the mask that scribbles cover follow. Without scribbles the last column is left out.
    """
    totals = {split: max(sum(row.pixels[split] for row in summary.classes), 1) for split in summary.images}

    def cells(row: ClassRow) -> list[str]:
        counts = [(f"{row.pixels[split] / total:.2%}", str(row.images[split])) for split, total in totals.items()]
        weight = "-" if row.weight is None else f"{row.weight:.2f}"
        coverage = "-" if row.coverage is None else f"{row.coverage:.1%}"
        return [str(row.number), row.name, *sum(counts, ()), weight, coverage]

    header = ["class", "name", *sum(((f"{split} pixels", "images") for split in totals), ()), "weight", "strokes cover"]
    table = [header, *map(cells, summary.classes)]
    if all(row.coverage is None for row in summary.classes):
        table = [row[:-1] for row in table]
    return [f"  {line}" for line in aligned(table)]


def finding_lines(findings: Findings) -> list[str]:
    """Return lines of text with each finding, its remedy and its first NUM_EXAMPLES files, errors first."""
    found = findings.sorted()
    if not found:
        return ["nothing wrong found"]
    errors = sum(finding.severity == "error" for finding in found)
    lines = [f"{errors} kind(s) of error, {len(found) - errors} of warning"]
    for finding in found:
        lines.append(f"{finding.severity:7} {finding.code} ({finding.count}): {finding.what}")
        lines.append(f"        to do: {finding.do}")
        for file, note in list(zip(finding.files, finding.notes, strict=True))[:NUM_EXAMPLES]:
            lines.append(f"          {file}" + (f": {note}" if note else ""))
        if finding.count > NUM_EXAMPLES:
            lines.append(f"          and {finding.count - NUM_EXAMPLES} more")
    return lines

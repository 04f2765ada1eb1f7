"""Write what the data check found as lines of text."""

import re

from flags import as_words
from support.errors import shortened
from support.progress import counted
from support.terminal import padded
from tools.check.counts import Counts
from tools.check.rules import UNEVEN, Findings

LAYOUTS = {"Folder": "plain folders", "Dense": "PASCAL VOC's layout"}
NUM_SIZES = 4
NUM_EXAMPLES = 3


def report_lines(counts: Counts, findings: Findings) -> list[str]:
    """Return the report as lines of text: layout, splits, image sizes and number of classes; classes; findings."""
    layout = LAYOUTS.get(counts.dataset, "ScribbleSup's layout (VOC with scribbles)")
    lines = [f"{counts.root}: {layout}, for --dataset {counts.dataset}"]
    read = as_words(counts.flags)
    lines += [f"  read with {' '.join(read)}"] if read else []
    for split, count in counts.images.items():
        labels = ", ".join(f"{kind} {files}" for kind, files in counts.labels[split].items()) or "none"
        ignored = f"; {counts.ignored[split]:.1%} of their pixels ignored" if counts.labels[split] else ""
        lines.append(f"  {split}: {counted(count, 'image')}; labels: {labels}{ignored}")
    if counts.repeats:
        repeats = f"{counts.repeats} more line(s) for {counts.splits[0]} repeat images"
        lines.append(f"  {repeats}: training reads all lines")
    sizes = ", ".join(f"{size} ({count})" for size, count in list(counts.sizes.items())[:NUM_SIZES]) or "none"
    more = len(counts.sizes) - NUM_SIZES
    lines.append(f"  sizes: {sizes}" + (f", and {more} more" if more > 0 else ""))
    source = "as given" if counts.num_classes_given else "inferred from the labels: check it"
    source = f"named by {counts.class_file}" if counts.class_file else source
    if not any(sum(row.pixels.values()) for row in counts.classes):
        lines.append("  classes: no label has a pixel with a class number")
        return [*lines, *(f"  {note}" for note in counts.notes), "", *_finding_lines(findings)]
    lines.append(f"  classes: --numclasses {counts.num_classes} ({source})")
    if any(re.fullmatch("#[0-9a-f]{6}", row.name) for row in counts.classes):
        rename = f"to rename them, edit the first word of each line of {counts.class_file}"
        lines.append(f"  classes are named by colour: {rename}")
    lines += [f"  {note}" for note in counts.notes]
    return [*lines, *_class_table(counts), *_stroke_lines(counts), "", *_finding_lines(findings)]


def _class_table(counts: Counts) -> list[str]:
    """Return a text table as lines, one row per class.

    The columns are, for each split, the share of the labelled pixels and the number of images with the class.
    """
    totals = {split: max(sum(row.pixels[split] for row in counts.classes), 1) for split in counts.images}
    table = [["class", "name", *sum(((f"{split} pixels", "images") for split in totals), ())]]
    for row in counts.classes:
        cells = [(f"{row.pixels[split] / total:.2%}", str(row.images[split])) for split, total in totals.items()]
        table.append([str(row.number), row.name, *sum(cells, ())])
    columns = [padded(cells, to_right=cells[0] != "name") for cells in zip(*table, strict=True)]
    return ["  " + "  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _stroke_lines(counts: Counts) -> list[str]:
    """Return lines on classes whose shares in strokes and masks differ by UNEVEN, or that are often skipped."""
    train, val = counts.splits
    if not (counts.has_strokes and counts.images.get(train) and counts.images.get(val)):
        return []
    totals, ratios, skipped = [sum(row.pixels[split] for row in counts.classes) for split in (train, val)], [], []
    for row in counts.classes:
        drawn, shown = (row.images[split] / counts.images[split] for split in (train, val))
        ratio = row.pixels[train] * totals[1] / max(row.pixels[val] * totals[0], 1)
        name = f"class {row.name}" if row.name == str(row.number) else row.name
        ratios += [f"{name} {ratio:.1f}"] if drawn and shown and not 1 / UNEVEN < ratio < UNEVEN else []
        skipped += [f"{name} {drawn:.0%} / {shown:.0%}"] if 0 < drawn < shown / 2 else []
    lines = [(f"share of the strokes / share of the pixels in {val}", ratios, "for information")]
    lines += [(f"images with a stroke in {train} / images that show it in {val}", skipped, "draw more of these")]
    return [f"  {what}: {', '.join(named)}: {do}" for what, named, do in lines if named]


def _finding_lines(findings: Findings) -> list[str]:
    """Return lines of text with each finding, its remedy and its first NUM_EXAMPLES files, errors first."""
    items = findings.sorted()
    if not items:
        return ["nothing wrong found"]
    errors = sum(finding.severity == "error" for finding in items)
    lines = [f"{errors} kind(s) of error, {len(items) - errors} of warning"]
    for finding in items:
        count = len(finding.files)
        lines.append(f"{finding.severity:7} {finding.code} ({count}): {finding.what}")
        lines.append(f"        to do: {finding.do}")
        for file, note in list(zip(finding.files, finding.notes, strict=True))[:NUM_EXAMPLES]:
            lines.append(shortened(f"          {file}" + (f": {note}" if note else ""), 500))
        if count > NUM_EXAMPLES:
            lines.append(f"          and {count - NUM_EXAMPLES} more (--json lists all)")
    return lines

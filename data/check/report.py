"""The doctor's report as text."""

from data.check.findings import ERROR, Findings
from data.check.summary import Summary

LAYOUTS = {
    "Folder": "plain folders",
    "VOC": "PASCAL VOC's layout",
    "ScribbleSup": "ScribbleSup's layout (VOC with scribbles)",
}
NUM_EXAMPLES = 3


def summary_lines(summary: Summary) -> list[str]:
    """What there is: layout, splits, sizes, classes."""
    lines = [f"{summary.root}: {LAYOUTS[summary.layout]}, for --dataset {summary.dataset}"]
    for split, count in summary.images.items():
        labels = ", ".join(f"{kind} {files}" for kind, files in summary.labels[split].items())
        lines.append(
            f"  {split}: {count} images; labels: {labels or 'none'}; {summary.ignored[split]:.1%} of their pixels ignored"
        )
    shown = [f"{size} ({count})" for size, count in list(summary.sizes.items())[:4]]
    lines.append(
        f"  sizes: {', '.join(shown) or 'none'}"
        + (f", and {len(summary.sizes) - 4} more" if len(summary.sizes) > 4 else "")
    )
    source = "as given" if summary.num_classes_given else "inferred from the labels: check it"
    if summary.class_file:
        source = f"named by {summary.class_file}"
    lines.append(f"  classes: --numclasses {summary.num_classes} ({source})")
    for kind, share in summary.agreement.items():
        name = {"scribble": "stroke pixels", "pseudo": "pseudo-label pixels"}[kind]
        lines.append(f"  {share:.1%} of the {name} have the class of the mask")
    return lines


def class_table(summary: Summary) -> list[str]:
    """A row a class: share of labelled pixels, images that have it, weight by ENet's rule, coverage by scribbles."""
    has_coverage = any(row.coverage is not None for row in summary.classes)
    header = ["class", "name"]
    for split in summary.images:
        header += [f"{split} pixels", "images"]
    header += ["weight", *(["strokes cover"] if has_coverage else [])]
    totals = {split: max(sum(row.pixels[split] for row in summary.classes), 1) for split in summary.images}
    table = [header]
    for row in summary.classes:
        cells = [str(row.number), row.name]
        for split, total in totals.items():
            cells += [f"{row.pixels[split] / total:.2%}", str(row.images[split])]
        cells.append("-" if row.weight is None else f"{row.weight:.2f}")
        if has_coverage:
            cells.append("-" if row.coverage is None else f"{row.coverage:.1%}")
        table.append(cells)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) if place == 1 else cell.rjust(width) for place, (cell, width) in enumerate(zip(cells, widths, strict=True)))
        for cells in table
    ]  # fmt: skip


def finding_lines(findings: Findings) -> list[str]:
    """Each finding with its first files, errors first."""
    found = findings.sorted()
    if not found:
        return ["nothing wrong found"]
    errors = sum(finding.severity == ERROR for finding in found)
    lines = [f"{errors} kind(s) of error, {len(found) - errors} of warning"]
    for finding in found:
        lines.append(f"{finding.severity:7} {finding.code} ({finding.count}): {finding.what}")
        lines.append(f"        to do: {finding.advice}")
        for file, note in list(zip(finding.files, finding.notes, strict=True))[:NUM_EXAMPLES]:
            lines.append(f"          {file}" + (f": {note}" if note else ""))
        if finding.count > NUM_EXAMPLES:
            lines.append(f"          and {finding.count - NUM_EXAMPLES} more")
    return lines

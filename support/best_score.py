"""Which score of a validation decides the best checkpoint, and when it counts as better."""

from collections.abc import Mapping, Sequence
from typing import Any

from support.labels import single_object


def deciding_score(scores: Mapping[str, Any], class_names: Sequence[str], background: int | None) -> tuple[str, float]:
    """Return the name and value of the score that decides: a single object's IoU, or else the mIoU.

    The mIoU of a single object and its background would be about 0.5 even if the object were never found. If no label
    has the object, its IoU says nothing, so the mIoU decides.

    scores: of training.scores.scores(), or a line of metrics.jsonl; earlier versions wrote no "share", so the mIoU
    decided. background: the background's class, or None.
    """
    number, shares = single_object(len(class_names), background), scores.get("share")
    if number is None or not shares or not shares[number]:
        return "mIoU", scores["miou"]
    return f"IoU of {class_label(number, class_names)}", scores["iou"][number]


def class_label(number: int, class_names: Sequence[str]) -> str:
    """Return a class's number and name for messages, such as "class 1 (car)"; "class 1" if it has no other name."""
    name = class_names[number]
    return f"class {number}" + (f" ({name})" if name != str(number) else "")


def is_better(score: float, best_score: float) -> bool:
    """Return whether a validation replaces best.pt: its score is above the best one of the run so far."""
    return score > best_score

"""Scores, curves and pictures as one HTML page, which holds its own data and loads nothing."""

import base64
import html
import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image

from data.classes import Classes, read_classes
from data.dataset import EvalSet
from data.images import encode
from data.images.files import decode_bytes
from data.overlays import contours, to_hex
from distributed.group import Group
from flags import Config
from inference.evaluation import Evaluation
from support.errors import UserError
from support.files import json_lines, write_atomic
from support.labels import IGNORE, single_object
from support.progress import counted
from training.scores import class_iou, image_scores, mean_iou

NUM_WORST, NUM_BEST = 12, 6  # images in a report, besides the worst one of each class
TEMPLATE = Path(__file__).with_name("report.html")
PICTURE_SIZE = 640  # pixels, largest side of a picture; a page with 60 examples then has about 10 MB
MAX_POINTS = 2000  # of a curve, which is more than a screen shows
_DATA = re.compile(r'(?<=<script type="application/json" id="data">).*(?=</script>)')
_CURVES = {"train": ("step", "epoch", "loss", "losses", "lr"), "val": ("step", "epoch", "miou", "pixel_acc", "iou")}

# Of the error map: right (transparent), wrong, and dark and light stripes for ignored pixels.
ERROR_COLOURS = np.array([(0, 0, 0), (255, 59, 48), (40, 44, 52), (108, 114, 124)], np.uint8)


def describe_protocol(cfg: Config, weights: str, scales: Sequence[float] = (1.0,), *, flip: bool = False) -> str:
    """Return how a model is scored, as text: weights ("raw" or "ema"), size, scales, windows, mirroring, precision."""
    size = f"long side {cfg.long_side}" if cfg.long_side else "own size"
    windows = f"windows of {cfg.window}, step {cfg.stride_rate:.3g}" if cfg.window else "whole images"
    scale = f"scale{'' if len(scales) == 1 else 's'} {' '.join(f'{scale:g}' for scale in scales)}"
    mirrored = ", mirrored too" if flip else ""
    precision = "" if cfg.amp == "none" else f", {cfg.amp}"
    return f"{weights} weights, {size}, {scale}, {windows}{mirrored}{precision}"


def choose_images(counts: np.ndarray) -> list[int]:
    """Return the indices of images for a report: the worst and best, and the worst of each class, by rising mIoU.

    counts: see Evaluation.
    """
    miou = mean_iou(counts)
    order = [index for index in np.argsort(miou, kind="stable").tolist() if np.isfinite(miou[index])]
    chosen = set(order[:NUM_WORST] + order[-NUM_BEST:])
    for class_ious in np.where(counts[:, 1] > 0, class_iou(counts), np.inf).T:
        if np.isfinite(class_ious).any():
            chosen.add(int(class_ious.argmin()))
    return [index for index in order if index in chosen]


def gather_predictions(result: Evaluation, group: Group) -> dict[int, bytes]:
    """Return {index: PNG of the prediction} of the images to show, by rising mIoU, on every rank. Collective.

    result: from evaluate_split(keep=choose_images).
    """
    chosen = choose_images(result.counts)
    shares = group.gather([result.pngs.get(index) for index in chosen])
    return {index: next(filter(None, pngs)) for index, *pngs in zip(chosen, *shares, strict=True)}


def page(
    checkpoint: Path,
    step: int | str,
    cfg: Config,
    dataset: EvalSet,
    split: str,
    how: str,
    result: Evaluation,
    predictions: dict[int, bytes],
) -> str:
    """Return the HTML report about a checkpoint on a split.

    how: describe_protocol(). predictions: gather_predictions() on `dataset`. The curves come from the
    metrics.jsonl beside the checkpoint, if there is one.
    """
    classes = read_classes(cfg.classes, cfg.numclasses, cfg.texts.get("classes"))
    colours = to_hex(classes.colours)
    facts = {
        "checkpoint": f"{checkpoint}, step {step}",
        "data": f"{cfg.dataset_path}, {split}, {counted(len(result.names), 'image')}",
        "how": how,
        "model": f"{cfg.model_type}, {cfg.network}, {cfg.numclasses} classes",
        "written": f"{time.strftime('%Y-%m-%d %H:%M')} by torch {torch.__version__}",
    }
    examples = []
    for (index, png), scores in zip(predictions.items(), image_scores(result.counts[[*predictions]]), strict=True):
        sample, predicted = dataset[index], decode_bytes(png, cv2.IMREAD_GRAYSCALE)
        assert predicted is not None
        pictures = _pictures(sample["image"], sample["label"], predicted, classes, cfg.background_class)
        examples.append({"name": dataset.names[index], **scores, **pictures})
    content = {
        "title": f"{checkpoint} on {split}",
        "facts": list(facts.items()),  # JavaScript would move keys that are numbers to the front
        "scores": result.scores_with_interval,
        "classes": [{"name": name, "colour": colour} for name, colour in zip(classes.names, colours, strict=False)],
        "ignored": colours[IGNORE],
        "object": single_object(cfg.numclasses, cfg.background_class),
        "confusion": result.confusion.tolist(),
        "curves": _read_curves(checkpoint.with_name("metrics.jsonl")),
        "examples": examples,
    }
    return _page(content)


def update(
    step: int, cfg: Config, dataset: EvalSet, result: Evaluation, predictions: dict[int, bytes], path: Path
) -> None:
    """Write the report of a run's validation. Without predictions, update the curves of the report that there is.

    step: the run's step. path: the report in the run's folder. page() has the other arguments.
    """
    if predictions:
        best, how = path.with_name("best.pt"), describe_protocol(cfg, "ema" if cfg.ema else "raw")
        write_atomic(path, page(best, step, cfg, dataset, cfg.val_split, how, result, predictions))
    elif path.exists():
        write_atomic(path, with_new_curves(path))


def with_new_curves(path: Path) -> str:
    """Return the page in a run's folder with the curves as they are now.

    Raises UserError or another exception if the page is damaged.
    """
    match = _DATA.search(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
    if match is None:
        raise UserError(f"{path}: damaged, or not a report of this version; the next best validation writes a new one")
    return _page(json.loads(match[0]) | {"curves": _read_curves(path.with_name("metrics.jsonl"))})


def _page(content: dict) -> str:
    """Return the HTML page, ASCII only: the template with the content as JSON, and its title."""
    # A file name with "</script>" would end the element that holds the data. JSON allows \u003c for "<".
    blob = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    values = {"title": html.escape(content["title"]), "data": blob, "wrong": to_hex(ERROR_COLOURS[1:2])[0]}
    # Replace all in one pass, so that "{{data}}" in a title stays as it is.
    page = re.sub(r"\{\{(title|data|wrong)\}\}", lambda match: values[match[1]], TEMPLATE.read_text(encoding="ascii"))
    # File names that are not UTF-8 reach Python as lone surrogates, which only this error handler accepts.
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _read_curves(metrics: Path) -> dict:
    """Return the curves in a metrics.jsonl: {"train": [dicts], "val": [dicts], "every": n}; no dicts if it is missing.

    If there are more than MAX_POINTS training lines, every n-th is kept, and the last one. Damaged lines are skipped.
    """
    lines: dict[str, list[dict]] = {kind: [] for kind in _CURVES}
    for line in json_lines(metrics):
        if line is not None and line["kind"] in lines:
            lines[line["kind"]].append({name: line.get(name) for name in _CURVES[line["kind"]]})
    every = math.ceil(len(lines["train"]) / MAX_POINTS) or 1
    return {"train": lines["train"][::-1][::every][::-1], "val": lines["val"], "every": every}  # keeps the last line


def _pictures(
    image: np.ndarray, label: np.ndarray, predicted: np.ndarray, classes: Classes, background: int | None
) -> dict:
    """Return the pictures of an image as data: URLs of at most PICTURE_SIZE pixels a side, and their (width, height).

    image: (H, W, 3) uint8 RGB. label, predicted: (H, W) uint8.
    """
    height, width = label.shape
    scale = min(1.0, PICTURE_SIZE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    label, predicted = (
        np.asarray(Image.fromarray(values).resize(size, Image.Resampling.NEAREST)) for values in (label, predicted)
    )
    return {
        "size": size,
        "input": data_url(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS), "jpeg", quality=80),
        "label": _layers(label, classes.colours, background),
        "predicted": _layers(predicted, classes.colours, background),
        "errors": _error_map(label, predicted),
    }


def _layers(label: np.ndarray, colours: np.ndarray, background: int | None) -> list[str]:
    """Return a label map (H, W) as data: URLs of two PNGs to lay over the input: class colours, and contours.

    Both PNGs are transparent at class `background`. Their palettes hold only the colours that occur.
    """
    values, indices = np.unique(label, return_inverse=True)
    indices = indices.reshape(label.shape).astype(np.uint8)
    clear = {"transparency": int(np.flatnonzero(values == background)[0])} if background in values else {}
    lines = np.where(contours(label, background), indices + 1, 0).astype(np.uint8)
    line_colours = np.concatenate([np.zeros((1, 3), np.uint8), colours[values]])[:256]
    return [_palette_png(indices, colours[values], **clear), _palette_png(lines, line_colours, transparency=0)]


def _error_map(label: np.ndarray, predicted: np.ndarray) -> str:
    """Return the data: URL of a PNG to lay over the input: red where the prediction is wrong, striped at label 255."""
    rows, columns = np.indices(label.shape)
    stripes = np.where((rows + columns) % 8 < 3, 3, 2)
    errors = np.where(label == IGNORE, stripes, label != predicted).astype(np.uint8)
    return _palette_png(errors, ERROR_COLOURS, transparency=0)


def _palette_png(indices: np.ndarray, palette: np.ndarray, **options) -> str:
    """Return the data: URL of a palette PNG. indices: (H, W) uint8. palette: (N, 3) uint8. options: for PIL."""
    picture = Image.fromarray(indices)
    picture.putpalette(palette.tobytes())
    return data_url(picture, "png", optimize=True, **options)


def data_url(picture: Image.Image, kind: str, **options) -> str:
    """Return a picture as a data: URL. kind: "png" or "jpeg". options: for PIL."""
    return f"data:image/{kind};base64,{base64.b64encode(encode(picture, kind, **options)).decode('ascii')}"

"""Suggest where the next strokes, or the next masks, would teach a model most.

python -m tools.suggest MyScribbles --checkpoint log/scribbles/best.pt --budget 50
python -m tools.suggest photos --checkpoint log/masks/best.pt --budget 10 --masks
"""

import csv
import dataclasses
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

if not __package__:  # started as a file from another folder: python PATH/tools/suggest
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from flags.declare import flag
from flags.programs import LOADER
from flags.reader import FlagReader
from flags.shared import DataFlags, ImageFlags, InferenceFlags, LaunchFlags, ModelFlags
from support import program, shell
from support.log import log

ABOUT = """Suggest where the next strokes, or the next masks, would teach a model most.

The program ranks places by the mIoU that wrong predictions around them may cost. Images may have strokes or none. It
writes next.csv, a page to look at while you draw, and a folder for LabelMe: the images, and files with a point at each
place. With --masks it ranks whole images, and writes no points.
"""


@dataclass(frozen=True, repr=False, eq=False)
class SuggestFlags(InferenceFlags, DataFlags, ImageFlags, ModelFlags, LaunchFlags):
    """Suggestions."""

    images: tuple[Path, ...] = flag(
        None, "data sets in VOC's layout with strokes, or folders of photos that have no strokes", is_argument=True
    )
    budget: int = flag(50, "number of places to suggest, or of images if --masks is set", ge=1)
    masks: bool = flag(False, "suggest images for dense masks, not places for strokes")
    train_path: str = flag("", "folder of the strokes [pascal_2012_scribble]", per_rank=True)
    split: str = flag("", "list of a data set's images [--train_split of the checkpoint, or train]")
    output: str = flag("suggestions", "folder for next.csv, index.html and labelme/", per_rank=True)


READER = FlagReader(SuggestFlags, "-m tools.suggest", ABOUT, LOADER)

if __name__ == "__main__":
    program.check_command_line(READER.command_line)  # --help and wrong flags answer here, before torch is imported

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data.dataset import SegmentationDataset
from data.images import encode
from data.images.reader import ImageReader
from data.layout import LISTS, SCRIBBLES, Split
from distributed.group import Group
from flags import Config
from inference import pseudo_folder
from inference.predictor import Predictor
from inference.pseudo_labels import Stroked, read_stroked
from inference.trained import TrainedModel, load_on_ranks, run_program
from support.errors import UserError
from support.files import write_atomic
from support.labels import BACKGROUND
from support.progress import progress_bar
from support.results import reserve
from tools.convert.output import put_image
from tools.convert.reading import list_name
from tools.suggest import labelme
from tools.suggest.page import figure, page
from tools.suggest.places import Place, choose, find_places

RESULTS = ("next.csv", "index.html", "labelme/*")
COLUMNS = ("rank", "image", "x", "y", "class", "or")


class Candidate(NamedTuple):
    """An image that may get strokes or a mask.

    name: of its LabelMe file, without spaces and "/". position: its index in the data set.
    """

    name: str
    dataset: SegmentationDataset
    position: int
    places: list[Place]

    @property
    def own_name(self) -> str:
        """Return the image's name in its data set."""
        return self.dataset.names[self.position]


def main(argv: list[str] | None = None) -> int:
    return run_program(READER, argv, suggest)


def suggest(flags: SuggestFlags, overrides: dict, group: Group) -> None:
    """Write the suggestions, unless --output has them. Collective; raises Stopped after a signal."""
    trained, predictor = load_on_ranks(flags, overrides, group)
    cfg, output = trained.cfg, Path(flags.output)
    labelme.check_names(trained.classes.names, flags.checkpoint)
    sources = [find_images(folder, trained, flags) for folder in flags.images]
    settings = trained.settings(flags) | {name: getattr(flags, name) for name in ("budget", "masks")}
    settings["sources"] = [pseudo_folder.digests(source, group) for source in sources]
    if group.is_main:
        inputs = {folder for source in sources for folder in source.folders.values()}
        inputs |= {folder for folder in flags.images if folder.resolve() == output.resolve()}
        reserve(output / "suggestions.json", settings, RESULTS, "tools.suggest", flag="--output", inputs=inputs)
    group.barrier()
    if not group.broadcast((output / "next.csv").is_file()):
        candidates, areas = find_candidates(sources, predictor, group, cfg, flags)
        if group.is_main:
            chosen = choose([image.places for image in candidates], areas, flags.budget, whole=flags.masks)
            if len(chosen) < flags.budget:
                what = "images" if flags.masks else "places"
                log.warning(f"--budget {flags.budget}: only {len(chosen)} {what} found")
            write(chosen, candidates, predictor, trained, output, group.device)
    if group.is_main:
        say_how_to_go_on(flags, trained.classes.names)


def find_images(folder: Path, trained: TrainedModel, flags: SuggestFlags) -> SegmentationDataset:
    """Return a data set's training images with their strokes as "label", or the images of a folder of photos.

    Raises UserError if there are none.
    """
    cfg = trained.cfg
    if not folder.is_dir():
        problem = "not a folder" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {problem}: name a data set in VOC's layout, or a folder of photos")
    is_voc = any((folder / name).is_dir() for name in (SCRIBBLES, *LISTS))
    if flags.train_path or is_voc:
        # Neither the strokes nor the layout of the training data count.
        dataset = "ScribbleOnly" if cfg.dataset == "Folder" and is_voc else cfg.dataset
        cfg = dataclasses.replace(cfg, dataset=dataset, dataset_path=str(folder), train_path="")
        remedy = "use a model trained on the data set's classes: the strokes get its class names"
        trained.warn_of_other_class_names(remedy, folder)
        return pseudo_folder.find_scribbles(cfg, flags.split or cfg.train_split, flags.train_path)
    return SegmentationDataset(Split({"image": folder}), cfg.numclasses, reader=ImageReader(**cfg.reading))


def find_candidates(
    sources: Sequence[SegmentationDataset], predictor: Predictor, group: Group, cfg: Config, flags: SuggestFlags
) -> tuple[list[Candidate], np.ndarray]:
    """Return all images with their places, in the order of the sources, and the area of each class. Collective.

    An image is left out if an earlier one has its name. The areas are sums of probabilities, in images: (C,).
    """
    found, twice, areas = dict[str, Candidate](), list[Path](), np.zeros(cfg.numclasses)
    for dataset in sources:
        own: list[tuple[int, list[Place], np.ndarray]] = []

        def use(batch: list[Stroked], probs: Tensor, own: list = own) -> None:
            own += [(item.position, *find_places(item, one)) for item, one in zip(batch, probs, strict=True)]

        pseudo_folder.predict_images(dataset, predictor, group, flags, use)
        every = [result for results in group.gather(own) for result in results]
        for index, places, shares in sorted(every, key=lambda result: result[0]):
            image = Candidate(list_name(dataset.names[index]), dataset, index, places)
            if found.setdefault(image.name, image) is not image:
                twice.append(dataset.files[index]["image"])
            areas += shares
    if twice:
        left_out = f"{len(twice)} image(s), such as {twice[0]}, left out"
        log.warning(f"{left_out}: an earlier image has the same name in LabelMe (spaces and / become _): rename it")
    return list(found.values()), areas


def write(
    chosen: list[tuple[int, Place | None]],
    candidates: list[Candidate],
    predictor: Predictor,
    trained: TrainedModel,
    output: Path,
    device: torch.device,
) -> None:
    """Write LabelMe files, the page and, last, the list. chosen: as choose() returns it."""
    classes, background = trained.classes, trained.cfg.background_class
    rows, places_of = list[list](), dict[int, list[tuple[int, Place]]]()
    for rank, (number, place) in enumerate(chosen, start=1):
        row, own = [rank, candidates[number].own_name], places_of.setdefault(number, [])
        if place is not None:
            own.append((rank, place))
            row += [place.column, place.row, classes.names[place.label], classes.names[place.other]]
        rows.append(row)
    figures = []
    for number, places in progress_bar(places_of.items(), total=len(places_of), title="pictures", unit="image"):
        image = candidates[number]
        (item,) = read_stroked(image.dataset, [image.position])
        predicted = predictor.labels(torch.from_numpy(item.image)[None].to(device))[0].cpu().numpy()
        figures.append(figure(image.own_name, item, predicted, places, classes, background))
        file = image.dataset.files[image.position]["image"]
        target = output / "labelme" / f"{image.name}{file.suffix.lower()}"
        if image.dataset.reader.is_plain:
            put_image(target, file)
        else:  # LabelMe would show more than 8 bits almost black, and cannot choose bands
            target = target.with_suffix(".png")
            write_atomic(target, encode(Image.fromarray(item.image), "PNG"), parents=True)
        if places:
            labelme.write(target, item.scribble, places, classes.names)
    write_atomic(output / "classes.txt", classes.text())
    write_atomic(output / "index.html", page(figures, classes, masks=bool(chosen) and chosen[0][1] is None))
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([COLUMNS[: len(rows[0])] if rows else COLUMNS, *rows])
    write_atomic(output / "next.csv", lines.getvalue())


def say_how_to_go_on(flags: SuggestFlags, names: Sequence[str]) -> None:
    """Log where the suggestions are, and the commands to draw and to convert."""
    output, drawn, what = Path(flags.output), Path(flags.output) / "labelme", "images" if flags.masks else "places"
    if not drawn.is_dir():
        log.warning(f"{output}: no place to suggest: strokes are everywhere")
        return
    words = ["-m", "tools.convert", "labelme", drawn, output / "drawn", "--classes", output / "classes.txt"]
    log.info(f"{what}: {output / 'next.csv'}; to look at while drawing: {output / 'index.html'}")
    log.info(f"to draw: {shell.quoted(['labelme', str(drawn)])}")
    words += [] if flags.masks else ["--scribbles"]
    if flags.masks and not any(name.lower() in BACKGROUND for name in names):
        words += ["--unlabelled", "ignore"]
    log.info(f"then: {shell.python_command(*words)}")


if __name__ == "__main__":
    program.run_and_exit(main)

"""Make pseudo-labels from scribbles: with a trained model, by spreading the strokes over the image, or both.

python pseudo.py --checkpoint log/teacher/best.pt --output pseudo --scales 0.75 1 1.25 --flip
python pseudo.py --dataset_path VOC2012 --output pseudo    # from the strokes alone
torchrun --standalone --nproc_per_node 8 pseudo.py --checkpoint log/teacher/best.pt --output pseudo
"""

import dataclasses
import json
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from config.programs import OF_MODEL, PSEUDO, PseudoFlags, check_pseudo
from support import program

if __name__ == "__main__":
    program.check_command_line(PSEUDO.command_line)  # --help and wrong flags answer here, before torch is imported

from torch.utils.data import DataLoader

from config import FLAGS, Config
from config.flags import per_rank
from data.classes import Classes, read_classes
from data.dataset import SegmentationDataset
from data.sampler import EvalBatches
from distributed import checks
from distributed.group import Group, Stopped
from evaluation.predictor import Predictor
from pseudo_labels import scores
from pseudo_labels.drafts import Prediction, make_draft, predict
from pseudo_labels.files import find_dense_masks, find_output, find_scribbles
from pseudo_labels.finishing import NUM_THREADS, Finishing
from pseudo_labels.folder import PseudoFolder
from pseudo_labels.images import Stroked, StrokedImages, contents_digest, digests
from runs.log import progress_bar, start_logging
from support import shell
from support.errors import STOPPED, UserError
from support.files import check_not_folder, sha256, write_atomic
from support.image_stats import as_text
from support.threads import ThreadPool
from trained import LAYOUT, OUT_OF_MEMORY_ADVICE, TrainedModel, inference_settings, read_flags
from utils import join_group, make_loader, prepare_demo_data, resolve_amp

log = logging.getLogger("segtrain")

OF_TRAINING = (*LAYOUT, "numclasses", "classes", "background", "image_stats", "show_channels", "long_side")


def main(argv: list[str] | None = None) -> int:
    """Make pseudo-labels with the flags of a command line. Returns 0, or errors.STOPPED after a signal."""
    return run(*read_flags(PSEUDO, argv))


def run(flags: PseudoFlags, overrides: dict) -> int:
    """Make all pseudo-labels on all ranks. Returns 0, or errors.STOPPED after a signal.

    overrides: {flag: value} that replaces the checkpoint's. Raises UserError for wrong flags or data.
    """
    check_pseudo(flags)
    with join_group(flags) as group, program.advice(str(group.device), OUT_OF_MEMORY_ADVICE):
        start_logging(flags.log_level, is_main=group.is_main)
        checks.check_flags(group, vars(flags), per_rank(flags))
        try:
            make(flags, overrides, group)
        except Stopped:
            log.info("stopped by a signal; run the same command again, without --overwrite, to finish")
            return STOPPED
    return 0


def make(flags: PseudoFlags, overrides: dict, group: Group) -> None:
    """Make the pseudo-labels that --output lacks, and print their scores. Collective; raises Stopped after a signal.

    overrides: {flag: value} that replaces the checkpoint's.
    """
    cfg, predictor, classes, settings = load(flags, overrides, group)
    prepare_demo_data(cfg, group)
    split = flags.split or cfg.train_split
    dataset = find_scribbles(cfg, split, flags.train_path)
    masks_folder, masks = find_dense_masks(cfg, split, dataset.folders["label"], must_exist="val_path" in overrides)
    folder = PseudoFolder(find_output(cfg, split, flags.output), classes.colours, cfg.label_suffix)
    folder.check_place([*dataset.folders.values(), masks_folder], Path(cfg.dataset_path))
    check_not_folder(flags.json, "--json")
    checks.check_setup(group, {f"{split} list": dataset})
    settings |= digests(dataset, group)
    if group.is_main:
        folder.claim(settings, overwrite=flags.overwrite)
    group.barrier()

    finishing = Finishing(folder, dataset, group)
    complete = group.broadcast(all(map(folder.is_done, dataset.names)))
    if not complete:
        Drafting(dataset, folder, group, cfg, predictor, flags).run()
        finishing.write(finishing.floors(flags.threshold, flags.keep))
    result = group.broadcast(folder.scores) if complete else {}
    masks_digest = contents_digest([masks[name] for name in dataset.names if name in masks], "dense masks", group)
    if result.get("masks_digest") != masks_digest:
        has_drafts = group.broadcast(all(map(folder.has_draft, dataset.names)))
        ways = {"model": "model"} if predictor else {}
        ways |= {} if flags.strokes == "none" else {"joined" if predictor else "strokes": "label"}
        ways = ways if has_drafts else {}
        result = {"masks_digest": masks_digest, **finishing.score(masks, ways)}
    result |= {"masks": str(masks_folder), "classes": classes.names}
    if group.is_main:
        if flags.json:
            write_atomic(Path(flags.json), json.dumps(result, indent=1), parents=True)
        folder.finish(result)
    report(result, flags, dataset, cfg)


def load(flags: PseudoFlags, overrides: dict, group: Group) -> tuple[Config, Predictor | None, Classes, dict]:
    """Return the flags of data and model, the model or None, the classes, and all that pseudo-labels depend on.

    The flags are the checkpoint's, or train.py's defaults without one. overrides: {flag: value} that replaces them.
    """
    settings: dict = {name: getattr(flags, name) for name in ("strokes", "keep", "threshold")}
    predictor = None
    if flags.checkpoint:
        trained = TrainedModel(flags.checkpoint, overrides)
        trained.cfg = cfg = dataclasses.replace(trained.cfg, amp=resolve_amp(trained.cfg.amp, group))
        predictor = trained.predictor(flags.weights, group.device, **inference_settings(flags))
        checks.check_weights(group, predictor.model, buffers_averaged=True)
        settings |= {"checkpoint": sha256(trained.path)} | {name: getattr(flags, name) for name in OF_MODEL}
        settings |= cfg.sizes | cfg.architecture | {"model_type": cfg.model_type, "amp": cfg.amp}
        settings |= {"background": cfg.background, "val_batchsize": cfg.val_batchsize}
    else:
        cfg = Config(**overrides)
    if not cfg.dataset_path:
        raise UserError("--dataset_path is not set: give the data set's root folder (docs/your_data.md)")
    if cfg.label_map:
        raise UserError(
            f"--label_map {cfg.label_map}: pseudo-labels hold class numbers, which train.py would map again: write the "
            "scribbles as class numbers"
        )
    classes = read_classes(cfg.classes, cfg.numclasses)
    settings |= {"show_channels": cfg.show_channels, "image_stats": as_text(cfg.image_stats)}
    settings |= {"numclasses": cfg.numclasses, "colours": classes.colours[: cfg.numclasses].tolist()}
    return cfg, predictor, classes, settings


@dataclass
class Drafting:
    """The first pass over the images, shared by all ranks of `group`: a draft of each.

    dataset: images, and scribbles as "label". predictor: the model, or None.
    """

    dataset: SegmentationDataset
    folder: PseudoFolder
    group: Group
    cfg: Config
    predictor: Predictor | None
    flags: PseudoFlags

    def run(self) -> None:
        """Write what is missing. Collective; raises Stopped after a signal."""
        group, folder, names = self.group, self.folder, self.dataset.names
        # Batches are those of all images, and done again whole: a model's result may depend on the batch's size.
        sizes = [size or (0, 0) for size in group.map(self.dataset.image_size, range(len(self.dataset)))]
        images_at_once = self.predictor.images_at_once if self.predictor else 1
        batches = EvalBatches(sizes, batch_size=images_at_once, rank=group.rank, world_size=group.world_size)
        pending = [batch for batch in batches if not all(folder.has_draft(names[index]) for index in batch)]
        display = self.cfg.display if self.flags.strokes == "walker" else None
        images = StrokedImages(self.dataset, display, with_model=self.predictor is not None)
        loader = make_loader(DataLoader, images, self.flags.workers, group, batch_sampler=pending, collate_fn=list)
        total = sum(map(len, pending))
        writes: list[Future] = []
        with (
            ThreadPool(NUM_THREADS) as pool,
            progress_bar(None, total=total, title="images", unit="image", enabled=group.is_main) as bar,
        ):
            for batch in loader if pending else ():
                if group.stop:
                    break
                predictions = self._predict(batch)
                for write in writes:  # of the batch before, made while this one was predicted
                    write.result()
                writes = [pool.submit(self._write, *pair) for pair in zip(batch, predictions, strict=True)]
                bar.update(len(batch))
        for write in writes:
            write.result()
        group.raise_if_stopped()

    def _predict(self, batch: list[Stroked]) -> Sequence[Prediction | None]:
        if not self.predictor:
            return [None] * len(batch)
        return predict(
            batch,
            self.predictor,
            self.cfg.numclasses,
            self.group.device,
            only_stroked=self.flags.only_stroked_classes,
            background=self.cfg.background_class,
        )

    def _write(self, item: Stroked, prediction: Prediction | None) -> None:
        self.folder.write_draft(self.dataset.names[item.index], make_draft(item, prediction))


def report(result: dict, flags: PseudoFlags, dataset: SegmentationDataset, cfg: Config) -> None:
    """Log the table of scores, what was written, and the command that trains on it. result: content of scores.json."""
    if result["ways"]:
        missing = result["images"] - result["scored"]
        rest = f" (of {result['images']}: the others have no dense mask)" if missing else ""
        log.info(f"against {result['scored']} dense masks of {result['masks']}{rest}:")
        log.info(scores.table(result["ways"], result["classes"]))
    else:
        log.info(f"no scores: {result['masks']} (--val_path) has no dense masks of these images")
    shares = f"{result['labelled']:.1%} of the pixels are labelled, {result['stroked']:.2%} by strokes"
    log.info(f"{result['images']} pseudo-labels in {flags.output}: {shares}")
    scribbles, labels = (path.resolve() for path in (dataset.folders["label"], Path(flags.output)))
    words = ["--dataset", "ScribblePseudo", "--train_path", scribbles, "--pseudo_path", labels]
    if cfg.dataset == "Folder":  # it reads labels of one kind, and the pseudo-labels include the strokes
        words = ["--dataset", "Folder", "--train_path", labels]
    words += ["--dataset_path", cfg.dataset_path]
    values = {name: getattr(cfg, name) for name in OF_TRAINING} | {"train_split": flags.split or cfg.train_split}
    for name, value in values.items():
        if value != FLAGS[name].default:
            words += [f"--{name}", *(value if FLAGS[name].is_list else [value])]
    if not result["stroked"]:
        log.warning(f"no scribble in {scribbles} has a stroke")
    log.info(f"to train on them: {shell.python_command('train.py', *words)}")


if __name__ == "__main__":
    program.run_and_exit(main)

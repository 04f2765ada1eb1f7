"""Score a checkpoint on a split of its data set.

python evaluate.py --checkpoint log/demo/best.pt                        # as in training: whole images, one scale
python evaluate.py --checkpoint log/demo/best.pt --scales 0.75 1 1.25 --flip --report report
torchrun --standalone --nproc_per_node 8 evaluate.py --checkpoint log/cdsp_release/last.pt \
    --long_side 512 --scales 0.5 0.75 1 1.25 1.5 1.75 2 --window 465    # as the CDSP paper
"""

import json
import sys
from pathlib import Path

if not __package__:  # started as a file: PYTHONSAFEPATH keeps its folder out of sys.path
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from flags.programs import EVALUATE, EvaluateFlags
from support import program
from support.log import log

if __name__ == "__main__":
    program.check_command_line(EVALUATE.command_line)  # --help and wrong flags answer here, before torch is imported

import numpy as np

from data.label_check import objects_as_255
from distributed import rank_checks
from distributed.group import Group
from inference.evaluation import Evaluation, evaluate_split
from inference.report import choose_images, describe_protocol, gather_predictions, page
from inference.trained import load_on_ranks, run_program
from support.best_score import deciding_score
from support.errors import UserError
from support.files import check_file, write_atomic
from support.labels import IGNORE
from support.progress import counted
from training.data import prepare_demo_data
from training.scores import image_scores, table
from utils import get_eval_loader


def main(argv: list[str] | None = None) -> int:
    """Evaluate with the flags of a command line (argv; None: sys.argv). Returns 0, or errors.STOPPED after a signal."""
    return run_program(EVALUATE, argv, evaluate)


def evaluate(flags: EvaluateFlags, overrides: dict, group: Group) -> None:
    """Score a checkpoint, and write the files that the flags ask for. Collective; raises Stopped after a signal.

    overrides: {flag: value} that replaces the checkpoint's.
    """
    model, predictor = load_on_ranks(flags, overrides, group)
    cfg, classes = model.cfg, model.classes
    split = flags.split or cfg.val_split
    prepare_demo_data(cfg, group)
    remedy = "add a --label_map FILE from the data set's class numbers to the model's"
    model.warn_of_other_class_names(remedy)
    loader = get_eval_loader(cfg, split, group)
    dataset = loader.dataset
    rank_checks.check_setup(group, {f"{split} list": dataset})
    if group.is_main:  # an error here also ends the other ranks
        inputs = [Path(flags.checkpoint), *map(Path, filter(None, (cfg.classes, cfg.label_map)))]
        inputs += dataset.folders.values()
        if flags.report:
            mark = "Nothing is loaded from anywhere"
            check_file(Path(flags.report, "index.html"), "--report", mark=mark, inputs=inputs)
        if flags.json:
            check_file(Path(flags.json), "--json", mark='"per_image": [', inputs=inputs, suffix=".json")
    how = describe_protocol(cfg, model.resolve_weights(flags.weights), flags.scales, flip=flags.flip)
    log.info(f"{model.path} on {counted(len(dataset), 'image')} of {split}: {how}")

    result = evaluate_split(predictor, loader, group, split, choose_images if flags.report else None)
    if not result.scores["pixels"]:
        raise UserError(f"--split {split}: none of its masks has a labelled pixel: there is nothing to score")
    # The values of each mask, with 255 if some of its pixels have no class.
    labelled, sizes = result.counts[:, 1], loader.batch_sampler.sizes
    ignored = [{IGNORE} if row.sum() < np.prod(size) else set() for row, size in zip(labelled, sizes, strict=True)]
    values = [{*np.flatnonzero(row), *more} for row, more in zip(labelled, ignored, strict=True)]
    if number := sum(objects_as_255(values)):
        remedy = "--label_map binary" if cfg.numclasses == 2 else "a --label_map FILE"
        problem = f"{number} of {len(dataset)} masks hold only 0 and 255, and 255 is ignored"
        log.warning(f"{problem}: if it is the object, map it to a class with {remedy}")
    log.info(table(result.scores_with_interval, classes.names))
    name, score = deciding_score(result.scores, classes.names, cfg.background_class)
    if name != "mIoU":  # the table ends with the mIoU
        log.info(f"{name}: {100 * score:.2f}")
    predictions = gather_predictions(result, group) if flags.report else {}
    if group.is_main and flags.json:
        about = {"checkpoint": str(model.path), "split": split, "how": how, "classes": classes.names}
        write_atomic(Path(flags.json), json.dumps(about | as_dict(result), indent=1), parents=True)
        log.info(f"scores: {flags.json}")
    if group.is_main and flags.report:
        path, steps = Path(flags.report) / "index.html", "unknown" if model.file.step is None else model.file.step
        write_atomic(path, page(model.path, steps, cfg, dataset, split, how, result, predictions), parents=True)
        log.info(f"report: {path}")


def as_dict(result: Evaluation) -> dict:
    """Return every score, the confusion matrix, and the scores of each image as a dict for JSON."""
    per_image = zip(result.names, image_scores(result.counts), strict=True)
    return {
        **result.scores_with_interval,
        "confusion": result.confusion.tolist(),
        "per_image": [{"name": name, **scores} for name, scores in per_image],
    }


if __name__ == "__main__":
    program.run_and_exit(main)

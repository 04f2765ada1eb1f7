"""Make pseudo-labels: spread scribbles over the image, guided by a trained model's prediction.

python pseudo.py --checkpoint log/teacher/best.pt --output pseudo --scales 0.75 1 1.25 --flip
torchrun --standalone --nproc_per_node 8 pseudo.py --checkpoint log/teacher/best.pt --output pseudo
"""

import sys
from pathlib import Path

if not __package__:  # started as a file: PYTHONSAFEPATH keeps its folder out of sys.path
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from flags.programs import PSEUDO, PseudoFlags
from support import program
from support.log import log

if __name__ == "__main__":
    program.check_command_line(PSEUDO.command_line)  # --help and wrong flags answer here, before torch is imported

from data.classes import read_preset
from data.dataset import SegmentationDataset
from distributed import rank_checks
from distributed.group import Group
from flags import Config, as_words, without_defaults
from inference import pseudo_folder
from inference.trained import LAYOUT, load_on_ranks, run_program
from support import shell
from support.errors import UserError
from support.files import check_file, write_atomic
from support.results import reserve
from training.data import find_files, prepare_demo_data

LABEL_FLAGS = ("numclasses", "background", "val_batchsize")  # on which pseudo-labels depend, too
TRAINING_FLAGS = (*LAYOUT, "numclasses", "classes", "background", "long_side", "l_crf")


def main(argv: list[str] | None = None) -> int:
    """Make all pseudo-labels with the flags of a command line. Returns 0, or errors.STOPPED after a signal.

    Raises UserError for wrong flags or data.
    """
    return run_program(PSEUDO, argv, make)


def make(flags: PseudoFlags, overrides: dict, group: Group) -> None:
    """Make the pseudo-labels that --output lacks. Collective; raises Stopped after a signal.

    overrides: {flag: value} that replaces the checkpoint's.
    """
    if not flags.output:
        raise UserError("--output is not set: name the folder for the pseudo-labels")
    trained, predictor = load_on_ranks(flags, overrides, group)
    cfg, classes = trained.cfg, trained.classes
    if not cfg.dataset_path:
        place = shell.document("docs/your_data.md")
        raise UserError(f"--dataset_path is not set: give the data set's root folder ({place})")
    if cfg.label_map:
        raise UserError(
            f"--label_map {cfg.label_map}: pseudo-labels hold class numbers, which train.py would map again: write the "
            "scribbles as class numbers"
        )
    settings = trained.settings(flags) | {name: getattr(cfg, name) for name in LABEL_FLAGS} | cfg.architecture
    prepare_demo_data(cfg, group)
    remedy = "use a model trained on the data set's classes: the pseudo-labels get its class numbers"
    trained.warn_of_other_class_names(remedy)
    split, folder = flags.split or cfg.train_split, Path(flags.output)
    dataset = pseudo_folder.find_scribbles(cfg, split, flags.train_path)
    if cfg.dataset == "Folder":  # its labels are in a folder for the split, such as OUTPUT/train
        folder = find_files(cfg, "Folder", split, {"label": str(folder.absolute())}).folders["label"]

    def label_path(name: str) -> Path:
        return folder / f"{name}{cfg.label_suffix}.png"  # a name may contain folders

    rank_checks.check_setup(group, {f"{split} list": dataset})
    settings |= pseudo_folder.digests(dataset, group)
    pseudo_folder.check_strokes(dataset, group)
    if group.is_main:
        options: dict = {"flag": "--output", "inputs": dataset.folders.values(), "overwrite": flags.overwrite}
        options |= {"files": dict.fromkeys(dataset.names), "paths": lambda name: [label_path(name)]}
        reserve(folder / "pseudo.json", settings, ["**/*.png"], "pseudo.py", **options)
    group.barrier()

    labels = [label_path(name) for name in dataset.names]
    if not group.broadcast(all(label.is_file() for label in labels)):
        pseudo_folder.label_images(dataset, labels, classes.colours, predictor, group, cfg, flags)
    report(pseudo_folder.share_labelled(labels, cfg.numclasses, group), flags, dataset, cfg)


def report(labelled: float, flags: PseudoFlags, dataset: SegmentationDataset, cfg: Config) -> None:
    """Log what was written, and the command that trains on it. labelled: share of the pixels."""
    log.info(f"{len(dataset)} pseudo-labels in {flags.output}: {labelled:.1%} of the pixels are labelled")
    scribbles, labels = (path.resolve() for path in (dataset.folders["label"], Path(flags.output)))
    words = ["--dataset", "ScribblePseudo", "--train_path", scribbles, "--pseudo_path", labels]
    if cfg.dataset == "Folder":  # it reads labels of one kind, and the pseudo-labels include the strokes
        words = ["--dataset", "Folder", "--train_path", labels]
    words += ["--dataset_path", cfg.dataset_path]
    values = {name: getattr(cfg, name) for name in TRAINING_FLAGS} | {"train_split": flags.split or cfg.train_split}
    try:
        read_preset("classes", cfg.classes)
    except UserError:  # a checkpoint that was moved has the names, and train.py needs a file
        values["classes"] = Path(flags.output) / "classes.txt"
        check_file(values["classes"], "--output", mark=cfg.texts["classes"])
        write_atomic(values["classes"], cfg.texts["classes"])
    words += as_words(without_defaults(values))
    log.info(f"to train on them: {shell.python_command('train.py', *words)}")


if __name__ == "__main__":
    program.run_and_exit(main)

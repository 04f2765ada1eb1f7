"""train.py --task test and --task predict: score or predict with the newest run of --name."""

from pathlib import Path
from types import ModuleType

from config import Config
from config.programs import EVALUATE, PREDICT, TASKS, PredictFlags
from config.shared import CheckpointFlags
from runs import folder as run_folder
from support.errors import UserError
from trained import SAVED_FLAGS
from utils import find_masks


def run_task(cfg: Config, argv: list[str] | None) -> int:
    """Run evaluate.py or predict.py for --task test or predict, and return the exit status. cfg: config.parse(argv).

    --checkpoint defaults to best.pt of the newest run of --name, and --input to the folder of the validation images.
    Raises UserError if there is no best.pt, or if --resume is set.
    """
    assert isinstance(cfg, CheckpointFlags)
    if cfg.resume:
        raise UserError(f"--resume {cfg.resume} with --task {cfg.task}: use --checkpoint FILE instead")
    if not (cfg.checkpoint or getattr(cfg, "model", "")):
        folder = run_folder.newest(Path(cfg.logdir), cfg.name)
        if folder is None or not (folder / "best.pt").is_file():
            raise UserError(
                f"--task {cfg.task}: no run of --name {cfg.name} in --logdir {cfg.logdir} has a best.pt: train first, "
                "or give --checkpoint FILE"
            )
        cfg.checkpoint = str(folder / "best.pt")
    if isinstance(cfg, PredictFlags) and not cfg.input:
        cfg.input = (str(find_masks(cfg, cfg.val_split).folders["image"]),)
    reader = {"test": EVALUATE, "predict": PREDICT}[cfg.task]
    given, _, _ = TASKS[cfg.task].command_line(argv)
    overrides = {name: value for name, value in given.items() if name in reader.flags and name in SAVED_FLAGS}
    if getattr(cfg, "model", ""):  # an exported model says itself what a config says about a checkpoint
        for name in SAVED_FLAGS - set(given):
            setattr(cfg, name, TASKS[cfg.task].flags[name].default)
    import evaluate  # here, as training needs neither
    import predict

    programs: dict[str, ModuleType] = {"test": evaluate, "predict": predict}
    return programs[cfg.task].run(cfg, overrides | {"workers": cfg.workers})

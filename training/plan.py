"""The plan of a run, settled before anything is built."""

from dataclasses import dataclass
from pathlib import Path

from data.classes import Classes
from data.layout import Split
from flags import Config
from models.pretrained import StartWeights
from training.checkpoint_content import Checkpoint


@dataclass(frozen=True)
class Plan:
    """Everything that a run is built from. Ranks have equal plans, apart from paths, per-rank flags and start weights.

    cfg: the final flags. classes: names and colours. files: the files of the splits "train" and "val", listed once.
    folder: the folder of the run to continue, or None for a new run. checkpoint: what --resume names, or None; with
    --reset_data_offset a new run has one. start_weights: the weights of a run that resumes nothing, on rank 0;
    else None.
    """

    cfg: Config
    classes: Classes
    files: dict[str, Split]
    folder: Path | None
    checkpoint: Checkpoint | None
    start_weights: StartWeights | None

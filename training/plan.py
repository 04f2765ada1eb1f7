"""What a run is going to do, settled before anything is built."""

from dataclasses import dataclass
from pathlib import Path

from data.classes import Classes
from data.layout import Split
from flags import Config
from models.pretrained import StartWeights
from training.schema import Checkpoint


@dataclass(frozen=True)
class Plan:
    """All that the parts of a run are built from. Every rank has the same, but for the start weights.

    cfg: the final flags. classes: names and colours. files: of the splits "train" and "val", listed once. folder: of
    the run to continue, or None for a new one. resumed: the Checkpoint that the run goes on from, or None.
    start_weights: of a run that resumes nothing, on rank 0; else None.
    """

    cfg: Config
    classes: Classes
    files: dict[str, Split]
    folder: Path | None
    resumed: Checkpoint | None
    start_weights: StartWeights | None

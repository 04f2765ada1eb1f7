"""Find out who started this process and with which rank: torchrun, srun, variables set by hand, or flags."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from support.errors import UserError
from support.shell import document

BY_HAND = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MOST_RANKS = 2**16


@dataclass(frozen=True)
class Launch:
    """How one process was started. launcher: who gave it its rank, as a word for the log.

    local_rank is -1 and local_world_size, the number of processes on this machine, is 0 if the launcher sets none.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int = -1
    local_world_size: int = 0


def find(environment: Mapping[str, str]) -> Launch | None:
    """Return the Launch that the environment variables of a launcher describe, or None without a launcher.

    torchrun comes first, because it may run inside srun. Raises UserError if a variable is missing or not an integer.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:  # of torchrun, or set by hand
        launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "RANK and WORLD_SIZE"
        rank, world_size = integer(environment, "RANK"), integer(environment, "WORLD_SIZE")
        local = integer(environment, "LOCAL_RANK", -1), integer(environment, "LOCAL_WORLD_SIZE", 0)
        return Launch(launcher, rank, world_size, *local)
    # Slurm sets SLURM_PROCID also in batch scripts and in shells of salloc, but more than one task only under srun.
    num_tasks = integer(environment, "SLURM_STEP_NUM_TASKS", 1)
    if "SLURM_PROCID" in environment and num_tasks > 1:
        rank, local_rank = integer(environment, "SLURM_PROCID"), integer(environment, "SLURM_LOCALID", -1)
        return Launch("srun", rank, num_tasks, local_rank)
    return None


def find_or_make(environment: Mapping[str, str], world_size: int = 0, rank: int = -1, local_rank: int = -1) -> Launch:
    """Return the Launch of a launcher, or else of world_size and rank, or else that of a process by itself.

    local_rank counts if the launcher sets none; -1 lets process_group() find it. Raises UserError on impossible values.
    """
    launch = find(environment)
    if launch and world_size not in (0, launch.world_size):
        number = f"{launch.launcher} set it to {launch.world_size}"
        raise UserError(f"--world_size {world_size}, but {number}: drop the flag")
    if launch and rank not in (-1, launch.rank):
        raise UserError(f"--rank {rank}, but {launch.launcher} set it to {launch.rank}: drop the flag")
    tasks = integer(environment, "SLURM_NTASKS", 1)
    if not launch and world_size == 0 and tasks > 1:
        raise UserError(
            f"SLURM_NTASKS is {tasks}, but srun did not start this process: put srun in front of the command (see "
            f"{document('scripts/slurm.sbatch')}), or add --world_size 1 to train with this process alone"
        )
    if not launch and world_size == 0 and integer(environment, "OMPI_COMM_WORLD_SIZE", 1) > 1:
        raise UserError("mpirun started this process, but sets no RANK: use torchrun, or set RANK and WORLD_SIZE")
    if not launch and world_size > 1 and rank < 0:
        raise UserError(f"--world_size {world_size} without a launcher: use torchrun, or give each process its --rank")
    launch = launch or Launch("flags", max(rank, 0), max(world_size, 1))
    source = "--rank and --world_size" if launch.launcher == "flags" else launch.launcher
    if not 0 <= launch.rank < launch.world_size:
        ranks = f"ranks are 0 to {launch.world_size - 1}"
        raise UserError(f"rank {launch.rank} with world size {launch.world_size}: {ranks}; check {source}")
    if launch.world_size > MOST_RANKS:
        raise UserError(f"world size {launch.world_size}: at most {MOST_RANKS} processes; check {source}")
    if launch.local_rank < -1:
        raise UserError(f"LOCAL_RANK {launch.local_rank}: must be at least 0")
    return launch if launch.local_rank >= 0 else replace(launch, local_rank=local_rank)


def rank_of(environment: Mapping[str, str]) -> str:
    """Return the rank that a launcher gave this process, as text for messages; "" without a launcher."""
    try:
        launch = find(environment)
    except UserError:
        return environment.get("RANK", "")
    return str(launch.rank) if launch else ""


def alone(environment: Mapping[str, str]) -> str:
    """Return "; to train alone: COMMAND", which removes variables that were set by hand; "" without them."""
    names = [name for name in BY_HAND if name in environment]
    if not {"RANK", "WORLD_SIZE"} & {*names} or "TORCHELASTIC_RUN_ID" in environment:
        return ""
    commands = " & ".join(f'set "{name}="' for name in names) if sys.platform == "win32" else f"unset {' '.join(names)}"
    return f"; to train alone: {commands}"


def integer(environment: Mapping[str, str], variable: str, default: int | None = None) -> int:
    """Return a variable as an integer. Raises UserError if it is none, or is missing and has no default."""
    value = environment.get(variable)
    if value is None and default is None:
        raise UserError(
            f"environment variable {variable} is not set: start with torchrun, or set it "
            f"({document('docs/DDP_TRAINING.md')}){alone(environment)}"
        )
    try:
        return int(default if value is None else value)  # type: ignore[arg-type]
    except ValueError:
        raise UserError(f"environment variable {variable} is {value!r}, not a number") from None

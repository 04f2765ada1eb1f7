"""Who started this process, and its place among those that train together: torchrun, srun, mpirun, variables or flags.

torchrun's variables, which can be set by hand, go over the others, as it may run inside a step of srun. Open MPI's go
over Slurm's, as mpirun may start its daemons by srun.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from errors import UserError

THIS_MACHINE = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """One process of a group.

    launcher: who says so, in a word for the log. local_rank: -1 where that is not said. local_world_size: number of
    the group's processes on this machine; 0 where that is not said.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int = -1
    local_world_size: int = 0


def find(environment: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave this process; None without one. Raises UserError on variables that cannot be."""
    return _by_variables(environment) or _by_mpirun(environment) or _by_srun(environment)


def find_or_make(environment: Mapping[str, str], world_size: int = 0, rank: int = -1, local_rank: int = -1) -> Place:
    """The place of this process from a launcher, else from the flags of these names, else in a group of one.

    local_rank is -1 where none sets it; process_group() counts it once all processes have met. Raises UserError on
    impossible values.
    """
    place = find(environment)
    if place and world_size not in (0, place.world_size):
        raise UserError(f"--world_size {world_size}, but {place.launcher} set it to {place.world_size}: drop the flag")
    place = place or _by_flags(environment, world_size, rank)
    if not 0 <= place.rank < place.world_size:
        raise UserError(
            f"rank {place.rank} with world size {place.world_size}: ranks are 0 to {place.world_size - 1}; check "
            f"{place.launcher}"
        )
    return place if place.local_rank >= 0 else replace(place, local_rank=local_rank)


def rank_of(environment: Mapping[str, str]) -> str:
    """The rank that a launcher gave this process, as a word for messages; "" without a launcher."""
    try:
        place = find(environment)
    except UserError:
        return environment.get("RANK", "")
    return str(place.rank) if place else ""


def meeting_url(environment: Mapping[str, str], place: Place) -> str:
    """Where the group meets: tcp://HOST:PORT, or env:// for torchrun's own store. Raises UserError where that is not said.

    MASTER_ADDR and MASTER_PORT go over what srun and mpirun let one conclude.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "env://"  # a store that torchrun already serves
    host, port = environment.get("MASTER_ADDR", "").strip("[]"), None  # some write an IPv6 address in brackets
    if place.launcher == "srun":
        host = host or first_host(_nodes(environment))
        port = _port(f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}")
    elif place.launcher == "mpirun":
        if not host and place.local_world_size != place.world_size:
            raise UserError(
                f"mpirun started {place.world_size} processes on several machines: say which has rank 0, by "
                "mpirun -x MASTER_ADDR=HOST"
            )
        host = host or THIS_MACHINE
        port = _port(environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid") or "")
    elif place.launcher == "flags" and place.world_size == 1:
        return f"tcp://{THIS_MACHINE}:0"  # a free port
    if port is None or "MASTER_PORT" in environment:
        port = _integer(environment, "MASTER_PORT")
    if not host:
        raise UserError("environment variable MASTER_ADDR is not set: it names the machine of rank 0")
    if not 0 <= port < 65536:
        raise UserError(f"port {port}: must be below 65536 (MASTER_PORT)")
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def first_host(nodes: str) -> str:
    """The first host of a list in Slurm's form: node03 of "node[03-05,9],other1"."""
    host = re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).split(",")[0]
    if not re.fullmatch(r"[\w.-]+", host):
        raise UserError(f"SLURM_STEP_NODELIST {nodes!r}: no list of hosts; set MASTER_ADDR to the machine of rank 0")
    return host


def _by_variables(environment: Mapping[str, str]) -> Place | None:
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    return Place(
        "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "RANK and WORLD_SIZE",
        rank=_integer(environment, "RANK"),
        world_size=_integer(environment, "WORLD_SIZE"),
        local_rank=_integer(environment, "LOCAL_RANK", -1),
        local_world_size=_integer(environment, "LOCAL_WORLD_SIZE", 0),
    )


def _by_mpirun(environment: Mapping[str, str]) -> Place | None:
    """Open MPI's."""
    if "OMPI_COMM_WORLD_RANK" not in environment or "OMPI_COMM_WORLD_SIZE" not in environment:
        return None
    return Place(
        "mpirun",
        rank=_integer(environment, "OMPI_COMM_WORLD_RANK"),
        world_size=_integer(environment, "OMPI_COMM_WORLD_SIZE"),
        local_rank=_integer(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=_integer(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"),
    )


def _by_srun(environment: Mapping[str, str]) -> Place | None:
    """A step of several tasks: a batch script and a shell of salloc have SLURM_PROCID and SLURM_NTASKS, too, but no such."""
    if "SLURM_PROCID" not in environment or _integer(environment, "SLURM_STEP_NUM_TASKS", 1) <= 1:
        return None
    return Place(
        "srun",
        rank=_integer(environment, "SLURM_PROCID"),
        world_size=_integer(environment, "SLURM_STEP_NUM_TASKS"),
        local_rank=_integer(environment, "SLURM_LOCALID"),
    )


def _by_flags(environment: Mapping[str, str], world_size: int, rank: int) -> Place:
    tasks = _integer(environment, "SLURM_NTASKS", 1)
    if world_size == 0 and tasks > 1:
        raise UserError(
            f"SLURM_NTASKS is {tasks}, but this is none of these tasks: start it by srun (python train.py becomes srun "
            "python train.py, as in scripts/slurm.sbatch) or by torchrun; for a group of this one process add --world_size 1"
        )
    if world_size <= 1 and rank <= 0:
        return Place("flags", rank=0, world_size=1)
    if rank < 0:
        raise UserError(
            f"--world_size {world_size} without a launcher: start with torchrun, or give each process its --rank"
        )
    return Place("flags", rank=rank, world_size=world_size)


def _nodes(environment: Mapping[str, str]) -> str:
    return environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""


def _port(job: str) -> int:
    """A port that is the same for all processes of a job, likely another for each, and below those that Linux gives out."""
    return 20_000 + zlib.crc32(job.encode()) % 12_000


def _integer(environment: Mapping[str, str], variable: str, default: int | None = None) -> int:
    value = environment.get(variable)
    if value is None:
        if default is not None:
            return default
        raise UserError(
            f"environment variable {variable} is not set: start with torchrun, or set it (docs/DDP_TRAINING.md)"
        )
    try:
        return int(value)
    except ValueError:
        raise UserError(f"environment variable {variable} is {value!r}, not a number") from None

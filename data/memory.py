"""The memory that this process may still use on Linux."""

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# By the type of the file system: the files of a control group's limit and usage, and the field of memory.stat with
# the bytes of files that the kernel drops when memory is needed.
_FILES = {
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def available_memory(proc: Path = Path("/proc")) -> int:
    """Return the bytes of memory that the machine and this process's control groups leave. proc: where /proc is."""
    return max(0, min([_fields(proc / "meminfo")["MemAvailable:"] * 1024, *_left_in_groups(proc)]))


def _left_in_groups(proc: Path) -> Iterator[int]:
    """Yield what each memory group of this process leaves: its own group and all groups above it have limits."""
    for kind, group in _groups(proc):
        limit, usage, droppable = _FILES[kind]
        with contextlib.suppress(OSError, ValueError):  # no such folder, or no limit ("max")
            used = int((group / usage).read_text()) - _fields(group / "memory.stat").get(droppable, 0)
            yield int((group / limit).read_text()) - used


def _groups(proc: Path) -> Iterator[tuple[str, Path]]:
    """Yield (type of file system, folder) of this process's memory groups, as cgroups(7) describes the files."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:  # a kernel without control groups
        return
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    for mount in mounts:
        place, _, system = mount.partition(" - ")
        root, folder = place.split()[3:5]
        kind, *_, options = system.split()
        if kind in paths and (kind == "cgroup2" or "memory" in options.split(",")):
            # A container sees its own group as the root of the mount, but may still have the machine's path.
            inner = PurePosixPath(paths[kind].removeprefix(root).lstrip("/"))
            yield from ((kind, Path(folder, group)) for group in (inner, *inner.parents))


def _fields(file: Path) -> dict[str, int]:
    """Return the first two words of each line of a file of /proc or of a control group, as {word: number}."""
    return {name: int(value) for name, value, *_ in map(str.split, file.read_text().splitlines())}

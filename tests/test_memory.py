"""The memory that --cache ram may take: control groups as Slurm, systemd and containers draw them."""

from pathlib import Path

import pytest

from data.memory import available_memory


def draw_proc(root: Path, groups: str, *mounts: str) -> Path:
    """A folder like /proc of a machine with 64 kB of free memory."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:   99 kB\nMemAvailable:   64 kB\nHugePages_Total:   0\n")
    (root / "proc/self/cgroup").write_text(groups)
    others = ["22 1 0:21 / / rw,relatime shared:1 - overlay  rw", "31 22 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw"]
    (root / "proc/self/mountinfo").write_text("\n".join([*others, *mounts]))
    return root / "proc"


def draw_group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / f"memory.{name}").write_text(f"{value}\n")


def test_memory_is_what_the_tightest_control_group_leaves(tmp_path):
    mount = f"30 22 0:26 / {tmp_path}/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate"
    proc = draw_proc(tmp_path, "0::/system.slice/job_7/step_0\n", mount)
    assert available_memory(proc) == 64 * 1024  # no memory controller
    step = tmp_path / "cgroup/system.slice/job_7/step_0"
    draw_group(step, max="max", current=1000, stat="anon 900\ninactive_file 100")
    draw_group(step.parent, max=20000, current=9000, stat="anon 500\ninactive_file 3000")
    draw_group(step.parent.parent, max=30000, current=10000, stat="inactive_file 0")
    assert available_memory(proc) == 14000  # 20000 - (9000 - 3000): the step has no limit, the slice leaves 20000
    draw_group(step, max=5000)
    assert available_memory(proc) == 4100  # 5000 - (1000 - 100)
    draw_group(step, max=500)
    assert available_memory(proc) == 0


@pytest.mark.parametrize("root", ["/", "/docker/1f"])  # of the mount: the machine's, or a container's own group
def test_memory_follows_the_first_version_of_control_groups(tmp_path, root):
    mount = f"35 31 0:32 {root} {tmp_path}/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
    other = f"34 31 0:31 / {tmp_path}/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
    unified = f"41 31 0:38 / {tmp_path}/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
    proc = draw_proc(tmp_path, "9:cpu,cpuacct:/other\n4:memory:/docker/1f/job\n0::/\n", other, mount, unified)
    container = tmp_path / "cgroup/memory" / ("docker/1f" if root == "/" else "")
    for folder, limit in ((container / "job", 9223372036854771712), (container, 8000)):
        draw_group(folder, limit_in_bytes=limit, usage_in_bytes=3000, stat="inactive_file 1\ntotal_inactive_file 500")
    assert available_memory(proc) == 5500  # 8000 - (3000 - 500)
    draw_group(container / "job", limit_in_bytes=6000)
    assert available_memory(proc) == 3500

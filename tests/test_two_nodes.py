"""Two machines, as Linux network namespaces with a cable between them, and what happens when it is cut.

Needs root and the ip command.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPO, assert_same_run, count_lines, flags, kill, start_group, succeed, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.full_size]  # its processes are new interpreters
NOTICE_SECONDS = 30  # an unanswered message takes 20 (distributed/lifeline.py)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Nodes:
    """Namespaces segtrain-a and -b at 10.99.0.1 and .2."""

    names = ("segtrain-a", "segtrain-b")
    links = ("segtrain-a0", "segtrain-b0")

    def __init__(self) -> None:
        for name in self.names:
            # One may be left from tests that were killed.
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        (a, b), (link_a, link_b) = self.names, self.links
        ip("link", "add", link_a, "netns", a, "type", "veth", "peer", "name", link_b, "netns", b)
        for number, (name, link) in enumerate(zip(self.names, self.links, strict=True), start=1):
            ip("-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")

    def cable(self, state: str) -> None:
        """Plug it in ("up") or out ("down")."""
        ip("-n", self.names[1], "link", "set", self.links[1], state)

    def processes(self, number: int) -> dict[int, str]:
        """{process id: command line} on a node."""
        commands = {int(pid): Path(f"/proc/{pid}/cmdline") for pid in ip("netns", "pids", self.names[number]).split()}
        return {pid: path.read_text() for pid, path in commands.items() if path.exists()}

    def training(self, number: int) -> list[int]:
        """The processes of train.py on a node, without torchrun."""
        found = self.processes(number)
        return [pid for pid, text in found.items() if "train.py" in text and "torch.distributed.run" not in text]

    def by_hand(self, number: int, words: list[str], folder: Path) -> subprocess.Popen:
        """train.py on a node that has a host name of its own, which leads to 127.0.1.1 there, as on Debian."""
        name, hosts = self.names[number], folder / f"hosts.{number}"
        addresses = [f"10.99.0.{node + 1} {other}\n" for node, other in enumerate(self.names)]
        addresses[number] = f"127.0.1.1 {name}\n"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(addresses))
        script = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
        command = ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "sh", "-c", script, "sh", name, hosts]
        command += [sys.executable, REPO / "train.py", *words]
        variables = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": self.names[0], "MASTER_PORT": "29500"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=os.environ | variables, text=True, **pipes)

    def torchrun(self, number: int, words: list[str], output: Path, max_restarts: int) -> subprocess.Popen:
        """torchrun on a node, its output in a file. is_host: torchrun would compare host names, which are the same."""
        launch = f"ip netns exec {self.names[number]} {sys.executable} -m torch.distributed.run --nnodes 2 "
        launch += (
            f"--nproc_per_node 1 --max_restarts {max_restarts} --rdzv_backend c10d --rdzv_endpoint 10.99.0.1:29400 "
        )
        launch += f"--rdzv_id test --local-addr 10.99.0.{number + 1} --rdzv_conf is_host={1 - number} {REPO}/train.py"
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.links[number]}
        with output.open("w") as file:
            command = [*launch.split(), *words]
            return subprocess.Popen(command, cwd=REPO, env=env, stdout=file, stderr=subprocess.STDOUT)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    if not shutil.which("ip"):
        pytest.skip("the ip command is missing")
    try:
        made = Nodes()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield made
    for name in made.names:
        ip("netns", "del", name)


@pytest.mark.parametrize("max_restarts", [0, 3])
def test_cut_cable_between_two_nodes(nodes, demo_root, tmp_path, max_restarts):
    """Without restarts both end and say why; with restarts the run goes on by itself once the cable is back."""
    epochs = 12 if max_restarts else 200
    words = flags(dataset_path=demo_root, logdir=tmp_path, epochs=epochs, save_step_frequency=5, val_epoch_frequency=4)
    if max_restarts:
        succeed(start_group(2, [*words, "--name", "whole"], tmp_path))
    words += ["--name", "x", "--resume", "auto"]
    outputs = [tmp_path / "a.txt", tmp_path / "b.txt"]
    torchruns = [nodes.torchrun(number, words, output, max_restarts) for number, output in enumerate(outputs)]
    try:
        metrics = tmp_path / "x" / "metrics.jsonl"
        wait_until(lambda: count_lines(metrics) >= 8, torchruns, 90)
        nodes.cable("down")
        for output in outputs:
            wait_until(lambda output=output: "cannot be reached any more" in output.read_text(), [], NOTICE_SECONDS)
        assert "rank 1 (" in outputs[0].read_text()
        assert f"rank 0 ({socket.gethostname()}, process " in outputs[1].read_text()
        if max_restarts == 0:
            assert torchruns[0].wait(30) == 1
            # torchrun on node b goes on to look for node a for a minute or more; the training has ended there, too.
            wait_until(lambda: nodes.training(1) == [], [], 10)
            return
        nodes.cable("up")
        wait_until(lambda: outputs[0].read_text().count("resuming") == 1, torchruns, 90)
        assert [process.wait(120) for process in torchruns] == [0, 0]
        assert_same_run(tmp_path / "x", tmp_path / "whole")
    finally:
        kill(torchruns)
        for pid in [*nodes.processes(0), *nodes.processes(1)]:
            os.kill(pid, signal.SIGKILL)


def test_two_nodes_by_hand_whose_host_names_lead_to_themselves(nodes, demo_root, tmp_path):
    """No LOCAL_RANK, and gloo would listen at 127.0.1.1, out of the other node's reach."""
    if not shutil.which("unshare"):
        pytest.skip("the unshare command is missing")
    words = flags(dataset_path=demo_root, logdir=tmp_path / "log", dist_timeout=30)
    outputs = succeed([nodes.by_hand(number, words, tmp_path) for number in (0, 1)])
    for rank, stdout in enumerate(outputs):
        assert f"rank {rank}, local rank 0, world size 2, device cpu, in a group (gloo)" in stdout

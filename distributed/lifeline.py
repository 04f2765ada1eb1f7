"""One end for all ranks: when one of them fails, is killed or is told to stop, the others know within a second.

Every rank holds a TCP connection to rank 0, its lifeline. What a rank has to say goes over it and rank 0 tells the
others. A process that is killed says nothing, but the kernel closes its connections; a machine that is
no longer reached leaves keep-alive probes unanswered. Waiting collectives would find neither out before their timeout.
"""

import contextlib
import ipaddress
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import torch.distributed as dist
from tqdm import tqdm

from distributed.signals import StopRequest, exit_at_once
from errors import UserError

POLL_SECONDS = 0.2  # how often a rank looks whether it has something to say
LEAVE_SECONDS = 5.0  # how long a failing rank waits for the others to leave
# A cut link is noticed after 5 + 3 * 5 seconds without an answer; 20,000 ms where a message was on its way.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
CONNECT_SECONDS = 30.0
# How long an ending rank may take to finish a checkpoint. torchrun kills it 30 s after the first rank has ended.
WRITE_SECONDS = 20.0


class Watch:
    """The lifelines of this process, and a thread that listens to them.

    stop: is set when another rank is told to stop, and told to the others when this one is.
    """

    def __init__(self, rank: int, world_size: int, stop: StopRequest):
        self.rank, self.world_size, self.stop_request = rank, world_size, stop
        self.lines: dict[socket.socket, str] = {}  # who is at the other end
        self.partial: dict[socket.socket, bytes] = {}  # what came of a message so far
        self.told_to_stop = False
        self.advice: Callable[[], str] = str  # returns the text to add to another rank's error
        self.stopped = threading.Event()
        self.selector = selectors.DefaultSelector()
        self.thread = threading.Thread(target=self._listen, daemon=True)

    def connect(self, store: dist.Store, dist_url: str) -> None:
        """Open the lifelines, which all ranks do at once, and listen to them."""
        if hasattr(os, "register_at_fork"):
            # A DataLoader worker that inherits a lifeline would keep it open after its parent was killed.
            os.register_at_fork(after_in_child=self.close)
        if self.world_size > 1:
            self._accept(store, dist_url) if self.rank == 0 else self._connect(store)
        for line in self.lines:
            self._keep_alive(line)
            self.selector.register(line, selectors.EVENT_READ)
        self.thread.start()

    def own_address(self) -> str:
        """This machine's address on its lifeline to another machine; "" where there is none."""
        for line in self.lines:
            own, other = (end[0].removeprefix("::ffff:") for end in (line.getsockname(), line.getpeername()))
            if own != other and not ipaddress.ip_address(own).is_loopback:
                return own
        return ""

    def leave(self) -> None:
        """Part in peace: that this process ends now is no reason for the others to. Call it on all ranks."""
        self.stop_listening()
        self._tell("done")

    def close(self) -> None:
        for line in self.lines:
            line.close()

    def publish(self, status: int, text: str, *, advise: bool) -> None:
        """Tell the other ranks why this one fails, and wait until they know. Call stop_listening() first.

        advise: whether they add their advice to the text.
        """
        kind = "advise" if advise else "final"
        self._tell(f"failed {status} {kind} on rank {self.rank}: {' '.join(text.split())}")
        self._wait_for_others()

    def stop_listening(self) -> None:
        """Ignore other ranks from now on: their failures no longer end this process."""
        self.stopped.set()
        if self.thread.is_alive():
            self.thread.join()

    def _accept(self, store: dist.Store, dist_url: str) -> None:
        """Rank 0: say where the lifelines end, and take those of all other ranks."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=self.world_size) as server:
            port = server.getsockname()[1]
            hosts = dict.fromkeys([*_own_addresses(dist_url), "127.0.0.1"])
            store.set("lifeline", " ".join(f"{host}:{port}" for host in hosts))
            deadline = time.monotonic() + CONNECT_SECONDS
            missing = set(range(1, self.world_size))
            while missing:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    line, _ = server.accept()
                    line.settimeout(5)
                    rank, place = line.recv(200).decode().split(" ", 1)
                    missing.remove(int(rank))
                except (OSError, ValueError, KeyError):  # of strangers that knock at this port, too
                    if time.monotonic() > deadline:
                        raise UserError(
                            f"rank(s) {sorted(missing)} joined but do not reach rank 0 at {', '.join(hosts)}, port "
                            f"{port}: were they killed, or does a firewall stand between? Ranks need all ports of each other"
                        ) from None
                    continue
                self.lines[line] = f"rank {rank} ({place})"

    def _connect(self, store: dist.Store) -> None:
        try:
            addresses = store.get("lifeline").decode().split()
        except RuntimeError:
            raise UserError(f"rank {self.rank}: rank 0 left before the group was made; its output says why") from None
        for address in addresses:
            host, _, port = address.rpartition(":")
            try:
                line = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS / (len(addresses) + 1))
            except OSError:
                continue
            line.sendall(f"{self.rank} {socket.gethostname()}, process {os.getpid()}".encode())
            self.lines[line] = f"rank 0 ({host})"
            return
        raise UserError(
            f"rank {self.rank} does not reach rank 0 at any of {', '.join(addresses)}: does a firewall stand between? "
            "Ranks need all ports of each other"
        )

    @staticmethod
    def _keep_alive(line: socket.socket) -> None:
        line.settimeout(None)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            if hasattr(socket, option):  # by Linux's names
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def _listen(self) -> None:
        while not self.stopped.is_set():
            if self.stop_request and not self.told_to_stop:
                self.told_to_stop = True
                self._tell(f"stop {self.stop_request.reason}")
            if not self.lines:
                self.stopped.wait(POLL_SECONDS)
                continue
            for key, _ in self.selector.select(POLL_SECONDS):
                line: socket.socket = key.fileobj  # type: ignore[assignment]
                for message in self._receive(line):
                    self._obey(message, line)

    def _receive(self, line: socket.socket) -> list[str]:
        """The complete messages received; for a dead line, a message that its other end failed."""
        reason = "exited without a message: it crashed or was killed, perhaps out of memory"
        try:
            data = line.recv(65536)
        except OSError as error:
            data = b""
            if not isinstance(error, ConnectionResetError):
                reason = f"cannot be reached any more ({error.strerror}): its machine or the network is down"
        if not data:
            return [f"failed 1 advise {self.lines[line]} {reason}"]
        *whole, self.partial[line] = (self.partial.get(line, b"") + data).split(b"\n")
        return [message.decode() for message in whole]

    def _obey(self, message: str, source: socket.socket) -> None:
        word, _, rest = message.partition(" ")
        if word == "done":
            self.selector.unregister(source)
            return
        if self.rank == 0:
            self._tell(message, but=source)
        if word == "stop":
            self.told_to_stop = True
            self.stop_request.reason = self.stop_request.reason or rest
            return
        status, kind, text = rest.split(" ", 2)
        advice = self.advice() if kind == "advise" else ""
        tqdm.write(f"error (rank {self.rank}): {text}{advice}", file=sys.stderr)
        if self.rank == 0:
            self._wait_for_others(but=source)  # as this process may serve the store; the source waits for this end
        exit_at_once(int(status), write_seconds=WRITE_SECONDS)

    def _tell(self, message: str, but: socket.socket | None = None) -> None:
        """Send a message over all lifelines: to rank 0, or from it to all others."""
        for line in self.lines:
            if line is not but:
                with contextlib.suppress(OSError):  # who is gone needs no message
                    line.sendall(message.encode() + b"\n")

    def _wait_for_others(self, but: socket.socket | None = None) -> None:
        """Wait until the other ends have closed, or fail by themselves: this end then may close."""
        deadline = time.monotonic() + LEAVE_SECONDS
        for line in self.lines:
            if line is but:
                continue
            try:
                data = b" "
                while data and b"failed" not in data and (left := deadline - time.monotonic()) > 0:
                    line.settimeout(left)
                    data = line.recv(65536)
            except OSError:
                continue


def _own_addresses(dist_url: str) -> list[str]:
    """Addresses of this machine by which others may reach it, the likeliest first."""
    host = os.environ.get("MASTER_ADDR") if dist_url == "env://" else urlsplit(dist_url).hostname
    found = []
    if host:
        # Connecting a UDP socket sends nothing; it chooses the interface that leads to the meeting place.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, 9))
                found.append(probe.getsockname()[0])
            except OSError:
                pass
        found.append(host)
    return [*found, socket.gethostname()]

"""Connect all ranks: if one fails, is killed or gets a signal to stop, the others know within a second.

Every rank holds a TCP connection to rank 0, its lifeline. Rank 0 forwards the messages of each rank to the others. A
killed process sends no message, but the kernel closes its connections; a machine that is down or cut off
leaves messages unanswered. A waiting collective would notice neither before its timeout.
"""

import contextlib
import ipaddress
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import torch.distributed as dist

from distributed.rendezvous import Deadline
from support.errors import STOPPED, UserError
from support.signals import StopRequest, exit_at_once
from support.terminal import warn

LEAVE_SECONDS = 5.0  # how long a failing rank waits for the others to leave
ANSWER_SECONDS = 20  # how long the other machine may take to acknowledge a message; ranks send one every TICK_SECONDS
CONNECT_SECONDS = 10.0  # for each address of rank 0
POLL_SECONDS = 0.2  # how often a waiting rank looks for signals and for the deadline
NAMED = 8  # missing ranks that a message lists
TICK_SECONDS = 0.5  # how often a rank says that it is alive
# How long an ending rank may take to finish a checkpoint. torchrun kills it 30 s after the first rank has ended.
WRITE_SECONDS = 20.0


class Lifeline:
    """The TCP connections of this process to other ranks, each with a thread that handles the messages.

    Rank 0 is connected to every other rank, and the others to rank 0 only. Each message is a line:
    "alive rank RANK (PROCESS)" comes first and then every TICK_SECONDS; "stop REASON" relays a signal;
    "failed STATUS TEXT" reports an error; "done" comes from a rank that leaves cleanly. A rank that sends nothing for
    `timeout` seconds counts as hanging. place: where this rank is, for example "step 7". advice: what to do if another
    rank is lost, such as "to resume: ...".
    """

    def __init__(self, rank: int, world_size: int, stop: StopRequest, timeout: float):
        self.rank, self.world_size, self.stop, self.timeout = rank, world_size, stop, timeout
        self.place, self.advice, self.ticks = "the start", "", 0
        self.alive = f"alive rank {rank} ({socket.gethostname()}, process {os.getpid()})"
        self.readers: dict[socket.socket, threading.Thread] = {}
        self.heard: dict[socket.socket, tuple[str, float]] = {}  # a rank, and the tick of its last message
        self._left = threading.Event()
        self._end = threading.RLock()  # only the thread that holds it may end this process: for one reason, once

    def connect(self, store: dist.Store, dist_url: str, deadline: Deadline) -> None:
        """Connect all ranks to rank 0. Collective. If a rank is missing, rank 0 raises UserError and the others end.

        A signal to stop ends this process with status STOPPED.
        """
        if self.world_size == 1:
            return
        if hasattr(os, "register_at_fork"):
            # A DataLoader worker that inherits a connection would keep it open after its parent was killed.
            os.register_at_fork(after_in_child=self.close)
        self.stop.relay = lambda reason: self._send(f"stop {reason}")
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            if self.rank == 0:
                self._accept(store, dist_url, deadline)
            else:
                self._connect(store, dist_url, deadline)
        except SystemExit:  # a signal; the message is printed
            self.stop_listening()
            self.publish(STOPPED, f"stopped by {self.stop.reason} before the group was complete")
            exit_at_once(STOPPED)
        if self.stop:
            self.stop.relay(self.stop.reason)

    def own_address(self) -> str:
        """Return this machine's IP address on a connection to another machine; "" without such a connection."""
        for line in self.readers:
            here, there = (end[0].removeprefix("::ffff:") for end in (line.getsockname(), line.getpeername()))
            if here != there and not ipaddress.ip_address(here).is_loopback:
                return here
        return ""

    def stop_listening(self) -> None:
        """Ignore failures of other ranks from now on. If such a failure already ends this process, wait for the end."""
        self._end.acquire()
        self._left.set()

    def leave(self) -> None:
        """Tell the other ranks that this process's exit is not a failure. Call this on all ranks."""
        self.stop_listening()
        self._send("done")

    def publish(self, status: int, text: str) -> None:
        """Tell the others why this rank fails, and wait up to LEAVE_SECONDS until they exit.

        Call this after stop_listening().
        """
        self._send(f"failed {status} on rank {self.rank}: {' '.join(text.split())}")
        self._wait_for_others()

    def close(self) -> None:
        for line in self.readers:
            line.close()

    def _accept(self, store: dist.Store, dist_url: str, deadline: Deadline) -> None:
        """Publish rank 0's address in the store, and accept the connections of all other ranks. Rank 0 calls this."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=self.world_size) as server:
            hosts = dict.fromkeys([*_own_addresses(dist_url), "127.0.0.1"])
            store.set("lifeline", " ".join(f"{host}:{server.getsockname()[1]}" for host in hosts))
            server.settimeout(POLL_SECONDS)
            missing = set(range(1, self.world_size))
            while missing:
                with contextlib.suppress(OSError, ValueError, KeyError):  # nobody yet, or a stranger
                    line, _ = server.accept()
                    line.settimeout(5)
                    messages = messages_of(line)
                    _, _, rank, process = next(messages, "").split(" ", 3)
                    missing.remove(int(rank))
                    self._add(line, messages, f"rank {rank} {process}")
                    continue
                first = ", ".join(map(str, sorted(missing)[:NAMED])) + (" ..." if len(missing) > NAMED else "")
                ranks = f"rank(s) [{first}] of {self.world_size}"
                deadline.check(f"{ranks} did not connect to {dist_url}", "check that they started")

    def _connect(self, store: dist.Store, dist_url: str, deadline: Deadline) -> None:
        """Connect to the first address of rank 0 that answers. All other ranks call this."""
        try:
            while not store.check(["lifeline"]):
                deadline.check(f"rank 0 did not connect to {dist_url}", "check that it started")
                time.sleep(POLL_SECONDS)
            addresses = store.get("lifeline").decode().split()
        except RuntimeError:
            raise UserError(f"rank {self.rank}: rank 0 ended before all ranks had joined: read its output") from None
        for address in addresses:
            host, _, port = address.rpartition(":")
            with contextlib.suppress(OSError):
                line = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
                line.sendall(f"{self.alive}\n".encode())
                self._add(line, messages_of(line), f"rank 0 ({host})")
                return
        tried = ", ".join(addresses)
        raise UserError(
            f"rank {self.rank} cannot connect to rank 0 at any of {tried}: open all ports between the machines"
        )

    def _add(self, line: socket.socket, messages: Iterator[str], name: str) -> None:
        line.settimeout(None)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux; elsewhere the system's own limit counts
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * ANSWER_SECONDS)
        self.heard[line] = name, self.ticks
        reader = threading.Thread(target=self._read, args=(line, messages, name), daemon=True)
        reader.start()
        self.readers[line] = reader  # only now: _wait_for_others() joins each listed thread, which must have started

    def _watch(self) -> None:
        """Tell the others that this process is alive, and end it if one of them stands still."""
        while not self._left.wait(TICK_SECONDS):
            self._send(self.alive)
            self.ticks += 1  # not a clock: if all ranks pause and continue, none counts as silent
            for peer, tick in list(self.heard.values()):
                if (self.ticks - tick) * TICK_SECONDS > max(self.timeout, LEAVE_SECONDS):
                    cause = f"stands still since {self.place}: no sign of life for {self.timeout:g} s (--dist_timeout)"
                    self._lose(peer, cause, 2)

    def _read(self, line: socket.socket, messages: Iterator[str], peer: str) -> None:
        """Handle the messages of a peer until the peer leaves. A lost connection counts as the peer's failure."""
        cause = "exited without a message: it crashed or was killed, perhaps out of memory"
        try:
            for message in messages:
                kind, _, text = message.partition(" ")
                peer = text if kind == "alive" else peer
                self.heard[line] = peer, self.ticks if kind != "done" else math.inf
                if kind == "stop":
                    self._send(f"stop {text}", but=line)
                    self.stop.reason = self.stop.reason or text
                elif kind == "failed":
                    self._fail(text, line)
                if kind in ("failed", "done"):
                    return
        except ConnectionResetError:
            pass
        except OSError as error:
            cause = f"cannot be reached any more ({error.strerror}): its machine or the network is down"
        self._lose(peer, cause, 1, line)

    def _lose(self, peer: str, cause: str, status: int, source: socket.socket | None = None) -> None:
        """End this process with `status`, because a peer is lost. The message has the advice on what to do now."""
        advice = f"; {self.advice}" if self.advice else ""
        self._fail(f"{status} {peer} {cause}{advice}", source)

    def _fail(self, text: str, source: socket.socket | None = None) -> None:
        """End this process because of another rank's failure, unless it is ending already. text: STATUS CAUSE."""
        if not self._end.acquire(blocking=False):
            return
        self._send(f"failed {text}", but=source)
        status, cause = text.split(" ", 1)
        warn(f"error (rank {self.rank}): {cause}")
        if self.rank == 0:
            self._wait_for_others()  # this process may serve the store
        exit_at_once(int(status), write_seconds=WRITE_SECONDS)

    def _send(self, message: str, but: socket.socket | None = None) -> None:
        """Send a message to every connected rank except the one on the connection `but`."""
        for line in list(self.readers):
            if line is not but:
                with contextlib.suppress(OSError):  # a rank that has ended needs no message
                    line.sendall(message.encode() + b"\n")

    def _wait_for_others(self) -> None:
        """Wait up to LEAVE_SECONDS until the connected ranks have left or failed; after that, this process may end."""
        deadline = time.monotonic() + LEAVE_SECONDS
        for reader in list(self.readers.values()):
            if reader is not threading.current_thread():
                reader.join(max(0.0, deadline - time.monotonic()))


def messages_of(line: socket.socket) -> Iterator[str]:
    """Yield the messages that arrive on a connection, until the peer closes it. A newline ends each."""
    partial = b""
    while data := line.recv(65536):
        *messages, partial = (partial + data).split(b"\n")
        yield from (message.decode() for message in messages)


def _own_addresses(dist_url: str) -> list[str]:
    """Return addresses at which other machines may reach this machine, the likeliest first."""
    host = os.environ.get("MASTER_ADDR") if dist_url == "env://" else urlsplit(dist_url).hostname
    if not host:
        return [socket.gethostname()]
    # Connecting a UDP socket sends nothing: it only chooses the interface that leads to the host.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((host, 9))
        return [probe.getsockname()[0], host, socket.gethostname()]
    return [host, socket.gethostname()]

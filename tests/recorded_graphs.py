"""CUDA graphs without a GPU: torch's make_graphed_callables() runs on the CPU, and only what it calls is replaced.

As in a CUDA graph, only operations on tensors are recorded, not Python's work, and a replay reads and writes the same
memory each time.
"""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models import captured


class Graph:
    """Stands in for torch.cuda.CUDAGraph."""

    replays = 0  # of all graphs

    def __init__(self) -> None:
        self.operations: list[tuple] = []

    def replay(self) -> None:
        Graph.replays += 1
        with torch.autocast("cpu", enabled=False):  # the casts are recorded
            self._replay()

    def _replay(self) -> None:
        for func, args, kwargs, results in self.operations:
            for old, new in zip(tree_leaves(results), tree_leaves(func(*args, **kwargs)), strict=True):
                # Views, and results written in place, are in the recorded memory already.
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    # torch may have changed the old one's shape in place.
                    old.as_strided(new.shape, new.stride(), old.storage_offset()).copy_(new)


class Recording(TorchDispatchMode):
    def __init__(self, graph: Graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.graph.operations.append((func, args, kwargs or {}, result))
        return result


@contextlib.contextmanager
def record(graph: Graph, **_) -> Iterator[None]:
    with Recording(graph):
        yield


def install(patch: pytest.MonkeyPatch) -> None:
    """Let torch.cuda record graphs of operations on the CPU, in this process, and count replays from 0."""
    patch.setattr(captured, "DEVICES", ("cpu",))
    patch.setattr(Graph, "replays", 0)
    patch.setattr(torch.cuda, "CUDAGraph", Graph)
    patch.setattr(torch.cuda, "graph", record)
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    patch.setattr(torch.cuda, "Stream", SimpleNamespace)
    patch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    patch.setattr("torch.cuda.graphs.graph_pool_handle", lambda: None)

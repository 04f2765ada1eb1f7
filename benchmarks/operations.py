"""The operations of a step on a GPU that is not there: FLOPs, bytes and live memory, as dispatched."""

import itertools
import math
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.absent_gpu import AbsentGPU

# Kinds by the beginning of the operation's name without its underscores; others are "pointwise", or their own name.
KINDS = {
    "convolution": "convolutions",
    "scaled_dot": "matrix products",
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), "matrix products"),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "batch_norm"), "batch norm"),
    **dict.fromkeys(("relu", "threshold"), "ReLU"),
    "add": "additions",
    **dict.fromkeys(("mul", "div"), "products"),
    **dict.fromkeys(("to_copy", "copy"), "copies and casts"),
    **dict.fromkeys(("foreach", "fused_sgd"), "optimizer"),
    "upsample": "upsampling",
    **dict.fromkeys(("max_pool", "mean", "avg_pool", "adaptive_avg"), "pooling"),
    **dict.fromkeys(("log_softmax", "softmax"), "softmax"),
}
PICKS = ("gather", "index", "index_select", "embedding")  # read as much of their first operand as they return
OVERWRITES = ("copy_", "fill_", "zero_")  # do not read what they write


@dataclass(frozen=True)
class Operation:
    """An operation as dispatched. reads, writes: {storage: bytes} of its operands and results.

    useful: the FLOPs, without a convolution's products with padding.
    """

    name: str
    kind: str
    flops: int
    useful: float
    dtype: torch.dtype  # of its first floating-point operand
    tf32: bool  # whether float32 operands may be rounded to TF32
    pointwise: bool
    reads_twice: bool  # batch norm of a batch reads its operands for their sums first
    reads: dict[int, int]
    writes: dict[int, int]

    @property
    def bytes(self) -> int:
        return sum(self.reads.values()) * (2 if self.reads_twice else 1) + sum(self.writes.values())


class Meter:
    """Counts FLOPs, and the bytes of meta tensors: `live` now, and at the `peak`.

    FlopCounterMode would keep tensors of the backward pass alive, so this class calls torch's formulas. storages: the
    number of each live storage, by its id.
    """

    def __init__(self) -> None:
        self.flops = self.live = self.peak = 0
        self.storages: dict[int, int] = {}
        self._numbers = itertools.count()

    def note(self, func, args: tuple, kwargs: dict, result) -> None:
        """Count an operation's FLOPs and the tensors that it has made."""
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **kwargs, out_val=result)
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.is_meta:
                self.hold(value, value.untyped_storage().nbytes())

    def hold(self, value: Tensor, size: int) -> None:
        """Count `size` bytes until the tensor's storage is freed. Views that share a storage count once."""
        storage = value.untyped_storage()
        key = id(storage)
        if key in self.storages:
            return

        def free() -> None:
            del self.storages[key]
            self.live -= size

        self.storages[key] = next(self._numbers)
        weakref.finalize(storage, free).atexit = False
        self.live += size
        self.peak = max(self.peak, self.live)


class Recorder(AbsentGPU):
    """An absent GPU that lists its operations, and counts live bytes.

    Views and allocations are free: they are not listed. `peak` is the most bytes alive at once, of all tensors on the
    GPU that hold() or an operation has seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.meter = Meter()

    @property
    def peak(self) -> int:
        return self.meter.peak

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors made before the recording, such as parameters and momentum."""
        for value in tensors:
            self.meter.hold(value, value.untyped_storage().nbytes())

    def record(self, func, args: tuple, kwargs: dict, result: Any) -> None:
        meter, flops = self.meter, self.meter.flops
        given = {id(value.untyped_storage()) for value in _tensors((args, kwargs))}
        changed, read = _split(func, args, kwargs)
        for value in (*changed, *read):
            meter.hold(value, 0)  # made outside the recording
        meter.note(func, args, kwargs, result)
        made = [value for value in _tensors(result) if id(value.untyped_storage()) not in given]
        name = func._schema.name.split("::")[1]
        if not (changed or made) or name.startswith(("empty", "new_empty")):
            return
        reads, writes = self._bytes(read), self._bytes([*changed, *made])
        if name not in OVERWRITES:
            reads |= self._bytes(changed)
        if name in PICKS:
            first = meter.storages[id(read[0].untyped_storage())]
            reads[first] = min(reads[first], sum(writes.values()))
        floats = [value.dtype for value in (*read, *changed, *made) if value.is_floating_point()]
        pointwise = torch.Tag.pointwise in func.tags and not name.startswith("_f")  # _foreach and _fused are one kernel
        kind = _kind(name, pointwise)
        of_batch = name.strip("_").startswith(("native_batch_norm", "cudnn_batch_norm")) and any(
            value is True for value in args[5:8]
        )
        backend = torch.backends.cudnn.conv if kind == "convolutions" else torch.backends.cuda.matmul
        self.operations.append(
            Operation(
                name,
                kind,
                meter.flops - flops,
                _unpadded(name, args) * (meter.flops - flops),
                floats[0] if floats else torch.float32,
                backend.fp32_precision == "tf32",  # type: ignore[attr-defined]
                pointwise or (kind == "batch norm" and not of_batch and not name.endswith("_backward")),
                of_batch,
                reads,
                writes,
            )
        )

    def launch(self, name: str, read: list[Tensor], written: list[Tensor]) -> None:
        for value in (*read, *written):
            self.meter.hold(value, value.untyped_storage().nbytes())
        reads, writes = self._bytes(read), self._bytes(written)
        self.operations.append(Operation(name, name, 0, 0, torch.float32, False, False, False, reads, writes))

    def _bytes(self, tensors: list[Tensor]) -> dict[int, int]:
        """Return {storage: bytes touched}; an expanded dimension is touched once."""
        found: Counter[int] = Counter()
        for value in tensors:
            sides = [side for side, stride in zip(value.shape, value.stride(), strict=True) if stride]
            size = 0 if value.numel() == 0 else math.prod(sides) * value.element_size()
            key = self.meter.storages[id(value.untyped_storage())]
            found[key] = max(found[key], size)
        return dict(found)


def _split(func, args: tuple, kwargs: dict) -> tuple[list[Tensor], list[Tensor]]:
    """Return (arguments that the operation writes to, the others)."""
    written: list[Tensor] = []
    read: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        (written if is_written else read).extend(_tensors(value))
    return written, read


def _unpadded(name: str, args: tuple) -> float:
    """Return the share of a convolution's products whose operand is not padding; 1 for other operations."""
    if name not in ("convolution", "convolution_backward"):
        return 1.0
    image, weight, geometry = (*args[:2], args[3:6]) if name == "convolution" else (*args[1:3], args[4:7])
    share = 1.0
    for axis, (stride, padding, dilation) in enumerate(zip(*geometry, strict=True), start=2):
        side, taps = image.shape[axis], weight.shape[axis]
        size = (side + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        places = [out * stride - padding + tap * dilation for out in range(size) for tap in range(taps)]
        share *= sum(0 <= place < side for place in places) / len(places)
    return share


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor) and value.is_meta]


def _kind(name: str, pointwise: bool) -> str:
    name = name.strip("_").removeprefix("unsafe_")
    matches = [start for start in KINDS if name.startswith(start)]
    if matches:
        return KINDS[max(matches, key=len)]
    return "pointwise" if pointwise else name

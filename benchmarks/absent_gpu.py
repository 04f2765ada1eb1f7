"""A GPU that is not there: tensors on "cuda" with shapes and types but no values, counted or checked as they are used.

Tensors on "cuda" are tensors on torch's meta device that give their device as "cuda". FakeTensorMode does the same, but
with it a CUDA build of torch without a driver cannot run a backward pass. Tensors on the CPU are real.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
META = torch.device("meta")
# What autocast computes in the lower type here, and in float32; the rest follows from the types of the operands.
LOWERED: dict[Any, tuple[str, ...]] = {
    F: ("conv2d", "linear", "scaled_dot_product_attention"),
    torch: ("conv2d", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
    Tensor: ("matmul", "__matmul__", "mm", "bmm"),
}
RAISED: dict[Any, tuple[str, ...]] = {
    F: ("cross_entropy", "nll_loss", "log_softmax", "softmax"),
    torch: ("log_softmax", "softmax"),
    Tensor: ("log_softmax", "softmax"),
}


class Waits(Exception):
    """The CPU would wait for the GPU here."""


class AbsentGPU(TorchDispatchMode):
    """A dispatch mode that runs operations on "cuda" tensors for their shapes, and raises Waits where the CPU waits.

    The CPU waits for: a value (`.item()`, `if tensor`, an output whose size depends on values, an index by a bool
    tensor); a copy from the GPU to the CPU, unless it is non_blocking; a copy to the GPU, unless it is non_blocking and
    from memory of pin(); an event after which the GPU was given no work, so that it would be idle.

    check_copies: raise Waits for copies too; without it, copy_ to the CPU leaves its target as it was. recording: call
    record() with each operation on the GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.check_copies = self.recording = True
        self.pinned: set[int] = set()  # addresses
        self.num_operations = 0  # given to the GPU
        self.in_kernel = False  # torch's own Python code for shapes must see the meta device

    def pin(self, batches: Iterable[dict[str, Tensor]]) -> None:
        """Take the tensors of these batches for pinned memory, as a loader pins it."""
        self.pinned |= {values.untyped_storage().data_ptr() for batch in batches for values in batch.values()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        operands = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        on_gpu = any(value.is_meta for value in operands)
        if not on_gpu and not any(_is_gpu(value) for value in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        _check_values(func, args, kwargs, operands)
        if self.check_copies:
            _check_copies(func, args, kwargs, operands, self.pinned)
        elif func is torch.ops.aten.copy_.default and not args[0].is_meta:
            return args[0]
        if func is torch.ops.aten._to_copy.default and operands[0].is_meta and "cpu" in str(kwargs.get("device")):
            return torch.zeros(operands[0].shape, dtype=operands[0].dtype)
        args, kwargs = tree_map(lambda value: META if _is_gpu(value) else value, (args, kwargs))
        self.num_operations += 1
        if func is torch.ops.aten._to_copy.default and _stays(args[0], kwargs):
            return torch.ops.aten.alias.default(args[0])
        self.in_kernel = True
        try:
            result = SHAPES.get(func, func)(*args, **kwargs)
        finally:
            self.in_kernel = False
        if self.recording:
            self.record(func, args, kwargs, result)
        return result

    def record(self, func, args: tuple, kwargs: dict, result: Any) -> None:
        """Take note of an operation on the GPU; for subclasses."""


def _channels(x: Tensor, number: int) -> tuple[Tensor, ...]:
    return tuple(torch.empty(x.shape[1], dtype=torch.float32, device=META) for _ in range(number))


# Shapes of operations that torch has for CUDA but not for the meta device.
SHAPES: dict[Any, Callable] = {
    torch.ops.aten._fused_sgd_.default: lambda *args, **kwargs: None,
    torch.ops.aten._fused_adamw_.default: lambda *args, **kwargs: None,
    torch.ops.aten.batch_norm_stats.default: lambda x, eps: _channels(x, 2),
    torch.ops.aten.batch_norm_gather_stats.default: lambda x, *rest: _channels(x, 2),
    torch.ops.aten.batch_norm_gather_stats_with_counts.default: lambda x, *rest: _channels(x, 2),
    torch.ops.aten.batch_norm_elemt.default: lambda x, *rest: torch.empty_like(x),
    torch.ops.aten.batch_norm_backward_reduce.default: lambda grad, x, *rest: _channels(x, 4),
    torch.ops.aten.batch_norm_backward_elemt.default: lambda grad, x, *rest: torch.empty_like(x),
}


@contextlib.contextmanager
def absent_gpu(mode: AbsentGPU) -> Iterator[AbsentGPU]:
    """Let torch behave as with one GPU in the body, under the dispatch mode."""
    device_of = torch._C.TensorBase.device.__get__  # type: ignore[attr-defined]

    def device(tensor: Tensor) -> torch.device:
        return CUDA if device_of(tensor).type == "meta" and not mode.in_kernel else device_of(tensor)

    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (Tensor, "device", property(device)),
            (Tensor, "is_cuda", property(lambda tensor: device(tensor).type == "cuda")),
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "Event", functools.partial(_Event, mode)),
            (torch.cuda, "is_bf16_supported", lambda *args, **kwargs: True),
            (torch.cuda, "get_device_capability", lambda *args: (9, 0)),
            (torch.cuda, "mem_get_info", lambda *args: (80 * 2**30, 80 * 2**30)),
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            *((owner, name, _casting(getattr(owner, name), raised=False)) for owner, name in _pairs(LOWERED)),
            *((owner, name, _casting(getattr(owner, name), raised=True)) for owner, name in _pairs(RAISED)),
            *((torch, name, _creating(getattr(torch, name))) for name in ("tensor", "as_tensor")),
        ):
            stack.enter_context(mock.patch.object(target, name, value, create=True))
        stack.enter_context(mode)
        yield mode


class _Event:
    """A torch.cuda.Event that raises Waits if the CPU waits for it while the GPU has nothing to do after it."""

    def __init__(self, mode: AbsentGPU):
        self.mode = mode

    def record(self) -> None:
        self.recorded_at = self.mode.num_operations

    def synchronize(self) -> None:
        if self.mode.check_copies and self.mode.num_operations == self.recorded_at:
            raise Waits("event: the GPU would be idle")


def _casting(function: Callable, raised: bool) -> Callable:
    """Return the function as torch.autocast would call it: autocast ignores tensors on the meta device."""

    @functools.wraps(function)
    def cast(*args, **kwargs):
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.float32 if raised else torch.get_autocast_dtype("cuda")
            args, kwargs = tree_map(lambda value: value.to(dtype) if _is_castable(value) else value, (args, kwargs))
        return function(*args, **kwargs)

    return cast


def _creating(function: Callable) -> Callable:
    """Return torch.tensor or as_tensor so that it raises Waits on a GPU: it copies memory that is not pinned."""

    @functools.wraps(function)
    def create(*args, device=None, **kwargs):
        if device is not None and torch.device(device).type == "cuda":
            raise Waits(f"{function.__name__}: a copy to the GPU from memory that is not pinned")
        return function(*args, device=device, **kwargs)

    return create


def _is_castable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta and value.is_floating_point() and value.dtype != torch.float64


def _pairs(functions: dict[Any, tuple[str, ...]]) -> list[tuple[Any, str]]:
    return [(owner, name) for owner, names in functions.items() for name in names]


def _is_gpu(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type in ("cuda", "meta")


def _stays(source: Tensor, kwargs: dict) -> bool:
    """Return whether _to_copy changes nothing: torch calls it because "meta" is not "cuda"."""
    return (
        source.is_meta
        and kwargs.get("dtype") in (None, source.dtype)
        and kwargs.get("memory_format") in (None, torch.preserve_format)
    )


def _check_values(func, args: tuple, kwargs: dict, operands: list[Tensor]) -> None:
    """Raise Waits if the CPU needs a value of a tensor on the GPU."""
    name = func._schema.name
    if torch.Tag.data_dependent_output in func.tags:
        raise Waits(f"{func}: the CPU reads a value")
    if torch.Tag.dynamic_output_shape in func.tags and name != "aten::index":
        raise Waits(f"{func}: the size of its output depends on values")
    if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        indices = [value for value in tree_leaves(args[1]) if isinstance(value, Tensor)]
        if any(value.dtype in (torch.bool, torch.uint8) for value in indices):
            raise Waits(f"{func}: an index by a bool tensor")
    to_cpu = name == "aten::_to_copy" and operands[0].is_meta and "cpu" in str(kwargs.get("device"))
    if to_cpu and not kwargs.get("non_blocking"):
        raise Waits(f"{func}: a copy from the GPU to the CPU")


def _check_copies(func, args: tuple, kwargs: dict, operands: list[Tensor], pinned: set[int]) -> None:
    """Raise Waits for copy_ to the CPU, and for copies to the GPU that are not non_blocking or not of pinned memory."""
    name = func._schema.name
    if name == "aten::copy_" and not args[0].is_meta:
        raise Waits(f"{func}: a copy from the GPU to the CPU")
    if name in ("aten::copy_", "aten::_to_copy"):
        source = args[1] if name == "aten::copy_" else args[0]
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        if not source.is_meta and not (non_blocking and source.untyped_storage().data_ptr() in pinned):
            raise Waits(f"{func}: a copy of {tuple(source.shape)} to the GPU, not pinned or not non_blocking")
    elif any(not value.is_meta and value.dim() for value in operands) and not name.endswith("_like"):
        raise Waits(f"{func}: mixes tensors on the GPU and on the CPU")

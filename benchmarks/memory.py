"""The size of a model and of its training: parameters, FLOPs, and an estimate of memory.

Counted on the meta device, where tensors have shapes and types but no values.
"""

import itertools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from losses.criterion import Criterion
from models.segmenter import Segmenter
from optimization.amp import DTYPES
from support.batch import Batch, Foreground

CLASSES_PER_IMAGE = 8  # assumed for losses by region


@dataclass(frozen=True)
class Summary:
    """Sizes of one training process. FLOPs count a multiply-add as two; memory is in bytes."""

    parameters: int
    trainable: int
    flops: int  # forward pass of one image in evaluation
    train_flops: int  # forward and backward pass of one image in training
    states: dict[str, int]  # weights with buffers, gradients, momentum
    kept: int  # what the forward pass of all images keeps for the backward pass, with inputs
    working: int  # the peak of training beside the states: `kept`, and the operands of operations

    @property
    def memory(self) -> int:
        return sum(self.states.values()) + self.working


def summarize(model: Segmenter, criterion: Criterion, *, batchsize: int, crop_size: int, amp: str = "none") -> Summary:
    """Return the Summary of a model on the meta device; the model cannot be used afterwards.

    amp: as --amp. The optimizer is SGD with momentum. DDP adds nothing: with gradient_as_bucket_view its buckets are
    the gradients.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sizes = [parameter.nbytes for parameter in trainable]
    weights = sum(value.nbytes for value in (*model.parameters(), *model.buffers()))
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        model.eval()(_empty_images(model, 1, crop_size))
    flops, kept, peak = _measure_training_step(model.train(), criterion, batchsize, crop_size, amp)
    return Summary(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trainable=sum(parameter.numel() for parameter in trainable),
        flops=forward.get_total_flops(),
        train_flops=flops // batchsize,
        states={
            "weights": weights,
            "gradients": sum(sizes),
            "momentum": sum(sizes),
        },
        kept=kept,
        working=peak,
    )


def _measure_training_step(
    model: Segmenter, criterion: Criterion, batchsize: int, crop_size: int, amp: str
) -> tuple[int, int, int]:
    """Return (FLOPs of a forward and backward pass, bytes kept between the two, peak bytes), for the whole batch."""
    # All positions are foreground, which takes most memory and time.
    num_positions = math.prod(model.backbone.feature_size(crop_size, crop_size))
    for parameter in model.parameters():
        if parameter.requires_grad:  # the states include all gradients already
            parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    meter = Meter()
    for value in (*model.parameters(), *model.buffers()):
        meter.hold(value, 0)  # the states include them
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.forward = partial(Convolutions(DTYPES[amp]), module.forward)  # type: ignore[method-assign]
    with meter:
        shape = (batchsize, crop_size, crop_size)
        names = {term.map for term in criterion.terms.values()} | {"label"}
        maps = {name: torch.empty(shape, dtype=torch.uint8, device="meta") for name in sorted(names - {"image"})}
        positions = torch.empty(batchsize * num_positions, dtype=torch.int64, device="meta")
        foreground = Foreground(positions, [num_positions] * batchsize) if "lorm" in criterion.weights else None
        num_classes = min(CLASSES_PER_IMAGE, model.num_classes)
        counts = {"label": (torch.arange(256) < num_classes).expand(batchsize, -1)}
        batch = Batch(_empty_images(model, batchsize, crop_size), **maps, counts=counts)
        outputs = model(batch.image, foreground)
        flops = meter.flops
        loss, _ = criterion(outputs, batch, [1.0] * len(criterion.names))
        meter.flops, kept = flops, meter.live  # the losses' FLOPs are not the model's
        loss.backward()
    return meter.flops, kept, meter.peak


def _empty_images(model: nn.Module, batchsize: int, crop_size: int) -> Tensor:
    """Return a batch of images (B, H, W, 3) on the meta device."""
    return torch.empty(batchsize, crop_size, crop_size, 3, dtype=torch.uint8, device="meta")


class Convolutions(TorchFunctionMode):
    """A mode in which convolutions compute in `dtype`, as under torch.autocast, which does not know the meta device.

    dtype: None changes nothing. A call with a module's forward and input runs that alone in the mode, also where
    checkpointing recomputes it: a mode around a backward pass does not last in it.
    """

    def __init__(self, dtype: torch.dtype | None):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.dtype and func is torch.conv2d:
            args = [value.to(self.dtype) if isinstance(value, Tensor) else value for value in args]
        return func(*args, **(kwargs or {}))

    def __call__(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with self:
            return forward(x)


class Meter(TorchDispatchMode):
    """A dispatch mode that counts FLOPs and the bytes of meta tensors made inside: `live` now, and at the `peak`.

    FlopCounterMode would keep tensors of the backward pass alive, so this class calls torch's formulas. storages: the
    number of each live storage, by its id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.live = self.peak = 0
        self.storages: dict[int, int] = {}
        self._numbers = itertools.count()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.note(func, args, kwargs or {}, result)
        return result

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

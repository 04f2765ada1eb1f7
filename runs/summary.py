"""What a training run will need: parameters, FLOPs, and an estimate of one process's memory.

The model, its losses and their backward pass are run once on the meta device, where tensors have shapes and types but no
values: each operation's FLOPs are added up, and each tensor's bytes while it lives.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from losses.criterion import NEEDS, Criterion
from models.amp import DTYPES

CLASSES_AN_IMAGE = 8  # that losses by region are taken to find in an image's labels


@dataclass(frozen=True)
class Summary:
    """Sizes of a training process. FLOPs count two for a multiply-add; memory is in bytes."""

    batchsize: int
    crop_size: int
    parameters: int
    trainable: int
    flops: int  # of one image's forward pass as in evaluation
    train_flops: int  # of one image's forward and backward pass in training
    weights: int  # with buffers
    gradients: int
    momentum: int  # of the process that holds most of it
    ema: int
    kept: int  # what the forward pass leaves for the backward pass, of all images, with inputs
    losses: int  # the part of `kept` that the losses make, at full resolution
    working: int  # what lives at most at a time besides the states: `kept`, and what operations work on

    @property
    def states(self) -> int:
        """What does not depend on the images."""
        return self.weights + self.gradients + self.momentum + self.ema

    @property
    def memory(self) -> int:
        return self.states + self.working

    def lines(self) -> list[str]:
        """For the log."""
        frozen = self.parameters - self.trainable
        states = {
            "weights": self.weights, "gradients": self.gradients, "momentum": self.momentum, "ema": self.ema,
        }  # fmt: skip
        said = " + ".join(f"{name} {_size(size)}" for name, size in states.items() if size)
        size = f"{self.crop_size}x{self.crop_size}"
        return [
            f"model: {self.parameters:,} parameters" + (f", of which {frozen:,} are not trained" if frozen else ""),
            f"one {size} image: {self.flops / 1e9:.1f} GFLOP forward ({self.flops / 2e9:.1f} G multiply-adds), "
            f"{self.train_flops / 1e9:.1f} GFLOP in a training step",
            f"memory of a process, estimated: {_size(self.memory)} = {said} + {_size(self.working)} for {self.batchsize} images "
            f"of {size} ({_size(self.kept)} kept for the backward pass, {_size(self.losses)} of it by the losses); without what the device's libraries take",
        ]


def summarise(
    model: nn.Module,
    criterion: Criterion,
    *,
    batchsize: int,
    crop_size: int,
    amp: str = "none",
    ema: bool = False,
    momentum: bool = True,
    momentum_shards: int = 1,
) -> Summary:
    """The summary of a model on the meta device, which is used up.

    amp: as --amp. momentum_shards: processes over which --zero1 shards the optimizer's state. DDP's gradient_as_bucket_view
    makes the gradients its buckets, which adds nothing.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sizes = [parameter.nbytes for parameter in trainable]
    weights = sum(value.nbytes for value in (*model.parameters(), *model.buffers()))

    forward = _Meter(model)
    with torch.no_grad(), forward:
        model.eval()(torch.empty(1, crop_size, crop_size, 3, dtype=torch.uint8, device="meta"))
    training, of_model, kept = _training_step(model.train(), criterion, batchsize, crop_size, amp)
    return Summary(
        batchsize=batchsize,
        crop_size=crop_size,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trainable=sum(parameter.numel() for parameter in trainable),
        flops=forward.flops,
        train_flops=training.flops // batchsize,
        weights=weights,
        gradients=sum(sizes),
        momentum=largest_shard(sizes, momentum_shards) if momentum else 0,
        ema=weights if ema else 0,
        kept=kept,
        losses=kept - of_model,
        working=training.peak,
    )


def largest_shard(sizes: Sequence[int], num_shards: int) -> int:
    """What the process with most gets when, from the largest down, each goes to the process with least so far.

    That is how ZeroRedundancyOptimizer shares parameters out.
    """
    shards = [0] * num_shards
    for size in sorted(sizes, reverse=True):
        shards[shards.index(min(shards))] += size
    return max(shards)


def _training_step(
    model: nn.Module, criterion: Criterion, batchsize: int, crop_size: int, amp: str
) -> tuple["_Meter", int, int]:
    """The meter of a forward and a backward pass, and the bytes that lived after the model and after the losses."""
    for parameter in model.parameters():
        if parameter.requires_grad:  # gradients are counted as a whole
            parameter.register_post_accumulate_grad_hook(_drop_gradient)
    meter = _Meter(model)
    if (dtype := DTYPES[amp]) is not None:
        _lower(model, dtype)
    with meter:
        shape = (batchsize, crop_size, crop_size)
        maps = {NEEDS[term] for term in criterion.weights if term in NEEDS} | {"label"}
        batch = {name: torch.empty(shape, dtype=torch.uint8, device="meta") for name in sorted(maps)}
        batch["image"] = torch.empty((*shape, 3), dtype=torch.uint8, device="meta")
        outputs = model(batch["image"], batch.get("pseudo") if "lorm" in criterion.weights else None)
        of_model = meter.live
        num_classes = min(CLASSES_AN_IMAGE, outputs["logits"].shape[1])
        parts = criterion(outputs, batch, [1.0] * len(criterion.weights), [list(range(num_classes))] * batchsize)
        loss = criterion.total(parts)
        kept = meter.live
        loss.backward()
    return meter, of_model, kept


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def _batch_norm(x: Tensor, *others) -> tuple[Tensor, ...]:
    return torch.empty_like(x), *(x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))


def _batch_norm_backward(gradient: Tensor, x: Tensor, *others) -> tuple[Tensor, ...]:
    return _batch_norm(x)


# Their shapes are known; torch's own kernels of the meta device take more time for these than all else does.
_BATCH_NORM = {
    torch.ops.aten.native_batch_norm.default: _batch_norm,
    torch.ops.aten.native_batch_norm_backward.default: _batch_norm_backward,
}


class _Meter(TorchDispatchMode):
    """FLOPs of the operations in it, and the bytes of tensors made in it: those that live now, and most at once."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.flops = self.live = self.peak = 0
        self._seen: dict[int, weakref.ref] = {}
        for value in (*model.parameters(), *model.buffers()):
            self._seen[id(value.untyped_storage())] = weakref.ref(value.untyped_storage())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = (_BATCH_NORM.get(func) or func)(*args, **kwargs)
        if func._overloadpacket in flop_registry:
            self.flops += flop_registry[func._overloadpacket](*args, **kwargs, out_val=result)
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._hold(value.untyped_storage())
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed; views share one."""
        key, size = id(storage), storage.nbytes()
        if key in self._seen:
            return

        def freed(_: weakref.ref) -> None:
            del self._seen[key]
            self.live -= size

        self._seen[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


def _lower(model: nn.Module, dtype: torch.dtype) -> None:
    """Do to this model what torch.autocast does to it, for the meta device, which autocast does not know: convolutions
    take and give the lower type.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.forward = partial(_lower_convolution, module, dtype)  # type: ignore[method-assign]


def _lower_convolution(module: nn.Conv2d, dtype: torch.dtype, x: Tensor) -> Tensor:
    bias = None if module.bias is None else module.bias.to(dtype)
    return module._conv_forward(x.to(dtype), module.weight.to(dtype), bias)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"

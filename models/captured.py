"""Capture the backbone and the head as CUDA graphs, which a GPU replays without the CPU launching each kernel."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.layers.norm import BatchNorm2d
from models.segmenter import Segmenter
from support.errors import in_one_line

log = logging.getLogger("segtrain")


def capture_network(model: Segmenter, images: Tensor, dtype: torch.dtype | None) -> None:
    """Let the model's training, in place, replay Segmenter.network() and its backward pass as CUDA graphs.

    images: a batch of the size of every later one, on the model's device. dtype: autocast's; None: float32. LoRM and
    the losses, whose work depends on the labels, stay outside. The backward pass writes gradients to fixed memory. So
    each parameter gets a .grad of its own here, which must not become None: else a second micro-batch would overwrite
    the first one's gradients. Evaluation and copies of the model do not replay. If capturing fails, for example because
    the network waits for the GPU, log a warning and leave the model as it is.
    """
    if any(norm.synchronized for norm in model.modules() if isinstance(norm, BatchNorm2d)):
        log.warning("--cuda_graph: cannot capture batch norm over processes, so goes on without: use --sync_bn off")
        return
    statistics = [(buffer, buffer.clone()) for buffer in model.buffers()]
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()  # the warm-up steps measure
    try:
        replay: Any = torch.cuda.make_graphed_callables(_Network(model.train(), dtype), (images,))
    except (RuntimeError, AssertionError) as error:
        log.warning(f"--cuda_graph: capturing failed, so the run goes on without it: {in_one_line(error)}")
        return
    finally:
        for buffer, value in statistics:
            buffer.copy_(value)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    model.captured = _Replay(replay)


class _Network(nn.Module):
    """Segmenter.network() with the parameters that it uses, but without deepest features that LoRM does not need."""

    def __init__(self, model: Segmenter, dtype: torch.dtype | None):
        super().__init__()
        self.backbone, self.head = model.backbone, model.head
        self._run, self._num_outputs, self._dtype = model.network, 1 if model.lorm is None else 2, dtype

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        # Under autocast here, not around the capture, which includes the backward pass: autocast would lower the
        # float32 products of models.layers there. torch asks for no cache.
        with torch.autocast(images.device.type, self._dtype, self._dtype is not None, cache_enabled=False):
            return self._run(images)[: self._num_outputs]


@dataclass(frozen=True)
class _Replay:
    """The captured network. A copy of the model has other weights, so it gets None."""

    network: Callable[[Tensor], tuple[Tensor, ...]]

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.network(images)

    def __deepcopy__(self, memo: dict) -> None:
        return None

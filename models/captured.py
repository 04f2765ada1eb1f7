"""Capture the backbone and the head as CUDA graphs, which a GPU replays without the CPU launching each kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.layers.norm import BatchNorm2d
from models.segmenter import Segmenter
from support.errors import UserError, in_one_line
from support.log import log

DEVICES = ("cuda",)  # that have graphs


def capture_network(model: Segmenter, images: Tensor, dtype: torch.dtype | None) -> None:
    """Capture Segmenter.network() and its backward pass as CUDA graphs, and make the model replay them in training.

    images: an example on the model's device; all later batches need its shape. dtype: autocast's; None: float32. LoRM
    and the losses stay outside, because their work depends on the labels. Evaluation and copies of the model do not
    replay. Python's work, such as a branch that depends on a step count, is done once, here.

    A replay always writes gradients to the same memory. If a .grad were None, autograd would use that memory as .grad,
    and the next micro-batch would overwrite it. So each .grad is allocated here, and must be set to 0, not to None.

    Without a GPU, or with batch norm over processes, log a warning and leave the model as it is. Raises UserError if
    capturing fails, for example because the network waits for the GPU: CUDA's state is then undefined.
    """
    if images.device.type not in DEVICES:
        log.warning("--cuda_graph is ignored: it needs a GPU")
        return
    if any(norm.synchronized for norm in model.modules() if isinstance(norm, BatchNorm2d)):
        log.warning("--cuda_graph is ignored: batch norm over processes cannot be captured; add --sync_bn off")
        return
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    # Let cuDNN choose its algorithms in the warm-up steps before the capture.
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        replay: Any = torch.cuda.make_graphed_callables(_Network(model.train(), dtype), (images,))
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"--cuda_graph: this network cannot be captured ({in_one_line(error)}): drop the flag"
        ) from None
    for buffer, value in buffers:  # the warm-up steps have changed batch norm's statistics
        buffer.copy_(value)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    model.captured = _Replay(replay)


class _Network(nn.Module):
    """Segmenter.network() with the parameters that it uses. It returns the deepest features only if there is a LoRM."""

    def __init__(self, model: Segmenter, dtype: torch.dtype | None):
        super().__init__()
        self.backbone, self.head = model.backbone, model.head
        self._run, self._num_outputs, self._dtype = model.network, 1 if model.lorm is None else 2, dtype

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        # Autocast around the forward pass only: around the capture, it would also cover the backward pass, and lower
        # the float32 products of models.layers. make_graphed_callables() forbids autocast's cache.
        with torch.autocast(images.device.type, self._dtype, self._dtype is not None, cache_enabled=False):
            return self._run(images)[: self._num_outputs]


@dataclass(frozen=True)
class _Replay:
    """The captured network. Copies of the model get None instead, because the graphs use this model's weights."""

    network: Callable[[Tensor], tuple[Tensor, ...]]

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.network(images)

    def __deepcopy__(self, memo: dict) -> None:
        return None

"""How much memory a model keeps for its backward pass, counted without a device; and the choice that depends on it."""

import copy
import logging

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from models.layers.norm import BatchNorm2d
from models.segmenter import Segmenter

BYTES_PER_PARAMETER = 20  # weight, gradient, at most two averages of the optimizer, a copy in 16 bits
RESERVED = 0.1, 1.0  # share of a GPU and GiB, for CUDA's libraries, their workspaces and fragmentation

log = logging.getLogger("segtrain")


def gpu_memory(device: torch.device) -> float:
    """Return the GPU's memory in GiB; 0 on a CPU."""
    return torch.cuda.get_device_properties(device).total_memory / 2**30 if device.type == "cuda" else 0.0


def fuse_blocks(model: Segmenter, fused: bool) -> None:
    """Let the model's blocks compute as models.layers.fused does, or by separate modules."""
    for norm in _norms(model):
        norm.fused = fused


def choose_blocks(
    model: Segmenter, choice: str, images: tuple[int, int], dtype: torch.dtype | None, memory: float, losses: int = 0
) -> None:
    """Fuse the model's blocks or not, in place, as --fused_blocks says: "on", "off" or "auto".

    On a GPU, separate modules are faster, but they keep about twice as much. "auto" takes them if the GPU holds what
    they keep. images: (batch size, height and width) of a forward pass. dtype: autocast's; None: float32. memory: the
    GPU's, in GiB; 0 on a CPU, where fused blocks are also faster. losses: bytes that the losses keep.
    """
    fuse_blocks(model, choice != "off")
    if choice != "auto" or not memory or not _norms(model):
        return
    fuse_blocks(model, False)
    share, reserve = RESERVED
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kept = saved_bytes(model, images, dtype) + losses + BYTES_PER_PARAMETER * parameters
    needed = kept / 2**30 + reserve + share * memory
    fits = needed <= memory
    fuse_blocks(model, not fits)
    log.info(
        f"--fused_blocks {'off' if fits else 'on'}: blocks of separate modules are faster and need {needed:.1f} GiB; "
        f"the GPU has {memory:.1f}"
    )


def saved_bytes(model: Segmenter, images: tuple[int, int], dtype: torch.dtype | None = None) -> int:
    """Return how many bytes autograd keeps between a forward and a backward pass of backbone and head.

    Counted on torch's meta device, without the weights. images: (batch size, height and width). dtype: None: float32.
    """
    batchsize, size = images
    model = copy.deepcopy(model).to("meta", dtype or torch.float32).train()
    weights = {StorageWeakRef(value.untyped_storage()) for value in (*model.parameters(), *model.buffers())}
    kept: dict[StorageWeakRef, int] = {}

    def keep(value: Tensor) -> Tensor:
        kept[StorageWeakRef(value.untyped_storage())] = value.untyped_storage().nbytes()
        return value

    with saved_tensors_hooks(keep, lambda value: value):
        outputs = model(torch.empty(batchsize, size, size, 3, dtype=torch.uint8, device="meta"))
    assert outputs["logits"].requires_grad  # the graph lives until here, so that each storage has its own reference
    return sum(size for storage, size in kept.items() if storage not in weights)


def _norms(model: nn.Module) -> list[BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, BatchNorm2d)]

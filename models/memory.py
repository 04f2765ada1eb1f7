"""Count how much memory a model keeps for its backward pass, without a device; and choose its blocks by that."""

import copy

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from models.backbone import ResNetBackbone
from models.layers.norm import BatchNorm2d
from models.segmenter import Segmenter
from support.log import log

# Weight 4, gradient 4, AdamW's averages 8, --ema 4, copy in 16 bits 2, the gradient that a CUDA graph writes 4.
BYTES_PER_PARAMETER = 26
# Not used: this share of the free memory, and this many GiB more. CUDA's libraries and fragmentation take them.
RESERVED = 0.1, 1.0


def gpu_memory(device: torch.device) -> tuple[float, float]:
    """Return the (free, total) memory of the GPU in GiB; (0, 0) on a CPU."""
    free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (0, 0)
    return free / 2**30, total / 2**30


def fuse_blocks(model: nn.Module, fused: bool) -> None:
    """Let the model's blocks compute as models.layers.fused does, or by separate modules."""
    for module in model.modules():
        if isinstance(module, BatchNorm2d):
            module.fused = fused


def choose_blocks(
    model: Segmenter, choice: str, images: tuple[int, int], dtype: torch.dtype | None, memory: float, losses: int = 0
) -> None:
    """Fuse the model's blocks or not, in place, as --fused_blocks says: "on", "off" or "auto".

    On a GPU, separate modules are faster, but keep about twice as much. "auto" takes them for a ResNet if the GPU holds
    what they keep. Other backbones have few blocks to fuse, and stay fused. images: (batch size, side of the square
    images) of a forward pass. dtype: autocast's; None: float32. memory: free memory of the GPU in GiB; 0 on a CPU,
    where fused blocks are faster as well as smaller. losses: bytes that the losses keep.
    """
    fuse_blocks(model, choice != "off")
    if choice != "auto" or not memory or not isinstance(model.backbone, ResNetBackbone):
        return
    fuse_blocks(model, False)
    share, reserve = RESERVED
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needed = (saved_bytes(model, images, dtype) + losses + BYTES_PER_PARAMETER * parameters) / 2**30
    usable = (1 - share) * memory - reserve
    fuse_blocks(model, needed > usable)
    line = f"separate modules take {needed:.1f} GiB, and {usable:.1f} of the GPU's {memory:.1f} free GiB may be used"
    log.info(f"--fused_blocks {'on' if needed > usable else 'off'}: {line}")


def saved_bytes(model: Segmenter, images: tuple[int, int], dtype: torch.dtype | None = None) -> int:
    """Return how many bytes autograd keeps between a forward and a backward pass of backbone and head.

    Counted on torch's meta device. The weights do not count; nor do LoRM and the losses. images: (batch size, side of
    the square images). dtype: None: float32.
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
    assert outputs["logits"].requires_grad  # keeps the graph alive up to here, so that no storage is freed and reused
    return sum(size for storage, size in kept.items() if storage not in weights)

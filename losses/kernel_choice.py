"""The choice between the Triton kernel and PyTorch's operations for a pass over the pixels."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from losses.pixel_pass import CrossEntropy, PixelPass
from support.log import log


def find_kernel(logits: Tensor) -> Callable[[PixelPass], Tensor] | None:
    """Return the kernel for a pass over these logits, or None to use PyTorch's operations in bands."""
    # FakeTensorMode's tensors are of another type, and the test of the kernel needs values.
    usable = type(logits) is Tensor and logits.is_cuda and logits.dtype == torch.float32
    return tested_kernel(logits.device) if usable else None


@cache
def tested_kernel(device: torch.device) -> Callable[[PixelPass], Tensor] | None:
    """Return the Triton kernel if it agrees with the bands on the device; else warn and return None. Waits once."""
    logits, size = torch.arange(5 * 2 * 3, device=device).sin().view(1, 5, 2, 3), (3, 7)
    label = (torch.arange(3 * 7, device=device) % 6).byte().view(1, 3, 7)
    slope = (label < 5).float()
    target = CrossEntropy(label, slope, 0.1)
    by_kernel, by_bands = (PixelPass(logits, size, [target, target], slope) for _ in range(2))
    try:
        from losses import pixel_kernel

        actual = [pixel_kernel.run(by_kernel), by_kernel.cross_entropies[0], by_kernel.entropy]
        expected = [by_bands.run_bands(), by_bands.cross_entropies[0], by_bands.entropy]
        torch.testing.assert_close(actual, expected, rtol=0.01, atol=0.01)  # wide: matrix products may be in TF32
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        log.warning(
            f"the losses run without their Triton kernel, slower: {reason} (it needs Triton, a C compiler, Python's "
            "headers, and a GPU of compute capability 8.0 or newer)"
        )
        return None
    return pixel_kernel.run

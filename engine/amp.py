"""Mixed precision."""

import torch

DTYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(amp: str, device: torch.device) -> torch.autocast:
    """The context of a forward pass under --amp: none, bf16 or fp16."""
    dtype = DTYPES[amp]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)

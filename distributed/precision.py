"""Mixed precision."""

import functools
import timeit

import torch
import torch.nn.functional as F
from torch import Tensor

from distributed.group import Group
from support.errors import DivergedError
from support.log import log

DTYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}

# The fp16 scale starts at 65536, and each skipped step halves it. After 20 skipped steps in a row it is below 1: the
# gradients themselves overflow, and no scale helps.
MAX_SKIPPED = 20


def has_native_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies bf16 matrices in hardware, and faster than float32 ones."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(capabilities.get("amx_tile") or (capabilities.get("avx512_bf16") and _bf16_is_faster()))


@functools.cache
def _bf16_is_faster() -> bool:
    """Return whether this CPU convolves faster in bf16. Takes a tenth of a second.

    By AVX512-BF16, AMD's Zen 4 does, but an Intel CPU whose AMX is hidden by a virtual machine takes longer. On a busy
    machine threads wait for each other, and the answer would change from start to start: so measure one thread.
    """
    seconds, num_threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for dtype in (torch.float32, torch.bfloat16):
            x, weight = torch.ones(1, 128, 48, 48, dtype=dtype), torch.ones(128, 128, 3, 3, dtype=dtype)
            convolve = functools.partial(F.conv2d, x, weight, padding=1)
            seconds[dtype] = min(timeit.repeat(convolve, number=1, repeat=10))
    finally:
        torch.set_num_threads(num_threads)
    return seconds[torch.bfloat16] < seconds[torch.float32]


def resolve(amp: str, device: torch.device) -> str:
    """Return "none", "bf16" or "fp16" for a value of --amp; auto is bf16 on a device with native bf16, else none."""
    return amp if amp != "auto" else "bf16" if has_native_bf16(device) else "none"


def resolve_amp(amp: str, group: Group, kept: str = "") -> str:
    """Return "none", "bf16" or "fp16" for --amp, equal on all ranks. Collective.

    kept: the checkpoint's precision, which auto uses. If it is "", auto is bf16 if every rank has it natively.
    """
    values = group.gather(resolve(amp, group.device))
    native = "none" if "none" in values else values[0]
    if amp == "auto" and kept:
        if kept != native:
            log.info(f"--amp {kept}, as in the checkpoint, so that the run stays the same; auto would be {native}")
        return kept
    if len(set(values)) > 1:
        ranks = [rank for rank, value in enumerate(values) if value == "none"]
        log.info(f"--amp {amp}: none, because devices of rank(s) {ranks} have no native bf16")
    elif amp == "auto" and native == "none" and group.device.type == "cuda":
        log.warning("--amp none: this GPU has no bf16; --amp fp16 takes half of the memory, and about half of the time")
    if native == "fp16" and group.device.type == "cpu":
        log.warning("--amp fp16: a CPU emulates it, more than ten times as slow: use --amp bf16 or none")
    return native


def autocast(amp: str, device: torch.device) -> torch.autocast:
    """Return the autocast context of --amp none (disabled), bf16 or fp16 on the device. float64 stays float64."""
    dtype = DTYPES[amp]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


class LossScaler(torch.amp.GradScaler):
    """A GradScaler that also counts the steps it skips because a gradient overflows.

    counts: (3,) float32 on the device: the loss scale, the number of skipped steps, and the number of steps skipped
    in a row up to now. Each update makes a new tensor, so that the CPU can read the old one later without waiting.
    """

    def __init__(self, device: torch.device, *, enabled: bool):
        super().__init__(device.type, enabled=enabled)
        self._one = torch.ones((), device=device)
        self.counts = torch.zeros(3, device=device)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        if not self.is_enabled():
            return
        before = self.scale(self._one)  # the scale as a tensor; get_scale() would wait
        super().update(new_scale)
        after = self.scale(self._one)
        # The scale falls exactly when a step is skipped. Reading get_scale() or found_inf would make the CPU wait.
        skipped = (after < before).float()
        self.counts = torch.stack([after, self.counts[1] + skipped, (self.counts[2] + 1) * skipped])

    def state_dict(self) -> dict:
        if not self.is_enabled():
            return {}
        _, skipped, in_a_row = self.counts.tolist()
        return super().state_dict() | {"skipped": skipped, "skipped_in_a_row": in_a_row}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        values = [state_dict[name] for name in ("scale", "skipped", "skipped_in_a_row")]
        self.counts = self.counts.new_tensor(values)


def read_scaling(counts: list[float], step: int) -> dict[str, float]:
    """Return {"loss_scale": float, "skipped_steps": int} from the values of LossScaler.counts after `step`.

    Raises DivergedError after MAX_SKIPPED skipped steps in a row.
    """
    scale, skipped, in_a_row = counts
    if in_a_row >= MAX_SKIPPED:
        raise DivergedError(
            f"--amp fp16: gradients overflow; the last {in_a_row:.0f} steps, up to step {step}, were skipped, and the "
            f"loss scale fell to {scale:g}: use --amp bf16 or none, or lower --lr or the losses' weights (--l_*)"
        )
    return {"loss_scale": scale, "skipped_steps": int(skipped)}

"""Which batch fits a card, by counting: the table of docs/recipes.md. No figure here was measured on a GPU.

python -m benchmarks.memory_table

Count the peak memory of a step of train.py on a simulated GPU (benchmarks/absent_gpu.py) at batches of 4 and 16, and
extrapolate linearly. A tenth of the card and 1 GiB are reserved for CUDA's libraries, their workspaces and
fragmentation.
"""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.absent_gpu import AbsentGPU
from benchmarks.our_step import our_step
from flags import parse_flags

FIVE_LOSSES = ("--model_type", "res50_ASPP_lorm", "--dataset", "ScribblePseudoDsDc")
CARDS = (8, 16, 24, 40, 80)  # GiB
# {row: (crop, flags of train.py)}
ROWS = {
    "`res50_ASPP_lorm`, five losses": (465, FIVE_LOSSES),
    "`deeplabv3p`, dense masks": (465, ("--model_type", "deeplabv3p", "--dataset", "Dense")),
    "the same, crop 769": (769, ("--model_type", "deeplabv3p", "--dataset", "Dense")),
    "`deeplabv3p_lorm`, `--layers 101`, five losses": (
        465,
        ("--model_type", "deeplabv3p_lorm", "--dataset", "ScribblePseudoDsDc", "--layers", "101"),
    ),
}


class PeakMemory(AbsentGPU):
    """An absent GPU that counts the bytes of its live tensors (`live`) and their maximum (`peak`)."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()  # ids of live storages

    def hold(self, values: Any, *, is_new: bool = True) -> None:
        """Count tensors until their storages are freed. is_new: False for arguments of
        an operation: those not counted yet were made before the recording, and count as 0 bytes.
        """
        for value in tree_leaves(values):
            if isinstance(value, Tensor) and value.is_meta and id(value.untyped_storage()) not in self.known:
                storage = value.untyped_storage()
                size = storage.nbytes() if is_new else 0
                self.known.add(id(storage))
                weakref.finalize(storage, self._free, id(storage), size).atexit = False
                self.live += size
                self.peak = max(self.peak, self.live)

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size

    def record(self, func, args: tuple, kwargs: dict, result: Any) -> None:
        self.hold((args, kwargs), is_new=False)
        self.hold(result)


def largest_batches(crop_size: int, flags: tuple[str, ...], amp: str) -> list[int]:
    peaks = []
    for batchsize in (4, 16):
        words = ["--crop_size", str(crop_size), "--batchsize", str(batchsize), "--amp", amp, "--numclasses", "21"]
        words += ["--pretrained", "none", "--layers", "50", "--fused_blocks", "on", *flags]
        counter = PeakMemory()
        with our_step(parse_flags(words), counter) as (step, state):
            counter.hold([*state.raw_model.parameters(), *state.raw_model.buffers()])
            counter.hold([values["momentum_buffer"] for values in state.optimizer.state.values()])
            step()
        peaks.append(counter.peak / 2**30)
    an_image = (peaks[1] - peaks[0]) / 12
    return [int((0.9 * card - 1 - (peaks[0] - 4 * an_image)) / an_image) for card in CARDS]


def main() -> None:
    print(f"| | {' | '.join(f'{card} GB' for card in CARDS)} |\n{'| --- ' * (1 + len(CARDS))}|")
    for name, (crop_size, flags) in ROWS.items():
        by_amp = [largest_batches(crop_size, flags, amp) for amp in ("none", "bf16")]
        cells = [" / ".join(map(str, pair)) for pair in zip(*by_amp, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

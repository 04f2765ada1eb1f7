"""Which batch fits a card, by counting: the table of docs/recipes.md. No figure here was measured on a GPU.

python -m benchmarks.memory_table

Count the peak memory of a step of train.py on a simulated GPU (benchmarks/absent_gpu.py) at batches of 4 and 16, and
extrapolate linearly. A tenth of the card and 1 GiB are reserved for CUDA's libraries, their workspaces and
fragmentation.
"""

import argparse

from benchmarks.operations import Recorder
from benchmarks.peer_steps import FIVE_LOSSES, ours

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


def largest_batches(crop_size: int, flags: tuple[str, ...], amp: str) -> list[int]:
    peaks = []
    for batchsize in (4, 16):
        recorder = Recorder()
        sizes = argparse.Namespace(batchsize=batchsize, crop_size=crop_size, numclasses=21, amp=amp)
        ours(sizes, recorder, *flags)
        peaks.append(recorder.peak / 2**30)
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

"""How much each difference from the released CDSP training changes the first update of the weights.

python benchmarks/release_differences.py                                                  # on the drawn demo
python benchmarks/release_differences.py --dataset_path VOC2012 --numclasses 21           # on real scribbles

The reference is configs/cdsp_release.yaml in float32 with random weights. Each row changes one thing on the same batch
and prints how much the total loss changes, and |gradient - reference| / |reference| over all weights.
"""

import argparse
import dataclasses
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import utils
from data import demo
from data.histogram import count_batch
from distributed.group import Group
from distributed.precision import autocast
from flags import Config, parse_flags
from models.lorm import find_foreground
from support.batch import Batch
from support.labels import IGNORE
from training.data import DEMO_ROOT
from training.settle import split_batchsize

GROUP = Group(torch.device("cpu"))


def read_config(args) -> Config:
    words = ["--config", "configs/cdsp_release.yaml", "--pretrained", "none", "--amp", "none", "--classes", ""]
    words += ["--dataset_path", args.dataset_path, "--numclasses", str(args.numclasses)]
    words += ["--crop_size", str(args.crop_size), "--total_batchsize", "1", "--workers", "0"]
    return split_batchsize(parse_flags(words), GROUP)


def read_batch(cfg: Config, size: int) -> tuple[dict[str, Tensor], Tensor]:
    """A batch of `size` augmented training samples, the set repeated if need be, and its padding, (B, H, W) bool."""
    dataset = utils.get_loader(cfg, "train", GROUP).dataset
    keys = [(number // len(dataset), number % len(dataset)) for number in range(size)]
    padding = []
    for epoch, index in keys:
        maps = dataset.read(index)
        inside = {"image": maps["image"], "label": np.zeros_like(maps["label"])}
        rng = np.random.default_rng((dataset.seed, epoch, index))
        padding.append(torch.from_numpy(dataset.transform(inside, rng)["label"] == IGNORE))
    return default_collate([dataset[key] for key in keys]), torch.stack(padding)


def loss_and_gradient(
    cfg: Config, batch: dict[str, Tensor], accum_steps: int = 1, *, backward: bool = True
) -> tuple[float, Tensor | None]:
    """The total loss of a seeded model on a batch, and its gradient with respect to all weights as one vector.

    accum_steps: number of equal micro-batches. The gradient is None without `backward`.
    """
    model, _ = utils.get_model(cfg, GROUP)
    criterion = utils.get_criterion(cfg, model)
    size = model.backbone.feature_size(*batch["pseudo"].shape[1:])

    def completed(maps: dict[str, Tensor]) -> Batch:
        found = find_foreground(maps["pseudo"], size=size, background=cfg.background_class)
        whole = Batch(**maps, foreground=found)  # type: ignore[arg-type]
        return dataclasses.replace(whole, counts=count_batch(whole))

    counts = criterion.counts(completed(batch)).tolist()
    chunks = zip(*(values.chunk(accum_steps) for values in batch.values()), strict=True)
    total = 0.0
    for micro_batch in (completed(dict(zip(batch, chunk, strict=True))) for chunk in chunks):
        with torch.set_grad_enabled(backward):
            with autocast(cfg.amp, GROUP.device):
                outputs = model.train()(micro_batch.image, micro_batch.foreground)
            if "lorm_count" in outputs:
                outputs["lorm_count"] = outputs["lorm_count"] * accum_steps
            loss, _ = criterion(outputs, micro_batch, counts)  # in float32, as in train.py
        total += loss.item()
        if backward:
            loss.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return total, torch.cat(gradients) if backward else None


def print_row(name: str, changed: tuple[float, Tensor | None], reference: tuple[float, Tensor | None]) -> None:
    cells = [f"{changed[0] / reference[0] - 1:+.1e}", ""]
    if changed[1] is not None and reference[1] is not None:
        cells[1] = f"{float((changed[1] - reference[1]).norm() / reference[1].norm()):.2g}"
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def with_released_padding(batch: dict[str, Tensor], padding: Tensor) -> dict[str, Tensor]:
    """The batch as the release sees it: padding has distance 255, and padding and unsure pixels have pseudo-label 0."""
    distances = {name: batch[name].masked_fill(padding, 255) for name in ("distance_s", "distance_c")}
    return batch | distances | {"pseudo": batch["pseudo"].masked_fill(batch["pseudo"] == IGNORE, 0)}


def print_padding(batch: dict[str, Tensor], padding: Tensor) -> None:
    released = with_released_padding(batch, padding)
    print(
        f"padding: {100 * float(padding.float().mean()):.1f} % of {len(padding)} crops; pixels that count, "
        "release / ours:"
    )
    for name, ignored in (("pseudo", IGNORE), ("distance_s", 0), ("distance_c", 0)):
        counted, ours = (int((values[name] != ignored).sum()) for values in (released, batch))
        print(f"  {name}: {counted / ours:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset_path", default=str(DEMO_ROOT))
    parser.add_argument("--numclasses", type=int, default=5)
    parser.add_argument("--crop_size", type=int, default=465)
    parser.add_argument("--batchsize", type=int, default=4)
    args = parser.parse_args()
    if Path(args.dataset_path) == DEMO_ROOT:
        demo.draw_dataset(DEMO_ROOT)
    cfg = read_config(args)
    batch, padding = read_batch(cfg, args.batchsize)
    reference = loss_and_gradient(cfg, batch)
    print("| change | total loss | gradient |\n| --- | --- | --- |")
    for name, changed in {
        "--lorm_scope foreground": replace(cfg, lorm_scope="foreground"),
        "--no_stride_in_1x1": replace(cfg, stride_in_1x1=False),
    }.items():
        print_row(name, loss_and_gradient(changed, batch), reference)
    released = loss_and_gradient(cfg, with_released_padding(batch, padding))
    print_row("padding and unsure pixels carry weight, as in the release", released, reference)
    frozen = replace(cfg, freeze_bn=True)  # batch norm has other statistics on a micro-batch
    halves = loss_and_gradient(frozen, batch, accum_steps=2)
    print_row("--accum_steps 2, batch norm frozen", halves, loss_and_gradient(frozen, batch))
    for amp in ("fp16", "bf16"):
        print_row(f"--amp {amp}", loss_and_gradient(replace(cfg, amp=amp), batch, backward=False), reference)
    print_padding(*read_batch(cfg, 64))


if __name__ == "__main__":
    main()

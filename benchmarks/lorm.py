"""LoRM's loss with its gradients: ours against the release's form written plainly, in turn.

python benchmarks/lorm.py
python benchmarks/lorm.py --share 1 --rounds 3    # every position is foreground
python benchmarks/lorm.py --side 33 --rounds 1    # seconds

The plain form computes all H*W x H*W cosines of 1x1 convolutions, their softmax, and sets the rows outside the
foreground to 0. Both get the same features in channels-last order, in which the plain form is faster too. The products
of "bf16" ways are under autocast. The script checks value and gradients of each way against the plain form's in
float64.
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.measure import add_flags, measure, save, table
from models.lorm import LoRM
from support.batch import Foreground

BATCH, CHANNELS = 2, 2048
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.bfloat16}
TOLERANCE = {"float32": 3e-5, "bf16": 2e-2}  # gradients of q and k are small differences of large sums


def inputs(scope: str, share: float, side: int) -> tuple[LoRM, Tensor, Tensor]:
    """Return LoRM, features that have a common part and zeros as a backbone's have, and the mask (B, H*W)."""
    torch.manual_seed(0)
    module = LoRM(CHANNELS, scope)
    torch.nn.init.constant_(module.gamma, 0.8)  # at its start of 1, terms of its gradient cancel
    x = (torch.randn(BATCH, CHANNELS, side, side) + 2 * torch.rand(CHANNELS, 1, 1)).relu()
    mask = torch.rand(BATCH, side * side).argsort(1) < round(share * side * side)
    return module, x.to(memory_format=torch.channels_last), mask


def plain_loss(module: LoRM, x: Tensor, mask: Tensor) -> Tensor:
    query, key = (conv(x).flatten(2) for conv in (module.query_conv, module.key_conv))
    if x.dtype == torch.bfloat16:
        query, key = query.float(), key.float()
    query, key = F.normalize(query, dim=1), F.normalize(key, dim=1)
    values = x.flatten(2).transpose(1, 2)
    attention = torch.bmm(query.transpose(1, 2), key).softmax(-1) * mask.unsqueeze(-1)
    squares = (values - module.gamma * torch.bmm(attention, values)).square()
    return (squares * mask.unsqueeze(-1) if module.scope == "foreground" else squares).sum()


def prepare(ours: bool, precision: str, scope: str, share: float, side: int) -> Callable[[], list[Tensor]]:
    """Return a function that computes the loss and its gradients, and returns the loss and parts of the gradients."""
    module, x, mask = inputs(scope, share, side)
    x = x.to(DTYPES[precision]).requires_grad_()
    module = module.double() if precision == "float64" else module
    foreground = Foreground(mask.nonzero()[:, 1].contiguous(), mask.sum(1).tolist())
    by_all = 1 / (BATCH * CHANNELS * side * side)

    def work() -> list[Tensor]:
        x.grad = None
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            total = module(x, foreground)["lorm"] if ours else plain_loss(module, x, mask)
        loss = total * by_all
        loss.backward()
        grads = [value.grad for value in (x, *module.parameters())]
        return [loss.detach(), *(grad.flatten()[::97].double() for grad in grads if grad is not None)]

    return work


def check(results: dict[str, list[Tensor]], reference: list[Tensor]) -> None:
    """Raise SystemExit if a value or gradient differs too much from the reference; print the largest differences."""
    for name, result in results.items():
        errors = [float((one - other).norm() / other.norm()) for one, other in zip(result, reference, strict=True)]
        print(f"{name}: value and gradients differ by {errors[0]:.0e} and at most {max(errors[1:]):.0e}")
        if max(errors) > TOLERANCE[name.split()[-1]]:
            raise SystemExit(f"{name} differs: {errors}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.25, help="of the positions that are foreground [%(default)s]")
    parser.add_argument("--side", type=int, default=59, help="of the square of positions [%(default)s]")
    add_flags(parser, "lorm")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back, and the peak is that of live tensors
    saved = {}
    for scope in ("foreground", "all"):
        ways = {
            f"{name} {precision}": partial(prepare, name == "ours", precision, scope, args.share, args.side)
            for precision in ("float32", "bf16")
            for name in ("plain", "ours")
        }
        figures, results = measure(ways, rounds=args.rounds, threads=args.threads)
        check(results, prepare(False, "float64", scope, args.share, args.side)())
        title = f"scope {scope}, {args.share:g} foreground"
        print(table(figures, baseline="plain float32", title=title))
        saved[title] = figures
    save(args.out, saved)


if __name__ == "__main__":
    main()

"""Dice and Lovasz-Softmax, which compare the region of a class in an image with the probabilities of that class.

An image is never split over ranks or micro-batches, so the sums over images add up to those of the global batch.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from support.labels import IGNORE


def region_sums(
    losses: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]], probs: Tensor, label: Tensor, histogram: Tensor
) -> dict[str, Tensor]:
    """Return {name: scalar} of losses by region, each summed over these images; differentiable.

    losses: functions such as dice_sum(). probs: (B, C, H, W), float32 or float64. label: (B, H, W) uint8. histogram:
    the number of pixels of each label value in each image, (B, 256), in CPU memory, so that the CPU need not wait for a
    GPU.
    """
    classes = [row.nonzero().flatten().tolist() for row in histogram[:, :IGNORE]]
    parts: dict[str, list[Tensor]] = {name: [] for name in losses}
    # Use unbind: the backward pass of an index would fill a tensor of all classes for each index.
    for planes, values, present in zip(probs.flatten(2).unbind(), label.flatten(1), classes, strict=True):
        if not present:
            continue
        by_class = planes.unbind()
        p = torch.stack([by_class[number] for number in present])
        inside = torch.stack([values == number for number in present])
        labelled = values != IGNORE
        for name, image_sum in losses.items():
            parts[name].append(image_sum(p, inside, labelled))
    nothing = probs[:0].sum() if not any(classes) else None  # 0 with a gradient: DDP waits for one
    return {name: torch.stack(found).sum() if nothing is None else nothing for name, found in parts.items()}


def dice_sum(p: Tensor, inside: Tensor, labelled: Tensor) -> Tensor:
    """Return the sum of 1 - 2 sum(p g) / (sum(p) + sum(g)) over an image's P classes, a scalar.

    p: (P, N), probabilities of P classes in N pixels. inside: (P, N) bool, g: whether the label is that class; every
    class has at least one pixel. labelled: (N,) bool.
    """
    both = (p * inside).sum(1)
    return (1 - 2 * both / ((p * labelled).sum(1) + inside.sum(1))).sum()


def lovasz_sum(p: Tensor, inside: Tensor, labelled: Tensor) -> Tensor:
    """Return the sum of the Lovasz extension of 1 - IoU at the errors |g - p| over an image's P classes, a scalar.

    p: (P, N), probabilities of P classes in N pixels. inside: (P, N) bool, g: whether the label is that class; every
    class has at least one pixel. labelled: (N,) bool.

    Sort the errors in falling order. The extension is the sum of each error times the growth of 1 - IoU when its pixel
    becomes wrong after all pixels before it.
    """
    errors = torch.where(inside, 1 - p, p)
    with torch.no_grad():
        # Ignored pixels come last: all pixels of the class are missed by then, so they add 0.
        order = errors.masked_fill(~labelled, -1.0).sort(dim=1, descending=True, stable=True).indices
        missed = inside.gather(1, order)
        size = inside.sum(1, keepdim=True)
        num_missed = missed.cumsum(1, dtype=torch.int32)  # --deterministic refuses it for floats
        rank = torch.arange(1, p.shape[1] + 1, device=p.device)
        union = (size + rank - num_missed).to(p.dtype)
        # 1 - I / U grows by 1 / U when a pixel of the class is missed, and by I / (U - 1) - I / U when a pixel of
        # another class joins the union. Closed forms, because the difference would lose digits.
        grows = torch.where(missed, 1 / union, (size - num_missed) / (union * (union - 1)))
        slope = torch.empty_like(p).scatter_(1, order, grows)
    return (errors * slope).sum()

"""The pass of losses.pixel_pass as one Triton kernel.

A program computes the pixels of one row that depend on one column of the low-resolution logits, all classes at once.
It adds up their gradient by that column. No two programs write to the same place: no atomics, the same bits each time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from losses.pixel_pass import PixelPass

TILE = 2048  # pixels times classes that a program holds at a time
MAX_TARGETS = 2


def run(work: PixelPass) -> Tensor:
    """Fill the maps of a pass; return the gradient (B, C, h, w) without label smoothing's part."""
    if len(work.targets) > MAX_TARGETS:
        return work.run_bands()
    num_images, num_classes, low_height, low_width = work.logits.shape
    table = work.logits.permute(0, 2, 3, 1).contiguous()  # (B, h, w, C)
    partial = table.new_empty(num_images, work.height, low_width, num_classes)
    places = []
    for axis in (work.down, work.across):
        at = torch.arange(axis.num_out, device=table.device)
        places += [axis.lower(at).int(), axis.fraction(at, table.dtype)]
    first_column = (work.column_weights > 0).int().argmax(0).int()  # (W, w) -> (w,)
    targets: list[tuple] = [
        (target.label, target.slope, values, target.smooth)
        for target, values in zip(work.targets, work.cross_entropies, strict=True)
    ]
    targets += [(None, None, None, 0.0)] * (MAX_TARGETS - len(targets))
    block_c = triton.next_power_of_2(num_classes)
    _pixels[(num_images * work.height, low_width)](
        table,
        *places,
        work.column_weights,
        first_column,
        *targets[0],
        *targets[1],
        work.entropy_slope,
        work.entropy,
        partial,
        *(work.height, work.width, low_height, low_width, num_classes),
        NUM_X=(num_x := work.across.max_outputs()),
        BLOCK_X=min(triton.next_power_of_2(num_x), max(TILE // block_c, 1)),
        BLOCK_C=block_c,
    )
    low = work.row_weights.T @ partial.flatten(2)  # (h, H) @ (B, H, w * C)
    return low.unflatten(2, (low_width, num_classes)).permute(0, 3, 1, 2)


@triton.jit
def _pixels(
    table,
    row_lower,
    row_fraction,
    column_lower,
    column_fraction,
    column_weights,
    first_column,
    label_a,
    slope_a,
    values_a,
    smooth_a,
    label_b,
    slope_b,
    values_b,
    smooth_b,
    entropy_slope,
    entropy,
    partial,
    height,
    width,
    low_height,
    low_width,
    num_classes,
    NUM_X: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1)
    classes = tl.arange(0, BLOCK_C)
    is_class = (classes < num_classes)[None, :]
    image = table + row // height * low_height * low_width * num_classes
    upper, down = tl.load(row_lower + row % height), tl.load(row_fraction + row % height)
    collected = tl.zeros([BLOCK_C], tl.float32)
    for offset in range(0, NUM_X, BLOCK_X):
        x = tl.load(first_column + column) + offset + tl.arange(0, BLOCK_X)
        weight = tl.load(column_weights + x * low_width + column, mask=x < width, other=0.0)
        used, at = weight > 0, row * width + x
        left = tl.load(column_lower + x, mask=used, other=0)
        across = tl.load(column_fraction + x, mask=used, other=0.0)
        mask = used[:, None] & is_class
        z = _row(image + upper * low_width * num_classes, left, across, low_width, num_classes, classes, mask)
        lower = tl.minimum(upper + 1, low_height - 1)
        below = _row(image + lower * low_width * num_classes, left, across, low_width, num_classes, classes, mask)
        z = tl.where(is_class, z + (below - z) * down, -float("inf"))

        stored = used & (left == column)  # another program stores the other pixels' maps
        z = z - tl.max(z, 1)[:, None]
        exps = tl.exp(z)
        total, z = tl.sum(exps, 1), tl.where(is_class, z, 0.0)
        gradient = tl.zeros([BLOCK_X, BLOCK_C], tl.float32)
        factor = tl.zeros([BLOCK_X], tl.float32)
        if label_a is not None:
            gradient, factor = _cross_entropy(
                label_a, slope_a, values_a, smooth_a, at, used, stored, z, total, classes, num_classes, gradient, factor
            )
        if label_b is not None:
            gradient, factor = _cross_entropy(
                label_b, slope_b, values_b, smooth_b, at, used, stored, z, total, classes, num_classes, gradient, factor
            )
        if entropy is not None:
            mean = tl.sum(exps * z, 1) / total
            tl.store(entropy + at, tl.log(total) - mean, mask=stored)
            slope = tl.load(entropy_slope + at, mask=used, other=0.0)
            gradient += exps * (slope[:, None] * (mean[:, None] - z)) / total[:, None]
        gradient += exps * (factor / total)[:, None]
        collected += tl.sum(gradient * weight[:, None], 0)
    tl.store(partial + (row * low_width + column) * num_classes + classes, collected, mask=classes < num_classes)


@triton.jit
def _row(start, left, fraction, low_width, num_classes, classes, mask):
    """Interpolate a row of the low-resolution logits at pixels: (BLOCK_X, BLOCK_C)."""
    right = tl.minimum(left + 1, low_width - 1)
    before = tl.load(start + left[:, None] * num_classes + classes[None, :], mask=mask, other=0.0)
    after = tl.load(start + right[:, None] * num_classes + classes[None, :], mask=mask, other=0.0)
    return before + (after - before) * fraction[:, None]


@triton.jit
def _cross_entropy(label, slope, values, smooth, at, used, stored, z, total, classes, num_classes, gradient, factor):
    """Store the cross entropy of pixels; return gradient - slope * (1 - smooth) * one-hot, and factor + slope."""
    number = tl.minimum(tl.load(label + at, mask=used, other=0).to(tl.int32), num_classes - 1)
    is_label = classes[None, :] == number[:, None]
    value = tl.log(total) - (1 - smooth) * tl.sum(tl.where(is_label, z, 0.0), 1) - smooth * tl.sum(z, 1) / num_classes
    tl.store(values + at, value, mask=stored)
    weight = tl.load(slope + at, mask=used, other=0.0)
    gradient -= tl.where(is_label, (weight * (1 - smooth))[:, None], 0.0)
    return gradient, factor + weight

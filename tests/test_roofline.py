"""benchmarks/roofline.py: bytes, FLOPs, memory and fused runs, derived by hand."""

import pytest
import torch
from torch import nn

from benchmarks.absent_gpu import CUDA, absent_gpu
from benchmarks.operations import Recorder
from benchmarks.roofline import Device, compiled, eager

# 1 byte/s, FLOPs and calls free: seconds are bytes
BYTES = Device(bandwidth=1e-9, float32=1e30, tf32=1e30, half=1e30, call_us=0)


def recorded(work, *shapes: tuple[int, ...]) -> Recorder:
    recorder = Recorder()
    with absent_gpu(recorder):
        recorder.recording = False
        operands = [torch.empty(shape, device=CUDA) for shape in shapes]
        recorder.recording = True
        recorder.result = work(*operands)  # kept, as a step keeps its results
    return recorder


def seconds(times: dict[str, float]):
    return pytest.approx(sum(times.values()))


def test_bytes_and_flops_of_a_product():
    recorder = recorded(lambda a, b: (a @ b).view(-1), (2, 3), (3, 5))
    [product] = recorder.operations  # the view is free
    assert product.flops == 2 * 2 * 3 * 5
    assert product.bytes == 4 * (6 + 15 + 10)
    assert recorder.peak == 4 * 10  # of what was made in the recording


@pytest.mark.parametrize(
    ("work", "moved"),
    [
        (lambda x: x.add_(1), 2),  # read and written
        (lambda x: x.fill_(1), 1),
        (lambda x: x.clone(), 2),
        (lambda x: x[:1].expand(10, 4) + 0, 0.1 + 1),  # an expanded row is read once
        (lambda x: torch._foreach_mul_([x], 2.0), 2),
    ],
)
def test_bytes_of_operations_on_one_tensor(work, moved):
    assert sum(op.bytes for op in recorded(work, (10, 4)).operations) == pytest.approx(moved * 160)


def test_a_run_of_pointwise_operations_reads_its_operand_once_and_writes_what_is_used():
    operations = recorded(lambda x, w: (x + 1).relu().mul(2) @ w, (8, 4), (4, 4)).operations
    assert seconds(eager(operations, BYTES)) == 6 * 128 + (128 + 64 + 128)
    assert seconds(compiled(operations, BYTES)) == 2 * 128 + (128 + 64 + 128)


def test_batch_norm_of_a_batch_reads_twice_and_its_values_join_the_run():
    norm = nn.BatchNorm2d(2, affine=False, track_running_stats=False)
    operations = recorded(lambda x: norm(x).relu(), (1, 2, 4, 4)).operations
    image, statistics = 4 * 32, 2 * 4 * 2
    assert seconds(eager(operations, BYTES)) == (3 * image + statistics) + 2 * image
    # its sums; then the image, which nothing reads later, so that the limit does not write it
    assert seconds(compiled(operations, BYTES)) == image + image


def test_memory_is_freed_with_the_last_reference():
    recorder = recorded(lambda x: (x * 2).relu().sum(), (10, 10))
    assert recorder.peak == 400 + 400  # the product and its ReLU; the sum replaces neither

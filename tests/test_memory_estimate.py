"""The size of a model and its training: numbers derived by hand, and what real tensors take."""

import weakref

import pytest
import torch
from torch import nn

import models
from benchmarks.memory import summarize
from losses.criterion import Criterion
from optimization.amp import autocast

CPU = torch.device("cpu")
pytestmark = pytest.mark.full_size
ALL_TERMS = {"seg": 1.0, "pseudo": 1.0, "lorm": 1.0, "ds": 1.0, "dc": 1.0}


def on_meta(name: str = "res50_ASPP_lorm", layers: int = 18, num_classes: int = 4, **options) -> models.Segmenter:
    with torch.device("meta"):
        return models.build(name, layers=layers, num_classes=num_classes, **options)


def test_parameters_and_flops_of_our_resnet50():
    model = on_meta("res50_ASPP", layers=50, num_classes=21)
    # torchvision's without its classifier of 2048 * 1000 + 1000
    backbone = 25_557_032 - 2_049_000
    # ASPP: a 1x1 and three 3x3 convolutions, a pooled 1x1 one, 105 -> 21, and six batch norms of 2 * 21
    head = 2048 * 21 * (1 + 3 * 9 + 1) + 105 * 21 + 6 * 2 * 21
    # 225x225 gives 113x113 after conv1, 57x57 after the max pool and 29x29 after layer2. Multiply-adds of a pixel,
    # block by block: 1x1 in, 3x3, 1x1 out, and the shortcut's 1x1 in a layer's first block. At 57x57, layer1:
    at_4 = 3 * (9 * 64 * 64 + 64 * 256) + 64 * 64 + 2 * 256 * 64 + 64 * 256
    at_4 += 256 * 128  # layer2's first 1x1, before its stride
    at_8 = 4 * (9 * 128 * 128 + 128 * 512) + 3 * 512 * 128 + 256 * 512  # the rest of layer2
    at_8 += 6 * (9 * 256 * 256 + 256 * 1024) + 512 * 256 + 5 * 1024 * 256 + 512 * 1024
    at_8 += 3 * (9 * 512 * 512 + 512 * 2048) + 1024 * 512 + 2 * 2048 * 512 + 1024 * 2048
    at_8 += 2048 * 21 * (1 + 3 * 9) + 105 * 21
    multiply_adds = 113**2 * 3 * 49 * 64 + 57**2 * at_4 + 29**2 * at_8 + 2048 * 21
    result = summarize(model, Criterion({"seg": 1.0}), batchsize=2, crop_size=225)
    assert result.parameters == result.trainable == backbone + head
    assert result.flops == 2 * multiply_adds
    # Backward of a convolution: as much for the input's gradient, which the first one needs not, and for the weight's.
    expected = 3 * result.flops - 2 * 113**2 * 3 * 49 * 64
    # Where 2 images have more pixels than twice the channels, batch norm after a block's last 1x1 convolution and after
    # its shortcut adds z^T z and z M for each pixel; W e W, e W z^T z and mean(g) W for each batch (conv_norm.py).
    for count, inputs, outputs, pixels in ((3 + 1, 64, 256, 57**2), (4, 128, 512, 29**2), (1, 256, 512, 29**2)):
        expected += count * (4 * inputs**2 * pixels + 2 * outputs * inputs**2 + outputs * inputs)
    expected -= 3 * 2 * 21 * 21 * (29**2 - 1)  # conv1's part for image pooling, in training on one pixel
    assert result.train_flops == expected


class Saved:
    """A tensor that a graph saves. It lives as long as the graph."""

    def __init__(self, value: torch.Tensor):
        self.value = value


def really_kept(model: nn.Module, criterion: Criterion, batchsize: int, crop_size: int, amp: str) -> int:
    """Bytes that a forward pass on the CPU saves for the backward pass, without weights and buffers."""
    own = {value.untyped_storage().data_ptr() for value in (*model.parameters(), *model.buffers())}
    alive: weakref.WeakSet[Saved] = weakref.WeakSet()  # graphs that the losses make and drop are not kept

    def keep(value: torch.Tensor) -> Saved:
        saved = Saved(value.detach())
        alive.add(saved)
        return saved

    label = torch.randint(0, 4, (batchsize, crop_size, crop_size), dtype=torch.uint8)
    batch = dict.fromkeys(("label", "pseudo", "distance_s", "distance_c"), label)
    batch["image"] = torch.randint(0, 256, (*label.shape, 3), dtype=torch.uint8)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved.value):
        with autocast(amp, CPU):
            outputs = model.train()(batch["image"], model.foreground(label))
        losses = criterion(outputs, batch, [1.0] * len(criterion.weights))
    storages = {saved.value.untyped_storage().data_ptr(): saved.value.untyped_storage() for saved in alive}
    del losses
    return sum(storage.nbytes() for place, storage in storages.items() if place not in own)


@pytest.mark.parametrize("grad_checkpointing", [False, True])
@pytest.mark.parametrize("amp", ["none", "bf16"])
@pytest.mark.parametrize(("name", "layers"), [("res50_ASPP_lorm", 50), ("deeplabv3p", 18)])
def test_kept_is_what_a_real_forward_pass_keeps(name, layers, amp, grad_checkpointing):
    weights = ALL_TERMS if "lorm" in name else {"seg": 1.0, "seg_focal": 1.0, "seg_dice": 1.0}
    options = {"layers": layers, "num_classes": 4, "grad_checkpointing": grad_checkpointing}
    estimate = summarize(on_meta(name, **options), Criterion(weights, 0.1), batchsize=2, crop_size=129, amp=amp)
    real = really_kept(models.build(name, **options), Criterion(weights, 0.1), 2, 129, amp)
    assert estimate.kept == pytest.approx(real, rel=0.02)  # inputs and outputs are counted besides
    assert estimate.working > estimate.kept

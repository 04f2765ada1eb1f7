"""The size of a model and its training: numbers derived by hand, and what real tensors take."""

import weakref

import pytest
import torch
from torch import nn

import models
from benchmarks.memory import summarize
from losses.criterion import Criterion
from optimization.amp import autocast
from support.labels import COUNTS

CPU = torch.device("cpu")
pytestmark = pytest.mark.full_size
ALL_TERMS = {"seg": 1.0, "pseudo": 1.0, "lorm": 1.0, "ds": 1.0, "dc": 1.0}


def on_meta(name: str = "res50_ASPP_lorm", layers: int = 18, num_classes: int = 4, **options) -> models.Segmenter:
    with torch.device("meta"):
        return models.build(name, layers=layers, num_classes=num_classes, **options)


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
    histogram = torch.stack([one.flatten().bincount(minlength=256) for one in label])
    batch |= {name: histogram if "histogram" in name else label.count_nonzero((1, 2)) for name in COUNTS.values()}
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

"""Models: shapes, odd sizes, a batch of one, strides, LoRM, and weights from elsewhere."""

import math
from inspect import signature

import pytest
import torch
from conftest import REPO
from torch import nn

import models
from flags.shared import MODEL_TYPES
from models.heads import ASPP
from models.layers.norm import BATCH_NORMS, BatchNorm2d
from models.lorm import find_foreground, foreground_mask
from models.pretrained import load_weights
from support.batch import Foreground

NUM_CLASSES = 4


def images(batch: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch, height, width, 3), dtype=torch.uint8, generator=generator)


def foreground(model: models.Segmenter, pseudo_label: torch.Tensor) -> Foreground:
    """The foreground of a pseudo-label (B, H, W)."""
    size = model.backbone.feature_size(*pseudo_label.shape[1:])
    return find_foreground(pseudo_label, size=size)


def test_each_head_is_a_model_type_that_says_whether_it_has_a_width():
    assert {name: "width" in signature(head).parameters for name, head in models.HEADS.items()} == MODEL_TYPES
    assert {name: head.has_width for name, head in models.HEADS.items()} == MODEL_TYPES
    page = (REPO / "docs/recipes.md").read_text(encoding="utf-8")
    assert not [name for name in MODEL_TYPES if f"`{name}`" not in page]


@pytest.mark.parametrize("name", models.HEADS)
def test_each_head_has_our_batch_norm_and_uses_its_width(name):
    """--sync_bn synchronizes our batch norm only."""
    widths = [{"width": width} for width in (8, 16)] if models.HEADS[name].has_width else [{}]
    heads = [models.HEADS[name]((8, 8, 8, 8), NUM_CLASSES, **options) for options in widths]
    norms = [part for head in heads for part in head.modules() if isinstance(part, BATCH_NORMS)]
    assert all(isinstance(norm, BatchNorm2d) for norm in norms)
    assert len({sum(value.numel() for value in head.parameters()) for head in heads}) == len(widths)


@pytest.mark.parametrize("name", models.HEADS)
@pytest.mark.parametrize("num_features", [1, 2, 3, 4])  # a plain ViT has 1, a ResNet 3
def test_each_head_takes_the_features_of_any_backbone(name, num_features):
    head = models.HEADS[name]((8,) * num_features, NUM_CLASSES).eval()
    features = [torch.randn(2, 8, 32 >> number, 24 >> number) for number in range(num_features)]
    assert head(features).shape[:2] == (2, NUM_CLASSES)


@pytest.mark.parametrize("name", models.HEADS)
@pytest.mark.parametrize("size", [(1, 33, 47), (2, 64, 32)])  # a batch of one trains
def test_every_model_trains_at_odd_sizes_and_every_parameter_gets_a_gradient(name, size):
    model = models.build(name, layers=18, num_classes=NUM_CLASSES).train()
    batch, height, width = size
    pseudo = torch.ones(batch, height, width, dtype=torch.uint8)
    outputs = model(images(*size), foreground(model, pseudo))
    stride = 8 if "Logits at stride 8" in models.HEADS[name].__doc__ else 4
    assert outputs["logits"].shape[:2] == (batch, NUM_CLASSES)
    assert abs(outputs["logits"].shape[2] - height / stride) <= 1, f"its docstring says stride {stride}"
    assert ("lorm" in outputs) == name.endswith("lorm")
    sum(value.sum() for value in outputs.values()).backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    with torch.no_grad():
        assert set(model.eval()(images(*size), foreground(model, pseudo))) == {"logits"}


@pytest.mark.parametrize(("stride", "expected"), [(4, [24, 36, 48]), (8, [12, 18, 24]), (16, [6, 9, 12])])
def test_aspp_covers_as_many_pixels_at_any_stride(stride, expected):
    head = ASPP(4, 4, (12, 18, 24), stride)
    assert [branch.atrous_conv.dilation[0] for branch in (head.aspp2, head.aspp3, head.aspp4)] == expected


@pytest.mark.parametrize("name", models.HEADS)
@pytest.mark.parametrize(("stride", "factor"), [(4, 2), (16, 0.5)])
def test_each_head_covers_as_many_pixels_at_any_stride(name, stride, factor):
    at_8, here = (models.HEADS[name]((8, 8, 8), NUM_CLASSES, stride=number).modules() for number in (8, stride))
    rates, found = ([part.dilation[0] for part in parts if isinstance(part, nn.Conv2d)] for parts in (at_8, here))
    assert found == [rate if rate == 1 else rate * factor for rate in rates]


def test_dropout_of_the_heads():
    """CDSP's released network has 0.5; DeepLabV3 and V3+ have 0.1; the others none."""
    rates = {name: [0.5] for name in ("deeplabv3p_cdsp", "deeplabv3p_cdsp_lorm")}
    rates |= {name: [0.1] for name in ("deeplabv3", "deeplabv3_torchvision", "deeplabv3p", "deeplabv3p_lorm")}
    for name, head in models.HEADS.items():
        parts = head((8, 8, 8), NUM_CLASSES).modules()
        assert [part.p for part in parts if isinstance(part, nn.Dropout)] == rates.get(name, []), name


def test_foreground_comes_from_the_labels_and_leaves_them_alone():
    """Without a background class every labelled pixel is foreground."""
    label = torch.zeros(1, 5, 5, dtype=torch.uint8)
    label[0, 0, 0], label[0, 4, 4] = 255, 20
    before = label.clone()
    # with aligned corners the 3x3 grid takes pixels 0, 2 and 4: only the last corner is foreground
    assert foreground_mask(label, (3, 3)).nonzero().tolist() == [[0, 2, 2]]
    assert foreground_mask(label, (3, 3), None).sum() == 8
    assert torch.equal(label, before)


@pytest.mark.parametrize("name", ["res50_ASPP_lorm", "deeplabv3p_cdsp_lorm"])
def test_head_init_release_draws_head_and_lorm_from_a_normal_distribution_over_fan_out(name):
    model = models.build(name, layers=18, num_classes=NUM_CLASSES, head_init="release")
    parts = {part: module for part, module in model.named_modules() if not part.startswith("backbone.")}
    drawn = {part: module for part, module in parts.items() if isinstance(module, nn.Conv2d)}
    for part, conv in drawn.items():
        # The variance is 2 / (k^2 C_out). Of n values, the sample's deviates from it by a factor of sqrt(2 / n).
        variance, values = 2 / (conv.kernel_size[0] ** 2 * conv.out_channels), conv.weight.flatten()
        tolerance = 5 * (2 / values.numel()) ** 0.5
        assert values.square().mean().item() == pytest.approx(variance, rel=tolerance), part
        # |x| of a normal distribution has the mean sqrt(2 / pi) of its deviation; of a uniform one, sqrt(3 / 4).
        assert values.abs().mean().item() == pytest.approx((2 / math.pi * variance) ** 0.5, rel=tolerance), part
        if part.startswith("lorm."):
            assert conv.bias.abs().max() == 0


def test_what_does_not_match_is_returned():
    model = models.build("res50_ASPP_lorm", layers=18, num_classes=NUM_CLASSES)
    shapes = {"backbone.conv1.weight": (64, 3, 7, 7), "bn1.weight": (3,), "other": (1,), "fc.bias": (1,)}
    num_copied, missing, unused = load_weights(model, {name: torch.zeros(shape) for name, shape in shapes.items()})
    assert num_copied == 1
    assert unused == ["backbone.bn1.weight", "other"]
    assert "backbone.conv1.weight" not in missing
    assert "backbone.bn1.weight" in missing
    assert model.backbone.conv1.weight.abs().max() == 0

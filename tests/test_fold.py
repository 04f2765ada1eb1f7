"""The copy of a model that predicts: batch norm folded into convolutions."""

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import models
from models.fold import fold_batch_norm


def varied(model: nn.Module) -> nn.Module:
    """Return the model in float64 and eval mode, with batch norm whose statistics and weights all differ."""
    model = model.double().eval()
    for norm in model.modules():
        if isinstance(norm, _BatchNorm):
            for values in (norm.weight, norm.running_var):
                nn.init.uniform_(values, 0.5, 1.5)
            for values in (norm.bias, norm.running_mean):
                nn.init.uniform_(values, -0.5, 0.5)
    return model


@pytest.mark.parametrize(
    ("name", "layers"),
    [("res50_ASPP_lorm", 50), ("deeplabv2", 18), ("deeplabv3p_multi", 18), ("deeplabv3_torchvision", 18)],
)
def test_computes_what_the_model_does(name, layers):
    torch.manual_seed(0)
    model = varied(models.build(name, layers=layers, num_classes=5, stride_in_1x1=layers == 50))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images = torch.randint(0, 256, (2, 33, 40, 3), dtype=torch.uint8)
    with torch.inference_mode():
        expected = model(images)["logits"]
        exact = fold_batch_norm(model)
        torch.testing.assert_close(exact(images)["logits"], expected, rtol=1e-10, atol=0)
        assert not any(isinstance(module, (_BatchNorm, nn.Conv2d)) for module in exact.modules())
        # In float32 a CPU gets padded channels and dilated 1x1 convolutions: results stay within its rounding.
        out = fold_batch_norm(model.float())(images)["logits"]
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    assert all(torch.equal(value.float(), before[key].float()) for key, value in model.state_dict().items())
    assert any(isinstance(module, _BatchNorm) for module in model.modules())


def test_weights_are_those_of_the_moment_in_the_type_of_autocast():
    parts = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)).eval()
    x = torch.randn(1, 4, 5, 5)
    with torch.inference_mode():
        copy, expected = fold_batch_norm(parts), parts(x)
        parts[0].weight.zero_()
        torch.testing.assert_close(copy(x), expected, rtol=0, atol=1e-5)
    assert fold_batch_norm(parts, torch.bfloat16)[0].weight.dtype == torch.bfloat16
    assert fold_batch_norm(parts.double(), torch.bfloat16)[0].weight.dtype == torch.float64


def test_batch_norm_that_follows_no_convolution_stays():
    parts = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)).eval()
    x = torch.randn(1, 3, 5, 5)
    with torch.no_grad():
        torch.testing.assert_close(fold_batch_norm(parts)(x), parts(x), rtol=0, atol=1e-5)
    assert sum(isinstance(module, _BatchNorm) for module in fold_batch_norm(parts)) == 2


def test_convolutions_of_networks_of_timm():
    """ConvMixer's padding is "same", and DaViT reads kernel_size."""
    model = varied(nn.Sequential(nn.Conv2d(4, 8, 3, padding="same"), nn.BatchNorm2d(8)))
    copy = fold_batch_norm(model)
    x = torch.randn(1, 4, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(copy(x), model(x))
    assert copy[0].kernel_size == (3, 3)

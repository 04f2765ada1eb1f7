"""A copy of a model for prediction: batch norm folded into convolutions, shapes that a CPU computes fast."""

import copy
import functools
from collections.abc import Collection, Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from models.layers.convolution import Conv2d, for_onednn
from models.timm_backbone import TimmBackbone

# For a 3x3 convolution of 2048 channels, oneDNN needs less time with 32 output channels than with 11 to 24.
CPU_CHANNELS = 32
# Height and width of the image that tells whether a timm network can be folded: no side below those of PROBES in
# models.timm_backbone.
PROBE = (97, 113)


class FoldedConv(nn.Module):
    """A convolution and the batch norm after it, in eval mode, as one convolution.

    dtype: type to keep the weights in, so that autocast need not cast them in each forward pass; None: unchanged.
    Weights in float64 stay in float64.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d | None, dtype: torch.dtype | None = None):
        super().__init__()
        self.channels, self.kernel_size = conv.out_channels, conv.kernel_size  # DaViT pads by kernel_size
        self.stride, self.padding, self.dilation, self.groups = conv.stride, conv.padding, conv.dilation, conv.groups
        if norm is None:
            weight, bias = conv.weight.detach().clone(), None if conv.bias is None else conv.bias.detach().clone()
        else:
            statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            fused = fuse_conv_bn_weights(conv.weight, conv.bias, *statistics)  # type: ignore[arg-type]
            weight, bias = (value.detach() for value in fused)
        if dtype is not None and weight.dtype == torch.float32:
            weight, bias = weight.to(dtype), bias if bias is None else bias.to(dtype)
        dense = conv.groups == 1 and conv.kernel_size != (1, 1)
        extra = -self.channels % CPU_CHANNELS if weight.is_cpu and dense else 0
        if extra:
            weight = F.pad(weight, (0, 0, 0, 0, 0, 0, 0, extra))
            bias = bias if bias is None else F.pad(bias, (0, extra))
        self.register_buffer("weight", weight.contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        dilation = for_onednn(x, self.weight, self.dilation)
        out = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, dilation, self.groups)
        return out[:, : self.channels]


@torch.no_grad()
def fold_batch_norm(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Return a copy of the model, in eval mode, that computes the same logits up to rounding in less time.

    Each batch norm that is registered right after a convolution is folded into it; in a timm network, only if a trial
    gives the same features. LoRM is left out: it only trains. The copy has the convolutions' weights of this moment.
    dtype: as in FoldedConv.
    """
    # The convolutions get weights of their own below, so copying the model's would be waste.
    shared = {id(value): value for value in (*model.parameters(), *model.buffers())}
    result = copy.deepcopy(model, shared).eval()
    if hasattr(result, "lorm"):
        result.lorm = None  # type: ignore[assignment]
    others = [
        part
        for part in result.modules()
        if isinstance(part, TimmBackbone) and not _norms_follow(part.name, part.output_stride)
    ]
    _fold_in_place(result, dtype, {module for part in others for module in part.modules()})
    return result


@functools.cache
def _norms_follow(name: str, output_stride: int) -> bool:
    """Return whether a timm network computes the same features once its batch norms are folded into the convolutions.

    The order of registration need not be that of computation. Tried with random weights, statistics and image.
    """
    random = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        backbone = TimmBackbone(name, output_stride=output_stride).eval()
    for norm in backbone.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for value in (*norm.parameters(recurse=False), *norm.buffers(recurse=False)):
                value.copy_(torch.rand(value.shape, generator=random) + 0.5)
    image = torch.randn(1, 3, *PROBE, generator=random)
    expected = backbone(image)
    _fold_in_place(backbone, None)
    return all(
        torch.allclose(found, true, rtol=0, atol=1e-3 * float(true.abs().max()))
        for found, true in zip(backbone(image), expected, strict=True)
    )


def _fold_in_place(model: nn.Module, dtype: torch.dtype | None, left_out: Collection[nn.Module] = ()) -> None:
    for parent, name, norm_name in [place for place in _convolutions(model) if place[0] not in left_out]:
        norm = getattr(parent, norm_name) if norm_name else None
        setattr(parent, name, FoldedConv(getattr(parent, name), norm, dtype))
        if norm_name:
            setattr(parent, norm_name, getattr(norm, "act", nn.Identity()))  # timm's norms have their activation


def _convolutions(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield (parent module, name of a plain convolution in it, name of the batch norm after it or "")."""
    for parent in model.modules():
        children = [*parent.named_children(), ("", None)]
        for (name, conv), (norm_name, norm) in pairwise(children):
            if type(conv) in (nn.Conv2d, Conv2d):
                yield parent, name, norm_name if isinstance(norm, nn.BatchNorm2d) else ""

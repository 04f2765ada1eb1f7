"""Copy a model for prediction, with batch norm folded into convolutions, and shapes that a CPU computes fast."""

import copy
import functools
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from models.backbone import Backbone
from models.custom import CustomNetwork
from models.layers.convolution import Conv2d, for_onednn
from models.timm_backbone import TimmBackbone

# A multiple of output channels: oneDNN computes 32 faster than 11 to 24, from 2048 channels with a 3x3 kernel.
CPU_CHANNELS = 32
# Height and width of the image that tells whether a timm network can be folded. No side is below those of PROBES in
# models.timm_backbone.
PROBE_SIZE = (97, 113)


class FoldedConv(nn.Module):
    """One convolution that replaces a convolution and the batch norm after it, in eval mode.

    dtype: type of float32 weights, so that autocast need not cast them in each forward pass; None: unchanged.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d | None, dtype: torch.dtype | None = None):
        super().__init__()
        self.channels, self.kernel_size = conv.out_channels, conv.kernel_size  # DaViT pads by kernel_size
        self.stride, self.padding, self.dilation, self.groups = conv.stride, conv.padding, conv.dilation, conv.groups
        fused = copy.deepcopy(conv) if norm is None else fuse_conv_bn_eval(conv, norm)
        weight, bias = fused.weight.detach(), fused.bias if fused.bias is None else fused.bias.detach()
        if dtype is not None and weight.dtype == torch.float32:
            weight, bias = weight.to(dtype), bias if bias is None else bias.to(dtype)
        dense = conv.groups == 1 and conv.kernel_size != (1, 1)
        padding = -self.channels % CPU_CHANNELS if weight.is_cpu and dense else 0
        if padding:
            weight = F.pad(weight, (0, 0, 0, 0, 0, 0, 0, padding))
            bias = bias if bias is None else F.pad(bias, (0, padding))
        self.register_buffer("weight", weight.contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        dilation = for_onednn(x, self.weight, self.dilation)
        out = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, dilation, self.groups)
        return out[:, : self.channels]


@torch.no_grad()
def fold_batch_norm(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Return a copy of the model, in eval mode, that computes the same logits up to rounding in less time.

    Each batch norm registered right after a convolution is folded into it, in timm networks only if a trial gives the
    same features. The copy has no LoRM, and keeps the convolutions' current weights. dtype: as in FoldedConv.
    """
    # The convolutions get new weights below, so copying the model's would be waste.
    shared = {id(value): value for value in (*model.parameters(), *model.buffers())}
    folded = copy.deepcopy(model, shared).eval()
    if hasattr(folded, "lorm"):
        folded.lorm = None  # type: ignore[assignment]
    networks = [part for part in folded.modules() if isinstance(part, TimmBackbone | CustomNetwork)]
    unfoldable = [part for part in networks if not _folds_exactly(part)]
    _fold_in_place(folded, dtype, {module for part in unfoldable for module in part.modules()})
    return folded


def _folds_exactly(network: TimmBackbone | CustomNetwork) -> bool:
    """Return whether a network computes the same features once its batch norms are folded into the convolutions.

    Modules may be registered in another order than they compute.
    """
    if isinstance(network, TimmBackbone):
        return _timm_folds_exactly(network.name, network.output_stride)
    try:
        return _same_if_folded(copy.deepcopy(network).cpu().float())
    except Exception:  # of any class: the user's code may read attributes that folded convolutions lack
        return False


@functools.cache
def _timm_folds_exactly(name: str, output_stride: int) -> bool:
    with torch.random.fork_rng(devices=[]):
        return _same_if_folded(TimmBackbone(name, output_stride=output_stride).eval())


def _same_if_folded(backbone: Backbone) -> bool:
    """Return whether folding changes the features of a random image by rounding only. Changes the backbone."""
    random = torch.Generator().manual_seed(0)
    for norm in backbone.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for value in (*norm.parameters(recurse=False), *norm.buffers(recurse=False)):
                value.copy_(torch.rand(value.shape, generator=random) + 0.5)
    image = torch.randn(1, 3, *PROBE_SIZE, generator=random)
    expected = backbone(image)
    _fold_in_place(backbone, None)
    return all(
        torch.allclose(folded, plain, rtol=0, atol=1e-3 * float(plain.abs().max()))
        for folded, plain in zip(backbone(image), expected, strict=True)
    )


def _fold_in_place(model: nn.Module, dtype: torch.dtype | None, excluded: Collection[nn.Module] = ()) -> None:
    for parent in [module for module in model.modules() if module not in excluded]:  # a list: the loop changes modules
        children: list[tuple[str, Any]] = [*parent.named_children(), ("", None)]
        for (name, conv), (norm_name, norm) in pairwise(children):
            if type(conv) in (nn.Conv2d, Conv2d):  # not timm's subclasses, which pad in their own way
                is_norm = isinstance(norm, nn.BatchNorm2d)
                setattr(parent, name, FoldedConv(conv, norm if is_norm else None, dtype))
                if is_norm:
                    setattr(parent, norm_name, getattr(norm, "act", nn.Identity()))  # timm's norms have an activation

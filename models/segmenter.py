"""The whole model: normalisation, backbone, head, and optionally LoRM."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.backbone import Backbone
from models.foreground import Foreground
from models.layers.norm import BATCH_NORMS
from models.lorm import LoRM
from support.errors import UserError


class Segmenter(nn.Module):
    """A segmentation model for images of uint8 or, after set_images(), of other types.

    head: class from models.aspp. head_channels: its width. lorm_scope: "foreground" or "all" (models.lorm); None: no
    LoRM. freeze_bn: batch norm uses its running statistics in training too. freeze_backbone: number of the backbone's
    parts, from the input, that are frozen.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: type[nn.Module],
        num_classes: int,
        *,
        head_channels: int = 256,
        lorm_scope: str | None,
        freeze_bn: bool = False,
        freeze_backbone: int = 0,
    ):
        super().__init__()
        self.backbone = backbone
        self.head = head(backbone.channels, num_classes, stride=backbone.strides[-1], width=head_channels)
        self.lorm = LoRM(backbone.channels[-1], lorm_scope) if lorm_scope else None
        self.num_classes, self.freeze_bn = num_classes, freeze_bn
        self.frozen = freeze(backbone, freeze_backbone)
        # (C, 1, 1), in the images' units, not saved
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", 255 * torch.tensor(backbone.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(backbone.std).view(-1, 1, 1), persistent=False)
        self.image_dtype = torch.uint8

    def set_images(self, dtype: torch.dtype, mean: Sequence[float], std: Sequence[float]) -> None:
        """Set the type of the images, and mean and standard deviation of each channel in the images' own units."""
        self.image_dtype = dtype
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1).to(self.mean) for values in (mean, std))

    def forward(self, images: Tensor, foreground: Foreground | None = None) -> dict[str, Tensor]:
        """Return {"logits": (B, num_classes, h, w)} at the head's stride, and LoRM's loss in training.

        images: (B, H, W, C) of image_dtype; a value that is not finite has no data and becomes the channel's mean.
        foreground: of the pseudo-label. In training with LoRM and a foreground, the outputs are also LoRM's.
        """
        x = images.permute(0, 3, 1, 2).to(self.mean.dtype) - self.mean  # (B, H, W, C) -> (B, C, H, W)
        if self.image_dtype.is_floating_point:
            x = torch.where(x.isfinite(), x, 0)
        features = self.backbone(x / self.std)
        outputs = {"logits": self.head(features)}
        if self.training and self.lorm is not None and foreground is not None:
            outputs |= self.lorm(features[-1], foreground)
        return outputs

    def train(self, mode: bool = True) -> "Segmenter":
        super().train(mode)
        if self.freeze_bn:
            for module in self.modules():
                if isinstance(module, BATCH_NORMS):
                    module.eval()
        for module in self.frozen:
            module.eval()
        return self


def freeze(backbone: Backbone, num_parts: int) -> list[nn.Module]:
    """Freeze the first `num_parts` parts of a backbone, counted from the input as in its depths().

    Their parameters no longer require gradients, so autograd keeps nothing for them. Return the modules that must stay
    in evaluation mode, so that batch norm uses its stored statistics and does not update them. Raises UserError if
    the backbone has fewer parts.
    """
    depths = backbone.depths()
    total = 1 + max(depths.values())
    if num_parts > total:
        raise UserError(f"--freeze_backbone {num_parts}: the backbone has {total} parts: give 0 to {total}")
    for name, parameter in backbone.named_parameters():
        if depths[name] < num_parts:
            parameter.requires_grad_(False)
    frozen = []
    for prefix, module in backbone.named_modules():
        own = [depths[f"{prefix}.{name}".lstrip(".")] for name, _ in module.named_parameters()]
        if own and max(own) < num_parts:
            frozen.append(module)
    return frozen

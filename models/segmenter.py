"""The whole model: normalisation, backbone, head, and optionally LoRM."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from models.backbone import ResNetBackbone
from models.foreground import Foreground, find_foreground, foreground_of
from models.freezing import freeze
from models.layers.norm import BATCH_NORMS
from models.lorm import LoRM
from models.timm_backbone import TimmBackbone
from support.labels import FOREGROUND


class Segmenter(nn.Module):
    """A segmentation model for images of uint8 or, after set_images(), of other types.

    head: class from models.aspp. head_channels: its width. lorm_scope: "foreground" or "all" (models.lorm); None: no
    LoRM. background: LoRM's background class; None: every class is foreground. freeze_bn: batch norm uses its running
    statistics in training too. freeze_backbone: number of the backbone's parts, from the input, that are frozen.
    """

    def __init__(
        self,
        backbone: ResNetBackbone | TimmBackbone,
        head: type[nn.Module],
        num_classes: int,
        *,
        head_channels: int = 256,
        lorm_scope: str | None,
        background: int | None = 0,
        freeze_bn: bool = False,
        freeze_backbone: int = 0,
    ):
        super().__init__()
        self.backbone = backbone
        self.head = head(backbone.channels, num_classes, stride=backbone.strides[-1], width=head_channels)
        self.lorm = LoRM(backbone.channels[-1], lorm_scope) if lorm_scope else None
        self.num_classes, self.background, self.freeze_bn = num_classes, background, freeze_bn
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
        foreground: of the pseudo-label. In training with LoRM and a foreground, "lorm"
        is the sum of LoRM's loss terms, a scalar. The caller divides it by the number of terms from lorm_terms(). For
        scope "all", the output "lorm_terms" is that number, int64.
        """
        x = images.permute(0, 3, 1, 2).to(self.mean.dtype) - self.mean  # (B, H, W, C) -> (B, C, H, W)
        if self.image_dtype.is_floating_point:
            x = torch.where(x.isfinite(), x, 0)
        features = self.backbone(x / self.std)
        outputs = {"logits": self.head(features)}
        if self.training and self.lorm is not None and foreground is not None:
            outputs |= self.lorm(features[-1], foreground)
        return outputs

    def foreground(self, pseudo_label: Tensor) -> Foreground:
        """Return the foreground, on the model's device, of a pseudo-label (B, H, W) in CPU memory."""
        return foreground_of(self._find_foreground({"pseudo": pseudo_label}), self.mean.device)

    def lorm_terms(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of LoRM's loss terms for a batch, an int64 scalar; 0 for scope "all".

        The batch has the content of models.foreground.find_foreground(), or else "pseudo".
        """
        assert self.lorm is not None
        if FOREGROUND[1] not in batch:
            batch = self._find_foreground(batch)
        return self.lorm.num_terms(batch[FOREGROUND[1]])

    def _find_foreground(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        size = self.backbone.feature_size(*batch["pseudo"].shape[1:])
        return find_foreground(batch, size=size, background=self.background)

    def train(self, mode: bool = True) -> "Segmenter":
        super().train(mode)
        if self.freeze_bn:
            for module in self.modules():
                if isinstance(module, BATCH_NORMS):
                    module.eval()
        for module in self.frozen:
            module.eval()
        return self

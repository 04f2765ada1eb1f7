"""The whole model: normalisation, backbone, head, and optionally LoRM."""

import torch
from torch import Tensor, nn

from models.backbone import ResNetBackbone, feature_size
from models.lorm import LoRM, foreground_mask

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Segmenter(nn.Module):
    """A segmentation model for uint8 images.

    head: class from models.aspp. lorm_scope: "foreground" or "all" (models.lorm); None: no LoRM. background: LoRM's
    background class; None: every class is foreground. freeze_bn: batch norm uses its running statistics in training
    too.
    """

    def __init__(
        self,
        backbone: ResNetBackbone,
        head: type[nn.Module],
        num_classes: int,
        *,
        lorm_scope: str | None,
        background: int | None = 0,
        freeze_bn: bool = False,
    ):
        super().__init__()
        self.backbone = backbone
        self.head = head(backbone.out_channels, backbone.low_channels, num_classes)
        self.lorm = LoRM(backbone.out_channels, lorm_scope) if lorm_scope else None
        self.num_classes, self.background, self.freeze_bn = num_classes, background, freeze_bn
        # (3, 1, 1), in units of 0..255, not saved
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", 255 * torch.tensor(IMAGENET_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(IMAGENET_STD).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor, pseudo_label: Tensor | None = None) -> dict[str, Tensor]:
        """Return {"logits": (B, num_classes, h, w)} at the head's stride, and LoRM's loss in training.

        images: (B, H, W, 3) uint8 RGB. pseudo_label: (B, H, W), 0..num_classes-1 and 255 = ignore. In training with
        LoRM and a pseudo-label, "lorm" is the sum of LoRM's loss terms, a scalar. The caller divides it by the number
        of terms from lorm_terms(). For scope "all", the output "lorm_terms" is that number, int64.
        """
        x = (images.permute(0, 3, 1, 2).to(self.mean.dtype) - self.mean) / self.std  # (B, H, W, 3) -> (B, 3, H, W)
        low, features = self.backbone(x)
        outputs = {"logits": self.head(low, features)}
        if self.training and self.lorm is not None and pseudo_label is not None:
            foreground = foreground_mask(pseudo_label, features.shape[2:], self.background)
            outputs |= self.lorm(features, foreground)
        return outputs

    def lorm_terms(self, pseudo_label: Tensor) -> Tensor:
        """Return the number of LoRM's loss terms for a pseudo-label (B, H, W), an int64 scalar; 0 for scope "all"."""
        assert self.lorm is not None
        height, width = pseudo_label.shape[1:]
        size = (feature_size(height), feature_size(width))
        return self.lorm.num_terms(foreground_mask(pseudo_label, size, self.background))

    def train(self, mode: bool = True) -> "Segmenter":
        super().train(mode)
        if self.freeze_bn:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

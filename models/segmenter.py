"""The whole model: normalisation, backbone, head and, optionally, LoRM."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.backbone import Backbone
from models.heads import Head
from models.layers.norm import BATCH_NORMS
from models.lorm import LoRM
from support.batch import Foreground
from support.errors import UserError


class Segmenter(nn.Module):
    """A segmentation model for 8-bit RGB images.

    head: class from models.heads. head_channels: its width, if it has one. lorm_scope: "foreground" or "all"
    (models.lorm); None: no LoRM. freeze_bn: let batch norm use its running statistics in training. freeze_backbone:
    number of the backbone's parts to freeze, counted from the input.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: type[Head],
        num_classes: int,
        *,
        head_channels: int = 256,
        lorm_scope: str | None,
        freeze_bn: bool = False,
        freeze_backbone: int = 0,
    ):
        super().__init__()
        self.backbone = backbone
        width: dict = {"width": head_channels} if head.has_width else {}
        self.head = head(backbone.channels, num_classes, stride=backbone.strides[-1], **width)
        self.lorm = LoRM(backbone.channels[-1], lorm_scope) if lorm_scope else None
        self.num_classes, self.freeze_bn = num_classes, freeze_bn
        self.frozen = freeze(backbone, freeze_backbone)
        # network() as models.captured replays it in training
        self.captured: Callable[[Tensor], tuple[Tensor, ...]] | None = None
        self.mean: Tensor
        self.std: Tensor
        for name in ("mean", "std"):  # (3, 1, 1), in units of 0..255; not saved, because the backbone defines them
            values = 255 * torch.tensor(getattr(backbone, name)).view(-1, 1, 1)
            self.register_buffer(name, values, persistent=False)

    def forward(self, images: Tensor, foreground: Foreground | None = None) -> dict[str, Tensor]:
        """Return {"logits": (B, num_classes, h, w)} at the head's stride; in training with LoRM, also LoRM's outputs.

        images: (B, H, W, 3), 0..255. foreground: LoRM's positions, or None.
        """
        network = self.captured if self.training and self.captured is not None else self.network
        logits, *features = network(images)
        outputs = {"logits": logits}
        if self.training and self.lorm is not None and foreground is not None:
            outputs |= self.lorm(*features, foreground)
        return outputs

    def network(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits, deepest features): the part whose work is the same for all batches of one size."""
        x = images.permute(0, 3, 1, 2).to(self.mean.dtype) - self.mean  # (B, H, W, 3) -> (B, 3, H, W)
        features = self.backbone(x / self.std)
        return self.head(features), features[-1]

    def train(self, mode: bool = True) -> "Segmenter":
        super().train(mode)
        norms = [part for part in self.modules() if isinstance(part, BATCH_NORMS)] if self.freeze_bn else []
        for module in (*norms, *self.frozen):
            module.eval()
        return self


def freeze(backbone: Backbone, num_parts: int) -> list[nn.Module]:
    """Freeze the first `num_parts` parts of a backbone, counted from the input as in its depths().

    Their parameters no longer require gradients, so autograd keeps nothing for them. Return the modules that must stay
    in evaluation mode, so that batch norm keeps its statistics. Raises UserError if the backbone has fewer parts.
    """
    depths = backbone.depths()
    total = 1 + max(depths.values())
    if num_parts > total:
        raise UserError(f"--freeze_backbone {num_parts}: the backbone has {total} parts: give 0 to {total}")
    part_of = {parameter: depths[name] for name, parameter in backbone.named_parameters()}
    for parameter, part in part_of.items():
        if part < num_parts:
            parameter.requires_grad_(False)
    parts_in = {module: [part_of[parameter] for parameter in module.parameters()] for module in backbone.modules()}
    return [module for module, parts in parts_in.items() if parts and max(parts) < num_parts]

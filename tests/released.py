"""The CDSP release, written down operation by operation: the names of its weights, its networks, its losses."""

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from support.batch import Batch

# models/KIND.py of the release: its --model_type here, and how many entries its state_dict() has for a ResNet-50 and 21
# classes, counted once by running it.
KINDS = {
    "deeplabV2": ("res50_ASPP", 354),
    "res50_ASPP_lorm": ("res50_ASPP_lorm", 359),
    "deeplabV3p": ("deeplabv3p_cdsp", 374),
    "deeplabV3_lorm": ("deeplabv3p_cdsp_lorm", 379),
}


def released_state_dict(kind: str, layers: int = 50, num_classes: int = 21) -> dict[str, Tensor]:
    """Random weights under the names that the release's models/KIND.py gives them."""
    resnet = torchvision.models.get_model(f"resnet{layers}", weights=None).state_dict()
    weights = {name: value for name, value in resnet.items() if not name.startswith("fc.")}
    channels = weights["layer4.0.downsample.1.bias"].shape[0]

    def conv(name: str, out_channels: int, in_channels: int, size: int = 1, bias: bool = False) -> None:
        weights[f"{name}.weight"] = torch.empty(out_channels, in_channels, size, size)
        if bias:
            weights[f"{name}.bias"] = torch.empty(out_channels)

    def norm(name: str, width: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{name}.{part}"] = torch.empty(width)
        weights[f"{name}.num_batches_tracked"] = torch.tensor(0)

    v3plus = kind in ("deeplabV3p", "deeplabV3_lorm")
    head, width = ("layer5" if kind == "deeplabV2" else "layer_pred0"), 256 if v3plus else num_classes
    for number, size in enumerate((1, 3, 3, 3), start=1):
        conv(f"{head}.aspp{number}.atrous_conv", width, channels, size)
        norm(f"{head}.aspp{number}.bn", width)
    conv(f"{head}.global_avg_pool.1", width, channels)
    norm(f"{head}.global_avg_pool.2", width)
    conv(f"{head}.{'prject.0' if v3plus else 'conv1'}", width, 5 * width)
    norm(f"{head}.{'prject.1' if v3plus else 'bn1'}", width)
    if v3plus:
        for name, outputs, inputs, size in (("reduce.", 48, channels // 8, 1), ("fuse.", 256, 304, 3)):
            conv(f"{name}0", outputs, inputs, size)
            norm(f"{name}1", outputs)
        conv("fuse.3", 256, 256, 3)
        norm("fuse.4", 256)
        conv("classifier", num_classes, 256, bias=True)
    lorm = {"res50_ASPP_lorm": "layer_camatt", "deeplabV3_lorm": "layer_lorm"}.get(kind)
    if lorm:
        conv(f"{lorm}.query_conv", channels, channels, bias=True)
        conv(f"{lorm}.key_conv", channels, channels, bias=True)
        weights[f"{lorm}.gamma"] = torch.empty(1)

    generator = torch.Generator().manual_seed(0)
    for name, value in weights.items():
        if value.ndim == 4:
            weights[name] = torch.randn(value.shape, generator=generator) / value[0].numel() ** 0.5
        elif name.endswith((".weight", "running_var", "gamma")):
            weights[name] = 0.5 + torch.rand(value.shape, generator=generator)
        elif value.ndim:
            weights[name] = 0.1 * torch.randn(value.shape, generator=generator)
    return weights


class Plain:
    """The released network and losses from weights by their names. frozen: batch norm as in evaluation.

    Stride of layer2 on the first 1x1 convolution, rates 12, 18, 24 on classes. DeepLabV3+ has rates 6,
    12, 18, a ReLU after ASPP, and at stride 4 layer1's 48 channels before ASPP's 256.
    """

    def __init__(self, weights: dict[str, Tensor], frozen: bool):
        self.w, self.frozen = weights, frozen
        self.v3plus = "classifier.weight" in weights

    def conv(self, x: Tensor, name: str, stride: int = 1, dilation: int = 1) -> Tensor:
        weight = self.w[f"{name}.weight"]
        padding = dilation * (weight.shape[-1] // 2)
        return F.conv2d(x, weight, self.w.get(f"{name}.bias"), stride, padding, dilation)

    def norm(self, x: Tensor, name: str) -> Tensor:
        parts = (self.w[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *parts, training=not self.frozen, momentum=0.1, eps=1e-5)

    def block(self, x: Tensor, name: str, stride: int, dilation: int) -> Tensor:
        y = self.norm(self.conv(x, f"{name}.conv1", stride), f"{name}.bn1").relu()
        y = self.norm(self.conv(y, f"{name}.conv2", dilation=dilation), f"{name}.bn2").relu()
        y = self.norm(self.conv(y, f"{name}.conv3"), f"{name}.bn3")
        if f"{name}.downsample.0.weight" in self.w:
            x = self.norm(self.conv(x, f"{name}.downsample.0", stride), f"{name}.downsample.1")
        return (x + y).relu()

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Those of layer1 and layer4, for images (B, H, W, 3) uint8."""
        mean = 255 * torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        std = 255 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
        x = (images.permute(0, 3, 1, 2).double() - mean) / std
        x = self.norm(self.conv(x, "conv1", 2), "bn1").relu()
        x = F.max_pool2d(x, 3, 2, 1, ceil_mode=True)
        outputs = []
        for layer, dilations in enumerate(((1, 1, 1), (1, 1, 1), (2, 2, 2), (4, 8, 16)), start=1):
            num_blocks = sum(f"layer{layer}.{block}.conv1.weight" in self.w for block in range(10))
            for block in range(num_blocks):
                stride = 2 if (layer, block) == (2, 0) else 1
                x = self.block(x, f"layer{layer}.{block}", stride, dilations[min(block, 2)])
            outputs.append(x)
        return outputs[0], outputs[3]

    def logits(self, low: Tensor, x: Tensor) -> Tensor:
        head = "layer5" if "layer5.conv1.weight" in self.w else "layer_pred0"
        branches = []
        for number, rate in enumerate((1, 6, 12, 18) if self.v3plus else (1, 12, 18, 24), start=1):
            y = self.conv(x, f"{head}.aspp{number}.atrous_conv", dilation=rate)
            branches.append(self.norm(y, f"{head}.aspp{number}.bn").relu())
        pooled = self.conv(x.mean((2, 3), keepdim=True), f"{head}.global_avg_pool.1")
        pooled = self.norm(pooled, f"{head}.global_avg_pool.2").relu()
        branches.append(pooled.expand(-1, -1, *x.shape[2:]))  # a bilinear upsampling of one pixel
        joined = torch.cat(branches, 1)
        if not self.v3plus:
            return self.norm(self.conv(joined, f"{head}.conv1"), f"{head}.bn1")
        high = self.norm(self.conv(joined, f"{head}.prject.0"), f"{head}.prject.1").relu()
        high = F.interpolate(high, size=low.shape[2:], mode="bilinear", align_corners=True)
        y = torch.cat([self.norm(self.conv(low, "reduce.0"), "reduce.1").relu(), high], 1)
        y = self.norm(self.conv(y, "fuse.0"), "fuse.1").relu()
        return self.conv(self.norm(self.conv(y, "fuse.3"), "fuse.4").relu(), "classifier")

    def lorm(self, x: Tensor, pseudo: Tensor) -> Tensor:
        label = pseudo.masked_fill(pseudo == 255, 0).unsqueeze(1).double()
        foreground = F.interpolate(label, x.shape[2:], mode="bilinear", align_corners=True) > 0  # (B, 1, H, W)
        query, key = (self.conv(x, f"layer_camatt.{name}_conv").flatten(2) for name in ("query", "key"))
        query, key = (values / values.norm(dim=1, keepdim=True) for values in (query, key))
        cosine = torch.einsum("bci,bcj->bij", query, key)
        rectified = torch.einsum("bij,bcj->bci", cosine.softmax(-1), x.flatten(2)).view_as(x)
        difference = x - self.w["layer_camatt.gamma"] * rectified * foreground
        return difference.square().sum() / torch.count_nonzero(difference)

    def loss(self, batch: Batch) -> Tensor:
        low, x = self.features(batch.image)
        size = batch.image.shape[1:3]
        logits = F.interpolate(self.logits(low, x), size, mode="bilinear", align_corners=True)
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
        total = F.cross_entropy(logits, batch.label.long(), ignore_index=255)
        total = total + F.cross_entropy(logits, batch.pseudo.long(), ignore_index=255, label_smoothing=0.1)
        for name in ("distance_s", "distance_c"):
            total = total + (batch.maps[name] / 255 * entropy).sum() / torch.count_nonzero(batch.maps[name])
        return total + self.lorm(x, batch.pseudo)

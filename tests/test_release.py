"""configs/cdsp_release.yaml against a plain implementation of the released recipe (DESIGN 4.3 to 4.5)."""

import math
import os
import signal
import time
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from conftest import REPO
from torchvision.models.resnet import Bottleneck, ResNet

import config
import train
import utils
from distributed.group import Group
from errors import STOPPED
from runs.state import TrainState

NUM_CLASSES, NUM_STEPS, BATCH, STEPS_PER_EPOCH = 5, 3, 4, 2
BLOCKS = (1, 2, 1, 3)  # layer4 has three blocks, each with its own dilation
OUR_NAMES = {"layer_pred0.": "head.aspp.", "layer_camatt.": "lorm."}


class NarrowResNet(ResNet):
    """A ResNet of bottleneck blocks with an eighth of ResNet-50's channels."""

    def __init__(self):
        super().__init__(Bottleneck, list(BLOCKS))
        self.fc = torch.nn.Linear(self.inplanes, 1)

    def _make_layer(self, block, planes, *args, **kwargs):
        return super()._make_layer(block, planes // 8, *args, **kwargs)


def released_weights() -> dict[str, torch.Tensor]:
    """Random weights under the names of a released file, float64."""
    generator = torch.Generator().manual_seed(0)
    weights = {}

    def conv(name: str, inputs: int, outputs: int, size: int, bias: bool = False) -> None:
        scale = 1 / math.sqrt(inputs * size * size)
        weights[f"{name}.weight"] = scale * torch.randn(outputs, inputs, size, size, generator=generator)
        if bias:
            weights[f"{name}.bias"] = 0.1 * torch.randn(outputs, generator=generator)

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "running_var"):
            weights[f"{name}.{part}"] = 0.5 + torch.rand(channels, generator=generator)
        for part in ("bias", "running_mean"):
            weights[f"{name}.{part}"] = 0.1 * torch.randn(channels, generator=generator)

    conv("conv1", 3, 64, 7)
    norm("bn1", 64)
    channels = 64
    for layer, num_blocks in enumerate(BLOCKS, start=1):
        width = 8 * 2 ** (layer - 1)
        for block in range(num_blocks):
            prefix = f"layer{layer}.{block}."
            for number, (inputs, outputs, size) in enumerate(
                [(channels, width, 1), (width, width, 3), (width, 4 * width, 1)], start=1
            ):
                conv(f"{prefix}conv{number}", inputs, outputs, size)
                norm(f"{prefix}bn{number}", outputs)
            if block == 0:
                conv(f"{prefix}downsample.0", channels, 4 * width, 1)
                norm(f"{prefix}downsample.1", 4 * width)
            channels = 4 * width
    for number, size in enumerate([1, 3, 3, 3], start=1):
        conv(f"layer_pred0.aspp{number}.atrous_conv", channels, NUM_CLASSES, size)
        norm(f"layer_pred0.aspp{number}.bn", NUM_CLASSES)
    conv("layer_pred0.global_avg_pool.1", channels, NUM_CLASSES, 1)
    norm("layer_pred0.global_avg_pool.2", NUM_CLASSES)
    conv("layer_pred0.conv1", 5 * NUM_CLASSES, NUM_CLASSES, 1)
    norm("layer_pred0.bn1", NUM_CLASSES)
    conv("layer_camatt.query_conv", channels, channels, 1, bias=True)
    conv("layer_camatt.key_conv", channels, channels, 1, bias=True)
    weights["layer_camatt.gamma"] = torch.ones(1)
    return weights


class Plain:
    """The released network and losses, written down operation by operation."""

    def __init__(self, weights: dict[str, torch.Tensor], frozen: bool):
        self.w, self.frozen = weights, frozen

    def conv(self, x, name, stride=1, dilation=1):
        weight, bias = self.w[f"{name}.weight"], self.w.get(f"{name}.bias")
        padding = dilation * (weight.shape[-1] // 2)
        return F.conv2d(x, weight, bias, stride=stride, padding=padding, dilation=dilation)

    def norm(self, x, name):
        parts = (self.w[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *parts, training=not self.frozen, momentum=0.1, eps=1e-5)

    def block(self, x, prefix, stride=1, dilation=1):
        out = F.relu(self.norm(self.conv(x, f"{prefix}conv1", stride), f"{prefix}bn1"))  # the stride is on this 1x1
        out = F.relu(self.norm(self.conv(out, f"{prefix}conv2", dilation=dilation), f"{prefix}bn2"))
        out = self.norm(self.conv(out, f"{prefix}conv3"), f"{prefix}bn3")
        if f"{prefix}downsample.0.weight" in self.w:
            x = self.norm(self.conv(x, f"{prefix}downsample.0", stride), f"{prefix}downsample.1")
        return F.relu(out + x)

    def features(self, images):
        mean = 255 * torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        std = 255 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
        x = (images.permute(0, 3, 1, 2).double() - mean) / std
        padding = (3, 3, 3, 3)
        x = F.relu(self.norm(F.conv2d(F.pad(x, padding), self.w["conv1.weight"], stride=2), "bn1"))
        x = F.max_pool2d(x, 3, stride=2, padding=1, ceil_mode=True)
        dilations = {3: [2] * BLOCKS[2], 4: [4, 8, 16]}
        for layer, num_blocks in enumerate(BLOCKS, start=1):
            for block in range(num_blocks):
                stride = 2 if (layer, block) == (2, 0) else 1
                x = self.block(x, f"layer{layer}.{block}.", stride, dilations.get(layer, [1] * num_blocks)[block])
        return x

    def head(self, x):
        branches = []
        for number, dilation in enumerate([1, 12, 18, 24], start=1):
            name = f"layer_pred0.aspp{number}"
            branches.append(F.relu(self.norm(self.conv(x, f"{name}.atrous_conv", dilation=dilation), f"{name}.bn")))
        pooled = self.conv(x.mean((2, 3), keepdim=True), "layer_pred0.global_avg_pool.1")
        pooled = F.relu(self.norm(pooled, "layer_pred0.global_avg_pool.2"))
        branches.append(pooled.expand(-1, -1, *x.shape[2:]))  # a bilinear upsampling of one pixel
        return self.norm(self.conv(torch.cat(branches, 1), "layer_pred0.conv1"), "layer_pred0.bn1")

    def lorm(self, x, pseudo):
        label = pseudo.masked_fill(pseudo == 255, 0).unsqueeze(1).double()
        foreground = F.interpolate(label, x.shape[2:], mode="bilinear", align_corners=True) > 0  # (B, 1, H, W)
        query, key = (self.conv(x, f"layer_camatt.{name}_conv").flatten(2) for name in ("query", "key"))
        cosine = torch.einsum(
            "bci,bcj->bij", query / query.norm(dim=1, keepdim=True), key / key.norm(dim=1, keepdim=True)
        )
        rectified = torch.einsum("bij,bcj->bci", cosine.softmax(-1), x.flatten(2)).view_as(x)
        difference = x - self.w["layer_camatt.gamma"] * rectified * foreground
        return difference.square().sum() / torch.count_nonzero(difference)

    def loss(self, batch):
        features = self.features(batch["image"])
        logits = F.interpolate(self.head(features), batch["image"].shape[1:3], mode="bilinear", align_corners=True)
        scribble, pseudo = batch["label"].long(), batch["pseudo"].long()
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
        total = F.cross_entropy(logits, scribble, ignore_index=255)
        total = total + F.cross_entropy(logits, pseudo, ignore_index=255, label_smoothing=0.1)
        for name in ("distance_s", "distance_c"):
            total = total + (batch[name] / 255 * entropy).sum() / torch.count_nonzero(batch[name])
        return total + self.lorm(features, batch["pseudo"])


def three_plain_steps(weights: dict[str, torch.Tensor], batches: list, frozen: bool) -> dict[str, torch.Tensor]:
    """The weights after steps of SGD with momentum 0.9 and weight decay 5e-4, in the warm-up to lr 1e-3."""
    weights = {name: value.clone() for name, value in weights.items()}
    trained = [name for name in weights if "running" not in name]
    velocity = {name: torch.zeros_like(weights[name]) for name in trained}
    for step, batch in enumerate(batches):
        lr = 1e-3 * (step + 1) / (5 * STEPS_PER_EPOCH)  # 5 epochs of warm-up
        leaves = weights | {name: weights[name].detach().requires_grad_() for name in trained}
        gradients = torch.autograd.grad(Plain(leaves, frozen).loss(batch), [leaves[name] for name in trained])
        for name, gradient in zip(trained, gradients, strict=True):
            velocity[name] = 0.9 * velocity[name] + gradient + 5e-4 * weights[name]
            weights[name] = weights[name] - lr * velocity[name]
    return weights


def our_name(name: str) -> str:
    part = next((part for part in OUR_NAMES if name.startswith(part)), "")
    return OUR_NAMES[part] + name.removeprefix(part) if part else f"backbone.{name}"


@pytest.mark.parametrize("frozen", [False, True], ids=["training", "frozen"])
def test_three_steps_of_the_release_config_are_the_released_ones(demo_root, tmp_path, monkeypatch, frozen):
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **_: NarrowResNet())
    update = TrainState.update

    def update_and_stop(state, *args):
        update(state, *args)
        if state.step == NUM_STEPS:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)  # for the thread that notes it

    monkeypatch.setattr(TrainState, "update", update_and_stop)
    words = [
        "--config", REPO / "configs/cdsp_release.yaml", "--dataset_path", demo_root, "--numclasses", NUM_CLASSES,
        "--classes", "", "--crop_size", 97, "--total_batchsize", BATCH, "--amp", "none", "--device", "cpu",
        "--pretrained", tmp_path / "start.pth", "--logdir", tmp_path, "--name", "ours", "--workers", 0,
        *(["--freeze_bn"] if frozen else []),
    ]  # fmt: skip
    words = [str(word) for word in words]
    torch.set_default_dtype(torch.float64)
    try:
        start = released_weights()
        torch.save({"state_dict": {f"module.{name}": value for name, value in start.items()}}, tmp_path / "start.pth")
        assert train.main(words) == STOPPED
        cfg = utils.share_batch(config.parse(words), Group(torch.device("cpu")))
        loader = utils.get_loader(cfg, "train", Group(torch.device("cpu")))
        batches = [*loader]
        loader.sampler.set_position(1, 0)
        batches += [*loader]
        assert len(batches) == 2 * STEPS_PER_EPOCH
        expected = three_plain_steps(start, batches[:NUM_STEPS], frozen)
    finally:
        torch.set_default_dtype(torch.float32)

    ours = torch.load(tmp_path / "ours" / "last.pt", weights_only=True)["model"]
    square = Counter()
    for name, value in expected.items():
        mine = ours[our_name(name)]
        assert mine.dtype == torch.float64
        if "running" in name:
            torch.testing.assert_close(mine, value, rtol=1e-12, atol=1e-14)
            continue
        square["update"] += (value - start[name]).square().sum().item()
        square["difference"] += (mine - value).square().sum().item()
        assert not torch.equal(value, start[name]), name
    print(f"difference / update: {math.sqrt(square['difference'] / square['update']):.2e}")
    assert np.sqrt(square["difference"]) <= 1e-12 * np.sqrt(square["update"])

"""Every family of timm's networks that --backbone takes: a thin network of each, and what each must do.

A family is a module of timm (timm.list_modules()). tests/test_families.py runs the checks; scripts/backbone_table.py writes
their results into docs/backbones.md.
"""

import copy
import functools
import inspect
import io

import timm
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import models
from distributed.group import Group
from models.amp import LossScaler, autocast
from models.fold import folded
from runs.state import TrainState
from scripts.chaos import unequal

CPU = torch.device("cpu")
SIZE = (65, 97)  # height and width of the images
# The least that the first three take; convmixer_1024_20_ks9_p14 is slow.
SIZES = dict.fromkeys(("inception_resnet_v2", "inception_v3", "inception_v4"), (75, 97)) | {"convmixer": (29, 43)}
LAYERS = {"layers": [1, 1, 1, 1], "channels": (16, 32, 64, 128)}  # of a thin ResNet
VIT = {"depth": 2, "embed_dim": 48, "num_heads": 3}
PYRAMID = {"embed_dims": (16, 32, 48, 64), "depths": (1, 1, 1, 1)}
SWIN = {"embed_dim": 24, "depths": (2, 1, 1, 2), "num_heads": (1, 2, 4, 8)}

# {family: (network, arguments that make it thin)}
FAMILIES: dict[str, tuple[str, dict]] = {
    "byobnet": ("test_byobnet", {}),
    "convmixer": ("convmixer_1024_20_ks9_p14", {}),
    "convnext": ("test_convnext", {}),
    "cpubone": ("cpubone_nano", {"width_list": [8, 8, 16, 32, 32]}),
    "crossvit": ("crossvit_tiny_240", {"depth": [[1, 1, 0]] * 3}),
    "csatv2": ("csatv2", {"dims": (16, 24, 32, 48), "depths": (1, 1, 2, 2), "transformer_depths": (0, 0, 1, 1)}),
    "cspnet": ("cs3darknet_focus_s", {}),
    "cspnext": ("cspnext_tiny", {}),
    "davit": ("davit_tiny", PYRAMID | {"num_heads": (1, 2, 3, 4)}),
    "deepseek_vit": ("deepseek_vit_412m", VIT | {"num_heads": 2, "embed_dim": 64}),
    "deit": ("deit_tiny_patch16_224", VIT),
    "densenet": ("densenet121", {"growth_rate": 8, "block_config": (2, 2, 2, 2)}),
    "dla": ("dla46x_c", {}),
    "dpn": ("dpn48b", {"k_sec": (1, 1, 1, 1)}),
    "edgenext": ("edgenext_xx_small", {"depths": (1, 2, 2, 2)}),
    "efficientnet": ("mobilenetv2_035", {}),
    "efficientvim": ("efficientvim_m1", {"embed_dim": (16, 24, 32), "depths": (1, 1, 1)}),
    "efficientvit_mit": ("efficientvit_b0", {}),
    "efficientvit_msra": ("efficientvit_m0", {}),
    "eva": ("vit_tiny_patch16_dinov3_qkvb", VIT),
    "fasternet": ("fasternet_t0", {"embed_dim": 16, "depths": (1, 1, 1, 1)}),
    "fastvit": ("fastvit_t8", {"layers": (1, 1, 1, 1)}),
    "focalnet": ("focalnet_tiny_srf", {}),
    "ghostnet": ("ghostnet_050", {}),
    "hardcorenas": ("hardcorenas_b", {}),
    "hgnet": ("hgnetv2_b0", {}),
    "hieradet_sam2": ("sam2_hiera_tiny", {"embed_dim": 16, "stages": (1, 2, 3, 2), "global_att_blocks": (4,)}),
    "hrnet": ("hrnet_w18_small", {}),
    "iformer": ("iformer_t", {"depths": (1, 1, 4, 3), "attn_groups": (0, 0, 1, 1)}),
    "inception_next": ("inception_next_atto", {"dims": (16, 32, 48, 64), "depths": (1, 1, 1, 1)}),
    "inception_resnet_v2": ("inception_resnet_v2", {}),
    "inception_v3": ("inception_v3", {}),
    "inception_v4": ("inception_v4", {}),
    "lcnetv2": ("lcnetv2_small", {"scale": 0.25, "depths": (1, 1, 2, 1)}),
    "lowformer": ("lowformer_b0", {"width_list": [8, 8, 16, 32, 32], "depth_list": [0, 1, 1, 1, 1]}),
    "mambaout": ("test_mambaout", {}),
    "metaformer": ("poolformerv2_s12", {}),
    "mobilenetv3": ("mobilenetv3_small_050", {}),
    "mobilenetv5": ("mobilenetv5_base", {"channel_multiplier": 0.125}),
    "mobilevit": ("mobilevit_xxs", {}),
    "mvitv2": ("mvitv2_tiny", {}),
    "naflexvit": ("naflexvit_base_patch16_parfac_gap", VIT | {"drop_path_rate": 0.3, "proj_drop_rate": 0.3}),
    "nasnet": ("nasnetalarge", {"stem_size": 8, "num_features": 96}),
    "nextvit": ("nextvit_small", {"depths": (1, 1, 5, 1)}),
    "nfnet": ("test_nfnet", {}),
    "pnasnet": ("pnasnet5large", {}),
    "pvt_v2": ("pvt_v2_b0", PYRAMID | {"num_heads": (1, 2, 3, 4)}),
    "qwen3_vit": ("qwen3_vit_88m", VIT | {"num_heads": 2, "embed_dim": 64}),
    "rdnet": ("rdnet_tiny", {"num_init_features": 16, "growth_rates": [8] * 7, "num_blocks_list": [1] * 7}),
    "regnet": ("regnetx_002", {}),
    "repghost": ("repghostnet_050", {}),
    "repvit": ("repvit_m1", {"embed_dim": (16, 32, 48, 64), "depth": (1, 1, 2, 1)}),
    "res2net": ("res2net50_26w_4s", LAYERS),
    "resnest": ("resnest14d", LAYERS),
    "resnet": ("test_resnet", {}),
    "resnetv2": ("resnetv2_18", LAYERS),
    "rexnet": ("rexnet_100", {"width_mult": 0.5}),
    "selecsls": ("selecsls42", {}),
    "senet": ("legacy_seresnet18", {"layers": [1, 1, 1, 1]}),
    "sequencer": ("sequencer2d_s", {"layers": [1] * 4, "embed_dims": [24, 48, 48, 48], "hidden_sizes": [6, 12, 12, 12]}),
    "shvit": ("shvit_s1", {"embed_dim": (32, 48, 64), "depth": (1, 1, 1), "partial_dim": (8, 12, 16)}),
    "sknet": ("skresnet18", LAYERS),
    "starnet": ("starnet_s050", {}),
    "swiftformer": ("swiftformer_xs", {"layers": [1, 1, 1, 1]}),
    "swin_transformer": ("swin_tiny_patch4_window7_224", SWIN),
    "swin_transformer_v2": ("swinv2_tiny_window8_256", SWIN),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", SWIN),
    "tiny_vit": ("tiny_vit_5m_224", PYRAMID | {"num_heads": (1, 2, 3, 4)}),
    "tresnet": ("tresnet_m", {"layers": [1, 1, 1, 1], "width_factor": 0.25}),
    "twins": ("twins_svt_small", PYRAMID | {"depths": (2, 1, 1, 2), "num_heads": (1, 2, 3, 4)}),
    "vgg": ("vgg11_bn", {"mlp_ratio": 0.01}),
    "vision_transformer": ("test_vit", {}),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", VIT),
    "vision_transformer_sam": ("samvit_base_patch16_224", VIT | {"global_attn_indexes": [1]}),
    "vitamin": ("vitamin_small_224", {"depth": 2}),
    "vovnet": ("ese_vovnet19b_slim_dw", {}),
    "xception": ("legacy_xception", {}),
    "xception_aligned": ("xception41", {}),
    "xcit": ("xcit_nano_12_p8_224", {"depth": 2, "embed_dim": 32}),
}

# What draws random numbers in training, where a network has it.
DRAWS = ("drop_rate", "drop_path_rate", "proj_drop_rate", "attn_drop_rate", "pos_drop_rate", "drop_block_rate")


@functools.cache
def thin(family: str) -> str:
    """Make the thin network of a family known to timm, with all that draws random numbers on. Returns its name."""
    network, options = FAMILIES[family]
    entry = timm.models.model_entrypoint(network)
    with torch.device("meta"):
        parameters = inspect.signature(type(entry(**options)).__init__).parameters
    options = dict.fromkeys([name for name in DRAWS if name in parameters], 0.3) | options

    def build_thin(pretrained: bool = False, **others) -> nn.Module:
        return entry(pretrained, **options | others)

    build_thin.__name__, build_thin.__module__ = f"thin_{network}", entry.__module__
    return timm.models.register_model(build_thin).__name__


def build(family: str, **options) -> models.Segmenter:
    """Return the model as train.py builds it, in training."""
    return copy.deepcopy(_built(family, **options))


@functools.lru_cache(maxsize=3)  # a family's models, in turn: to draw the weights takes longer than a step
def _built(family: str, **options) -> models.Segmenter:
    torch.manual_seed(0)
    name = f"timm:{thin(family)}"
    model = models.build("deeplabv3p_multi", backbone=name, num_classes=4, head_channels=8, **options)
    models.freeze_unused(model)
    return model.to(memory_format=torch.channels_last).train()


def step(family: str, model: nn.Module, number: int, amp: str = "none", micro_batches: int = 1) -> list[Tensor]:
    """Pass micro-batches, drawn from `number`, forward, and in training also backward. Returns the logits."""
    generator = torch.Generator().manual_seed(number)
    found = []
    for _ in range(micro_batches):
        images = torch.randint(0, 256, (2, *SIZES.get(family, SIZE), 3), dtype=torch.uint8, generator=generator)
        with autocast(amp, CPU), torch.set_grad_enabled(model.training):
            logits = model(images)["logits"]
        if model.training:
            logits.float().square().mean().backward()
        found.append(logits.detach())
    return found


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=1e-3, momentum=0.9)


def check_gradients(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, f"{name} has no gradient"
        assert parameter.grad is None or parameter.grad.isfinite().all(), f"{name} has a gradient that is not finite"


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest |found - expected| / |expected|. Norms below a millionth of the largest count as that."""
    norms = {name: float(value.norm()) for name, value in expected.items()}
    floor = max(1e-6 * max(norms.values()), 1e-300)
    return max(float((found[name] - value).norm()) / max(norms[name], floor) for name, value in expected.items())


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def train(family: str) -> str:
    """Train two steps of two micro-batches: each trained parameter gets a finite gradient, and the weights change."""
    model = build(family)
    optimizer, before = optimizer_of(model), copy.deepcopy(model.state_dict())
    for number in range(2):
        step(family, model, number, micro_batches=2)
        check_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    assert all(value.isfinite().all() for value in model.state_dict().values()), "a weight is not finite"
    same = [name for name, value in model.named_parameters() if value.requires_grad and torch.equal(value, before[name])]
    assert len(same) < len(before) / 2, f"{len(same)} of {len(before)} parameters did not change, such as {same[0]}"
    return "yes"


def equal_timm(family: str) -> float:
    """Return the largest relative difference of a gradient from that of timm's own layers, in float64."""
    ours = build(family).backbone.double()
    theirs = timm.create_model(thin(family), num_classes=0, **ours.facts.options).double().train()
    theirs.load_state_dict(ours.body.state_dict(), strict=False)
    images = torch.randn(2, 3, *SIZES.get(family, SIZE), dtype=torch.float64)
    below, right = (-side % ours.facts.multiple for side in images.shape[2:])
    inputs = {"indices": ours.facts.indices, "norm": ours.facts.norm, "intermediates_only": True, "output_fmt": "NCHW"}
    for body in (ours.body, theirs):
        torch.manual_seed(1)
        found = body.forward_intermediates(nn.functional.pad(images, (0, right, 0, below)), **inputs)
        sum(values.square().mean() for values in found).backward()
    expected = gradients(theirs)
    return difference(gradients(ours.body), {name: expected[name] for name in gradients(ours.body)})


def freeze(family: str) -> str:
    """Train a step with the first half of the parts frozen: no value of theirs changes, and the others train."""
    depths = _built(family).backbone.depths()
    num_parts = (1 + max(depths.values())) // 2
    model = build(family, freeze_backbone=num_parts, grad_checkpointing=True)
    before = copy.deepcopy(model.state_dict())
    step(family, model, 0)
    check_gradients(model)
    optimizer_of(model).step()
    frozen = {f"backbone.{name}" for name, depth in depths.items() if depth < num_parts}
    for module in model.frozen:
        frozen |= {name for name, value in model.named_buffers() if any(value is own for own in module.buffers())}
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert not changed & frozen, f"frozen, but changed: {sorted(changed & frozen)[0]}"
    assert {name for name, _ in model.backbone.named_parameters(prefix="backbone")} & changed, "nothing trains"
    return f"{num_parts} of {1 + max(depths.values())}"


def checkpoint_gradients(family: str) -> tuple[float, bool]:
    """Return (the largest relative difference of a gradient with --grad_checkpointing, whether the network draws).

    In float64, from the same seed: what the network draws is random. Buffers, such as batch norm's statistics, and the random numbers that follow must be equal.
    """
    plain, recomputing = (build(family, grad_checkpointing=on).double() for on in (False, True))
    states = []
    for model in (plain, recomputing):
        torch.manual_seed(1)
        step(family, model, 0)
        states.append(torch.get_rng_state())
    for (name, value), (_, other) in zip(plain.named_buffers(), recomputing.named_buffers(), strict=True):
        assert torch.equal(value, other), f"{name} differs"
    assert torch.equal(*states), "other random numbers follow"
    torch.manual_seed(1)
    return difference(gradients(recomputing), gradients(plain)), not torch.equal(states[0], torch.get_rng_state())


def bf16(family: str) -> float:
    """Train a step with --amp bf16 and --grad_checkpointing. Returns the logits' relative difference in evaluation."""
    model = build(family, grad_checkpointing=True)
    step(family, model, 0, amp="bf16")
    check_gradients(model)
    model.eval()
    found, expected = step(family, model, 1, amp="bf16"), step(family, model, 1)
    assert found[0].dtype == torch.bfloat16, f"logits of {found[0].dtype}"
    return float((torch.cat(found) - torch.cat(expected)).norm() / torch.cat(expected).norm())


def resume(family: str) -> str:
    """Save after a step, load into a model of other weights, and go on: the same bits as without."""

    def state_of(model: nn.Module) -> TrainState:
        optimizer = optimizer_of(model)
        return TrainState(model, model, optimizer, LossScaler(CPU, enabled=False), clip_grad=1.0)

    model, group = build(family), Group(CPU)
    state = state_of(model)
    step(family, model, 0)
    state.update(1e-3, 4)
    file = io.BytesIO()
    torch.save(state.capture(group), file)
    step(family, model, 1)
    state.update(1e-3, 4)
    expected = state.capture(group)
    other = build(family)
    with torch.no_grad():
        for value in other.parameters():
            value.add_(1)
    state = state_of(other)
    state.restore(torch.load(io.BytesIO(file.getvalue()), weights_only=True), group)
    step(family, other, 1)
    state.update(1e-3, 4)
    found = state.capture(group)
    for name, value in expected["model"].items():
        assert torch.equal(found["model"][name], value), f"{name} differs"
    differing = unequal(expected, found)
    assert not differing, f"{differing[0]} differs"
    return "yes"


def fold(family: str) -> tuple[float, int, int]:
    """Return (largest relative difference of the logits of the folded copy, norms in the copy, norms), in float64.

    Weights that a network starts at 0 or next to it, which hide what follows, are drawn anew.
    """
    model = build(family).double().eval()
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if isinstance(module, _BatchNorm) and value.is_floating_point():
                value.data = torch.rand(value.shape, generator=generator, dtype=value.dtype) + 0.5
            elif isinstance(value, nn.Parameter) and value.abs().max() < 1e-3:
                value.data = torch.randn(value.shape, generator=generator, dtype=value.dtype) / 2
    images = torch.randint(0, 256, (2, *SIZES.get(family, SIZE), 3), dtype=torch.uint8, generator=generator)
    with torch.no_grad():
        copied, expected = folded(model), model(images)["logits"]
        found = copied(images)["logits"]
    counts = [sum(isinstance(part, _BatchNorm) for part in each.backbone.modules()) for each in (copied, model)]
    return float((found - expected).norm() / expected.norm()), *counts

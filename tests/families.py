"""Every family of timm's networks that --backbone takes, and a thin network of each.

A family is a module of timm (timm.list_modules()). tests/family_checks.py says what each must do.
"""

import copy
import functools
import inspect

import timm
import torch
from torch import nn

import models

SIZE = (65, 97)  # height and width of the images
# The least that Inception networks take; smaller ones for networks that are slow and cannot be thinner.
SIZES = dict.fromkeys(("inception_resnet_v2", "inception_v3", "inception_v4"), (75, 97))
SIZES |= dict.fromkeys(("convmixer", "mvitv2", "pnasnet", "selecsls", "xception_aligned"), (29, 43))
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
    "naflexvit": ("naflexvit_base_patch16_parfac_gap", VIT | {"drop_path_rate": 0.1, "proj_drop_rate": 0.1}),
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
    "sequencer": (
        "sequencer2d_s",
        {"layers": [1] * 4, "embed_dims": [24, 48, 48, 48], "hidden_sizes": [6, 12, 12, 12]},
    ),
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

# {family: its smallest network}: the product refuses all networks of these.
REFUSED = {
    "beit": "beit_base_patch16_224",
    "byoanet": "lambda_resnet26t",
    "cait": "cait_xxs24_224",
    "coat": "coat_tiny",
    "convit": "convit_tiny",
    "crossvit": "crossvit_tiny_240",
    "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0",
    "gcvit": "gcvit_xxtiny",
    "gemma4_vit": "gemma4_vit_167m",
    "hiera": "hiera_tiny_224",
    "levit": "levit_128s",
    "maxxvit": "test_coatnet",
    "mlp_mixer": "gmlp_ti16_224",
    "nest": "nest_tiny",
    "pit": "pit_ti_224",
    "tnt": "tnt_s_legacy_patch16_224",
    "vision_transformer_relpos": "test_vit_relpos",
    "visformer": "visformer_tiny",
    "volo": "volo_d1_224",
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
    options = dict.fromkeys([name for name in DRAWS if name in parameters], 0.1) | options

    def build_thin(pretrained: bool = False, **others) -> nn.Module:
        return entry(pretrained, **options | others)

    build_thin.__name__, build_thin.__module__ = f"thin_{network}", entry.__module__
    return timm.models.register_model(build_thin).__name__


def build(family: str, **options) -> models.Segmenter:
    """Return the model as train.py builds it, in training."""
    return copy.deepcopy(built(family, **options))


@functools.lru_cache(maxsize=3)  # a family's models, in turn: to draw the weights takes longer than a step
def built(family: str, **options) -> models.Segmenter:
    """Return what build() copies."""
    torch.manual_seed(0)
    name = f"timm:{thin(family)}"
    model = models.build("deeplabv3p_multi", backbone=name, num_classes=4, head_channels=8, **options)
    models.freeze_unused(model)
    return model.to(memory_format=torch.channels_last).train()

"""Try networks of timm as backbones, and write docs/backbones.md's table of what each can do.

python -m scripts.backbone_table              # about half an hour
python -m scripts.backbone_table resnet18     # one network: prints its row
"""

import re
import subprocess
import sys
from pathlib import Path

import torch

import models
from errors import UserError
from exporting.check import compare_outputs
from exporting.graph import WholeImage, whole_image_logits
from exporting.torch_export import trace
from runs.log import progress_bar

PAGE = Path(__file__).parent.parent / "docs" / "backbones.md"
HEAD = "| network | M parameters | strides | channels | trains | exports |\n| --- | --- | --- | --- | --- | --- |\n"
NAMES = """
    resnet18 resnet26d ecaresnet26t seresnext26t_32x4d res2net50_26w_4s resnetv2_50 resnest14d densenet121 vgg11_bn
    dla34 hrnet_w18_small_v2 regnetx_002 regnety_004 regnetz_b16 tf_efficientnet_lite0 efficientnet_b0
    tf_efficientnetv2_b0 mnasnet_100 mobilenetv2_050 mobilenetv3_small_050 mobilenetv3_large_100
    mobilenetv4_conv_small ghostnet_100 convnext_atto convnextv2_atto mobilevit_xxs fastvit_t8 repvgg_a0
    edgenext_xx_small poolformer_s12 pvt_v2_b0 vit_tiny_patch16_224 vit_small_patch14_dinov2 eva02_tiny_patch14_224
    swin_tiny_patch4_window7_224 twins_svt_small cspdarknet53 xception41 tiny_vit_5m_224 coatnet_0_224 mixer_s16_224
"""
ODD = (161, 97)  # height and width of the images of the training step
SECONDS = 300  # for a network
EXPORTED = ((2, 65, 97), (1, 200, 133))  # (B, H, W) of the images to compare the export with


def print_row(name: str) -> None:
    """Print the table's row of a network: what it is, whether it trains, and then whether it exports."""
    try:
        model = models.build("deeplabv3p_multi", backbone=f"timm:{name}", num_classes=4, head_channels=16)
    except UserError as error:
        print(f"| `{name}` | | | | no: {str(error).partition(': ')[2]} | |")
        return
    backbone = model.backbone
    size = sum(parameter.numel() for parameter in backbone.parameters()) / 1e6
    numbers = (", ".join(map(str, values)) for values in (backbone.strides, backbone.channels))
    print(f"| `{name}` | {size:.1f} | {' | '.join(numbers)} | {_trains(model)} | ", end="", flush=True)
    print(f"{_exports(model)} |", flush=True)


def _trains(model: models.Segmenter) -> str:
    """Train one step at an odd size. Each parameter that trains must get a finite gradient."""
    models.freeze_unused(model)
    images = torch.randint(0, 256, (2, *ODD, 3), dtype=torch.uint8)
    model.train()(images)["logits"].square().mean().backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    good = sum(parameter.grad is not None and bool(parameter.grad.isfinite().all()) for parameter in trained)
    unused = sum(1 for _ in model.parameters()) - len(trained)
    if good < len(trained):
        return f"no: {len(trained) - good} of {len(trained)} parameters without a gradient"
    return f"yes, but {unused} parameters are not needed" if unused else "yes"


def _exports(model: models.Segmenter) -> str:
    """Export by torch.export, and compare the labels at other sizes."""
    graph = WholeImage(model.eval())
    try:
        program = trace(graph).module()
    except Exception as error:  # whatever torch.export meets in the network
        return f"no: {type(error).__name__}: {' '.join(str(error).split())[:120]}".replace("|", "/")
    for size in EXPORTED:
        images = torch.randint(0, 256, (*size, 3), dtype=torch.uint8)
        with torch.no_grad():
            logits = whole_image_logits(graph.model, images)
            try:
                compare_outputs(logits.argmax(1).to(torch.uint8), logits, {"labels": program(images)[0]})
            except (AssertionError, RuntimeError) as error:
                return f"no: fails on another size: {' '.join(str(error).split())[:80]}".replace("|", "/")
    return f"yes, from {max(7, graph.min_size)} pixels"


def _in_child(name: str) -> str:
    """Return the row of a network from a process of its own: torch.export takes forever for some."""
    command = [sys.executable, "-W", "ignore", "-m", "scripts.backbone_table", name]
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS).stdout.strip()
    except subprocess.TimeoutExpired as error:
        begun = error.stdout or b""
        return f"{begun.decode()}no: torch.export takes more than {SECONDS // 60} minutes |"


def main() -> None:
    if len(sys.argv) > 1:
        for name in sys.argv[1:]:
            print_row(name)
        return
    names = NAMES.split()
    rows = [
        _in_child(name)
        for name in progress_bar(names, total=len(names), title="networks", unit="network", enabled=True)
    ]
    table = HEAD + "\n".join(rows) + "\n"
    text = PAGE.read_text(encoding="utf-8")
    page = re.sub(r"\| network \|.*?\n(?=\n|\Z)", lambda _: table, text, count=1, flags=re.DOTALL)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Try a network of each family of timm as a backbone, and print what each can do; docs/backbones.md says it in short.

python -m benchmarks.backbone_table              # about half an hour
python -m benchmarks.backbone_table resnet       # one family: prints its row
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import models
from exporting.check import compare_outputs
from exporting.graph import WholeImage, trace, whole_image_logits
from exporting.onnx import KEYS, OnnxModel, write_onnx
from models.timm_backbone import TimmBackbone
from runs.log import progress_bar
from support.errors import UserError
from tests import families, family_checks

COLUMNS = "family", "network", "trains", "frozen parts", "checkpointing", "bf16", "resumes", "folded", "torch", "ONNX"
HEAD = f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|\n"
SECONDS = 180  # for a family
EXPORTED = ((2, 75, 97), (1, 200, 133))  # (B, H, W) of the images to compare the export with


def print_row(family: str) -> None:
    """Print the table's row of a family."""
    if family in families.REFUSED:
        network = families.REFUSED[family]
        try:
            TimmBackbone(network)
        except UserError as error:
            print(f"| {family} | `{network}` | refused: {str(error).split(': ')[1]} {'| ' * (len(COLUMNS) - 2)}|")
        return
    print(f"| {family} | `{families.FAMILIES[family][0]}` |", end="", flush=True)
    for check in (family_checks.train, family_checks.freeze, _checkpoints, _bf16, family_checks.resume, _folds):
        print(f" {_result(check, family)} |", end="", flush=True)
    for text in _exports(families.build(family)):
        print(f" {text} |", end="", flush=True)
    print()


def _result(check: Callable[[str], str], family: str) -> str:
    """Return what a check returns, or "no" and the reason in one line."""
    try:
        return check(family)
    except Exception as error:  # whatever torch meets in the network
        text = re.sub(r"\x1b\[\d*m", "", " ".join(str(error).split()))  # torch.onnx colours its messages
        return f"no: {text[:100]}".replace("|", "/")


def _checkpoints(family: str) -> str:
    largest, draws = family_checks.checkpoint_gradients(family)
    return f"{largest:.0e}{', draws' if draws else ''}" if largest else f"0{', draws' if draws else ''}"


def _bf16(family: str) -> str:
    return f"{family_checks.bf16(family):.1%}"


def _folds(family: str) -> str:
    largest, left, whole = family_checks.fold(family)
    return f"{largest:.0e}, {whole - left} of {whole}" if whole else "no batch norm"


def _exports(model: models.Segmenter) -> list[str]:
    """Return the results of torch.export and of ONNX: "yes", or "no" and the reason in one line."""
    graph = WholeImage(model.eval())
    program, found = None, []

    def run_torch(_: str) -> str:
        nonlocal program
        program = trace(graph)
        return _compare(graph, program.module())

    def run_onnx(_: str) -> str:
        assert program is not None, "needs torch.export"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_onnx(program, path, dict.fromkeys(KEYS, "0") | {"outputs": '["labels"]', "colours": "[]"}, opset=20)
            return _compare(graph, OnnxModel(path, family_checks.CPU).run)

    for run in (run_torch, run_onnx):
        found.append(_result(run, ""))
    return found


def _compare(graph: WholeImage, run: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> str:
    """Compare the labels of an exported model with PyTorch's, at sizes other than that of the trace."""
    for count, *sides in EXPORTED:
        images = torch.randint(0, 256, (count, *(max(side, graph.min_size) for side in sides), 3), dtype=torch.uint8)
        with torch.no_grad():
            logits = whole_image_logits(graph.model, images)
            compare_outputs(logits.argmax(1).to(torch.uint8), logits, {"labels": run(images)[0]})
    return "yes"


def _in_child(family: str) -> str:
    """Return the row of a family from a process of its own: torch.export takes forever for some."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.backbone_table", family]
    try:
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS).stdout
        return next(line for line in found.splitlines() if line.startswith("|"))
    except subprocess.TimeoutExpired as error:
        begun = (error.stdout or b"").decode().strip()
        missing = len(COLUMNS) + 1 - begun.count("|")
        return begun + f" no: takes more than {SECONDS // 60} minutes |" * missing


def main() -> None:
    if len(sys.argv) > 1:
        for family in sys.argv[1:]:
            print_row(family)
        return
    names = sorted([*families.FAMILIES, *families.REFUSED])
    rows = [
        _in_child(name) for name in progress_bar(names, total=len(names), title="families", unit="family", enabled=True)
    ]
    print(HEAD + "\n".join(rows))


if __name__ == "__main__":
    main()

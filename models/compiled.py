"""Compile each residual block and the head by torch.compile, as regions of their own."""

import torch
from torch import nn

from models.backbone import Recomputed
from models.layers.norm import BatchNorm2d
from models.segmenter import Segmenter
from support.errors import in_one_line

# A block of each shape is one entry, and torch runs further ones uncompiled. ResNet-50 has 9 shapes.
MAX_ENTRIES = 64
BACKEND = "inductor"


def find_problem(device: torch.device) -> str:
    """Return why torch.compile does not work on this machine, such as a missing compiler, in one line; else ""."""
    try:
        torch.compile(torch.exp, backend=BACKEND)(torch.zeros(8, device=device))
    except Exception as error:  # of any class: the compilers are programs of their own
        return in_one_line(error)
    return ""


def compile_blocks(model: Segmenter) -> None:
    """Compile the model's residual blocks and head for training, in place. Names in the state dict stay.

    Blocks of one shape share their code, and gradient checkpointing recomputes a block by its compiled code.
    DistributedDataParallel can send a block's gradients while earlier blocks compute theirs. The first step compiles.
    Evaluation is not compiled, because sizes differ from image to image; copies of the model are not compiled.
    """
    torch.compiler.config.recompile_limit = MAX_ENTRIES
    BatchNorm2d.over_processes = torch.compiler.disable(BatchNorm2d.over_processes)  # type: ignore[method-assign]
    for block in model.backbone.blocks():
        # torch.compile cannot trace into the wrapper of gradient checkpointing.
        compiled = block.forward if isinstance(block.forward, Recomputed) else block
        compiled.compile(backend=BACKEND, dynamic=False)
    model.head.compile(backend=BACKEND, dynamic=False)
    model.register_forward_pre_hook(_compile_in_training)


def _compile_in_training(model: nn.Module, _) -> None:
    torch.compiler.set_stance("default" if model.training else "force_eager")

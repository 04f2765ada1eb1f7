"""torch.compile, one compiled region for each residual block and for the head."""

import logging
import time

import torch
from torch import nn

from models.backbone import Recomputed
from models.segmenter import Segmenter

# A block of each shape is one entry, and torch runs further ones uncompiled. ResNet-50 has 9 shapes.
MAX_ENTRIES = 64
BACKEND = "inductor"

log = logging.getLogger("segtrain")


def compile_blocks(model: Segmenter, eager: tuple[type[nn.Module], ...] = ()) -> None:
    """Compile the model's residual blocks and head for training, in place. Names in the state dict stay.

    Blocks of one shape share their code, gradient checkpointing recomputes a block by its compiled code, and
    DistributedDataParallel can send a block's gradients while earlier blocks compute theirs. Evaluation, where sizes
    differ from image to image, is not compiled, nor are copies of the model. The first step compiles, and logs how
    long it took. eager: classes of modules to leave as they are, such as those that call collectives.
    """
    torch.compiler.config.recompile_limit = MAX_ENTRIES
    for kind in eager:
        kind.forward = torch.compiler.disable(kind.forward)  # type: ignore[method-assign]
    for block in model.backbone.blocks():
        # torch.compile cannot trace into the wrapper of gradient checkpointing.
        compiled = block.forward if isinstance(block.forward, Recomputed) else block
        compiled.compile(backend=BACKEND, dynamic=False)
    model.head.compile(backend=BACKEND, dynamic=False)
    model.register_forward_pre_hook(_Passes())


class _Passes:
    """A hook that runs evaluation uncompiled, and logs the seconds from the first training pass to the second."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.logged = False

    def __call__(self, model: nn.Module, _) -> None:
        torch.compiler.set_stance("default" if model.training else "force_eager")
        if model.training and self.began is None:
            self.began = time.perf_counter()
        elif model.training and not self.logged:
            assert self.began is not None
            log.info(f"--compile: the first pass took {time.perf_counter() - self.began:.1f} s, compilation included")
            self.logged = True

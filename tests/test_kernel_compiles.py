"""The Triton kernel compiles for every GPU from Turing to Blackwell, without one, and fits it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton")
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from losses import pixel_kernel

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)  # compute capability, times ten: from Turing to Blackwell
TERMS = ("label", "label, pseudo", "label, pseudo, entropy")
MAX_REGISTERS = 255  # of a thread, on all of these architectures
MAX_SHARED = 48 * 1024  # bytes that a program may have everywhere without asking for more
POINTERS = dict.fromkeys(("table", "row_fraction", "column_fraction", "column_weights", "partial"), "*fp32")
POINTERS |= dict.fromkeys(("row_lower", "column_lower", "first_column"), "*i32")
SIZES = ("height", "width", "low_height", "low_width", "num_classes")


def compile_for(architecture: int, num_classes: int, terms: str, cubin: Path) -> tuple[int, int, int]:
    """Compile a variant. Return registers and bytes of spilled ones, of a thread, and bytes shared, of a program."""
    columns = 17  # of the full size that depend on one of the logits
    block_c = triton.next_power_of_2(num_classes)
    block_x = min(triton.next_power_of_2(columns), max(pixel_kernel.TILE // block_c, 1))
    constants: dict[str, object] = {"NUM_X": columns, "BLOCK_X": block_x, "BLOCK_C": block_c}
    signature = dict(POINTERS) | dict.fromkeys(SIZES, "i32")
    for letter, name in (("a", "label"), ("b", "pseudo")):
        types = {"label": "*u8", "slope": "*fp32", "values": "*fp32"}
        signature |= {f"{key}_{letter}": value for key, value in types.items()} | {f"smooth_{letter}": "fp32"}
        if name not in terms:
            constants |= {f"{key}_{letter}": None for key in types}
    signature |= {"entropy_slope": "*fp32", "entropy": "*fp32"}
    if "entropy" not in terms:
        constants |= {"entropy_slope": None, "entropy": None}
    names = pixel_kernel._pixels.arg_names
    ordered = {name: "constexpr" if name in constants else signature[name] for name in names}
    source = ASTSource(pixel_kernel._pixels, ordered, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
    cubin.write_bytes(compiled.asm["cubin"])
    words = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.findall(rf"{name}:(\d+)", text)[-1]) for name in ("REG", "STACK", "LOCAL"))
    return registers, stack + local, compiled.metadata.shared


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compilers are for Linux")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_variant_fits(architecture, tmp_path):
    for num_classes in (2, 21, 150):
        for terms in TERMS if num_classes == 21 else TERMS[2:3]:
            registers, spilled, shared = compile_for(architecture, num_classes, terms, tmp_path / "kernel.cubin")
            assert registers < MAX_REGISTERS
            assert shared <= MAX_SHARED
            assert spilled == 0

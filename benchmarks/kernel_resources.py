"""What the Triton kernel of the losses needs of a GPU, by compiling it without one: registers, memory and spills.

python benchmarks/kernel_resources.py          # prints a Markdown table; needs Triton, but no GPU

A row is a variant: a number of classes and the losses of the pass. A cell is an architecture: registers of a thread,
bytes of shared memory of a program (128 threads), and bytes of spilled registers of a thread, if any, which are slow.
"""

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from losses import pixel_kernel

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)  # compute capability, times ten: from Turing to Blackwell
CLASSES = (2, 21, 150)
TERMS = ("label", "label, pseudo", "label, pseudo, entropy")
MAX_REGISTERS = 255  # of a thread, on all of these architectures
MAX_SHARED = 48 * 1024  # bytes that a program may have everywhere without asking for more
POINTERS = dict.fromkeys(("table", "row_fraction", "column_fraction", "column_weights", "partial"), "*fp32")
POINTERS |= dict.fromkeys(("row_lower", "column_lower", "first_column"), "*i32")
SIZES = ("height", "width", "low_height", "low_width", "num_classes")


class Resources(NamedTuple):
    """Of one thread: registers, and bytes of local memory that hold spilled ones. Of a program: bytes shared."""

    registers: int
    spilled: int
    shared: int


def compile_for(architecture: int, num_classes: int, terms: str, columns: int = 17) -> Resources:
    """Compile a variant for an architecture. columns: of the full size that depend on one of the logits."""
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
    return _measure(compiled.asm["cubin"], compiled.metadata.shared)


def _measure(cubin: bytes, shared: int) -> Resources:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        words = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.findall(rf"{name}:(\d+)", text)[-1]) for name in ("REG", "STACK", "LOCAL"))
    return Resources(registers, stack + local, shared)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    names = [f"sm_{architecture}" for architecture in ARCHITECTURES]
    print(f"| classes | losses | {' | '.join(names)} |\n{'| --- ' * (2 + len(names))}|")
    for num_classes, terms in itertools.product(CLASSES, TERMS):
        found = [compile_for(architecture, num_classes, terms) for architecture in ARCHITECTURES]
        cells = [f"{one.registers}, {one.shared}" + f", spills {one.spilled}" * bool(one.spilled) for one in found]
        print(f"| {num_classes} | {terms} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""The Triton kernel compiles for every GPU from Turing to Blackwell, without one, and fits it."""

import sys

import pytest

pytest.importorskip("triton", reason="needs Triton")
from benchmarks.kernel_resources import ARCHITECTURES, MAX_REGISTERS, MAX_SHARED, TERMS, compile_for


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compilers are for Linux")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_variant_fits(architecture):
    for num_classes in (2, 21, 150):
        for terms in TERMS if num_classes == 21 else TERMS[2:3]:
            found = compile_for(architecture, num_classes, terms)
            assert found.registers < MAX_REGISTERS
            assert found.shared <= MAX_SHARED
            assert found.spilled == 0

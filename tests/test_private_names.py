"""A later torch may lack its private functions: the product calls none, or goes on without."""

import re

import torch
from conftest import REPO

import models
from distributed import precision as amp
from models import compiled

PRIVATE = re.compile(r"\b(?:torch|nn|dist)(?:\.\w+)*\._[a-z]\w*|\b_(?:BatchNorm|conv_forward|overloadpacket|buffers)\b")
OUTSIDE = ("tests", "benchmarks", ".venv")


def test_the_product_names_no_private_function_of_torch():
    files = [path for path in REPO.rglob("*.py") if path.relative_to(REPO).parts[0] not in OUTSIDE]
    assert not {name for path in files for name in PRIVATE.findall(path.read_text(encoding="utf-8"))}


def test_auto_precision_without_torchs_private_tests_of_the_cpu(monkeypatch):
    before = amp.has_native_bf16(torch.device("cpu"))
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert amp.has_native_bf16(torch.device("cpu")) == before


def test_the_number_of_compiled_shapes_is_raised_by_the_public_setting(monkeypatch):
    monkeypatch.setattr(torch.compiler.config, "recompile_limit", 8)
    compiled.compile_blocks(models.build("res50_ASPP", layers=18, num_classes=2))
    assert torch.compiler.config.recompile_limit == compiled.MAX_ENTRIES

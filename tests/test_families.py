"""Every family of timm that --backbone takes: what tests/families.py checks, for a thin network of each."""

import re

import pytest
from conftest import REPO

from models.timm_backbone import TimmBackbone
from support.errors import UserError

timm = pytest.importorskip("timm")

from tests import families, family_checks  # noqa: E402

EXACT = 1e-6  # in float64: rounding, and batch norm of the few places that a deep network leaves
COARSE = 0.15  # bf16 has 8 bits
QUICK = ("convnext", "efficientnet", "vision_transformer")


def test_document_names_every_family_of_timm():
    page = (REPO / "docs" / "backbones.md").read_text(encoding="utf-8").split("## What has been tried")[1]
    named = re.findall(r"\w+", page)
    families_here = families.FAMILIES.keys() | families.REFUSED.keys()
    assert families_here <= set(named)
    assert set(timm.list_modules()) <= families_here  # a later timm has more


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in families.FAMILIES]
)
def test_family(family):
    if family not in timm.list_modules():
        pytest.skip(f"timm {timm.__version__} has no {family}")
    family_checks.train(family)
    family_checks.freeze(family)
    family_checks.resume(family)
    assert family_checks.equal_timm(family) < EXACT
    assert family_checks.checkpoint_gradients(family)[0] < EXACT
    assert family_checks.bf16(family) < COARSE
    assert family_checks.fold(family)[0] < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("family", families.REFUSED)
def test_refused_family_is_one_line(family):
    if family not in timm.list_modules():
        pytest.skip(f"timm {timm.__version__} has no {family}")
    with pytest.raises(UserError, match=f"--backbone timm:{families.REFUSED[family]}: .*: choose ") as error:
        TimmBackbone(families.REFUSED[family])
    assert "\n" not in str(error.value)

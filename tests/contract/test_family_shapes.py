"""Every family of models was compared with something. A message says what to add."""

from __future__ import annotations

import json

import pytest

from gpu_mem_calculator.models.families import families
from gpu_mem_calculator.models.families.multimodal import ALIASES, NESTED
from tests.conftest import ROOT

CASES = json.loads((ROOT / "tests/models/families/cases.json").read_text(encoding="utf-8"))
PRESETS = ROOT / "src" / "gpu_mem_calculator" / "catalog" / "models"
# Families with code outside transformers, and the file with their published counts.
PUBLISHED = {
    "baichuan": "tests/models/families/test_other_families.py",
    "chatglm": "tests/models/families/test_gated_families.py",
    "deepseek": "tests/models/families/test_gated_families.py",
    "kimi_k2": "tests/models/families/test_gated_families.py",
}


def compared() -> set[str]:
    """Families with a recorded shape, a preset whose count was published, or a published count."""
    presets = (json.loads(path.read_text(encoding="utf-8")) for path in PRESETS.glob("*.json"))
    configs = [*CASES.values(), *presets]
    inside = [one["text_config"] for one in configs if "text_config" in one]
    return {one.get("model_type") for one in (*configs, *inside)} | PUBLISHED.keys()


def relatives(name: str) -> set[str]:
    """A family and those with its reader; of one that sees, those with its tower, or the text model
    where no tower is modelled.
    """
    readers = families()
    same = {other for other, reader in readers.items() if reader is readers[name]}
    if name in NESTED and NESTED[name].tower is None:
        text = NESTED[name].text
        same.add(ALIASES.get(text, (text,))[0])
    elif name in NESTED:
        same |= {other for other, one in NESTED.items() if one.tower is NESTED[name].tower}
    return same


@pytest.mark.parametrize("name", families())
def test_a_family_was_compared(name: str) -> None:
    """Itself, or a relative whose code is the same."""
    assert relatives(name) & compared(), (
        f"nothing was compared with {name!r}: add a small case to tests/models/families/cases.json "
        "and record its shapes (record_shapes.py there), or a preset to catalog/index.toml, or a "
        "published count to PUBLISHED in this file"
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_count_is_there(name: str) -> None:
    """The file has the family."""
    assert f'"{name}"' in (ROOT / PUBLISHED[name]).read_text(encoding="utf-8")

"""Each quirk belongs to a family that the calculator reads."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.models.families import families
from gpu_mem_calculator.pytorch.modelling.huggingface.quirks import LLAMA, QUIRKS, Quirks
from gpu_mem_calculator.pytorch.modelling.others.implementations import IMPLEMENTATIONS


def test_families_with_quirks_are_known() -> None:
    """A misspelled model type would leave its quirks without effect."""
    assert set(QUIRKS) <= {*families(), "plain", "module"}


def test_a_misspelled_quirk_is_refused() -> None:
    """Flags are fields, so a typo is an error and not a flag that is false."""
    with pytest.raises(TypeError):
        Quirks(query_norm_erly=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", Quirks.__struct_fields__)
def test_every_quirk_has_a_family(name: str) -> None:
    """A flag that no family and no implementation sets would be dead code."""
    others = [row.quirks for row in IMPLEMENTATIONS.values()]
    assert any(getattr(quirks, name) for quirks in (*QUIRKS.values(), *others))


def test_other_families_run_like_llama() -> None:
    """A family whose code does not differ has no quirk."""
    assert QUIRKS["mistral"] == LLAMA
    assert not any(getattr(LLAMA, name) for name in Quirks.__struct_fields__)

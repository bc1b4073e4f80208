"""training.lora.target_modules as a pattern of paths, as PEFT matches it."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read


def targets(pattern: str, model: str = "llama3.2-1b") -> set[str]:
    """The projections that a pattern adapts."""
    training = {"lora": {"target_modules": pattern}, "precision": "bf16_pure", "seq_len": 64}
    adapter = resolve(read({"model": {"name": model}, "training": training}).file).run.adapter
    assert adapter is not None
    return set(adapter.targets)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"model.layers.[\d]+.self_attn.(q|v)_proj", {"q_proj", "v_proj"}),
        (r".*\.(up|down|gate)_proj", {"up_proj", "down_proj", "gate_proj"}),
        (r"model.layers.[\d]+.(_checkpoint_wrapped_module.)?mlp.up_proj", {"up_proj"}),
    ],
)
def test_a_pattern_matches_whole_paths(pattern: str, names: set[str]) -> None:
    """re.fullmatch, in every layer."""
    assert targets(pattern) == names


def test_a_language_model_with_a_vision_tower() -> None:
    """Its paths begin with the part of the model."""
    pattern = r"model.language_model.layers.[\d]+.self_attn.q_proj"
    assert targets(pattern, "google/gemma-3-4b-it") == {"q_proj"}
    with pytest.raises(InputError, match="matches no projection"):
        targets(pattern)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("q_proj", "matches no projection of llama"),
        (r"model.layers.(0|1).self_attn.q_proj", "of some layers alone"),
        (r"(", "is not a pattern"),
        (r"(.*)+x", "too complex"),
        (".*" * 9, "too complex"),
        ("a" * 1001, "too complex"),
    ],
)
def test_patterns_that_are_refused(pattern: str, why: str) -> None:
    """Also those that would take long."""
    with pytest.raises(InputError, match=why):
        targets(pattern)

"""Models that a script loads by name."""

from __future__ import annotations

from gpu_mem_calculator.script.hub_models import catalogue_config


def test_a_presets_configuration_is_known_by_its_hub_name() -> None:
    """Others are not."""
    assert (catalogue_config("Qwen/Qwen3-0.6B") or {})["hidden_size"] == 1024
    assert catalogue_config("somebody/a-model-of-their-own") is None

"""Models that a script loads by name."""

from __future__ import annotations

from gpu_mem_calculator.lab.script.hub_models import catalogue_config


def test_a_presets_configuration_is_known_by_its_hub_name() -> None:
    """So is that of a variant in another format; others are not."""
    for name in ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B-FP8"):
        assert (catalogue_config(name) or {})["hidden_size"] == 1024
    assert catalogue_config("somebody/a-model-of-their-own") is None

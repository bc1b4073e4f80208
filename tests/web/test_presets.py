"""The presets: their list, and each as a run file."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine_names
from gpu_mem_calculator.web.facts import engine_titles, preset, presets


def test_engines_are_those_that_a_run_file_takes() -> None:
    """Each has a title."""
    assert set(engine_titles()) == set(engine_names())
    assert all(engine_titles().values())


def test_presets_have_what_the_page_shows() -> None:
    """Every row of the catalogue."""
    found = presets()
    assert list(found) == catalog.names("index")
    one = found["llama2-7b"]
    assert one["display_name"] == "Llama 2 7B"
    assert one["num_parameters"] == 6738415616
    assert one["family"] == "llama"
    assert one["hub_id"] == "meta-llama/Llama-2-7b-hf"
    assert "6.74 B" in one["description"]
    assert all(each["description"] and each["family"] for each in found.values())


@pytest.mark.parametrize(
    "name",
    [
        "llama2-7b",
        "llama2-13b",
        "llama2-70b",
        "gpt3-175b",
        "mixtral-8x7b",
        "glm-4-9b",
        "glm-4.7-355b",
        "glm-4.5-air-106b",
        "qwen1.5-moe-a2.7b",
        "deepseek-moe-16b",
    ],
)
def test_a_preset_has_every_section(name: str) -> None:
    """The page fills its form from them."""
    found = preset(name)
    assert found is not None
    assert {"model", "training", "parallelism", "engine", "hardware"} == found.keys()
    assert {
        "name",
        "num_parameters",
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "max_seq_len",
    } <= found["model"].keys()


def test_every_preset_is_a_run_that_is_accepted_and_is_that_model() -> None:
    """The numbers beside the name change nothing, and nothing has to be warned of."""
    for name in catalog.names("index"):
        found = preset(name)
        assert found is not None
        resolved = resolve(read(found).file)
        alone = resolve(read({**found, "model": {"name": name}}).file)
        assert resolved.model.arch == alone.model.arch
        assert resolved.model.warnings == alone.model.warnings


def test_no_preset_of_that_name() -> None:
    """None, for the route to say so."""
    assert preset("no-such-model") is None
    assert preset("") is None

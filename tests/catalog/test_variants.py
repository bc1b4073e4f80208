"""Copies of presets under other names, and the format their names say."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.catalog.variants import variant
from gpu_mem_calculator.run.weights import find_format


@pytest.mark.parametrize(
    ("name", "row", "method"),
    [
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "awq"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "qwen2.5-72b", "gptq"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", "qwen3-coder-30b-a3b", "fp8"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b-2507", "fp8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama3.3-70b", "compressed-tensors"),
        (
            "neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8",
            "llama3.1-70b",
            "compressed-tensors",
        ),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama3.1-8b", "bitsandbytes"),
        ("NousResearch/Meta-Llama-3-8B", "llama3-8b", None),
        ("qwen3-32b-awq", "qwen3-32b", "awq"),
        ("Llama-3.1-8B-Instruct-GPTQ", "llama3.1-8b", "gptq"),
        ("Llama-3.1-8B-FP8", "llama3.1-8b", "compressed-tensors"),
        ("qwen3-8b-fp8", "qwen3-8b", "fp8"),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "llama3.1-8b", None),
    ],
)
def test_the_end_of_a_name_is_a_format(name: str, row: str, method: str | None) -> None:
    """The preset is found by what is left of the name, the format by its end."""
    found = variant(name)
    assert found is not None
    assert (found[0]["name"], (found[1] or {}).get("quant_method")) == (row, method)
    find_format("none", found[1], "")


@pytest.mark.parametrize("name", ["unheard-of-7b-awq", "someone/unheard-of-7B-AWQ", "a/b"])
def test_other_names_are_nothing(name: str) -> None:
    """A name whose rest is no preset is not guessed at."""
    assert variant(name) is None


def _published() -> list[dict[str, Any]]:
    return [row for row in catalog.rows("index") if "quantization_config" in row]


@pytest.mark.parametrize("row", _published(), ids=[row["name"] for row in _published()])
def test_a_published_format_is_one_that_servers_read(row: dict[str, Any]) -> None:
    """Presets whose weights are published in few bits say so in a form that is modelled."""
    config = catalog.row_config(row)
    assert find_format("none", config["quantization_config"], "").name != "none"
    assert "quantization_config" not in catalog.preset_config(row["config"])


@pytest.mark.parametrize(
    ("end", "form", "bits", "kind"),
    [
        ("-FP8-dynamic", "float-quantized", 8, "float"),
        ("-quantized.w8a8", "int-quantized", 8, "int"),
        ("-quantized.w8a16", "pack-quantized", 8, "int"),
        ("-quantized.w4a16", "pack-quantized", 4, "int"),
    ],
)
def test_weights_are_floats_or_ints_of_the_names_bits(
    end: str, form: str, bits: int, kind: str
) -> None:
    """compressed-tensors: the format is named after the type of its numbers."""
    found = variant(f"RedHatAI/Llama-3.3-70B-Instruct{end}")
    assert found is not None
    config = found[1] or {}
    weights = config["config_groups"]["group_0"]["weights"]
    assert (config["format"], weights["num_bits"], weights["type"]) == (form, bits, kind)


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_has_the_names_bits(bits: int) -> None:
    """In groups of 128."""
    found = variant(f"Qwen/Qwen2.5-72B-Instruct-GPTQ-Int{bits}")
    assert found is not None
    config = found[1] or {}
    assert (config["bits"], config["group_size"]) == (bits, 128)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-32B-FP8", {"weight_block_size": [128, 128], "fmt": "e4m3"}),
        ("Qwen/Qwen3-32B-AWQ", {"bits": 4, "group_size": 128, "zero_point": True}),
        ("unsloth/Llama-3.3-70B-Instruct-AWQ-INT4", {"bits": 4, "group_size": 128}),
        (
            "unsloth/Meta-Llama-3.1-8B-Instruct-unsloth-bnb-4bit",
            {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        ),
    ],
)
def test_a_config_is_what_the_publisher_writes(name: str, expected: dict[str, Any]) -> None:
    """The quantization_config of their config.json."""
    row = variant(name)
    assert row is not None
    config = row[1] or {}
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("end", "weights", "inputs"),
    [
        ("-FP8-dynamic", {"strategy": "channel"}, {"num_bits": 8, "dynamic": True}),
        ("-quantized.w8a8", {"strategy": "channel"}, {"num_bits": 8, "dynamic": True}),
        ("-quantized.w4a16", {"strategy": "group", "group_size": 128}, {}),
        ("-quantized.w8a16", {"strategy": "group", "group_size": 128}, {}),
    ],
)
def test_scales_are_for_a_row_or_for_128_weights(
    end: str, weights: dict[str, Any], inputs: dict[str, Any]
) -> None:
    """Inputs are quantized, token by token, where the name ends with a8 or dynamic."""
    row = variant(f"RedHatAI/Llama-3.3-70B-Instruct{end}")
    assert row is not None
    group = (row[1] or {})["config_groups"]["group_0"]
    assert {key: group["weights"][key] for key in weights} == weights
    given = group.get("input_activations", {})
    assert {key: given[key] for key in inputs} == inputs
    assert bool(given) is bool(inputs)

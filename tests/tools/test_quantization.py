"""BitsAndBytesConfig: our keys for it, and what is refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gpu_mem_calculator.tools.trainer.loading import BITSANDBYTES, quantization_keys


def test_every_field_of_transformers_is_listed_with_its_default() -> None:
    """The fields are the arguments of BitsAndBytesConfig."""
    config = pytest.importorskip("transformers").BitsAndBytesConfig
    arguments = inspect.signature(config).parameters.values()
    listed = {name: row.default for name, row in BITSANDBYTES.items()}
    assert {a.name: a.default for a in arguments if a.name != "kwargs"} == listed


def test_the_defaults_of_4_bits_are_transformers_own() -> None:
    """fp4, fp32 arithmetic, scales that are not packed."""
    keys, problems = quantization_keys({"load_in_4bit": True}, prepared=True)
    assert not problems
    assert keys == {
        "quantization": "nf4",
        "double_quant": False,
        "nf4_compute_dtype": "fp32",
        "upcast_unquantized": True,
    }


def test_8_bits_search_for_outliers() -> None:
    """With the threshold of transformers, unless another is given."""
    keys, _ = quantization_keys({"load_in_8bit": True}, prepared=False)
    assert (keys["int8_threshold"], keys["upcast_unquantized"]) == (6.0, False)
    keys, _ = quantization_keys({"load_in_8bit": True, "llm_int8_threshold": 0}, prepared=False)
    assert keys["int8_threshold"] == 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"load_in_4bits": True}, "is not a field of BitsAndBytesConfig"),
        ({"load_in_8bit": True, "load_in_4bit": True}, "set one of them"),
        ({"load_in_8bit": True, "llm_int8_skip_modules": ["q_proj"]}, "other projections"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "int4"}, "must be 'fp4' or 'nf4'"),
        ({"load_in_4bit": True, "bnb_4bit_compute_dtype": "int8"}, "must be 'float32'"),
        ({"load_in_8bit": True, "llm_int8_threshold": "high"}, "must be a number"),
    ],
)
def test_other_values_are_refused(given: dict[str, Any], sentence: str) -> None:
    """In one sentence that names the field."""
    keys, problems = quantization_keys(given, prepared=True)
    assert not keys
    assert len(problems) == 1
    assert sentence in problems[0]

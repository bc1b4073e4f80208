"""Every key of Axolotl's schemas is in the tables, and keys do what the tables say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.tools.axolotl.launch import FOLDER
from gpu_mem_calculator.tools.reading.tools import file_format
from gpu_mem_calculator.tools.translation.arguments import argument_data, argument_table

from .settings import LEAST, limits, reading

# schema.py enumerates them from the source of the commit that ledger/frameworks.py names.
SCHEMA = json.loads((Path(__file__).parent / "schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SCHEMA)
def test_every_key_is_classified_once(name: str) -> None:
    """No key is missing, and none is in two groups."""
    data = argument_data(name, FOLDER)
    groups = [data["memory"], *data.get("free", ()), *data.get("refused", ())]
    names = [key for group in groups for key in group["names"]]
    assert set(SCHEMA[name]) <= set(names)
    assert len(names) == len(set(names))
    assert all(group.get("why", "").strip() for group in groups[1:])
    assert all(
        row.could in ("less", "more", "either") for row in argument_table(name, FOLDER).values()
    )


def test_a_refused_key_is_a_limit_unless_it_is_off() -> None:
    """Null and false are as if it were not written."""
    assert limits(qat={"weight_dtype": "int8"}) == {"qat": "more"}
    off: Any
    for off in (None, False, []):
        assert limits(relora=off, lora_modules_to_save=off) == {}


def test_an_unknown_key_is_a_problem_with_the_nearest_name() -> None:
    """Axolotl would ignore it without a word."""
    found = reading(context_parapllel_size=2)
    assert found.problems == [
        "context_parapllel_size is not a key of Axolotl 067b021; did you mean "
        "'context_parallel_size'?"
    ]
    nested = reading(fsdp_config={"fsdp_ofload_params": True}, fsdp=["full_shard", "auto_wrap"])
    assert "fsdp_config.ofload_params" in nested.problems[0]


def test_keys_of_a_plugin_need_the_plugin() -> None:
    """merge_input_args: without it, the schema drops them."""
    alone = reading(cut_cross_entropy=True, liger_rope=True)
    assert "training" not in alone.run
    assert "use_liger_kernel" not in alone.run["program"]["args"]
    named = reading(plugins=["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"])
    assert named.run["training"] == {"loss": "cut"}


def test_a_file_with_a_model_type_is_not_a_models() -> None:
    """config.json has this key, too."""
    data = {**LEAST, "model_type": "LlamaForCausalLM"}
    found = file_format(data)
    assert found is not None
    assert found.title == "Axolotl"


def test_keys_of_other_releases() -> None:
    """Unsloth's kernels and ReLoRA's old key are limits; vLLM on a card of its own is free."""
    assert limits(unsloth_rms_norm=True, relora_steps=100) == {
        "unsloth_rms_norm": "either",
        "relora_steps": "more",
    }
    assert limits(relora_warmup_steps=10, kd_zscore_base_temp=1.0, use_dft=True) == {
        "use_dft": "more"
    }
    launch = reading(fsdp_config={"fsdp_version": 2}, fsdp=["full_shard", "auto_wrap"])
    assert launch.problems == []

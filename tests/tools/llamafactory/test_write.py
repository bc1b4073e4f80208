"""LLaMA-Factory's file -> run file -> LLaMA-Factory's file means the same run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.llamafactory.read import read_data
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from tests.tools.writing.runs import plain, run_file, written

COMMON = {
    "model_name_or_path": "qwen2.5-0.5b",
    "stage": "sft",
    "do_train": True,
    "per_device_train_batch_size": 1,
}
METHODS = st.sampled_from(
    [
        {"finetuning_type": "full"},
        {"finetuning_type": "full", "pure_bf16": True},
        {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "q_proj,v_proj"},
        {"finetuning_type": "lora", "lora_dropout": 0.1, "use_dora": True},
        {"finetuning_type": "lora", "quantization_bit": 4, "double_quantization": False},
        {"finetuning_type": "lora", "quantization_bit": 8},
    ]
)
KEYS = st.fixed_dictionaries(
    {"bf16": st.booleans()},
    optional={
        "cutoff_len": st.sampled_from([64, 128]),
        "gradient_accumulation_steps": st.integers(1, 3),
        "flash_attn": st.sampled_from(["sdpa", "disabled"]),
        "disable_gradient_checkpointing": st.booleans(),
        "use_reentrant_gc": st.booleans(),
        "enable_liger_kernel": st.booleans(),
        "optim": st.sampled_from(["adamw_torch", "adamw_8bit", "adafactor"]),
        "deepspeed": st.sampled_from(["ds_z2_config.json", "ds_z3_config.json"]),
    },
)


@settings(max_examples=20)
@given(method=METHODS, keys=KEYS)
def test_a_written_file_means_the_same_run(method: dict[str, Any], keys: dict[str, Any]) -> None:
    """What a file of LLaMA-Factory says is written without a difference."""
    reading = read_data({**COMMON, **method, **keys}, NamedFiles(None))
    data = {**reading.run, "hardware": {"gpu": "h200", "num_gpus": 2}}
    try:
        made = written("llamafactory", plain(data))
    except InputError:
        assume(False)
    assert made.unsaid == ()


def test_what_it_cannot_say_is_a_comment() -> None:
    """A loss of another tool is named above the file."""
    data = run_file(precision="bf16_pure", loss="chunked")
    data["model"] = {"name": "qwen2.5-0.5b"}
    assert any("training.loss" in sentence for sentence in written("llamafactory", data).unsaid)


def test_a_reference_model_is_refused() -> None:
    """Only stage sft is written."""
    data = run_file(precision="bf16_pure", loss="chunked", reference_model=True)
    with pytest.raises(InputError, match="only stage sft"):
        written("llamafactory", data)


def test_rows_are_padded_to_a_multiple_of_8() -> None:
    """A comment says so where the run's length is none."""
    pads = "its collator pads rows to a multiple of 8: 255 tokens to 256"
    assert pads in written("llamafactory", run_file(seq_len=255)).notes
    assert "pads rows" not in written("llamafactory", run_file(seq_len=256)).text

"""Axolotl's settings for tests: the least file, and what is read of it with others."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.tools.axolotl.read import read_data
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading

Data = dict[str, Any]
NO_FILES = NamedFiles(None)
LEAST: Data = {
    "base_model": "meta-llama/Llama-3.2-1B",
    "datasets": [{"path": "mhenrichsen/alpaca_2k_test", "type": "alpaca"}],
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "sequence_len": 2048,
    "learning_rate": 0.0002,
}
LORA: Data = {"adapter": "lora", "lora_r": 16, "lora_target_linear": True}
QLORA: Data = {**LORA, "adapter": "qlora", "load_in_4bit": True}


def reading(**changed: Any) -> Reading:
    """What is read of the least file with these keys."""
    return read_data({**LEAST, **changed}, NO_FILES)


def program(**changed: Any) -> Data:
    """The `program` section of it."""
    found: Data = reading(**changed).run["program"]
    return found


def limits(**changed: Any) -> dict[str, str]:
    """The limits of it with FlashAttention: each key, and how the run could differ."""
    found = reading(**{"attn_implementation": "flash_attention_2", **changed})
    return {one.key.partition("=")[0]: one.could for one in found.limits}

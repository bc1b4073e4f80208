"""Commands of text-generation-launcher."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from tests.tools.reading_of import reading_of

MODEL = "text-generation-launcher --model-id Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        (f"{MODEL} --num-shard 2", {"tensor_parallel_size": 2}),
        (f"{MODEL} --sharded false", {"tensor_parallel_size": 1}),
        (f"CUDA_VISIBLE_DEVICES=0,1,2,3 {MODEL}", {"tensor_parallel_size": 4}),
        (f"{MODEL} --quantize eetq", {"quantization": "int8"}),
        (f"{MODEL} --quantize bitsandbytes-nf4", {"quantization": "nf4"}),
        (f"{MODEL} --kv-cache-dtype fp8_e5m2", {"kv_cache_dtype": "fp8"}),
        (f"{MODEL} --dtype float16", {"dtype": "fp16"}),
        (f"{MODEL} --max-input-length 10", {"max_input_tokens": 10}),
        (f"{MODEL} --max-total-tokens 20", {"max_total_tokens": 20}),
        (f"{MODEL} --max-batch-prefill-tokens 99", {"max_num_batched_tokens": 99}),
        (f"{MODEL} --cuda-memory-fraction 0.5", {"gpu_memory_utilization": 0.5}),
        (f"{MODEL} --cuda-graphs 0", {"cuda_graphs": [0]}),
        (f"CUDA_GRAPHS=1,2 {MODEL}", {"cuda_graphs": [1, 2]}),
        (f"{MODEL} --enable-prefill-logprobs", {"enable_prefill_logprobs": True}),
        (f"{MODEL} --speculate 3", {"speculative_method": "ngram", "num_speculative_tokens": 3}),
        (f"MAX_CONCURRENT_REQUESTS=7 {MODEL}", {"max_num_seqs": 7}),
    ],
)
def test_an_option_or_variable_is_a_key(line: str, keys: dict[str, Any]) -> None:
    """Each option sets a key; each is also a variable in upper case."""
    reading = reading_of(line)
    assert not reading.problems
    assert reading.run["inference"].items() >= keys.items()


def test_the_model_may_be_a_variable() -> None:
    """MODEL_ID names it; without it, the launcher has a model of its own."""
    line = "MODEL_ID=Qwen/Qwen3-8B REVISION=main text-generation-launcher"
    assert reading_of(line).run["model"] == {"name": "Qwen/Qwen3-8B", "revision": "main"}
    assert reading_of("text-generation-launcher").run["model"]["name"] == "bigscience/bloom-560m"


def test_limits_and_unknown_options() -> None:
    """Adapters take more; a shortened option is none of the launcher's."""
    reading = reading_of(f"{MODEL} --lora-adapters a,b --quantize exl2 --max-concurrent 4")
    assert {one.could for one in reading.limits} == {"more", "either"}
    assert "--max-concurrent is not an option" in reading.problems[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--quantize q9", "--quantize='q9' must be one of awq"),
        ("--dtype float32", "--dtype='float32'"),
        ("--num-shard two", "--num-shard='two'"),
        ("--cuda-graphs a,b", "--cuda-graphs"),
    ],
)
def test_wrong_values_get_a_sentence(options: str, sentence: str) -> None:
    """A value that the launcher refuses is refused here."""
    with pytest.raises(InputError, match=sentence):
        reading_of(f"{MODEL} {options}")

"""Commands of servers: read back, they are the same server, byte by byte."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator import serving
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.servers.write import MEANINGS, moved_to
from gpu_mem_calculator.tools.writing.unsaid import same_server
from gpu_mem_calculator.tools.writing.writers import write_run
from tests.tools.reading_of import readings_of

from .runs import Data, resolved, written

HARDWARE = {"gpu": "h100", "num_gpus": 2}
SIZES = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel_size": st.just(2),
        "max_seq_len": st.sampled_from([4096, 8192]),
        "max_num_seqs": st.sampled_from([16, 64]),
        "gpu_memory_utilization": st.sampled_from([0.8, 0.9]),
        "enforce_eager": st.booleans(),
        "kv_cache_dtype": st.just("fp8"),
        "quantization": st.just("fp8"),
        "max_num_batched_tokens": st.just(4096),
    },
)
# Keys that one of the servers has.
OWN = {
    "vllm": {
        "max_lora_rank": st.just(16),
        "max_loras": st.just(2),
        "enable_prefix_caching": st.booleans(),
        "enable_chunked_prefill": st.booleans(),
        "block_size": st.sampled_from([16, 32]),
        "max_cudagraph_capture_size": st.just(64),
        "cpu_offload_gb": st.just(2),
        "pipeline_parallel_size": st.just(2),
        "dtype": st.sampled_from(["bf16", "fp16"]),
    },
    "sglang": {
        "max_lora_rank": st.just(16),
        "max_loras": st.just(2),
        "chunked_prefill_size": st.sampled_from([2048, 8192]),
        "cuda_graph_max_bs": st.sampled_from([8, 64]),
        "page_size": st.sampled_from([1, 64]),
        "max_total_tokens": st.just(20_000),
        "disable_radix_cache": st.booleans(),
        "dtype": st.sampled_from(["bf16", "fp16"]),
    },
}
SERVERS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            find_spec(f"gpu_mem_calculator.tools.{name}") is None, reason="it has no reader"
        ),
    )
    for name in ("vllm", "sglang", "tgi", "tensorrt_llm")
]


def server(name: str, **keys: Any) -> Data:
    """A server of an 8B model."""
    inference = {"engine": name, **keys}
    return {"model": {"name": "llama3.1-8b"}, "inference": inference, "hardware": HARDWARE}


@pytest.mark.parametrize("name", SERVERS)
@settings(max_examples=25)
@given(keys=SIZES, data=st.data())
def test_a_command_reads_back_to_the_same_server(name: str, keys: Data, data: Any) -> None:
    """Wherever the server takes these keys at all. llama-server's command names a file."""
    keys = data.draw(st.fixed_dictionaries({}, optional=OWN.get(name, {}))) | keys
    try:
        file, run = resolved(server(name, **keys))
    except InputError:
        assume(False)
    made = write_run(name, file, run)
    if "PATH-OF-AN-FP8-CHECKPOINT" in made.text:  # trtllm-serve takes such weights from it alone
        assert keys["quantization"] == "fp8"
        return
    assert not made.unsaid
    with TemporaryDirectory() as folder:
        for beside, text in made.beside.items():
            (Path(folder) / beside).write_text(text, encoding="utf-8")
        words = shlex.split(made.text.replace("\\\n", " "), comments=True)
        (reading,) = readings_of(words, Path(folder))
    assert (reading.problems, reading.limits) == ([], [])
    _, back = resolved({**reading.run, "hardware": HARDWARE, "model": {"name": "llama3.1-8b"}})
    assert same_server(run, back)


@pytest.mark.parametrize("name", ["vllm", "sglang", "tgi", "tensorrt_llm", "llamacpp"])
def test_a_server_is_moved(name: str) -> None:
    """Keys that both have are kept; a line says where their meaning differs, others are named."""
    keys = {"max_seq_len": 8192, "gpu_memory_utilization": 0.8, "engine_version": "0.11.0"}
    made = written(name, server("vllm", **keys))
    assert "8192" in made.text.partition("\n#")[2] + made.text
    file, _ = resolved(server("vllm", **keys))
    moved, dropped, differing = moved_to(name, file)
    assert moved.inference is not None
    assert moved.inference.engine == name
    share = "inference.gpu_memory_utilization=0.8"
    assert moved.inference.gpu_memory_utilization == (None if name == "llamacpp" else 0.8)
    assert any(one.startswith(share) for one in dropped) == (name == "llamacpp")
    assert any(one.startswith(share) for one in differing) == (name in ("sglang", "tensorrt_llm"))
    assert len(dropped) == {"vllm": 0, "llamacpp": 2}.get(name, 1)


SHARES = {"vllm": "--gpu-memory-utilization", "tgi": "--cuda-memory-fraction"}
SHARES |= {"sglang": "--mem-fraction-static", "tensorrt_llm": "--kv_cache_free_gpu_memory_fraction"}


@pytest.mark.parametrize("before", SHARES)
@pytest.mark.parametrize("name", SHARES)
def test_the_share_of_the_card_is_kept(before: str, name: str) -> None:
    """Every server has an option for it."""
    made = written(name, server(before, gpu_memory_utilization=0.8))
    words = made.text.replace("\\\n", " ").split()
    assert words[words.index(SHARES[name]) + 1] == "0.8"
    assert not any("gpu_memory_utilization" in one for one in made.unsaid)


def test_a_limit_of_one_request_stays_one() -> None:
    """TGI's max_total_tokens is a length; that of SGLang and TensorRT-LLM is of the whole cache."""
    assert "--max-model-len 4096" in written("vllm", server("tgi", max_total_tokens=4096)).text
    made = written("tgi", server("sglang", max_total_tokens=4096))
    assert "--max-total-tokens" not in made.text
    assert any("of the whole KV cache in SGLang" in one for one in made.unsaid)
    assert "of all slots together" in written("vllm", server("llamacpp", max_seq_len=8192)).text


def test_a_key_that_differs_has_a_meaning_in_each_server_that_has_it() -> None:
    """A server without a row has no meaning to compare."""
    for key, meanings in MEANINGS.items():
        servers = map(serving.server, serving.server_names())
        names = {one.name for one in servers if key in one.options}
        add = f"tools/servers/tables.toml: [write.{key}] needs a row for exactly {sorted(names)}"
        assert set(meanings) == names, add

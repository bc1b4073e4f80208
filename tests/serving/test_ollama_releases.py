"""What each release of Ollama chooses by itself: context, slots, flash attention, graphs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import gpu_mem_calculator
from gpu_mem_calculator.ledger.frameworks import OLLAMA
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.models.families import FILES
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.run.weights.gguf import UNREAD
from gpu_mem_calculator.runfile.resolve.resolve_inference import resolve_inference
from gpu_mem_calculator.serving import STARTERS
from gpu_mem_calculator.serving.llamacpp.engine import placed_layout
from gpu_mem_calculator.serving.llamacpp.ollama import is_counted
from gpu_mem_calculator.serving.llamacpp.ollama_graphs import GRAPHS, SHARES, graph_sizes
from gpu_mem_calculator.serving.llamacpp.ollama_releases import family_of
from gpu_mem_calculator.serving.llamacpp.options import ollama_release, server_layout
from gpu_mem_calculator.serving.llamacpp.row import ROW
from gpu_mem_calculator.tools.read import read
from tests.tools.reading_of import reading_of


def run_of(model: str, release: str | None = None, gib: float = 24, **options: Any) -> Run:
    """A run of `engine: ollama` on one card."""
    inference = {"engine": "ollama", "quantization": "q4_k_m", **options}
    if release:
        inference["ollama_version"] = release
    hardware = {"gpu_memory_bytes": int(gib * GIB), "num_gpus": 1}
    data = {"model": {"name": model}, "inference": inference, "hardware": hardware}
    return resolve_inference(read(data).file).run


def test_the_newest_release_is_the_one_that_is_cited() -> None:
    """One release for the tables of the tool and for the server."""
    path = Path(gpu_mem_calculator.__file__).parent / "tools" / "ollama" / "variables.toml"
    assert STARTERS["ollama"][2] == tomllib.loads(path.read_text(encoding="utf-8"))["release"]
    assert OLLAMA.version == "fb30760"


def test_every_family_has_a_graph_or_a_refusal() -> None:
    """A family without a row is not taken for another one: its run is refused by name."""
    families = {name for names in FILES.values() for name in names.split()}
    served = families - set(UNREAD.split()) - set(ROW.no_code)
    missing = {one for one in served if one not in GRAPHS and one not in SHARES}
    assert all(not is_counted(one, (0, 9, 0)) for one in missing)
    assert not GRAPHS.keys() & SHARES


@pytest.mark.parametrize(
    ("release", "gib", "context", "slots"),
    [
        ("0.1.48", 24, 2048, 1),
        ("0.5.7", 24, 2048, 4),
        ("0.5.7", 6.3, 2048, 1),
        ("0.6.8", 24, 4096, 2),
        ("0.10.0", 24, 4096, 1),
        ("0.15.4", 80, 4096, 1),
        ("0.15.5", 8, 4096, 1),
        ("0.15.5", 24, 32768, 1),
        ("0.15.5", 80, 131072, 1),
        (None, 24, 32768, 1),
    ],
)
def test_defaults(release: str | None, gib: float, context: int, slots: int) -> None:
    """Tokens of a request by release and memory, and as many requests at once as fit."""
    layout = placed_layout(run_of("llama3.1-8b", release, gib))
    assert (layout.context, layout.slots) == (context * slots, slots)


def test_gpt_oss_has_at_least_8192_tokens_until_0_15() -> None:
    """A shorter default is raised."""
    assert placed_layout(run_of("gpt-oss-20b", "0.11.4")).context == 8192


def test_slots_that_are_given_share_the_context_that_is_given() -> None:
    """As a command's OLLAMA_NUM_PARALLEL does: the context is that of all slots."""
    layout = placed_layout(run_of("llama3.1-8b", "0.6.8", n_parallel=4, max_seq_len=16384))
    assert (layout.context, layout.slots) == (16384, 4)


@pytest.mark.parametrize(
    ("release", "part", "full"),
    [("0.11.2", 4096, 2048), ("0.11.3", 2048, 2048), ("0.11.5", 1024, 1024), ("0.11.8", 122, 122)],
)
def test_graph_of_gpt_oss(release: str, part: int, full: int) -> None:
    """MiB of the graph that a release counts for 8,192 tokens; flash attention since 0.11.8."""
    run = run_of("gpt-oss-20b", release, max_seq_len=8192, n_parallel=1)
    found = ollama_release(run.options)
    assert found is not None
    assert graph_sizes(server_layout(run), found)[1:] == (part * MIB, full * MIB)


@pytest.mark.parametrize(
    ("model", "release", "given", "on"),
    [
        ("gpt-oss-20b", "0.11.2", True, False),
        ("gpt-oss-20b", "0.11.5", True, True),
        ("qwen3-8b", "0.12.2", None, False),
        ("qwen3-8b", "0.12.4", None, True),
        ("gemma2-9b", "0.12.4", True, False),
        ("gemma3-12b-it", "0.12.4", None, False),
        ("gemma3-12b-it", "0.12.6", None, True),
    ],
)
def test_flash_attention(model: str, release: str, given: bool | None, on: bool) -> None:
    """On by default for some families since a release, and off for some where it is asked for."""
    options = {} if given is None else {"flash_attn": given}
    layout = server_layout(run_of(model, release, n_parallel=1, **options))
    assert layout.flash is on


def test_a_quantized_cache_without_flash_attention_is_fp16() -> None:
    """Ollama warns and goes on."""
    run = run_of("qwen3-8b", "0.9.0", kv_cache_dtype="int8", n_parallel=1)
    assert server_layout(run).keys == "F16"
    run = run_of("qwen3-8b", "0.9.0", kv_cache_dtype="int8", n_parallel=1, flash_attn=True)
    assert server_layout(run).keys == "Q8_0"


@pytest.mark.parametrize("release", ["0.5.7", "0.6.8", "0.12.6", "0.15.5", None])
def test_a_command_and_a_run_file_are_the_same_server(release: str | None) -> None:
    """`check ollama run` and `infer --engine ollama`."""
    data = reading_of("ollama run llama3.1:8b").run
    extra = {"ollama_version": release} if release else {}
    data["inference"] |= extra
    data["hardware"] = {"gpu_memory_bytes": 24 * GIB, "num_gpus": 1}
    assert placed_layout(resolve_inference(read(data).file).run) == placed_layout(
        run_of("llama3.1-8b", release)
    )


@pytest.mark.parametrize(("context", "layers"), [(131072, 0), (65536, 37)])
def test_the_tower_is_counted_until_a_gpu_has_room(context: int, layers: int) -> None:
    """Mistral Small 3.1 is mistral3 in Ollama's library: a graph that is a share of the cache, and
    a tower of 0.8 and 8.8 GiB that each GPU must have room for until one has (ollama/ollama#10615).
    """
    inference = {"quantization": "q4_k_m", "max_seq_len": context, "n_parallel": 1}
    data = {
        "model": {"name": "mistral-small-3.1-24b"},
        "inference": {"engine": "ollama", "ollama_version": "0.6.8", **inference},
        "hardware": {"gpu": "4090", "num_gpus": 2, "available_memory_bytes": int(23.3 * GIB)},
    }
    layout = placed_layout(resolve_inference(read(data).file).run)
    assert layout.gpu_layers == layers


def test_a_model_that_sees_is_another_architecture() -> None:
    """The releases of its own engine go by the architecture of the file."""
    assert family_of(run_of("qwen3-vl-30b-a3b").arch) == "qwen3_vl_moe"
    assert family_of(run_of("qwen3-30b-a3b").arch) == "qwen3_moe"

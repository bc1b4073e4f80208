"""What SGLang chooses by itself: figures that its logs print."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.run.weights.rank_weights import reserved_bytes
from gpu_mem_calculator.serving.sglang.defaults import (
    CardMemory,
    chunked_prefill_size,
    cuda_graph_max_bs,
    decode_sizes,
    mem_fraction_static,
    prefill_sizes,
)
from gpu_mem_calculator.serving.sglang.options import SglangOptions, vision_factor
from gpu_mem_calculator.serving.sglang.speculative import draft_depth
from gpu_mem_calculator.serving.sglang.versions import Version

from .vllm_servers import run

H100, H200, L4, B200 = 81559, 143771, 23034, 183359  # MiB, as nvidia-smi says


def share(version: Version, mib: int, graph: int | None = None, tp: int = 1) -> float:
    """mem_fraction_static of a plain server."""
    card = CardMemory(version=version, mib=mib, tp=tp)
    chunk = chunked_prefill_size(card)
    captured = len(prefill_sizes(chunk)) if version >= (0, 5, 10) else 0
    return mem_fraction_static(card, chunk, graph or cuda_graph_max_bs(card), captured)


@pytest.mark.parametrize(
    ("version", "mib", "graph", "tp", "printed"),
    [
        ((0, 4, 3), H100, 160, 1, 0.88),
        ((0, 4, 3), L4, 80, 4, 0.85),
        ((0, 4, 9), H100, 160, 1, 0.874),
        ((0, 5, 2), H100, 160, 1, 0.874),
        ((0, 5, 4), H100, 4, 1, 0.841),
        ((0, 5, 10), H100, 4, 1, 0.836),
        ((0, 5, 3), H200, 512, 8, 0.897),
    ],
)
def test_the_share_of_logs(version: Version, mib: int, graph: int, tp: int, printed: float) -> None:
    """mem_fraction_static as server_args prints it."""
    assert share(version, mib, graph, tp) == pytest.approx(printed, abs=1e-9)


@pytest.mark.parametrize("mib", [100_000, H200, 170_000])
def test_0_4_6_leaves_18_gib_of_large_cards_free(mib: int) -> None:
    """From 96 GiB to 180,000 MiB; larger cards have a fixed share."""
    assert share((0, 4, 6), mib, 160) == pytest.approx((mib - 18 * 1024) / mib, abs=1e-9)
    assert share((0, 4, 6), B200, 160) == 0.79


@pytest.mark.parametrize(
    ("version", "mib", "tp", "chunk", "graph"),
    [
        ((0, 4, 3), L4, 1, 2048, 8),
        ((0, 4, 3), L4, 4, 2048, 80),
        ((0, 4, 3), H100, 1, 8192, 160),
        ((0, 5, 0), 16303, 1, 2048, 8),
        ((0, 5, 3), 46068, 1, 4096, 32),
        ((0, 5, 3), H200, 8, 8192, 512),
        ((0, 5, 18), L4, 1, 2048, 24),
        ((0, 5, 19), L4, 1, 2048, 24),
        ((0, 5, 20), L4, 1, 4096, 48),
        ((0, 5, 23), L4, 4, 4096, 160),
        ((0, 5, 18), B200, 1, 16384, 512),
    ],
)
def test_chunks_and_graphs(version: Version, mib: int, tp: int, chunk: int, graph: int) -> None:
    """chunked_prefill_size and cuda_graph_max_bs by the card."""
    card = CardMemory(version=version, mib=mib, tp=tp)
    assert (chunked_prefill_size(card), cuda_graph_max_bs(card)) == (chunk, graph)


def test_graphs_of_logs() -> None:
    """13 of QwQ-32B on L4s, 4 of a 24 GB card, 36 and 52 of large ones, 58 of prefill."""
    old, new = (
        CardMemory(version=(0, 4, 3), mib=L4, tp=4),
        CardMemory(version=(0, 5, 3), mib=H200, tp=8),
    )
    assert len(decode_sizes(old, 80, 2049)) == 13
    assert decode_sizes(CardMemory(version=(0, 4, 9), mib=L4, tp=1), 8, 2048) == (1, 2, 4, 8)
    assert len(decode_sizes(new, 256, 4096)) == 36
    assert len(decode_sizes(new, 512, 4096)) == 52
    assert max(decode_sizes(new, 512, 100)) == 100
    assert len(prefill_sizes(8192)) == 58


@pytest.mark.parametrize(
    ("model", "ahead", "depth"),
    [
        ("llama3.1-8b", None, (5, 4, 8)),
        ("deepseek-v3", None, (3, 1, 4)),
        ("llama3.1-8b", 4, (3, 1, 4)),
        ("llama3.1-8b", 1, (1, 1, 1)),
    ],
)
def test_a_draft_runs_ahead_by_the_family(
    model: str, ahead: int | None, depth: tuple[int, int, int]
) -> None:
    """Passes, candidates and verified tokens, unless the run says how many tokens."""
    keys: dict[str, Any] = {"engine": "sglang", "speculative_method": "ngram"}
    keys |= {"num_speculative_tokens": ahead} if ahead else {}
    found = draft_depth(run(model, "h200-141gb-sxm", **keys))
    assert (found.steps, found.branches, found.tokens) == depth


def test_towers_take_from_the_share() -> None:
    """Qwen2.5-VL-7B: 0.874 becomes 0.784 (24 layers of 1280 for SGLang), 0.5 % off here."""
    tower = 12 * 24 * 1280**2
    assert 0.874 * vision_factor((0, 4, 10), tower) == pytest.approx(0.7836, rel=0.005)
    assert vision_factor((0, 4, 3), tower) == 0.95


def test_segments() -> None:
    """24.5 MiB take 26; two of 8 MiB share 20, with space for one of 3; small ones share 2."""
    assert reserved_bytes([int(24.5 * MIB)]) == 26 * MIB
    assert reserved_bytes([8 * MIB, 8 * MIB, 3 * MIB]) == 20 * MIB
    assert reserved_bytes([8 * MIB, 8 * MIB, 5 * MIB]) == 40 * MIB
    assert reserved_bytes([8192] * 256) == 2 * MIB
    assert reserved_bytes([8192] * 257) == 4 * MIB
    assert reserved_bytes([]) == 0


def setting(name: str, version: str, **inference: Any) -> SglangOptions:
    """The choices of a server at a release."""
    chosen = {"engine": "sglang", "engine_version": version, **inference}
    return SglangOptions(run=run(name, **chosen))


def test_graphs_follow_the_requests_and_latents_follow_the_chunk() -> None:
    """From 0.5.22 and 0.5.23 on, where the run names neither."""
    largest = [setting("llama3.1-8b", f"0.5.{n}", max_num_seqs=16).largest_graph for n in (21, 22)]
    assert largest == [256, 16]
    given = setting("llama3.1-8b", "0.5.23", max_num_seqs=16, cuda_graph_max_bs=64)
    assert given.largest_graph == 64
    prefill = [max(setting("deepseek-v2-lite", f"0.5.{n}").prefill_sizes) for n in (22, 23)]
    assert prefill == [2048, 8192]

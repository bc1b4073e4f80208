"""What a step has outside the layers: the embedding's gradient, masks, workspaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.ledger import Entry
from gpu_mem_calculator.pytorch.autograd.reductions import embedding_sort_workspace
from gpu_mem_calculator.training.step.model_inputs import _remakes_output

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
}
GPT_NEO = {
    "model_type": "gpt_neo",
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 4,
    "vocab_size": 1000,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 16,
    "max_position_embeddings": 64,
}


def entries(config: dict[str, Any], **training: Any) -> dict[str, Entry]:
    """The entries of a small run, by name."""
    run = {"model": {"config": config}, "training": {"batch_size": 2, "seq_len": 64, **training}}
    return {entry.name: entry for entry in full_estimate(run).ledger.entries}


def kept(config: dict[str, Any], **training: Any) -> dict[str, Any]:
    """What a layer keeps for backward, by name."""
    return dict(entries(config, **training)["dense layers: kept for backward"].parts)


def test_a_tied_gradient_that_autocast_cast_back_is_summed_in_place() -> None:
    """The head's gradient is a view in a pure run, and a new tensor under autocast."""
    added = "embedding: its gradient and the head's, added"
    assert added in entries(LLAMA, precision="bf16_pure")
    assert added not in entries(LLAMA, precision="bf16_mixed")


def test_few_indices_are_not_sorted() -> None:
    """The embedding's backward sorts from 3,073 indices on."""
    sizes = embedding_sort_workspace(np.array([3072, 3073]), 49152, 6144)
    assert sizes[0] == 0
    assert sizes[1] == 40 * 3073 + (307 + 3073) * (8 + 4 * 6144)


def test_one_key_value_head_is_expanded_without_a_copy() -> None:
    """A sliding window needs a mask, which needs as many keys as queries; one head is a view."""
    config = LLAMA | {"model_type": "mistral", "sliding_window": 16}
    one = kept(config, precision="bf16_pure")
    two = kept(config | {"num_key_value_heads": 2}, precision="bf16_pure")
    assert "attn.k_repeated" in two
    assert "attn.k_repeated" not in one


def test_fp16_scores_are_cast_inside_the_softmax() -> None:
    """torch's kernel reads fp16 and writes fp32; bf16 is cast first, and its gradient is fp32."""
    fp16, bf16 = (
        entries(LLAMA, precision=precision, attention="eager")["dense layers: at work"]
        for precision in ("fp16_pure", "bf16_pure")
    )
    maps = 2 * 64 * 64 * 4
    assert bf16.bytes - fp16.bytes == maps * 2


def test_windows_from_a_buffer_share_one_mask() -> None:
    """GPT-Neo's local layers take their window from a buffer."""
    masks = entries(GPT_NEO, precision="bf16_pure")["attention masks"]
    assert masks.bytes == 2 * 64 * 64 * 2


@pytest.mark.parametrize(
    ("scaled", "tables", "dropout", "remade"),
    [(True, 1, 0.0, True), (False, 2, 0.1, True), (False, 2, 0.0, False), (False, 1, 0.1, False)],
)
def test_an_embeddings_output_is_made_again(
    scaled: bool, tables: int, dropout: float, remade: bool
) -> None:
    """Where it is scaled, or added to positions and dropped from."""
    arch = SimpleNamespace(embedding=[None] * tables, embedding_dropout=dropout)
    setting: Any = SimpleNamespace(quirks=SimpleNamespace(scaled_embedding=scaled))
    run: Any = SimpleNamespace(arch=arch)
    assert _remakes_output(run, setting) == remade

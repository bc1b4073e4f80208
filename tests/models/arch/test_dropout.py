"""Dropout modules that are off."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.models.arch.variants import without_dropout
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read

GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000}
OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
}


def test_gpt2_has_modules() -> None:
    """All rates are 0; the parameters stay."""
    arch = read_config(GPT2)
    off = without_dropout(arch)
    assert off.num_parameters == arch.num_parameters
    assert arch.embedding_dropout > off.embedding_dropout == 0.0
    assert {layer.mixer.dropout for layer in off.layers} == {0.0}  # type: ignore[union-attr]
    assert {layer.mlp.dropout for layer in off.layers} == {0.0}  # type: ignore[union-attr]


def test_opt_has_functions() -> None:
    """They keep their rates."""
    arch = read_config(OPT)
    assert without_dropout(arch) == arch


@pytest.mark.parametrize(("model", "less"), [(GPT2, True), (OPT, False)])
def test_a_run_without_dropout_keeps_no_masks(model: dict[str, object], less: bool) -> None:
    """And adapters have none either."""
    peaks = []
    for off in (False, True):
        training = {"disable_dropout": off, "seq_len": 128, "batch_size": 4, "optimizer": "sgd"}
        found = resolve(read({"model": {"config": model}, "training": training}).file)
        peaks.append(int(found.engine.ledger(found.run).heights()["loss"]))
    assert (peaks[1] < peaks[0]) == less
    lora = {"lora": {"r": 4, "dropout": 0.1}, "disable_dropout": True}
    adapter = resolve(read({"model": {"config": model}, "training": lora}).file).run.adapter
    assert adapter is not None
    assert adapter.dropout == 0.0

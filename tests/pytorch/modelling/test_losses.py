"""Losses and Liger's kernels: what the head takes for a logit, and runs that were measured."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.pytorch.autograd.walk import BlockWalk
from gpu_mem_calculator.pytorch.modelling.huggingface.fused_losses import liger_chunk
from gpu_mem_calculator.pytorch.modelling.huggingface.head import head_walk
from gpu_mem_calculator.pytorch.modelling.huggingface.layer import layer_walk
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.pytorch_ddp.options import PRECISIONS
from gpu_mem_calculator.training.step.activations import setting
from tests.conftest import SMALL_LLAMA

BATCH, SEQ, HIDDEN, VOCAB = 2, 512, 64, 30_000
CONFIG = {
    **SMALL_LLAMA,
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
MIXED, PURE, FP32 = "bf16_mixed", "bf16_pure", "fp32"


def found(family: str = "llama", **training: Any) -> Any:
    """A resolved run of a small model."""
    sizes = {"batch_size": BATCH, "seq_len": SEQ, **training}
    model = {"config": {**CONFIG, "model_type": family}}
    data = {"model": model, "training": sizes, "hardware": {"gpu": "h200", "num_gpus": 1}}
    return resolve(read(data).file).run


def head(**training: Any) -> BlockWalk:
    """The walk over its head."""
    run = found(**training)
    return head_walk(setting(run, PRECISIONS[run.precision]), run.arch)


# loss, precision: bytes for each logit at the highest moment of forward and of backward
LOGIT_BYTES = {
    ("full", MIXED): (10, 12),
    ("full", PURE): (10, 12),
    ("full", FP32): (8, 12),
    ("full_no_upcast", MIXED): (8, 10),
    ("full_no_upcast", PURE): (4, 6),
    ("flash_fused", MIXED): (6, 8),
    ("flash_fused_inplace", MIXED): (6, 6),
    ("flash_fused_inplace", FP32): (4, 4),
    ("flash_fused_no_upcast", MIXED): (2, 4),
    ("flash_fused_no_upcast", PURE): (2, 4),
    ("liger", MIXED): (6, 6),
    ("liger", PURE): (6, 6),
    ("cut", MIXED): (0, 0),
    ("cut", PURE): (0, 0),
}


@pytest.mark.parametrize(("loss", "precision"), LOGIT_BYTES)
def test_bytes_of_a_logit(loss: str, precision: str) -> None:
    """Weights and hidden states are small beside the logits."""
    walk, logits = head(loss=loss, precision=precision), BATCH * SEQ * VOCAB
    forward, backward = LOGIT_BYTES[loss, precision]
    assert int(walk.forward.act) / logits == pytest.approx(forward, abs=0.5)
    assert int(walk.backward.act) / logits == pytest.approx(backward, abs=0.5)


@pytest.mark.parametrize(
    ("batch", "precision", "forward", "backward"),
    [(2, MIXED, 16, 12), (1, MIXED, 12, 12), (2, PURE, 8, 8), (1, PURE, 6, 8), (2, FP32, 16, 12)],
)
def test_smoothed_labels(batch: int, precision: str, forward: int, backward: int) -> None:
    """One sequence needs no copy without its last token."""
    walk = head(label_smoothing=0.1, precision=precision, batch_size=batch)
    logits = batch * SEQ * VOCAB
    assert int(walk.forward.act) / logits == pytest.approx(forward, abs=0.6)
    assert int(walk.backward.act) / logits == pytest.approx(backward, abs=0.6)


@pytest.mark.parametrize(
    ("tokens", "vocab", "hidden", "chunk"),
    [
        (16_384, 32_000, 4096, 2048),
        (8192, 128_256, 2048, 256),
        (777, 32_000, 1024, 32),
        (5, 8, 64, 5),
    ],
)
def test_tokens_of_a_chunk(tokens: int, vocab: int, hidden: int, chunk: int) -> None:
    """The first row is Liger's own example."""
    assert liger_chunk(tokens, vocab, hidden) == chunk


def test_liger_saves_gradients_and_returns_them() -> None:
    """Forward has both gradients and one chunk; backward allocates no other."""
    walk = head(loss="liger_fused", precision=PURE)
    weight, hidden = VOCAB * HIDDEN * 2, BATCH * SEQ * HIDDEN * 2
    saved = dict(walk.saved)
    assert (saved["loss.weight_grad"], saved["loss.input_grad"]) == (weight, hidden)
    chunk = liger_chunk(BATCH * SEQ, VOCAB, HIDDEN)
    assert int(walk.forward.temp) == chunk * VOCAB * 2
    assert int(walk.backward.grad) == weight + HIDDEN * 2  # and the norm's
    assert int(walk.backward.temp) < weight


def test_autocast_casts_the_weight_twice() -> None:
    """Once for the cache, and its transpose for each chunk."""
    walk = head(loss="liger_fused", precision=MIXED)
    cast = VOCAB * HIDDEN * 2
    logits = liger_chunk(BATCH * SEQ, VOCAB, HIDDEN) * (VOCAB + HIDDEN) * 2
    assert int(walk.forward.temp) == cast + logits
    assert int(walk.forward.act) >= 3 * cast  # with the fp32 gradient


def test_a_tile_of_the_chunked_loss() -> None:
    """Smaller tiles take less, in both directions."""
    wide, narrow = (head(loss="chunked", loss_chunk_size=n, precision=PURE) for n in (8192, 1024))
    tile = BATCH * (SEQ - 1) * 2
    assert int(wide.forward.temp) - int(narrow.forward.temp) == tile * (8192 - 1024)
    assert int(wide.backward.temp) - int(narrow.backward.temp) == tile * (8192 - 1024)


def test_the_chunked_loss_skips_tokens_without_a_label() -> None:
    """Its tile, and what it saves, have a row for each label."""
    whole, few = (head(loss="chunked", labelled_tokens=n, precision=PURE) for n in (None, 10))
    assert int(whole.saved_bytes) > int(few.saved_bytes)
    assert dict(few.saved)["loss.picked"] == BATCH * 10 * HIDDEN * 2
    assert int(whole.forward.temp) - int(few.forward.temp) == BATCH * (SEQ - 11) * (32768 * 2 + 28)


@pytest.mark.parametrize(("loss", "precision"), LOGIT_BYTES)
def test_a_loss_is_one_number(loss: str, precision: str) -> None:
    """In fp32, unless the logits stay in 16 bits."""
    events = head(loss=loss, precision=precision).script
    assert events is not None
    assert events.sizes[events.exit] == (2 if (loss, precision) == ("full_no_upcast", PURE) else 4)


def kept(family: str, *kernels: str, precision: str = MIXED) -> int:
    """Bytes that a layer keeps for backward."""
    run = found(family, liger=list(kernels), precision=precision)
    walk = layer_walk(setting(run, PRECISIONS[precision]), run.arch.layers[0])
    return int(walk.saved_bytes)


def test_a_norm_keeps_its_input_and_a_number_for_each_row() -> None:
    """The layer has two norms; transformers' keeps its input, a product and a number, in fp32."""
    rows, wide = BATCH * SEQ, BATCH * SEQ * HIDDEN * 4
    # the first norm's input is the layer's; the second's is the sum after attention
    assert kept("llama") - kept("llama", "rms_norm") == 2 * (wide + rows * 4) - 2 * rows * 4


def test_a_gate_keeps_what_the_projections_return() -> None:
    """transformers keeps the activation's result, too; a fused projection is copied."""
    inner = BATCH * SEQ * int(CONFIG["intermediate_size"]) * 2
    assert kept("llama") - kept("llama", "swiglu") == inner
    assert kept("phi3") - kept("phi3", "swiglu") == inner


def test_rotary_in_place_keeps_nothing() -> None:
    """transformers' tables belong to the model, and its copies are not saved."""
    assert kept("llama", "rope") == kept("llama")


# Measured on an H200 with transformers' Trainer 5.17.0, liger-kernel 0.8.5, torch 2.11
MEASURED = [
    ("llama3.2-1b", {"batch_size": 4, "seq_len": 2048, "liger": True}, 31_850_361_344),
    ("qwen2.5-0.5b", {"batch_size": 4, "seq_len": 1024, "label_smoothing": 0.1}, 23_535_885_824),
]


@pytest.mark.parametrize(("name", "training", "allocated"), MEASURED)
def test_measured_runs(name: str, training: dict[str, Any], allocated: int) -> None:
    """bf16 under autocast with fused AdamW."""
    given = {"precision": MIXED, "optimizer_implementation": "fused", **training}
    hardware = {"gpu": "h200", "num_gpus": 1}
    run = {"model": {"name": name}, "training": given, "hardware": hardware}
    assert estimate(run).allocated_bytes == pytest.approx(allocated, rel=0.0005)

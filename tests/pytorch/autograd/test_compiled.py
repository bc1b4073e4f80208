"""A compiled model: what torch's partitioner saves, the peak of a measured run, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.run.phases import BACKWARD, FORWARD, OPTIMIZER
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.pytorch_ddp.options import PRECISIONS
from gpu_mem_calculator.training.step.activations import StageWalks, setting, walks
from gpu_mem_calculator.training.step.layer_groups import layer_groups
from tests.streams import highest, rolled_and_written

STEP = (FORWARD, BACKWARD, OPTIMIZER)
SHAPE = {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "head_dim": 64}
SHAPE |= {"num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 32000}
LLAMA = {"model_type": "llama", "tie_word_embeddings": True, **SHAPE}
QWEN3 = {"model_type": "qwen3", "tie_word_embeddings": False, **SHAPE}
KIB = 1024
# KiB that torch 2.13's min_cut_rematerialization_partition saves in a middle layer, batch 2,
# sequence 512, autocast to bf16: activations, then casts of weights.
SAVED = [1024, 4, 512, 512, 512, 512, 512, 16, 1024, 4, 512, 2048, 2048, 2048]
WEIGHTS = [128, 64, 64, 128, 512, 512, 512]
NORMS_OF_Q_AND_K = [512, 16, 256, 8]


def _run(config: dict[str, Any], **training: Any) -> ResolvedRun:
    given = {"batch_size": 2, "seq_len": 512, "compile": True, **training}
    hardware = {"num_gpus": 1, "gpu": "h200"}
    return resolve(
        read({"model": {"config": config}, "training": given, "hardware": hardware}).file
    )


def _walks(config: dict[str, Any], **training: Any) -> StageWalks:
    run = _run(config, **training).run
    groups = layer_groups(run, 0, len(run.arch.layers))
    return walks(run, setting(run, PRECISIONS[run.precision]), groups)


@pytest.mark.parametrize(
    ("config", "more"), [(LLAMA, []), (QWEN3, NORMS_OF_Q_AND_K)], ids=["llama", "qwen3"]
)
def test_saves_what_the_partitioner_saves(config: dict[str, Any], more: list[int]) -> None:
    """Each tensor that a layer keeps, and the head's: logits in 16 bits, two numbers a token."""
    found = _walks(config)
    kept = sorted(int(size) // KIB for _, size in found.layers[0].saved)
    assert kept == sorted([*SAVED, *WEIGHTS, *more])
    head = sorted(int(size) // KIB for _, size in found.head.saved)
    assert head == sorted([1024, 4, 512, 16000, 64000, 8])


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"precision": "bf16_pure", "activation_checkpointing": "full"},
        {"lora": {"r": 8}, "gradient_accumulation_steps": 2},
    ],
)
def test_stream_reaches_the_ledger(training: dict[str, Any]) -> None:
    """The stream of a compiled run is as high as its ledger, to the byte."""
    ledger, asked = rolled_and_written(_run(LLAMA, **training))
    assert highest(asked) == int(ledger.peak(phases=STEP))


@pytest.mark.parametrize(
    ("precision", "elements"), [("bf16_mixed", 32000 * 256), ("bf16_pure", 2 * 512 * 32000)]
)
def test_what_waits_for_a_tied_table(precision: str, elements: int) -> None:
    """The head's gradient in 16 bits; where no cast is needed, the gradient of the logits, because
    inductor makes one kernel of the matmul and the sum.
    """
    found = _walks(LLAMA, precision=precision)
    script = found.head.script
    assert script.sizes[script.shared] == elements * 2


def test_note_on_reused_buffers() -> None:
    """A checkpointed run says how much inductor may keep: three tensors of 1,024 x 1,024."""
    (limit,) = _run(LLAMA, activation_checkpointing="full").limits
    assert (limit.adds_bytes, limit.saves_bytes) == (6 * 2**20, 0)
    assert not _run(LLAMA).limits


def test_measured_run() -> None:
    """transformers.Trainer with torch_compile on an H200, torch 2.11: Llama of 1.2 billion
    parameters, batch 2, sequence 1,024, bf16 autocast: 21,426 MiB.
    """
    config = {**LLAMA, "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32}
    config |= {"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256}
    training = {"batch_size": 2, "seq_len": 1024, "compile": True}
    training["optimizer_implementation"] = "fused"
    file = {"model": {"config": config}, "training": training}
    result = estimate({**file, "hardware": {"num_gpus": 1, "gpu": "h200"}})
    assert result.allocated_bytes == pytest.approx(21426 * MIB, rel=0.002)


@pytest.mark.parametrize(
    ("training", "engine", "words"),
    [
        ({"compile": "reduce-overhead"}, {}, "CUDA graphs keep memory of their own"),
        ({"attention": "eager"}, {}, "training.attention='eager'"),
        ({"liger": True}, {}, "training.liger"),
        ({"use_cache": True}, {}, "training.use_cache=true"),
        ({}, {"type": "fsdp"}, "is not modelled under"),
        ({"activation_checkpointing": "selective"}, {}, "training.recompute='selective'"),
    ],
)
def test_refused(training: dict[str, Any], engine: dict[str, Any], words: str) -> None:
    """One sentence for what is not modelled together with torch.compile."""
    given = {"batch_size": 1, "seq_len": 512, "compile": True, **training}
    hardware = {"num_gpus": 2, "gpu": "h200"}
    file = {"model": {"config": LLAMA}, "training": given, "engine": engine, "hardware": hardware}
    with pytest.raises(InputError, match=words):
        resolve(read(file).file)

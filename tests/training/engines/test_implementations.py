"""Other projects' modelling code, and FSDP units around embedding and head."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.streams import highest, rolled_and_written

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1536,
    "vocab_size": 4096,
}
STEP = ("forward", "backward", "optimizer")


def found(
    training: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    implementation: str = "torchtitan",
    **config: Any,
) -> ResolvedRun:
    """A small Llama on eight ranks of FSDP, unless `engine` says otherwise."""
    file = {
        "model": {"config": LLAMA | config, "implementation": implementation},
        "training": {"batch_size": 2, "seq_len": 64, **(training or {})},
        "engine": {"type": "fsdp", **(engine or {})},
        "hardware": {"gpu": "h200", "num_gpus": 8},
    }
    return resolve(read(file).file)


def kept(ledger: Ledger) -> dict[str, int]:
    """Bytes of what a middle layer keeps for backward, by tensor."""
    entry = next(e for e in ledger.entries if e.name == "dense layers: kept for backward")
    sums: dict[str, int] = {}
    for name, size in entry.parts:
        sums[name] = sums.get(name, 0) + int(size)
    return sums


def test_torchtitan_keeps_no_wide_copy_of_a_norms_input() -> None:
    """torch's RMS norm saves its 16-bit input, which the layer has anyway; transformers' an fp32
    copy. Both keep the same tensors of the feed-forward block.
    """
    own, usual = (
        kept(run.engine.ledger(run.run)) for run in (found(), found(implementation="transformers"))
    )
    rows, row = 2 * 64, 512
    assert own["layer.input"] == rows * row * 2
    assert "layer.input" not in usual
    assert sum(usual.values()) - sum(own.values()) == 2 * rows * row * (4 + 2 - 2)
    assert {n: b for n, b in own.items() if "mlp." in n} == {
        n: b for n, b in usual.items() if "mlp." in n
    }


@pytest.mark.parametrize(
    ("training", "engine", "implementation"),
    [
        ({}, {}, "torchtitan"),
        ({"activation_checkpointing": "full", "seq_len": 1024}, {}, "torchtitan"),
        ({"gradient_accumulation_steps": 2}, {"sharding_strategy": "shard_grad_op"}, "torchtitan"),
        (
            {"gradient_accumulation_steps": 2, "precision": "fp32"},
            {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 4},
            "torchtitan",
        ),
        ({"seq_len": 1024}, {"wrap_embedding_and_head": True}, "transformers"),
        ({}, {"wrap_embedding_and_head": False}, "torchtitan"),
    ],
)
def test_a_stream_is_as_high_as_its_ledger(
    training: dict[str, Any], engine: dict[str, Any], implementation: str
) -> None:
    """With units of embedding and head, too."""
    run = found(training, engine, implementation)
    ledger, stream = rolled_and_written(run, steps=3)
    assert highest(stream) == ledger.peak(phases=STEP)


def test_units_of_embedding_and_head_are_gathered_for_their_own_work() -> None:
    """While layers run, neither is whole; the head reduces before the layers do."""
    run = found()
    ledger = run.engine.ledger(run.run)
    whole = 4096 * 512 * 2
    gathered = {e.name: e for e in ledger.entries if "gathered parameters" in e.name}
    embedding = gathered["embedding: gathered parameters"]
    head = gathered["head: gathered parameters"]
    assert int(embedding.bytes) == whole
    assert int(head.bytes) == whole + 512 * 2
    assert set(head.live) == {"gather.head", "loss", "loss.backward"}
    assert set(embedding.live) == {"gather.embedding", "embedding.backward"}
    scatter = next(e for e in ledger.entries if e.name == "head: sharded gradients")
    first = next(i.name for i in ledger.instants if i.name.startswith("backward."))
    assert scatter.live[first] == 1


REFUSED = [
    ({}, {"type": "deepspeed"}, {}, "not modelled with DeepSpeed"),
    ({"lora": {"r": 8}}, {}, {}, "has no LoRA"),
    ({"attention": "eager"}, {}, {}, "set training.attention to sdpa"),
    ({}, {}, {"tie_word_embeddings": True}, "tied embeddings"),
    ({}, {}, {"model_type": "gpt2"}, "use a model of llama, or leave it out"),
    ({}, {"cpu_offload": True}, {}, "not modelled; leave one of them out"),
]


@pytest.mark.parametrize(("training", "engine", "config", "sentence"), REFUSED)
def test_what_torchtitan_lacks_is_refused(
    training: dict[str, Any], engine: dict[str, Any], config: dict[str, Any], sentence: str
) -> None:
    """One sentence, with a way out."""
    with pytest.raises(InputError, match=sentence):
        found(training, engine, **config)


def test_megatrons_code_belongs_to_its_engine() -> None:
    """`megatron` is no implementation of an FSDP run."""
    with pytest.raises(InputError, match="runs transformers code; leave it out"):
        found(implementation="megatron")


def nanotron(**training: Any) -> ResolvedRun:
    """A small Llama at TP 2, PP 2, with sequence parallelism."""
    file = {
        "model": {"config": LLAMA, "implementation": "nanotron"},
        "training": {"batch_size": 2, "seq_len": 128, "gradient_accumulation_steps": 4} | training,
        "engine": {"type": "megatron_lm", "distributed_optimizer": True},
        "parallelism": {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "sequence_parallel": True,
        },
        "hardware": {"gpu": "h100", "num_gpus": 8},
    }
    return resolve(read(file).file)


def test_nanotron_keeps_an_unfused_swiglu() -> None:
    """Gate and up, the activation, and their product: 4 ffn, where Megatron's kernel keeps 3."""
    run = nanotron()
    parts = kept(run.engine.ledger(run.run))
    half = 2 * 128 * 1536 // 2 * 2  # tokens x ffn / tp, 2 bytes
    assert parts["gate_up_proj"] == 2 * half
    assert parts["mlp.silu"] == parts["mlp.product"] == half


def test_nanotrons_head_holds_the_logits_twice_in_fp32() -> None:
    """The loss's peak has the fp32 logits and the softmax, and no 16-bit logits."""
    run = nanotron()
    last = run.engine.ledger(replace(run.run, stage=1))
    logits = 2 * 128 * 4096 // 2
    work = [e for e in last.entries if e.name == "final norm, logits and loss"]
    forward = next(e for e in work if "loss" in e.live)
    assert 8 * logits < int(forward.bytes) < 8.6 * logits


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("level", ["none", "full"])
def test_nanotrons_streams_are_as_high_as_their_ledgers(stage: int, level: str) -> None:
    """In both stages of a pipeline."""
    run = nanotron(activation_checkpointing=level)
    ledger, stream = rolled_and_written(run, stage, steps=3)
    assert highest(stream) == ledger.peak(phases=STEP)


def test_nanotron_refuses_megatrons_choices() -> None:
    """Selective recompute, and Transformer Engine's layers."""
    with pytest.raises(InputError, match="has no such switch"):
        nanotron(activation_checkpointing="selective")

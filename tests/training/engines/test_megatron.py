"""Megatron-LM: shards, stages, and the measured runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.ledger.mesh import Mesh
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.families.plain import read_plain
from gpu_mem_calculator.pytorch.modelling.megatron.layer import layer_walk
from gpu_mem_calculator.pytorch.modelling.megatron.ops import MegatronSetting
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.training.engines.megatron_deepspeed.engine import (
    ENGINE as MEGATRON_DEEPSPEED,
)
from gpu_mem_calculator.training.engines.megatron_lm.engine import ENGINE
from gpu_mem_calculator.training.engines.megatron_lm.options import LIBRARY
from gpu_mem_calculator.training.engines.megatron_lm.shards import local_vocab
from gpu_mem_calculator.training.step.chunks import chunk_passes, chunks_in_flight

GPT: dict[str, Any] = {
    "num_layers": 24,
    "hidden_size": 2304,
    "num_attention_heads": 24,
    "num_key_value_heads": 24,
    "intermediate_size": 9216,
    "gated_mlp": False,
    "normalization": "layernorm",
    "position_embedding": "learned",
    "bias": True,
    "dropout": 0.1,
    "vocab_size": 51200,
    "max_seq_len": 2048,
}
LLAMA: dict[str, Any] = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_seq_len": 4096,
}
EXPERTS = LLAMA | {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 14336}
UNFUSED = {
    "transformer_implementation": "local",
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
    **LIBRARY,
}


def arch(**numbers: Any) -> Arch:
    """The architecture of Llama 8B, with some numbers changed."""
    return read_plain(LLAMA | numbers)


def run(model: Arch | None = None, *, options: dict[str, Any] | None = None, **rest: Any) -> Run:
    """A run, by default of one micro-batch on one rank."""
    axes = {axis: rest.pop(axis) for axis in ("dp", "tp", "pp", "cp", "ep") if axis in rest}
    values = {"batch": 1, "seq": 4096, "micro_batches": 1, "precision": "bf16_mixed"} | rest
    return Run(arch=model or arch(), mesh=Mesh(**axes), options=options or {}, **values)


def named(ledger: Ledger, name: str) -> int:
    """Bytes of the entries of one name."""
    return sum(int(e.bytes) for e in ledger.entries if e.name == name)


MEASURED = {
    # numbers, run, options, allocated, at start-up: one H200, megatron-core 0.19.2, torch 2.11
    "mg-1.7b-tp1": (GPT, {"seq": 2048}, {}, 53_778_250_240, 17_988_468_224),
    "mg-1.7b-tp1-selective": (
        GPT,
        {"seq": 2048, "recompute": "selective"},
        {},
        39_376_598_528,
        17_988_468_224,
    ),
    "mg-22b6l-tp8-sp": (
        GPT
        | {
            "num_layers": 6,
            "hidden_size": 6144,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "intermediate_size": 24576,
        },
        {"seq": 2048, "batch": 4, "tp": 8, "sequence_parallel": True},
        {},
        16_122_677_760,
        4_401_405_440,
    ),
    "mg-llama8b-tp4-sp-dp8": (
        LLAMA,
        {"tp": 4, "dp": 8, "sequence_parallel": True, "recompute": "selective"},
        {"distributed_optimizer": True},
        22_526_009_344,
        16_063_668_736,
    ),
    "mg-llama8b-tp2-pp4-dp8": (
        LLAMA,
        {
            "tp": 2,
            "pp": 4,
            "dp": 8,
            "sequence_parallel": True,
            "recompute": "selective",
            "micro_batches": 8,
        },
        {"distributed_optimizer": True},
        23_357_531_648,
        9_083_159_040,
    ),
}


@pytest.mark.parametrize("row", MEASURED)
def test_measured_run(row: str) -> None:
    """Peak and start-up are within half a percent of what was measured, and nothing is refused."""
    numbers, settings, options, allocated, startup = MEASURED[row]
    case = run(read_plain(numbers), options=UNFUSED | options, implementation="foreach", **settings)
    ledger = ENGINE.ledger(case)
    assert list(ENGINE.problems(case)) == []
    assert ledger.peak() == pytest.approx(allocated, rel=0.005)
    assert ledger.peak(phases=("startup",)) == pytest.approx(startup, rel=0.005)


def test_korthikanti_layer() -> None:
    """With the fused softmax a layer keeps 34 sbh/t + 5 as²b/t, beside norm statistics."""
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    numbers = {"hidden_size": h, "num_attention_heads": a, "num_key_value_heads": a}
    layer = read_plain(GPT | numbers | {"intermediate_size": 4 * h}).layers[0]
    setting = MegatronSetting(
        batch=b,
        seq=s,
        hidden=h,
        tp=t,
        sequence_parallel=True,
        fused_softmax=True,
        transformer_engine=False,
    )
    walk = layer_walk(setting, layer)
    statistics = sum(size for name, size in walk.saved if "statistics" in name)
    assert walk.saved_bytes - statistics == 34 * s * b * h // t + 5 * a * s * s * b // t


def test_gpt3_states() -> None:
    """GPT-3 at tp 8, pp 16 holds 18 bytes a parameter: 24.1 GiB without the learned positions."""
    gpt3 = read_plain(
        GPT
        | {
            "num_layers": 96,
            "hidden_size": 12288,
            "num_attention_heads": 96,
            "num_key_value_heads": 96,
            "intermediate_size": 49152,
        }
    )
    case = run(gpt3, tp=8, pp=16, seq=2048, micro_batches=16)
    ledger = ENGINE.ledger(case)
    states = ("parameters", "main gradients", "main weights", "adamw states")
    assert sum(named(ledger, n) for n in states) == 18 * ENGINE.parameters(case)
    assert 18 * (ENGINE.parameters(case) - 2048 * 12288) / 2**30 == pytest.approx(24.1, abs=0.05)


def test_tied_copy_on_the_last_stage() -> None:
    """A tied output layer is a second table only where the last stage is not the first."""
    tied = arch(tie_word_embeddings=True)
    assert ENGINE.parameters(run(tied)) == tied.num_parameters
    stages = [ENGINE.parameters(run(tied, pp=4, stage=p)) for p in range(4)]
    assert sum(stages) == tied.num_parameters + 128256 * 4096


def test_vocabulary_padding() -> None:
    """The script pads the vocabulary to a multiple of 128 × tp, megatron-core does not."""
    model = arch(vocab_size=50257)
    plain = ENGINE.parameters(run(model, options=LIBRARY))
    assert ENGINE.parameters(run(model)) - plain == 2 * (50304 - 50257) * 4096


@pytest.mark.parametrize("engine", [ENGINE, MEGATRON_DEEPSPEED])
def test_gpt3_at_tp_8_is_padded(engine: Any) -> None:
    """50,257 tokens do not divide by 8: each rank has 6,400 rows of 51,200."""
    gpt3 = read_plain(GPT | {"vocab_size": 50257})
    case = run(gpt3, tp=8, seq=2048)
    assert list(engine.problems(case)) == []
    assert local_vocab(case) == 51200 // 8


def test_first_stage_is_busiest() -> None:
    """Under 1F1B a middle stage holds less than the one before it."""
    peaks = [ENGINE.ledger(run(pp=4, micro_batches=8, stage=p)).peak() for p in range(3)]
    assert peaks[0] > peaks[1] > peaks[2]


def test_micro_batches_bound_the_flight() -> None:
    """No more micro-batches wait than there are."""
    assert [chunks_in_flight(8, 0, m, 1, 8) for m in (1, 4, 8, 16)] == [1, 4, 8, 8]


def test_interleaving_holds_more() -> None:
    """Two chunks a rank keep more layers in flight than one."""
    plain, woven = (
        ENGINE.ledger(run(pp=4, micro_batches=16, virtual_stages=v)).peak() for v in (1, 2)
    )
    assert woven > plain
    assert chunks_in_flight(4, 0, 16, 2, 4) == 11  # 2 × 3 + 1 × 4 + 1, of 4 layers each
    assert [chunk_passes(11, 4, 2, c, 16) for c in (0, 1)] == [7, 4]


def test_sequence_parallel_shards_what_is_between_matmuls() -> None:
    """Sequence parallelism divides a layer's input by tp; without it the input is whole."""
    setting = MegatronSetting(batch=1, seq=4096, hidden=4096, tp=4)
    sharded = MegatronSetting(batch=1, seq=4096, hidden=4096, tp=4, sequence_parallel=True)
    layer = arch().layers[0]
    assert layer_walk(setting, layer).input_bytes == 4 * layer_walk(sharded, layer).input_bytes
    assert layer_walk(setting, layer).saved_bytes > layer_walk(sharded, layer).saved_bytes


def test_distributed_optimizer_shards_over_dp_and_cp() -> None:
    """Main weights and states are sharded over dp × cp; gradients stay whole."""
    whole = ENGINE.ledger(run(dp=4, cp=2))
    spread = ENGINE.ledger(run(dp=4, cp=2, options={"distributed_optimizer": True}))
    for name in ("main weights", "adamw states"):
        assert named(spread, name) == named(whole, name) // 8
    assert named(spread, "main gradients") == named(whole, "main gradients")


def test_experts_are_sharded_over_ep() -> None:
    """Expert parallelism leaves 1 / ep of the experts, and of nothing else."""
    model = read_plain(EXPERTS)
    experts = 32 * 8 * 3 * 4096 * 14336
    assert model.num_parameters - ENGINE.parameters(run(model, ep=4, dp=4)) == experts * 3 // 4


def test_recompute_orders() -> None:
    """Full recompute keeps less than selective, selective less than none, in both specs."""
    for options in ({"transformer_implementation": "local"}, {}):
        peaks = [
            ENGINE.ledger(
                run(
                    batch=4,
                    recompute=r,
                    options=options,
                    tp=8,
                    pp=8,
                    sequence_parallel=True,
                    micro_batches=8,
                )
            ).peak()
            for r in ("none", "selective", "full")
        ]
        assert peaks[0] > peaks[1] > peaks[2]


def test_fp16_gradients() -> None:
    """fp16 reduces in fp16, bf16 in fp32, by default."""
    half = named(ENGINE.ledger(run(precision="fp16_mixed")), "main gradients")
    wide = run(precision="fp16_mixed", options={"accumulate_allreduce_grads_in_fp32": True})
    assert named(ENGINE.ledger(run()), "main gradients") == 2 * half
    assert named(ENGINE.ledger(wide), "main gradients") == 2 * half


def test_stage_outputs_are_deallocated() -> None:
    """Megatron-LM's default saves one residual stream a micro-batch in flight."""
    keep = {"deallocate_pipeline_outputs": False}
    more, less = (ENGINE.ledger(run(pp=4, micro_batches=8, options=o)).peak() for o in (keep, {}))
    assert more - less == 4 * 2 * 4096 * 4096


@pytest.mark.parametrize("numbers", [LLAMA, EXPERTS])
def test_arrays_equal_scalars(numbers: dict[str, Any]) -> None:
    """A whole search space at once gives each run's own figures."""
    model = read_plain(numbers)
    rows = [(t, p, d, s) for t in (1, 4) for p in (1, 4) for d in (1, 8) for s in range(p)]
    tp, pp, dp, stage = np.array(rows, dtype="int64").T
    shared = {"micro_batches": 8, "sequence_parallel": True, "recompute": "selective"}
    many = ENGINE.ledger(run(model, tp=tp, pp=pp, dp=dp, stage=stage, **shared))
    for index, (t, p, d, s) in enumerate(rows):
        one = ENGINE.ledger(run(model, tp=t, pp=p, dp=d, stage=s, **shared))
        assert one.peak() == many.peak()[index]
        assert one.peak(phases=("startup",)) == many.peak(phases=("startup",))[index]

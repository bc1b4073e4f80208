"""Megatron-DeepSpeed: what a rank trains, what its layers keep, ZeRO's limits, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.stage_replay import replay_stage, with_block_rounding
from gpu_mem_calculator.ledger.ledger import CPU, Ledger
from gpu_mem_calculator.ledger.mesh import Mesh
from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.families.plain import read_plain
from gpu_mem_calculator.pytorch.modelling.megatron.ops import MegatronSetting
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.megatron_deepspeed.engine import ENGINE, OPTIONS
from gpu_mem_calculator.training.engines.megatron_deepspeed.layer import head_walk, layer_walk
from gpu_mem_calculator.training.engines.megatron_deepspeed.shards import rank_arch, vectors
from gpu_mem_calculator.training.engines.megatron_lm.options import LIBRARY
from tests.conftest import measured_runs
from tests.training.engines.test_megatron import EXPERTS, GPT, LLAMA

WIDE = GPT | {
    "num_layers": 4,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 8192,
}
SETTING = MegatronSetting(
    batch=1, seq=2048, hidden=2048, transformer_engine=False, fused_softmax=False
)


def run(numbers: dict[str, Any] = LLAMA, **rest: Any) -> Run:
    """A run of one micro-batch on one rank unless said otherwise."""
    axes = {axis: rest.pop(axis) for axis in ("dp", "tp", "pp", "ep") if axis in rest}
    options = OPTIONS | LIBRARY | rest.pop("options", {})
    values = {"batch": 1, "seq": 4096, "micro_batches": 1, "precision": "bf16_mixed"} | rest
    return Run(arch=read_plain(numbers), mesh=Mesh(**axes), options=options, **values)


def named(ledger: Ledger, name: str) -> int:
    """Bytes of the largest entry of a name."""
    return max(int(e.bytes) for e in ledger.entries if e.name == name)


def sizes(arch: Arch) -> list[int]:
    """Elements of every parameter, in order."""
    return [int(weight.numel) for weight in arch.weights()]


@pytest.mark.parametrize("row", measured_runs("megatron_deepspeed"), ids=lambda row: row["id"])
def test_a_rank_trains_the_parameters_that_were_measured(row: dict[str, Any]) -> None:
    """Shards, stages, and the positions that a tied last stage builds beside its table."""
    found = resolve(read(row["config"]).file).run
    stage = row["rank"] // int(found.mesh.dp * found.mesh.tp)
    assert ENGINE.parameters is not None
    assert ENGINE.parameters(replace(found, stage=stage)) == row["rank_parameters"]


def test_a_layer_keeps_what_was_measured() -> None:
    """A GPT layer of 2,048 tokens: 584 MiB and four rows of statistics, seen on an H200."""
    layer = read_plain(WIDE).layers[0]
    assert layer_walk(SETTING, layer).saved_bytes == 584 * MIB + 4 * 2048 * 4


def test_bias_and_gelu_are_no_fused_kernel() -> None:
    """Forward has seven tensors of the activation's size beside its result, backward five."""
    layer = read_plain(
        WIDE | {"dropout": 0.0, "num_attention_heads": 1, "num_key_value_heads": 1}
    ).layers[0]
    made = layer_walk(replace(SETTING, seq=64), layer)
    assert made.forward.temp == 7 * 64 * 8192 * 2


def test_the_head_keeps_an_fp32_softmax() -> None:
    """The logits' own copies go before backward; without a pipeline there is one more."""
    norm = read_plain(WIDE).final_norm
    assert norm is not None
    area = 2048 * 51200 * 4
    alone, piped = (
        head_walk(SETTING, norm, 51200, tied=False, piped=piped) for piped in (False, True)
    )
    assert alone.saved_bytes == piped.saved_bytes
    assert alone.saved_bytes - area == 2 * 2048 * 2048 * 2 + 2 * 2048 * 4 + 2048 * 9
    assert alone.forward.temp - piped.forward.temp == area


def test_matrices_are_one_group_and_vectors_another() -> None:
    """DeepSpeed flattens two buffers, each padded to twice the ranks."""
    case = run(WIDE, dp=64, seq=512, options={"zero_stage": 2})
    every = sizes(rank_arch(case))
    small = vectors(rank_arch(case))
    groups = [sum(n for n in every if (n in small) is apart) for apart in (False, True)]
    padded = sum(-(-total // 128) * 128 for total in groups)
    assert named(ENGINE.ledger(case), "parameters") == 2 * padded
    assert 2048 in small
    assert 2048 * 2048 not in small


def test_a_sub_group_of_stage_3_has_a_thousand_million_elements() -> None:
    """The step's fp32 gradients are those of the largest sub-group, which is full at 1e9."""
    case = run(dp=2, options={"zero_stage": 3})
    group = most = 0
    for size in sizes(rank_arch(case)):
        if group >= 1_000_000_000:
            group = 0
        group += -(-size // 2)
        most = max(most, group)
    assert most < sum(sizes(rank_arch(case))) // 2
    assert named(ENGINE.ledger(case), "sub-group's fp32 gradients") == 4 * most


def test_stage_3_gathers_a_thousand_million_elements_and_one_prefetch() -> None:
    """At most 1e9 elements, and what one fetch adds to them, are gathered; no fewer than that."""
    gathered = named(ENGINE.ledger(run(dp=8, options={"zero_stage": 3})), "gathered parameters")
    most = max(sizes(rank_arch(run())))
    assert 2 * 1_000_000_000 <= gathered <= 2 * (1_000_000_000 + 2 * most)


def test_each_zero_stage_holds_less() -> None:
    """Each stage holds less of the states than the one before."""
    options = {"reduce_bucket_size": 1000}
    case = run(tp=4, dp=8, sequence_parallel=True, recompute="full")
    peaks = [
        ENGINE.ledger(replace(case, options={**case.options, **options, "zero_stage": z})).peak()
        for z in range(4)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


def test_zero_offload_moves_states_to_the_host() -> None:
    """Masters, states, gradients and 16-bit copies of a slice, and a staging buffer: host RAM."""
    case = run(dp=8, options={"zero_stage": 2, "offload_optimizer": "cpu"})
    every = sizes(rank_arch(case))
    slices = 18 * sum(every) / 8
    assert ENGINE.ledger(case).peak(CPU) == pytest.approx(slices + 2 * max(every), rel=1e-6)


def test_the_last_stage_keeps_logits_of_two_micro_batches() -> None:
    """The PipelineEngine has two places at least, and its last stage frees no output."""
    name = "logits of earlier micro-batches, in fp32"
    for micro, kept in ((1, 1), (2, 2), (8, 2)):
        made = ENGINE.ledger(run(WIDE, seq=512, micro_batches=micro, options={"zero_stage": 1}))
        (entry,) = (e for e in made.entries if e.name == name)
        assert entry.bytes == 4 * 512 * 51200
        assert set(entry.live.values()) == {kept}


def test_stages_send_parts_of_tensors_with_tensor_parallelism() -> None:
    """Each rank of two receives half of a residual stream, one buffer for both directions."""
    name = "activations or gradients received"
    for tp in (1, 2):
        case = run(tp=tp, pp=4, stage=1, micro_batches=8, options={"zero_stage": 1})
        assert named(ENGINE.ledger(case), name) == 4096 * 4096 * 2 // tp


def test_a_tied_last_stage_builds_positions_too() -> None:
    """Its copy of the table comes as a whole embedding (TiedLayerSpec)."""
    case = run(WIDE, seq=512, pp=2, stage=1, options={"zero_stage": 1})
    tied, untied = (
        named(
            ENGINE.ledger(replace(case, arch=read_plain(WIDE | {"tie_word_embeddings": t}))),
            "parameters",
        )
        for t in (True, False)
    )
    assert tied - untied == 2 * 2048 * 2048


@pytest.mark.parametrize("stage", range(4))
def test_arrays_equal_scalars(stage: int) -> None:
    """Many batches, ranks and micro-batches at once give each run's own figures."""
    rows = [(1, 2, 1), (2, 4, 2), (3, 8, 8)]
    batch, dp, micro = np.array(rows, dtype="int64").T
    shared = {"tp": 2, "seq": 512, "options": {"zero_stage": stage}}
    many = ENGINE.ledger(run(WIDE, batch=batch, dp=dp, micro_batches=micro, **shared))
    for index, (b, d, m) in enumerate(rows):
        one = ENGINE.ledger(run(WIDE, batch=b, dp=d, micro_batches=m, **shared))
        assert one.peak() == many.peak()[index]


@pytest.mark.parametrize("place", ["none", "cpu"])
def test_arrays_of_pipelines_equal_scalars(place: str) -> None:
    """First, second and last stages of several pipelines at once, also where one ties a table."""
    arch = LLAMA | {"tie_word_embeddings": True, "num_layers": 8}
    sizes, micro = np.array([2, 4, 8]), np.array([1, 2, 16])
    stages = np.stack([0 * sizes, 0 * sizes + 1, sizes - 1])
    shared = {"tp": 2, "seq": 512, "options": {"zero_stage": 1, "offload_optimizer": place}}
    many = ENGINE.ledger(run(arch, pp=sizes, stage=stages, micro_batches=micro, **shared))
    heights = many.peak()
    for index, (pp, m) in enumerate(zip(sizes.tolist(), micro.tolist(), strict=True)):
        for row, stage in enumerate((0, 1, pp - 1)):
            one = ENGINE.ledger(run(arch, pp=pp, stage=stage, micro_batches=m, **shared))
            assert one.peak() == heights[row, index]


def test_arrays_of_shards_are_refused() -> None:
    """Tensor-parallel sizes decide what the model is, so each has its ledger."""
    with pytest.raises(ValueError, match="need a ledger each"):
        ENGINE.ledger(run(WIDE, tp=np.array([1, 2])))


REFUSED = [
    (LLAMA, {"pp": 2, "options": {"zero_stage": 2}}, "zero_stage=2 does not go with"),
    (LLAMA, {"options": {"zero_stage": 4}}, "is not a ZeRO stage; try 0, 1, 2 or 3"),
    (LLAMA, {"options": {"offload_optimizer": "cpu"}}, "needs ZeRO; try zero_stage 1"),
    (LLAMA, {"pp": 2, "virtual_stages": 2, "micro_batches": 2}, "does not interleave; set it to 1"),
    (LLAMA, {"options": {"zero_stage": 3, "offload_optimizer": "nvme"}}, "try 'cpu' or 'none'"),
    (LLAMA, {"options": {"transformer_implementation": "transformer_engine"}}, "its own layers"),
    (LLAMA, {"optimizer": "lion"}, "only fused Adam is; try zero_stage 1"),
    (LLAMA, {"implementation": "foreach"}, "fused optimizers; leave it out"),
    (EXPERTS, {}, "has experts, which Megatron+DeepSpeed runs in DeepSpeed's MoE layer"),
]


@pytest.mark.parametrize(("numbers", "how", "said"), REFUSED)
def test_refusal(numbers: dict[str, Any], how: dict[str, Any], said: str) -> None:
    """One sentence for what Megatron-DeepSpeed does not run, or what is not modelled of it."""
    (problem,) = ENGINE.problems(run(numbers, **how))
    assert said in problem


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("factor", [0.5, 0.9, 0.97, 1.05, 1.3])
def test_a_count_of_parameters_that_is_not_the_architectures(
    zero_stage: int, factor: float
) -> None:
    """Ledger and replay have the same scaled shards; stage 3 gathers them."""
    own = read_plain(WIDE).num_parameters
    data = {
        "model": WIDE | {"num_parameters": int(own * factor)},
        "training": {"batch_size": 1, "seq_len": 2048},
        "parallelism": {"tensor_parallel_size": 2, "data_parallel_size": 2},
        "engine": {"type": "megatron_deepspeed", "zero_stage": zero_stage},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 4},
    }
    found = resolve(read(data).file)
    ledger = found.engine.ledger(found.run)
    replayed = replay_stage(found, 0, ledger)
    assert replayed is not None
    with_block_rounding(ledger, replayed)
    arch = rank_arch(found.run)
    layer = arch.layers[0]
    held = sum(size for group in layer.modules for module in group for size in module)
    assert held == sum(int(weight.numel) for weight in layer.weights())

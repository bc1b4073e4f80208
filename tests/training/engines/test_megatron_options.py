"""Megatron-LM's losses, Transformer Engine, experts and optimizer instances."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.ledger.units import GIB, KIB, MIB
from gpu_mem_calculator.pytorch.autograd.tape import Tape
from gpu_mem_calculator.pytorch.autograd.walk import walk
from gpu_mem_calculator.pytorch.modelling.megatron.head import head_walk
from gpu_mem_calculator.pytorch.modelling.megatron.layer import moe, routed_rows
from gpu_mem_calculator.pytorch.modelling.megatron.ops import MegatronSetting
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.megatron_lm.engine import ENGINE
from gpu_mem_calculator.training.engines.megatron_lm.parameters import stage_tensors
from gpu_mem_calculator.training.engines.megatron_lm.states import stage_shard, stepped_parts
from gpu_mem_calculator.training.losses import LOSSES, MEGATRON
from gpu_mem_calculator.training.step.pipeline import pipeline_stage
from gpu_mem_calculator.training.step.workspaces import config_bytes
from tests.conftest import small_run

from .test_megatron import EXPERTS, LLAMA, UNFUSED, arch, named, read_plain, run

VOCAB, HIDDEN, TOKENS = 32_064, 8192, 4096


@pytest.mark.parametrize(
    ("loss", "in_place", "forward", "backward"),
    [
        (
            "full",
            False,
            6.0,
            6.0,
        ),  # logits in 16 bits and fp32; then the softmax and a 16-bit gradient
        ("megatron_fused", False, 6.0, 10.0),  # a second fp32 tensor in backward
        ("te_fused", False, 6.0, 6.0),  # an fp32 gradient in the place of the softmax
        ("te_fused", True, 2.0, 2.5),  # the logits themselves, and their input's gradient
    ],
)
def test_bytes_of_a_logit(loss: str, in_place: bool, forward: float, backward: float) -> None:
    """What each loss holds in 16 bits."""
    setting = MegatronSetting(
        batch=1,
        seq=TOKENS,
        hidden=HIDDEN,
        bits=16,
        fused_weight_gradients=True,
        loss_in_place=in_place,
    )
    walk = head_walk(setting, None, VOCAB, LOSSES[loss].kernels[MEGATRON], shared=False)
    logits = TOKENS * VOCAB
    sums = [p.act + p.grad + p.temp - walk.input_bytes for p in (walk.forward, walk.later)]
    assert [int(size) / logits for size in sums] == pytest.approx([forward, backward], abs=0.02)


def test_in_fp32_the_logits_are_the_softmax() -> None:
    """No loss but Transformer Engine's new one makes another fp32 tensor in forward."""
    setting = MegatronSetting(batch=1, seq=TOKENS, hidden=HIDDEN, bits=32)
    for name, row in LOSSES.items():
        if MEGATRON not in row.kernels:
            continue
        walk = head_walk(setting, None, VOCAB, row.kernels[MEGATRON], shared=False)
        copies = 2 if name == "te_fused" else 1
        wanted = copies * 4 * TOKENS * VOCAB + walk.input_bytes
        assert int(walk.forward.act) == pytest.approx(wanted, rel=1e-3)


def test_the_loss_of_a_version() -> None:
    """Transformer Engine's loss was in place before 2.18."""
    peaks = {}
    for version in ("2.11", "2.17", "2.18", "2.99"):
        case = run(loss="te_fused", options={"transformer_engine_version": version})
        peaks[version] = int(ENGINE.ledger(case).peak())
    assert peaks["2.11"] == peaks["2.17"] < peaks["2.18"] == peaks["2.99"]


PUBLISHED = [
    # layers, hidden, heads, key-value heads, ffn, tp, dp, cp, seq, GiB: SimuMax, B200, TE 2.11
    (12, 8192, 64, 8, 28672, 4, 2, 1, 4096, 39.07),
    (4, 16384, 128, 16, 53248, 8, 1, 1, 4096, 38.57),
    (12, 8192, 64, 8, 28672, 1, 1, 8, 32768, 104.51),
    (4, 16384, 128, 16, 53248, 2, 1, 4, 131072, 118.13),
]


@pytest.mark.parametrize("row", PUBLISHED)
def test_published_runs_of_transformer_engine(row: tuple[Any, ...]) -> None:
    """Llama with Transformer Engine's fused loss, within 0.2 % of what was published."""
    layers, hidden, heads, kv_heads, ffn, tp, dp, cp, seq, gib = row
    numbers = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    numbers |= {"num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": 128256}
    case = run(
        arch(**numbers),
        tp=tp,
        dp=dp,
        cp=cp,
        seq=seq,
        micro_batches=4,
        loss="te_fused",
        sequence_parallel=tp > 1,
        compute_capability="10.0",
        options={"distributed_optimizer": True, "transformer_engine_version": "2.11"},
    )
    assert int(ENGINE.ledger(case).peak()) / GIB == pytest.approx(gib, rel=2e-3)


ENGINES = "Transformer Engine's cuBLAS workspaces"


def test_transformer_engines_workspace() -> None:
    """32 MiB from Hopper on, 4 MiB before, none in local layers; five with grouped matmuls."""
    assert named(ENGINE.ledger(run()), ENGINES) == 32 * MIB + KIB
    old = run(options={"transformer_engine_version": "2.7"})
    assert named(ENGINE.ledger(old), ENGINES) == 32 * MIB
    assert named(ENGINE.ledger(run(compute_capability="8.0")), ENGINES) == 4 * MIB
    assert named(ENGINE.ledger(run(options=UNFUSED)), ENGINES) == 0
    assert named(ENGINE.ledger(run(read_plain(EXPERTS))), ENGINES) == 5 * (32 * MIB + KIB)


@pytest.mark.parametrize(
    ("stage", "options", "count"),
    [(0, {}, 0), (1, {}, 2), (0, UNFUSED, 2), (0, {"attention_backend": "unfused"}, 2)],
)
def test_torchs_workspaces(stage: int, options: dict[str, Any], count: int) -> None:
    """torch has one for each direction on stages where it runs a matmul itself."""
    ledger = ENGINE.ledger(run(pp=2, stage=stage, options=options))
    names = [entry.name for entry in ledger.entries if entry.name.startswith("cuBLAS workspace")]
    assert len(names) == count


def test_cublas_workspace_config() -> None:
    """Pairs of KiB and count; the setting replaces torch's own size and nothing else."""
    assert config_bytes(":4096:2:16:8") == 8320 * KIB
    assert config_bytes(":4096:8") == 32 * MIB
    assert [config_bytes(text) for text in ("4096:8", ":4096", "", ":x:1")] == [None] * 4
    for kind in ("pytorch_ddp", "megatron_lm"):
        set_ = small_run(kind, training={"cublas_workspace_config": ":16384:1"})
        found = resolve(read(set_).file)
        names = ("cuBLAS workspace of forward", "cuBLAS workspace of backward")
        ledger = found.engine.ledger(found.run)
        assert [named(ledger, name) for name in names] == [16 * MIB] * 2
    with pytest.raises(InputError, match=r"cublas_workspace_config='4M' must be pairs of KiB"):
        resolve(read(small_run(training={"cublas_workspace_config": "4M"})).file)


def test_unfused_attention_keeps_scores() -> None:
    """As local layers do: a 16-bit softmax of every pair of tokens in each layer."""
    model = arch(num_layers=2)
    fused, unfused = (
        ENGINE.ledger(run(model, options={"attention_backend": name})).peak()
        for name in ("fused", "unfused")
    )
    area = 32 * 4096 * 4096 * 2
    assert unfused - fused > 2 * area


def experts(**rest: Any) -> Run:
    """A run of a small model with eight experts."""
    numbers = EXPERTS | {"num_layers": 2, "hidden_size": 512, "expert_intermediate_size": 1024}
    numbers |= {"num_attention_heads": 8, "intermediate_size": 1024}
    return run(read_plain(numbers), **rest)


def test_experts_over_tensor_parallel_ranks() -> None:
    """An expert that is whole on its rank: expert parallelism takes the ranks of both."""
    options = {"distributed_optimizer": True}
    alone = options | {"expert_tensor_parallel_size": 1}
    split = experts(tp=2, dp=4, ep=4, sequence_parallel=True, options=options)
    whole = experts(tp=2, dp=4, ep=8, sequence_parallel=True, options=alone)
    shards = [stage_shard(one, pipeline_stage(one)).experts for one in (split, whole)]
    assert shards[0] == shards[1] == 2 * 3 * 512 * 1024  # two halves of experts, or one
    assert list(ENGINE.problems(whole)) == []
    assert stepped_parts(whole, stage_shard(whole, pipeline_stage(whole)))[1] == shards[1]
    (problem,) = ENGINE.problems(experts(tp=2, dp=4, ep=8, sequence_parallel=True))
    assert "does not divide the 4 ranks of data and context parallelism" in problem


@pytest.mark.parametrize(
    ("ranks", "apart"), [({}, 0), ({"tp": 2}, 0), ({"ep": 2}, 1), ({"tp": 2, "etp": 1}, 1)]
)
def test_experts_on_the_same_ranks_share_buffers(ranks: dict[str, int], apart: int) -> None:
    """Experts have buffers and a step of their own only where they are sharded in another way."""
    options = {"expert_tensor_parallel_size": ranks.get("etp")}
    sizes = {key: size for key, size in ranks.items() if key != "etp"}
    case = experts(dp=4, sequence_parallel=True, options=options, **sizes)
    shard = stage_shard(case, pipeline_stage(case))
    assert bool(shard.experts) == bool(apart) == any(t.expert for t in stage_tensors(case))
    assert shard.total == sum(t.elements for t in stage_tensors(case))


def test_the_experts_output_stays_named_while_it_is_reduced() -> None:
    """With two ranks an expert: the output, the same unsorted, this rank's part; and sent and
    received tokens.
    """
    ranks = {"tp": 2, "etp": 2, "ep": 4, "sequence_parallel": True}
    setting = MegatronSetting(batch=1, seq=4096, hidden=512, transformer_engine=False, **ranks)
    block, tape = experts().arch.layers[0].mlp, Tape()
    x = tape.value("x", setting.local_tokens * 512, 16)
    found = walk(tape, x, moe(tape, setting, x, block))
    sent = routed_rows(setting, block) * 512 * 2
    assert found.forward.act - found.saved_bytes == (2 + 2 + 1 + 1 + 1) * sent


def test_rows_that_experts_get() -> None:
    """Top-k a token; at most the capacity; exactly that where it is padded."""
    block = experts().arch.layers[0].mlp
    cases = [(None, False), (1.5, False), (0.5, False), (0.5, True), (1.5, True)]
    rows = [
        routed_rows(
            MegatronSetting(batch=1, seq=100, hidden=512, capacity=factor, pads_experts=pads), block
        )
        for factor, pads in cases
    ]
    assert rows == [200, 200, 104, 104, 304]  # ceil(200 / 8 × factor) × 8


def test_a_gathering_dispatcher_has_every_token() -> None:
    """Its buffer has the tokens of all ranks of expert parallelism."""
    names = ("alltoall", "allgather")
    ledgers = [
        ENGINE.ledger(experts(dp=8, ep=8, options={"moe_token_dispatcher_type": name}))
        for name in names
    ]
    sizes = [named(ledger, "global memory buffer") for ledger in ledgers]
    assert sizes == [0, 8 * 4096 * 512 * 2]


def test_optimizer_instances() -> None:
    """Each of them shards its states over its part of the data-parallel ranks."""
    parts = []
    for copies in (1, 2, 4):
        options = {"distributed_optimizer": True, "num_distributed_optimizer_instances": copies}
        case = run(arch(num_layers=2), dp=8, options=options)
        assert list(ENGINE.problems(case)) == []
        parts.append(stepped_parts(case, stage_shard(case, pipeline_stage(case)))[0])
    assert parts[1] == 2 * parts[0]
    assert parts[2] == 4 * parts[0]


def test_a_deferred_gradient_of_the_output_layer() -> None:
    """The last stage keeps an input and the logits' gradient of each micro-batch."""
    name = "output layer: deferred inputs and gradients"
    options = {"defer_embedding_wgrad_compute": True}
    for limit, most in ((0, 8), (3, 3)):
        case = run(
            arch(num_layers=2),
            pp=2,
            stage=1,
            micro_batches=8,
            options=options | {"wgrad_deferral_limit": limit},
        )
        (entry,) = [e for e in ENGINE.ledger(case).entries if e.name == name]
        assert entry.bytes == (4096 * 4096 + 4096 * LLAMA["vocab_size"]) * 2
        assert max(entry.live.values()) == most


REFUSED = [
    (
        {"options": {"attention_backend": "local"}},
        "needs engine.transformer_implementation='local'",
    ),
    ({"options": UNFUSED | {"attention_backend": "flash"}}, "local layers have their own"),
    ({"precision": "fp32", "options": {"attention_backend": "fused"}}, "has no fp32 kernel"),
    ({"cp": 2, "options": {"attention_backend": "unfused"}}, "has no context parallelism"),
    ({"options": {"transformer_engine_version": "1.9"}}, "use 2.0 or newer"),
    ({"options": {"expert_tensor_parallel_size": 1}}, "the model has no experts; leave it out"),
    ({"options": {"num_distributed_optimizer_instances": 2}}, "needs distributed_optimizer=true"),
    (
        {"options": {"distributed_optimizer": True, "num_distributed_optimizer_instances": 3}},
        "=3 does not divide 1 ranks",
    ),
    ({"options": {"defer_embedding_wgrad_compute": True}}, "pipeline_parallel_size above 1"),
    ({"options": {"wgrad_deferral_limit": 2}}, "needs defer_embedding_wgrad_compute"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_refusals(settings: dict[str, Any], sentence: str) -> None:
    """One sentence with the value, the rule and a fix."""
    (problem,) = ENGINE.problems(run(**settings))
    assert sentence in problem


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"moe_token_dispatcher_type": "flex"}, "DeepEP and HybridEP are not modelled"),
        ({"moe_pad_expert_input_to_capacity": True}, "needs moe_expert_capacity_factor"),
    ],
)
def test_refused_dispatch(options: dict[str, Any], sentence: str) -> None:
    """What is not modelled of experts."""
    (problem,) = ENGINE.problems(experts(options=options))
    assert sentence in problem


@pytest.mark.parametrize("loss", ["liger_fused", "cut", "full_upcast"])
def test_losses_of_other_frameworks(loss: str) -> None:
    """Megatron has three."""
    with pytest.raises(InputError, match="choose from 'full', 'megatron_fused', 'te_fused'"):
        resolve(read(small_run("megatron_lm", training={"loss": loss})).file)

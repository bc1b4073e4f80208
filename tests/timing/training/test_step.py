"""The seconds of a step: what they add up to, and what changes them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.timing.training.operators import layer_kinds
from gpu_mem_calculator.timing.training.pipeline import bubble, slowest, stages
from gpu_mem_calculator.timing.training.step import step_seconds
from gpu_mem_calculator.timing.training.step_seconds import PARTS, StepSeconds
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run

LLAMA = {"name": "llama3-8b"}


def file(kind: str, gpus: int = 8, **sections: dict[str, Any]) -> dict[str, Any]:
    """A run of Llama-3-8B."""
    run = small_run(kind, gpus, **sections)
    run["model"] = dict(LLAMA)
    given = sections.get("training", {})
    run["training"] = {"batch_size": 1, "seq_len": 4096, "precision": "bf16_mixed", **given}
    return run


def timed(run_file: dict[str, Any]) -> StepSeconds:
    """The seconds of a run file's step."""
    found = resolve(read(run_file).file)
    return step_seconds(found.run, found.engine.name, machine_of(found.hardware))


def changed(kind: str, gpus: int = 8, **sections: dict[str, Any]) -> float:
    """The expected seconds of a run with some keys changed."""
    return float(timed(file(kind, gpus, **sections)).estimate)


@pytest.mark.parametrize("kind", ["pytorch_ddp", "fsdp", "deepspeed", "megatron_lm"])
def test_parts_add_up(kind: str) -> None:
    """The estimate is the sum of its parts, none is negative, and it lies in its interval."""
    seconds = timed(file(kind))
    parts = [float(getattr(seconds, part)) for part in PARTS]
    assert seconds.estimate == pytest.approx(sum(parts))
    assert min(parts) >= 0
    assert seconds.low < seconds.estimate < seconds.high


def test_model_flops_bound_the_time_from_below() -> None:
    """Llama-3-8B on eight H100: between 35 and 75 % of the peak."""
    seconds = timed(file("fsdp", training={"batch_size": 4}))
    flops = 6 * 8.03e9 * 4 * 4096
    assert 0.35 < flops / seconds.estimate / 989e12 < 0.65


def test_recompute_costs_a_forward() -> None:
    """Full recompute adds about a third of compute, half of the layers half of that."""
    times = [
        timed(file("megatron_lm", training={"activation_checkpointing": level})).compute
        for level in (0, 2, 4)
    ]
    assert 1.2 < times[2] / times[0] < 1.4
    assert times[1] - times[0] == pytest.approx((times[2] - times[0]) / 2, rel=0.01)


def test_selective_recompute_costs_core_attention() -> None:
    """Only attention runs again, which is most of a layer where scores are stored."""
    fused = changed("megatron_lm", training={"activation_checkpointing": "selective"})
    assert fused > changed("megatron_lm")
    local = {"transformer_implementation": "local"}
    plain = changed("megatron_lm", engine=local)
    again = changed("megatron_lm", engine=local, training={"activation_checkpointing": "selective"})
    assert again - plain > 3 * (fused - changed("megatron_lm"))


def test_frozen_weights_have_no_weight_gradients() -> None:
    """LoRA leaves out a third of the matmuls, QLoRA unpacks weights besides."""
    full = timed(file("pytorch_ddp", training={"precision": "bf16_pure"})).compute
    keys = {"precision": "bf16_pure", "lora": {"r": 16}}
    lora = timed(file("pytorch_ddp", training=keys)).compute
    packed = timed(file("pytorch_ddp", training={**keys, "quantization": "nf4"})).compute
    assert 0.6 < lora / full < 0.85
    assert packed > lora


def test_sharding_moves_more_bytes_over_a_slow_network() -> None:
    """ZeRO-3 and FSDP gather weights in every pass, ZeRO-1 gathers them once a step."""
    slow = {"num_nodes": 4, "gpus_per_node": 8, "interconnect": "ethernet-100g"}
    many = {"gradient_accumulation_steps": 8}
    exposed = [
        timed(file("deepspeed", 32, engine={"zero_stage": stage}, hardware=slow, training=many))
        for stage in (1, 3)
    ]
    assert exposed[1].exposed_communication > exposed[0].exposed_communication
    kept = {"sharding_strategy": "shard_grad_op"}
    whole, once = (timed(file("fsdp", 32, engine=e, hardware=slow)) for e in ({}, kept))
    assert whole.exposed_communication > once.exposed_communication


def test_tensor_parallelism_across_nodes_is_slow() -> None:
    """Sixteen ranks on two nodes take longer for collectives than eight on one."""
    within = timed(file("megatron_lm", 8, parallelism={"tensor_parallel_size": 8}))
    across = timed(file("megatron_lm", 16, parallelism={"tensor_parallel_size": 16}))
    assert across.exposed_communication > 1.5 * within.exposed_communication


def piped(**sizes: int) -> ResolvedRun:
    """Llama-3-8B in four stages."""
    parallel = {"pipeline_parallel_size": 4, **sizes}
    steps = {"gradient_accumulation_steps": 8}
    return resolve(read(file("megatron_lm", 8, parallelism=parallel, training=steps)).file)


def test_bubble() -> None:
    """Equal stages wait p - 1 times a stage, divided by the chunks of a stage."""
    run = piped().run
    assert bubble(run, 4.0, 1.0) == 3.0
    assert bubble(replace(run, virtual_stages=2), 4.0, 1.0) == 1.5


def test_the_slowest_stage_has_the_head() -> None:
    """Embedding and head count on their stages, together where there is one."""
    run = piped().run
    kinds = layer_kinds(run.arch)
    where = stages(run, kinds)
    assert where.first == where.middle == where.last == (8,)
    assert slowest(run, where, (1.0,), 0.5, 2.0) == 10.0
    one = replace(run, mesh=replace(run.mesh, pp=1))
    assert slowest(one, stages(one, kinds), (1.0,), 0.5, 2.0) == 34.5


def test_ends_that_count_as_layers() -> None:
    """126 layers in 16 stages: the first and the last have seven, the others eight."""
    ends = {
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    }
    parallel = {"pipeline_parallel_size": 16}
    run_file = {**file("megatron_lm", 16, parallelism=parallel, engine=ends)}
    run = resolve(read({**run_file, "model": {"name": "llama3.1-405b"}}).file).run
    where = stages(run, layer_kinds(run.arch))
    assert (where.first, where.middle, where.last) == ((7,), (8,), (7,))


def test_kinds_of_layers() -> None:
    """DeepSeek-V3 has three dense layers before its experts; stages know how many they have."""
    parallel = {"pipeline_parallel_size": 4}
    found = resolve(read({**file("megatron_lm", parallelism=parallel), "model": LLAMA}).file)
    deepseek = resolve(
        read({**file("fsdp"), "model": {"name": "deepseek-v3"}, "training": {"seq_len": 4096}}).file
    )
    kinds = layer_kinds(deepseek.run.arch)
    assert [kind.count for kind in kinds] == [3, 58]
    run = replace(found.run, arch=deepseek.run.arch)
    first, last = stages(run, kinds).first, stages(run, kinds).last
    assert first == (3, 13)
    assert last[0] == 0


def test_more_micro_batches_take_longer_in_proportion() -> None:
    """Each micro-batch takes the same time; the rest of a step does not grow."""
    times = [
        changed("megatron_lm", training={"gradient_accumulation_steps": count})
        for count in (1, 2, 3)
    ]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])
    assert times[0] > times[1] - times[0]


def test_one_run_needs_no_numpy() -> None:
    """numpy is an extra: a single estimate does not import it."""
    code = (
        "import sys, json\n"
        "from gpu_mem_calculator.estimates.machine import machine_of\n"
        "from gpu_mem_calculator.runfile.resolve.resolve import resolve\n"
        "from gpu_mem_calculator.tools.read import read\n"
        "from gpu_mem_calculator.timing.training.step import step_seconds\n"
        f"found = resolve(read({file('megatron_lm')!r}).file)\n"
        "step_seconds(found.run, found.engine.name, machine_of(found.hardware))\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""Every option of every engine changes an estimate: none is accepted and ignored."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.timing.training.step import step_seconds
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine, engine_names
from gpu_mem_calculator.training.step.stream import allocation_stream
from tests.conftest import SMALL_LLAMA, small_run

ZERO_3 = {"zero_stage": 3}
FLAT = {"fsdp_version": 1}
LOCAL = {"transformer_implementation": "local"}
HOST = {"zero_stage": 2, "offload_optimizer": "cpu"}
WIDE = {"config": {**SMALL_LLAMA, "vocab_size": 50_000}}
STAGES = {"pipeline_parallel_size": 2}
WOVEN = {
    "parallelism": {**STAGES, "virtual_pipeline_size": 2},
    "training": {"gradient_accumulation_steps": 6},
}
ROUTED = {
    "model": {"config": {**SMALL_LLAMA, "model_type": "mixtral", "num_local_experts": 4}},
    "parallelism": {
        "tensor_parallel_size": 2,
        "expert_parallel_size": 2,
        "sequence_parallel": True,
    },
}
TIMED = {("megatron_lm", "overlap_grad_reduce")}  # it changes the time of a step alone
# engine, option: another value, the options around it, other sections of the run
CASES: dict[tuple[str, str], tuple[Any, dict[str, Any], dict[str, dict[str, Any]]]] = {
    ("deepspeed", "zero_stage"): (1, {}, {}),
    ("deepspeed", "offload_optimizer"): ("cpu", ZERO_3, {}),
    ("deepspeed", "offload_param"): ("cpu", ZERO_3, {}),
    ("deepspeed", "reduce_bucket_size"): (1_000_000, {"zero_stage": 2}, {}),
    # weights are gathered in place: it is only checked, and an odd one is refused
    ("deepspeed", "allgather_bucket_size"): (100_001, {"zero_stage": 1}, {}),
    ("deepspeed", "amp"): (True, {}, {"training": {"precision": "fp32"}}),
    ("deepspeed", "overlap_comm"): (True, {"zero_stage": 2}, {}),
    ("deepspeed", "contiguous_gradients"): (False, {"zero_stage": 2}, {}),
    ("deepspeed", "stage3_prefetch_bucket_size"): (10_000, ZERO_3, {}),
    ("deepspeed", "stage3_max_live_parameters"): (100_000, ZERO_3, {}),
    ("deepspeed", "stage3_max_reuse_distance"): (
        0,
        {**ZERO_3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0},
        {},
    ),
    ("deepspeed", "stage3_param_persistence_threshold"): (10, ZERO_3, {}),
    ("deepspeed", "sub_group_size"): (10_000, ZERO_3, {}),
    ("deepspeed", "pin_memory"): (False, HOST, {}),
    ("deepspeed", "zero_init"): (False, ZERO_3, {}),
    ("deepspeed", "partition_activations"): (True, {}, {}),
    ("deepspeed", "cpu_checkpointing"): (True, {}, {}),
    ("deepspeed", "partition_method"): (
        "uniform",
        {},
        {"parallelism": {"pipeline_parallel_size": 4}, "model": WIDE},
    ),
    ("fsdp", "sharding_strategy"): ("shard_grad_op", {}, {}),
    ("fsdp", "reduce_dtype"): ("fp32", {}, {}),
    ("fsdp", "hybrid_shard_size"): (4, {"sharding_strategy": "hybrid_shard"}, {}),
    ("fsdp", "reshard_root_after_forward"): (False, {}, {}),
    ("fsdp", "cpu_offload"): (True, {}, {}),
    ("fsdp", "wrap_embedding_and_head"): (True, {}, {}),
    ("fsdp", "fsdp_version"): (1, {}, {}),
    ("fsdp", "init_device"): ("cuda", FLAT, {}),
    ("fsdp", "init_dtype"): ("bf16", FLAT, {}),
    ("fsdp", "use_orig_params"): (True, FLAT, {}),
    ("fsdp", "backward_prefetch"): ("none", FLAT, {}),
    ("fsdp", "forward_prefetch"): (True, FLAT, {}),
    ("fsdp", "limit_all_gathers"): (False, FLAT, {}),
    ("fsdp", "sync_each_batch"): (False, {}, {"training": {"gradient_accumulation_steps": 2}}),
    ("fsdp", "sync_module_states"): (True, FLAT, {}),
    ("fsdp", "keep_low_precision_grads"): (True, FLAT, {}),
    ("megatron_deepspeed", "zero_stage"): (1, {}, {}),
    ("megatron_deepspeed", "offload_optimizer"): ("cpu", {"zero_stage": 2}, {}),
    ("megatron_deepspeed", "reduce_bucket_size"): (1_000_000, {"zero_stage": 2}, {}),
    ("megatron_deepspeed", "overlap_comm"): (True, {"zero_stage": 2}, {}),
    ("megatron_deepspeed", "transformer_implementation"): ("transformer_engine", {}, {}),
    ("megatron_deepspeed", "masked_softmax_fusion"): (False, {}, {}),
    ("megatron_deepspeed", "attention_softmax_in_fp32"): (
        False,
        {"masked_softmax_fusion": False},
        {},
    ),
    ("megatron_deepspeed", "make_vocab_size_divisible_by"): (1000, {}, {}),
    ("megatron_lm", "distributed_optimizer"): (True, {}, {}),
    ("megatron_lm", "transformer_implementation"): ("local", {}, {}),
    ("megatron_lm", "masked_softmax_fusion"): (False, LOCAL, {}),
    ("megatron_lm", "gradient_accumulation_fusion"): (False, {}, {}),
    ("megatron_lm", "attention_softmax_in_fp32"): (
        False,
        {**LOCAL, "masked_softmax_fusion": False},
        {},
    ),
    ("megatron_lm", "accumulate_allreduce_grads_in_fp32"): (False, {}, {}),
    ("megatron_lm", "make_vocab_size_divisible_by"): (1000, {}, {}),
    ("megatron_lm", "deallocate_pipeline_outputs"): (False, {}, {"parallelism": STAGES}),
    ("megatron_lm", "transformer_engine_version"): ("2.1", {}, {}),
    ("megatron_lm", "attention_backend"): ("unfused", {}, {}),
    ("megatron_lm", "pipeline_model_parallel_layout"): ("Et|tttL", {}, {"parallelism": STAGES}),
    ("megatron_lm", "decoder_first_pipeline_num_layers"): (1, {}, {"parallelism": STAGES}),
    ("megatron_lm", "decoder_last_pipeline_num_layers"): (1, {}, {"parallelism": STAGES}),
    ("megatron_lm", "account_for_embedding_in_pipeline_split"): (True, {}, {"parallelism": STAGES}),
    ("megatron_lm", "account_for_loss_in_pipeline_split"): (True, {}, {"parallelism": STAGES}),
    ("megatron_lm", "microbatch_group_size_per_virtual_pipeline_stage"): (3, {}, WOVEN),
    ("megatron_lm", "num_distributed_optimizer_instances"): (
        2,
        {"distributed_optimizer": True},
        {},
    ),
    ("megatron_lm", "defer_embedding_wgrad_compute"): (True, {}, {"parallelism": STAGES}),
    ("megatron_lm", "wgrad_deferral_limit"): (1, {}, {"parallelism": STAGES}),  # alone, refused
    ("megatron_lm", "expert_tensor_parallel_size"): (1, {}, ROUTED),
    ("megatron_lm", "moe_token_dispatcher_type"): ("alltoall", {}, ROUTED),
    ("megatron_lm", "moe_expert_capacity_factor"): (0.5, {}, ROUTED),
    ("megatron_lm", "moe_pad_expert_input_to_capacity"): (
        True,
        {"moe_expert_capacity_factor": 2.0},
        ROUTED,
    ),
    ("megatron_lm", "tp_comm_overlap"): (True, {}, {}),  # alone, refused
    ("megatron_lm", "overlap_grad_reduce"): (True, {}, {}),
    ("megatron_lm", "overlap_param_gather"): (True, {}, {}),  # alone, refused
    ("pytorch_ddp", "gradient_as_bucket_view"): (True, {}, {}),
    ("pytorch_ddp", "init_device"): (
        "cpu",
        {},
        {"model": {"config": {**SMALL_LLAMA, "tie_word_embeddings": True}}},
    ),
}


def figures(name: str, options: dict[str, Any], sections: dict[str, dict[str, Any]]) -> Any:
    """All entries of the ledger, or the sentences of a refusal."""
    try:
        found = resolve(read(small_run(name, **sections, engine=options)).file)
    except InputError as error:
        return tuple(error.problems)
    ledger = found.engine.ledger(found.run)
    return [
        (entry.name, entry.place, int(entry.bytes), sorted(entry.live.items()))
        for entry in ledger.entries
    ]


def stream(name: str, options: dict[str, Any], sections: dict[str, dict[str, Any]]) -> Any:
    """The allocations of a run, which some options change without changing a peak."""
    found = resolve(read(small_run(name, **sections, engine=options)).file)
    ledger = found.engine.ledger(replace(found.run, unrolled=True))
    return allocation_stream(ledger, int(found.run.micro_batches))


def seconds(name: str, options: dict[str, Any], sections: dict[str, dict[str, Any]]) -> float:
    """The time of a step."""
    found = resolve(read(small_run(name, **sections, engine=options)).file)
    return float(step_seconds(found.run, name, machine_of(found.hardware)).estimate)


def test_every_option_has_a_case() -> None:
    """An option that is new needs one."""
    options = {(name, key) for name in engine_names() for key in engine(name).options}
    assert options == set(CASES)


@pytest.mark.parametrize(("name", "option"), CASES)
def test_an_option_changes_the_estimate(name: str, option: str) -> None:
    """Another value gives another ledger or stream, or a sentence that says it is not modelled."""
    value, around, sections = CASES[name, option]
    before = figures(name, around, sections)
    assert isinstance(before, list), before
    other = {**around, option: value}
    if (name, option) in TIMED:
        assert seconds(name, other, sections) < seconds(name, around, sections)
    elif figures(name, other, sections) == before:
        assert stream(name, other, sections) != stream(name, around, sections)

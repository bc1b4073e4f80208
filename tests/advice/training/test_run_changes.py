"""What-ifs: each change is a valid run, and says what that run takes."""

from __future__ import annotations

import copy
import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.advice.training import run_changes
from gpu_mem_calculator.advice.training.run_changes import TrainingChange, all_changes, changes
from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run
from tests.corpus import sampled

EIGHT_LAYERS = {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def run(kind: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """Eight layers of Llama-2-7B on eight H100, so large that every change shows."""
    return {
        "model": {"config": EIGHT_LAYERS},
        "engine": {"type": kind, **sections.pop("engine", {})},
        "training": {"batch_size": 2, "seq_len": 2048, **sections.pop("training", {})},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8, **sections.pop("hardware", {})},
        **sections,
    }


RUNS: dict[str, dict[str, Any]] = {
    "one gpu": {"model": {"name": "llama3.2-1b"}, "training": {"seq_len": 1024}},
    "small": small_run("pytorch_ddp"),
    "ddp": run("pytorch_ddp", engine={"gradient_as_bucket_view": True}),
    "ddp eager": run("pytorch_ddp", training={"attention": "eager", "seq_len": 4096}),
    "ddp fp32": run("pytorch_ddp", training={"dtype": "fp32", "seq_len": 4096}),
    "ddp lora": run("pytorch_ddp", training={"lora": {"r": 8}}),
    "fsdp": run(
        "fsdp",
        training={"activation_checkpointing": "full"},
        engine={"sharding_strategy": "shard_grad_op", "reduce_dtype": "fp32"},
    ),
    "zero 1": run(  # all 32 layers: fewer are smaller than ZeRO-3's buffers
        "deepspeed", engine={"zero_stage": 1, "overlap_comm": True}, model={"name": "llama2-7b"}
    ),
    "zero 3": run(
        "deepspeed",
        engine={"zero_stage": 3},
        parallelism={"data_parallel_size": 8},
        training={"activation_checkpointing": "full"},
        hardware={"num_nodes": 1, "gpus_per_node": 8},
    ),
    "deepspeed pipeline": run(
        "deepspeed",
        parallelism={"pipeline_parallel_size": 2},
        training={"gradient_accumulation_steps": 4},
    ),
    "megatron": run("megatron_lm", parallelism={"tensor_parallel_size": 2}),
    "megatron pipeline": run(
        "megatron_lm",
        parallelism={"pipeline_parallel_size": 2},
        training={"gradient_accumulation_steps": 8},
    ),
    "megatron deepspeed": run(
        "megatron_deepspeed", engine={"zero_stage": 1}, parallelism={"tensor_parallel_size": 2}
    ),
}
SERVED: dict[str, dict[str, Any]] = {
    name: {
        "model": {"name": "llama3.1-8b"},
        "inference": {"engine": name},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 1, "num_nodes": 1},
    }
    for name in ("vllm", "sglang", "transformers", "llamacpp")
}


@cache
def found(name: str) -> list[TrainingChange]:
    """The changes of a run."""
    return changes(full_estimate(RUNS[name], replay=False))


@pytest.mark.parametrize("name", sampled(list(RUNS), keep=7))
def test_a_change_is_a_valid_run_that_takes_what_it_says(name: str) -> None:
    """Its settings over the run file give the figure, and use every GPU."""
    now = round(estimate(RUNS[name], replay=False).total_memory_per_gpu_gb * GIB)
    assert found(name)
    for change in found(name):
        data = with_settings(copy.deepcopy(RUNS[name]), change.settings)
        by_ledger = estimate(data, replay=False).total_memory_per_gpu_gb
        total = round(by_ledger * GIB)
        replayed = estimate(data)
        assert (total, replayed.verdict) == (change.total_bytes, change.verdict)
        assert replayed.fits_on_gpu == change.fits
        assert now - total == change.saves_bytes
        resolved = resolve(read(data).file)
        mesh = resolved.run.mesh
        assert mesh.tp * mesh.pp * mesh.cp * mesh.dp == resolved.hardware.num_gpus


@pytest.mark.parametrize("name", RUNS)
def test_changes_are_few_and_in_order(name: str) -> None:
    """Those that fit come first, by what they save; no title twice, nothing that is set already."""
    made = found(name)
    assert len(made) <= 14
    assert len({one.title for one in made}) == len({one.settings for one in made}) == len(made)
    order = [(not one.fits, -one.saves_bytes) for one in made]
    assert order == sorted(order)
    assert sum(one.saves_bytes <= 0 for one in made) <= 2
    for change in made:
        for setting in change.settings:
            data = full_estimate(RUNS[name], replay=False).result.run
            assert with_settings(copy.deepcopy(data), [setting]) != data


@pytest.mark.parametrize(
    ("name", "title", "setting"),
    [
        ("ddp eager", "FSDP", "engine.type=fsdp"),
        ("ddp eager", "DeepSpeed ZeRO-3", "engine.zero_stage=3"),
        ("ddp", "FSDP", "engine.gradient_as_bucket_view=null"),
        ("zero 1", "FSDP", "engine.overlap_comm=null"),
        ("zero 1", "ZeRO-3", "engine.zero_stage=3"),
        ("fsdp", "full shard", "engine.sharding_strategy=full_shard"),
        ("fsdp", "no recompute", "training.activation_checkpointing=none"),
        ("one gpu", "8-bit AdamW", "training.optimizer=adamw_8bit"),
        ("one gpu", "LoRA r=16", "training.lora.r=16"),
        ("one gpu", "QLoRA", "training.quantization=nf4"),
        ("ddp fp32", "bf16 mixed", "training.dtype=null"),
        ("ddp eager", "SDPA", "training.attention=sdpa"),
        ("zero 3", "optimizer to CPU", "engine.offload_optimizer=cpu"),
        ("megatron", "tp 4, sequence parallel", "parallelism.tensor_parallel_size=4"),
        ("megatron", "sequence parallel", "parallelism.sequence_parallel=true"),
        ("megatron", "distributed optimizer", "engine.distributed_optimizer=true"),
        ("megatron pipeline", "pp 4", "parallelism.data_parallel_size=2"),
    ],
)
def test_what_people_try_is_there(name: str, title: str, setting: str) -> None:
    """By its title, with its setting."""
    assert setting in next(one.settings for one in found(name) if one.title == title)


@pytest.mark.parametrize("name", ["megatron", "megatron pipeline", "megatron deepspeed"])
def test_other_parallel_sizes_keep_the_batch_of_a_step(name: str) -> None:
    """Half the replicas have twice the micro-batches; words say that, and what is switched on."""
    before = resolve(read(RUNS[name]).file).run
    wider = [one for one in found(name) if re.match(r"(tp|pp|cp) \d", one.title)]
    assert wider
    for one in wider:
        after = resolve(read(with_settings(copy.deepcopy(RUNS[name]), one.settings)).file).run
        batches = [run.batch * run.micro_batches * run.mesh.dp for run in (before, after)]
        assert batches[0] == batches[1], one
        assert f"{after.micro_batches} micro-batches" in one.cost
        turned_on = after.sequence_parallel and not before.sequence_parallel
        assert ("sequence parallel" in one.title) == turned_on


def test_a_replayed_estimate_has_the_same_changes() -> None:
    """What is compared is the ledger's figure, before and after."""
    assert changes(full_estimate(RUNS["fsdp"])) == found("fsdp")


def test_a_setting_of_null_takes_a_key_away() -> None:
    """`read` has it for one that is not there."""
    run = small_run("deepspeed", engine={"zero_stage": 2}, training={"lora": {"r": 4}})
    data = with_settings(
        copy.deepcopy(run), ["engine.type=fsdp", "engine.zero_stage=null", "training.lora=null"]
    )
    assert read(data).file == read(small_run("fsdp")).file
    rank = with_settings(copy.deepcopy(run), ["training.lora.r=null"])
    lora = read(rank).file.training.lora
    assert lora is not None
    assert lora.r == 8  # the adapter stays, with the default rank


@pytest.mark.parametrize("name", SERVED)
def test_a_servers_changes_have_the_same_shape(name: str) -> None:
    """With what the cache then holds; the settings give the figure."""
    now = estimate(SERVED[name], replay=False)
    made = all_changes(full_estimate(SERVED[name], replay=False))
    assert made
    for change in made:
        result = estimate(
            with_settings(copy.deepcopy(SERVED[name]), change["settings"]), replay=False
        )
        total = result.allocated_bytes + result.outside_torch_bytes
        decided = estimate(with_settings(copy.deepcopy(SERVED[name]), change["settings"]))
        assert (change["total_bytes"], change["verdict"]) == (total, decided.verdict)
        before = now.allocated_bytes + now.outside_torch_bytes
        assert change["saves_bytes"] == before - total
        tokens = 0 if result.serving is None else result.serving.kv_tokens
        assert change["kv_tokens"] == tokens


def test_both_kinds_of_run_answer_alike() -> None:
    """Training and serving have these keys in common."""
    keys = {"title", "settings", "saves_bytes", "total_bytes", "fits", "verdict", "cost"}
    trained = all_changes(full_estimate(RUNS["ddp"], replay=False))
    served = all_changes(full_estimate(SERVED["vllm"], replay=False))
    assert all(set(one) == keys for one in trained)
    assert all(
        set(one) == keys | {"kv_tokens", "max_concurrency", "users", "context"} for one in served
    )


def saves(num_bytes: int, *, fits: bool = False) -> TrainingChange:
    """A change named after what it saves, of 10,000 bytes."""
    title = str(num_bytes)
    return TrainingChange(
        title=title,
        settings=(title,),
        saves_bytes=num_bytes,
        total_bytes=10_000 - num_bytes,
        fits=fits,
        verdict="fits" if fits else "does_not_fit",
    )


def test_changes_save_more_than_1_percent_or_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve that save and two that take; those that fit first, then by bytes."""
    saving = [saves(size) for size in (100, 101, *range(200, 211))] + [saves(150, fits=True)]
    taking = [saves(0), saves(-1), saves(-2, fits=True), saves(-3)]
    unreplayed: Any = SimpleNamespace(replayed=None)
    tried = iter((saving, taking))
    monkeypatch.setattr(run_changes, "ledger_bytes", lambda _: 10_000)
    monkeypatch.setattr(run_changes, "_try_all", lambda *_: next(tried))
    for name in ("savings", "further_savings", "uses_of_free_memory"):
        monkeypatch.setattr(run_changes, name, lambda _: ())
    sizes = [change.saves_bytes for change in run_changes.changes(unreplayed)]
    assert sizes == [150, -2, *range(210, 199, -1), -1]

"""A stream whose sizes are filled in anew is the one that would be written."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.stage_replay import StageRequests, stage_requests
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine_names
from gpu_mem_calculator.training.step import stream as written
from tests.golden.stored_runs import HERE, run_file, stored_settings

FILES = [path for name in engine_names() if (path := HERE / "training" / f"{name}.txt").exists()]
SETTINGS = [one for path in FILES for one in stored_settings(path) if "model.case" in one]
START = "model.name=gpt2 num_gpus=4"
KINDS = (
    "type=pytorch_ddp recompute=full gradient_accumulation_steps=3",
    "type=fsdp",
    "type=fsdp fsdp_version=1",
    "type=deepspeed zero_stage=2",
    "type=deepspeed zero_stage=3 gradient_accumulation_steps=2",
    "type=deepspeed zero_stage=3 recompute=full r=8",
    "type=deepspeed recompute=full cpu_checkpointing=true",
    "type=megatron_lm",
    "type=megatron_lm pipeline_parallel_size=2 gradient_accumulation_steps=4",
    "type=megatron_lm pipeline_parallel_size=2 virtual_pipeline_size=3 "
    "gradient_accumulation_steps=4",
)
REFILLED = [f"{kind} {START}" for kind in KINDS]
FEW = [*SETTINGS[::40], *REFILLED]
REST = [pytest.param(one, marks=pytest.mark.proof) for one in SETTINGS if one not in FEW]
SHAPES = ((4, 2048), (3, 3072))  # micro-batch and sequence


@pytest.mark.parametrize("settings", [*FEW, *REST])
def test_a_refilled_stream_is_the_written_one(
    settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the engine and its options, also on a small GPU; usual ones are refilled."""
    try:
        resolved = resolve(read(run_file(settings)).file)
    except InputError:
        assert settings not in REFILLED
        return
    forget()
    writes: list[int] = []
    write = written._write

    def count(*given: object, **named: object) -> object:
        writes.append(1)
        return write(*given, **named)  # type: ignore[arg-type]

    for batch, seq in SHAPES if resolved.run.record is None else ():
        run = replace(resolved.run, batch=batch, seq=seq)
        asked = stage_requests(replace(resolved, run=run), 0)
        with monkeypatch.context() as patch:
            patch.setattr(written, "_write", count)
            refilled = streams(asked)
        assert refilled == streams(StageRequests(asked.ledger, asked.micro_batches))
    assert settings not in REFILLED or len(writes) == 1 + (asked.ledger.tight is not None)


INTERLEAVED = (
    "type=megatron_lm model.name=llama3.1-8b num_gpus=16 pipeline_parallel_size=2 "
    "virtual_pipeline_size=4 gradient_accumulation_steps=4"
)


def stage_of(settings: str, stage: int) -> StageRequests:
    """The requests of a stage of an interleaved run."""
    return stage_requests(resolve(read(run_file(f"{INTERLEAVED} {settings}")).file), stage)


def test_runs_of_one_schedule_have_one_stream_with_other_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more ranks a stage makes the same tensors, smaller; without the loss, the very same."""
    forget()
    first = stage_of("tensor_parallel_size=2 loss=full", 0).usual
    monkeypatch.setattr(written, "_write", None)
    asked = stage_of("tensor_parallel_size=4", 0)
    assert asked.usual.events is first.events
    assert stage_of("tensor_parallel_size=2 loss=te_fused", 0).usual is first
    monkeypatch.undo()
    assert asked.usual == StageRequests(asked.ledger, asked.micro_batches).usual
    assert asked.usual.sizes != first.sizes


@pytest.mark.parametrize("settings", ["sequence_parallel=true", "virtual_pipeline_size=2"])
def test_a_run_with_another_order_is_written(settings: str) -> None:
    """Other tensors, or another schedule, are not filled in."""
    forget()
    first = stage_of("tensor_parallel_size=2", 0).usual
    asked = stage_of(f"tensor_parallel_size=2 {settings}", 0)
    assert asked.usual.events != first.events
    assert asked.usual == StageRequests(asked.ledger, asked.micro_batches).usual


def streams(asked: StageRequests) -> tuple[object, object]:
    """The usual stream, and that of a small GPU where it is another."""
    return asked.usual, None if asked.ledger.tight is None else asked.tight

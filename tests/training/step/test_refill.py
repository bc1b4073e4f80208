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
        resolved = resolve(read(run_file(settings)))
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


def streams(asked: StageRequests) -> tuple[object, object]:
    """The usual stream, and that of a small GPU where it is another."""
    return asked.usual, None if asked.ledger.tight is None else asked.tight

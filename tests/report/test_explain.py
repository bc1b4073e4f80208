"""The symbolic run: formulas that say what the numbers say."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.estimates.explain.explain import explain
from gpu_mem_calculator.report.explanation import explanation_lines
from gpu_mem_calculator.report.lines import plain

RUNS: dict[str, dict[str, Any]] = {
    "ddp": {"engine": {"type": "ddp"}},
    "zero-2": {"engine": {"type": "deepspeed", "zero_stage": 2}},
    "zero-3 offload": {
        "engine": {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"}
    },
    "fsdp": {"engine": {"type": "fsdp"}},
    "megatron": {
        "engine": {"type": "megatron"},
        "parallelism": {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "sequence_parallel": True,
        },
    },
}


def _run(name: str, **model: Any) -> dict[str, Any]:
    training = {"batch_size": 2, "seq_len": 1024, "gradient_accumulation_steps": 4}
    return {
        "model": {"name": "llama2-7b", **model},
        "training": training,
        "hardware": {"num_gpus": 8},
        **RUNS[name],
    }


@cache
def _estimate(name: str) -> Estimate:
    return full_estimate(_run(name))


@pytest.mark.parametrize("name", RUNS)
def test_every_engine_writes_its_formulas(name: str) -> None:
    """Each engine's ledger can be run with letters, and gives the same bytes."""
    assert explain(_estimate(name)).symbolic


@pytest.mark.parametrize("name", RUNS)
def test_entries_at_the_peak_add_up(name: str) -> None:
    """What is listed as alive at the peak is the whole estimate, to the byte."""
    made = _estimate(name)
    found = explain(made)
    total = sum(e.bytes_at_peak for e in found.entries if e.place == "gpu")
    assert total == made.result.allocated_bytes + made.result.outside_torch_bytes


@pytest.mark.parametrize("name", RUNS)
def test_what_the_allocator_adds_is_one_entry_and_one_line(name: str) -> None:
    """Larger blocks are an entry; a line leads from the peak to what the verdict says."""
    made = _estimate(name)
    found = explain(made)
    (blocks,) = (e for e in found.entries if e.name == "blocks larger than their tensors")
    assert blocks.kind == "runtime"
    assert blocks.source.startswith("code: torch")
    text = plain(explanation_lines(made, found, show_parts=False))
    needs = f"; {made.result.total_memory_per_gpu_gb:,.2f} GiB in all"
    assert needs in " ".join(text.split())


def test_libraries_on_the_host_are_an_entry() -> None:
    """With their measured source, and apart from what is alive on the card."""
    made = _estimate("fsdp")
    (entry,) = (e for e in explain(made).entries if e.name == "libraries on the host")
    assert (entry.place, entry.bytes) == ("cpu", made.resolved.host_libraries[1])
    assert entry.source.startswith("measured: ")


def _value(text: str) -> int:
    """A formula with its numbers put in, as a number."""
    return int(eval(text.replace("×", "*").replace(",", ""), {}))  # digits and + - * only


@pytest.mark.parametrize("name", ["ddp", "zero-2", "fsdp"])
def test_numbers_put_in_give_the_bytes(name: str) -> None:
    """Working the printed numbers out gives the printed bytes."""
    entries = explain(_estimate(name)).entries
    assert all(_value(entry.numbers) == entry.bytes for entry in entries)


def test_a_given_count_has_its_own_letter() -> None:
    """Where a parameter count is given, states are multiples of P."""
    found = explain(full_estimate(_run("ddp", num_parameters="7B")))
    states = next(entry for entry in found.entries if entry.name == "adamw states")
    assert (states.formula, found.letters["P"]) == ("8 × P", 7 * 10**9)


def test_a_long_window_is_no_window() -> None:
    """A sliding window longer than the sequence changes nothing, with letters as without."""
    run = {"model": {"name": "gemma2-2b"}, "training": {"seq_len": 512}}
    assert explain(full_estimate(run)).symbolic


def test_an_engine_that_takes_only_numbers_is_shown_with_numbers() -> None:
    """Where letters cannot go through an engine, entries show plain numbers and say so."""
    from msgspec.structs import replace

    from gpu_mem_calculator.ledger.sym import Sym

    made = _estimate("ddp")
    whole = made.resolved.engine.ledger

    def picky(run: Any) -> Any:
        if isinstance(run.batch, Sym):
            raise TypeError("numbers only")
        return whole(run)

    engine = replace(made.resolved.engine, ledger=picky)
    found = explain(replace(made, resolved=replace(made.resolved, engine=engine)))
    assert not found.symbolic
    assert found.letters == {}
    assert all(entry.formula == f"{entry.bytes:,}" for entry in found.entries)


def test_a_broken_formula_is_not_hidden() -> None:
    """Only an operation that letters do not have makes an engine's formulas plain numbers."""
    from msgspec.structs import replace

    def broken(run: Any) -> Any:
        raise LookupError("a wrong key")

    made = _estimate("ddp")
    engine = replace(made.resolved.engine, ledger=broken)
    with pytest.raises(LookupError, match="a wrong key"):
        explain(replace(made, resolved=replace(made.resolved, engine=engine)))


def test_mesh_axes_are_letters() -> None:
    """Sharding over ranks shows in the formula."""
    found = explain(_estimate("fsdp"))
    assert found.letters["dp"] == 8
    assert any("dp" in entry.formula for entry in found.entries)


def test_an_entry_on_the_host_of_rank_0_says_so() -> None:
    """A whole state dict that is saved is not on the GPU."""
    saved = {**_run("fsdp"), "training": {"saving": "full_state_dict"}}
    made = full_estimate(saved, replay=False)
    text = plain(explanation_lines(made, explain(made), show_parts=False))
    assert "saving: whole state dict (parameters, in rank 0's host RAM)" in text

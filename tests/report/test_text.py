"""The text report: figures that add up, bars that line up, advice that holds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_mem_calculator.core.calculator import Estimate, estimate, full_estimate
from gpu_mem_calculator.core.runfile import with_settings
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.advice import remedies
from gpu_mem_calculator.report.room import longest_sequence
from gpu_mem_calculator.report.bars import bar, gauge, stacked
from gpu_mem_calculator.report.headline import card_bytes, sentence
from gpu_mem_calculator.report.lines import coloured, command, count, plain, size, wrapped
from gpu_mem_calculator.report.parts import parts
from gpu_mem_calculator.report.text import text_report

RUNS: dict[str, dict[str, Any]] = {
    "one gpu": {"hardware": {"gpu": "rtx-4090"}},
    "zero-3": {"engine": {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"},
               "hardware": {"num_gpus": 8}},
    "fsdp": {"engine": {"type": "fsdp"}, "hardware": {"num_gpus": 16}},
    "megatron": {"engine": {"type": "megatron"}, "hardware": {"num_gpus": 32},
                 "parallelism": {"pipeline_parallel_size": 16}},
    "qlora": {"training": {"lora": {"r": 16}, "quantization": "nf4"}},
}  # fmt: skip


def _made(name: str) -> Estimate:
    return full_estimate({"model": {"name": "llama2-7b"}, **RUNS[name]})


def _text(made: Estimate) -> str:
    return plain(text_report(made, ["explain", "--config", "run.json"]))


@pytest.mark.parametrize("name", RUNS)
def test_parts_add_up_to_the_whole(name: str) -> None:
    """The rows of the table are everything that the card must have, to the byte."""
    made = _made(name)
    assert sum(part.bytes for part in parts(made)) == card_bytes(made)
    assert card_bytes(made) == made.result.allocated_bytes + made.result.outside_torch_bytes


@pytest.mark.parametrize("name", RUNS)
def test_printed_parts_add_up_to_the_printed_total(name: str) -> None:
    """The printed figures sum to the printed total, up to rounding."""
    table = _text(_made(name)).partition("at the peak")[2].partition("\n\n")[0]
    figures = [float(row[58:67].replace(",", "")) for row in table.splitlines()[1:]]
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.006 * len(figures))


@pytest.mark.parametrize("name", RUNS)
def test_reports_keep_to_80_columns(name: str) -> None:
    """No line is wider than a terminal."""
    assert max(map(len, _text(_made(name)).splitlines())) <= 80


@pytest.mark.parametrize("name", RUNS)
def test_the_peak_is_marked_once(name: str) -> None:
    """The picture marks one instant, with the allocated peak as its figure."""
    made = _made(name)
    picture = _text(made).partition("start-up and one step")[2].partition("\n\n")[0]
    marked = [row for row in picture.splitlines() if row.startswith("►")]
    assert len(marked) == 1
    assert f"{made.result.allocated_bytes / GIB:,.2f}" in marked[0]


def test_a_long_pipeline_is_shown_in_part() -> None:
    """Of sixteen stages the ends and the busiest have rows, the rest one row together."""
    table = _text(_made("megatron")).partition("pipeline stages")[2].partition("\n\n")[0]
    rows = table.splitlines()[1:]
    assert len(rows) < 10
    assert sum(row.startswith("►") for row in rows) == 1
    assert any(re.match(r"  \d+ to \d+ ", row) for row in rows)


def test_the_verdict_says_what_it_rests_on() -> None:
    """While the allocator is not modelled, the report says so."""
    assert "allocator" in _text(_made("fsdp"))


def test_offloaded_bytes_are_shown_per_node() -> None:
    """Host memory has its own figure."""
    made = _made("zero-3")
    assert f"host RAM {made.result.host_bytes_per_node / GIB:,.1f} GiB per node" in _text(made)


@pytest.mark.parametrize("name", ["one gpu", "fsdp"])
def test_advice_only_where_it_is_needed(name: str) -> None:
    """A run with room gets no advice; one that does not fit does."""
    made = _made(name)
    assert bool(remedies(made)) is not made.result.fits_on_gpu


def test_a_remedy_saves_what_it_says() -> None:
    """Running the estimate with the change gives the figure that was promised."""
    made = full_estimate({"model": {"name": "llama2-7b"}, "hardware": {"num_gpus": 8}})
    found = remedies(made)
    assert found
    for remedy in found:
        changed = estimate(with_settings(dict(made.result.run), remedy.settings))
        saved = card_bytes(made) - round(changed.total_memory_per_gpu_gb * GIB)
        assert (saved, changed.fits_on_gpu) == (remedy.saves_bytes, remedy.fits)


def test_the_last_resort_is_an_adapter() -> None:
    """7B on one 24 GB card: only training an adapter fits."""
    first = remedies(_made("one gpu"))[0]
    assert first.fits
    assert "training.quantization=nf4" in first.settings


def test_the_longest_sequence_fits_and_more_does_not() -> None:
    """The sequence that the report names fits; one a tenth longer does not."""
    run = {"model": {"name": "llama3.2-1b"}, "training": {"seq_len": 2048}}
    longest = longest_sequence(full_estimate(run))
    assert longest is not None
    for length, fits in ((longest, True), (longest * 11 // 10, False)):
        result = estimate(with_settings(dict(run), [f"training.seq_len={length}"]))
        assert result.fits_on_gpu is fits


def test_one_sentence() -> None:
    """The verdict as a sentence."""
    text = sentence(_made("one gpu"), "run.json")
    assert re.fullmatch(r"run\.json does not fit: it needs [\d.]+ of 23\.5 GiB per GPU, "
                        r"[\d.]+ GiB short\.", text)  # fmt: skip


def test_colour_adds_only_escape_codes() -> None:
    """On a terminal the text is the same, with styles around it."""
    lines = list(text_report(_made("fsdp"), ["explain", "--config", "run.json"]))
    text = coloured(lines)
    assert "\x1b[" in text
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert [row.rstrip() for row in stripped.splitlines()] == plain(lines).splitlines()


@pytest.mark.parametrize(("value", "length"), [(0, 0), (0.001, 1), (5, 5), (10, 10), (99, 10)])
def test_bar_lengths(value: float, length: int) -> None:
    """A bar is as long as its share, shows what is there, and never leaves its room."""
    assert len(bar(value, 10, 10)) == length


@pytest.mark.parametrize(("share", "filled"), [(0.0, 0), (0.5, 5), (1.0, 10), (7.0, 10)])
def test_gauge(share: float, filled: int) -> None:
    """A gauge is always as wide as asked."""
    assert gauge(share, 10) == "█" * filled + "░" * (10 - filled)


def test_stacked_parts_sum_to_the_rounded_whole() -> None:
    """Rounding parts one by one does not change the length of their sum."""
    assert sum(stacked([1, 1, 1, 1, 1], 10, 9)) == round(9 * 5 / 10)


@pytest.mark.parametrize(
    ("number", "text"),
    [(6_738_415_616, "6.74 B"), (124_439_808, "124 M"), (405_853_388_800, "406 B"),
     (1_500_000_000_000, "1.5 T"), (999, "999")],
)  # fmt: skip
def test_counts(number: int, text: str) -> None:
    """Counts as people say them."""
    assert count(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(2**30, "1.00 GiB"), (3 * 2**19, "1.50 MiB"), (12, "12 bytes")]
)
def test_sizes(number: int, text: str) -> None:
    """Bytes in the unit that suits them."""
    assert size(number) == text


def test_wrapped_text_stays_right_of_its_label() -> None:
    """The second line of a remark starts under the first word of its text."""
    rows = plain(wrapped("note: ", "word " * 40)).splitlines()
    assert len(rows) > 1
    assert all(row.startswith("      word") for row in rows[1:])


def test_a_long_command_can_be_copied() -> None:
    """A command that is folded keeps its words, with a backslash at each fold."""
    words = ["gpu-mem-calc", "explain", *(["--set", "training.batch_size=8"] * 5)]
    text = plain(command("why:  ", words))
    assert max(map(len, text.splitlines())) <= 80
    assert text.replace("\\\n", " ").split()[1:] == words

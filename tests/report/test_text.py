"""The text report: figures that add up, bars that line up, advice that holds."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.advice.training.answers import TrainingAnswers, training_answers
from gpu_mem_calculator.advice.training.remedies import Remedy, remedies
from gpu_mem_calculator.estimates.calculator import Estimate, estimate, full_estimate
from gpu_mem_calculator.estimates.longest_sequence import longest_sequence
from gpu_mem_calculator.estimates.node import TITLES
from gpu_mem_calculator.estimates.result import OutOfMemory
from gpu_mem_calculator.estimates.stage_replay import taken_under
from gpu_mem_calculator.estimates.verdict_words import total_bytes
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.headline import sentence
from gpu_mem_calculator.report.lines import (
    Line,
    bar,
    colour_text,
    command,
    count,
    gauge,
    plain,
    size,
    stack_widths,
    wrap_lines,
)
from gpu_mem_calculator.report.longest_sequence import failure_words, longest_sequence_words
from gpu_mem_calculator.report.parts import parts
from gpu_mem_calculator.report.remedy_lines import Commands, remedy_words
from gpu_mem_calculator.report.text import text_report
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read

RUNS: dict[str, dict[str, Any]] = {
    "one gpu": {"hardware": {"gpu": "rtx-4090"}},
    "zero-3": {
        "engine": {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"},
        "hardware": {"num_gpus": 8},
    },
    "fsdp": {"engine": {"type": "fsdp"}, "hardware": {"num_gpus": 16}},
    "megatron": {
        "engine": {"type": "megatron"},
        "hardware": {"num_gpus": 32},
        "parallelism": {"pipeline_parallel_size": 16},
    },
    "qlora": {"training": {"lora": {"r": 16}, "quantization": "nf4"}},
}


@cache
def _made(name: str) -> Estimate:
    return full_estimate({"model": {"name": "llama2-7b"}, **RUNS[name]})


@cache
def _answers(name: str) -> TrainingAnswers:
    return training_answers(_made(name))


def _commands(answers: TrainingAnswers) -> Commands:
    run = ["calculate", "--config", "run.json"]
    return Commands(run, ["explain", *run[1:]], [run] * len(answers.remedies))


def _lines(made: Estimate, answers: TrainingAnswers) -> list[Line]:
    return list(text_report(made, answers, _commands(answers)))


def _text(made: Estimate) -> str:
    return plain(_lines(made, TrainingAnswers()))


@pytest.mark.parametrize("name", RUNS)
def test_parts_add_up_to_the_whole(name: str) -> None:
    """The rows of the table are everything that the card must have, to the byte."""
    made = _made(name)
    assert sum(part.bytes for part in parts(made)) == total_bytes(made.result)
    assert made.result.needs_bytes is not None
    assert made.result.margin_bytes is not None
    torch = made.result.needs_bytes + made.result.margin_bytes
    assert total_bytes(made.result) == torch + made.result.outside_torch_bytes
    assert [part.title for part in parts(made)[-2:]] == ["fragmentation", "margin"]


@pytest.mark.parametrize("name", RUNS)
def test_printed_parts_add_up_to_the_printed_total(name: str) -> None:
    """The printed figures sum to the printed total, up to rounding."""
    table = _text(_made(name)).partition("at the peak")[2].partition("\n\n")[0]
    figures = [float(row[60:70].replace(",", "")) for row in table.splitlines()[1:]]
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.006 * len(figures))


@pytest.mark.parametrize("name", RUNS)
def test_reports_keep_to_80_columns(name: str) -> None:
    """No line is wider than a terminal."""
    text = plain(_lines(_made(name), _answers(name)))
    assert max(map(len, text.splitlines())) <= 80


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
    """Only where the allocator was not replayed."""
    alone = full_estimate(_made("fsdp").result.run, replay=False)
    assert "was not replayed" in _text(alone)
    assert "was not replayed" not in _text(_made("fsdp"))


@pytest.mark.parametrize("name", RUNS)
def test_the_four_numbers_are_named_once(name: str) -> None:
    """Each has one row with its figure; the total says what is added to what torch needs."""
    result, text = _made(name).result, _text(_made(name))
    figures = {
        "allocated": result.allocated_bytes,
        "reserved": result.reserved_bytes,
        "torch needs": result.needs_bytes,
        "nvidia-smi": result.device_bytes,
    }
    for title, value in figures.items():
        assert value is not None
        rows = [row for row in text.splitlines() if row.startswith(f"  {title} ")]
        assert len(rows) == 1
        assert f" {value / GIB:,.2f}  " in rows[0]
    assert result.margin_bytes is not None
    margin, outside = result.margin_bytes / GIB, result.outside_torch_bytes / GIB
    assert f"+ {margin:,.2f} margin + {outside:,.2f} CUDA; compare with the card" in text


def test_numbers_that_were_not_replayed_are_not_shown() -> None:
    """The ledger alone has no reserved memory, and none is made up."""
    text = _text(full_estimate(_made("fsdp").result.run, replay=False))
    assert "  allocated " in text
    assert not re.search(r"^  (reserved|torch needs|nvidia-smi) ", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["zero-3", "fsdp"])
def test_each_phase_has_its_memory_of_a_gpu_and_of_the_node(name: str) -> None:
    """One row for each phase, in order, with the figures of the result."""
    made = _made(name)
    text = _text(made).partition("from loading on")[2]
    rows = [TITLES[p.name] if p.asked else f"({TITLES[p.name]})" for p in made.result.phases]
    places = [text.index(f"\n  {title} ") for title in rows]
    assert places == sorted(places)
    assert f" {made.result.host_bytes_per_node / GIB:,.2f}" in text


@pytest.mark.parametrize(
    ("model", "seq"), [("llama3.2-1b", 2048), ("llama3.2-1b", 32768), ("llama2-7b", 4096)]
)
def test_the_longest_sequence_fits_and_more_does_not(model: str, seq: int) -> None:
    """The sequence that the report names survives a replay; one a tenth longer does not fit.

    Whether the run itself fits (7B on eight GPUs, 1B on one) or is too long (32,768).
    """
    gpus = {"hardware": {"num_gpus": 8}, "engine": {"type": "fsdp"}} if "7b" in model else {}
    run = {"model": {"name": model}, "training": {"seq_len": seq}, **gpus}
    longest = longest_sequence(full_estimate(run))
    assert longest is not None
    resolved = resolve(read(with_settings(dict(run), [f"training.seq_len={longest}"])).file)
    outside = sum(size for _, size, _ in resolved.outside_torch)
    cap = resolved.hardware.memory_bytes - outside
    assert taken_under(resolved, 0, cap) == cap
    longer = estimate(with_settings(dict(run), [f"training.seq_len={longest * 11 // 10}"]))
    assert not longer.fits_on_gpu


@pytest.mark.parametrize(
    ("name", "longest", "words"),
    [
        ("one gpu", None, "even the shortest sequence does not fit: model states alone are too la"),
        ("one gpu", 384, "longest sequence that fits: about 384 tokens at this micro-batch"),
        ("fsdp", 9088, "longest sequence that fits: about 9,088 tokens at this micro-batch"),
    ],
)
def test_the_longest_sequence_in_words(name: str, longest: int | None, words: str) -> None:
    """It is about a number of tokens, or none fits, and why."""
    assert longest_sequence_words(_made(name), longest).startswith(words)


@pytest.mark.parametrize(
    ("step", "phase", "words"),
    [
        (0, "startup", "out of memory at start-up, before the first step"),
        (1, "forward", "out of memory in step 1, in the forward pass"),
        (2, "backward", "step 1 survives, step 2 dies in the backward pass: now with optimizer"),
        (3, "optimizer", "step 2 survives, step 3 dies in the optimizer step: memory is fragment"),
    ],
)
def test_where_it_dies_in_words(step: int, phase: str, words: str) -> None:
    """Optimizer states exist from the second step on."""
    result = replace(_made("one gpu").result, fails_at=OutOfMemory(step=step, phase=phase))
    (text,) = failure_words(result)
    assert text.startswith(words)


def _on_a_card(margins: float) -> Estimate:
    """A run on a card with some margins more memory than it needs."""
    run = {"model": {"name": "llama3.2-1b"}, "training": {"seq_len": 1024}}
    result = estimate(run)
    assert result.needs_bytes is not None
    assert result.margin_bytes is not None
    has = result.needs_bytes + result.outside_torch_bytes + int(margins * result.margin_bytes)
    return full_estimate({**run, "hardware": {"gpu_memory_bytes": has}})


@pytest.mark.parametrize(
    ("margins", "words"),
    [
        (2, r"fits: needs [\d.]+ of [\d.]+ GiB per GPU, [\d.]+ GiB to spare; assumed: 1 GPU"),
        (0.5, r"cannot tell: needs [\d.]+ to [\d.]+ of [\d.]+ GiB per GPU, within the margin"),
        (-1, r"does not fit: needs [\d.]+ of [\d.]+ GiB per GPU, [\d.]+ GiB short; assumed: 1 GPU"),
    ],
)
def test_within_the_margin_nobody_can_tell(margins: float, words: str) -> None:
    """The first line has the verdict and what the run needs."""
    made = _on_a_card(margins)
    assert re.match(words, " ".join(_text(made).splitlines()[:2]))


def test_within_the_margin_a_run_gets_advice_and_a_sentence() -> None:
    """It is not said to fit."""
    made = _on_a_card(0.5)
    assert not made.result.fits_on_gpu
    assert sentence(made, "run.json").startswith("cannot tell whether run.json fits: it needs ")
    assert remedies(made)


def test_one_sentence() -> None:
    """The verdict as a sentence."""
    text = sentence(_made("one gpu"), "run.json")
    assert re.fullmatch(
        r"run\.json does not fit: it needs [\d.]+ of 23\.5 GiB per GPU, "
        r"[\d.]+ GiB short; assumed: 1 GPU, [\d,]+ tokens\.",
        text,
    )


def test_colour_adds_only_escape_codes() -> None:
    """On a terminal the text is the same, with styles around it."""
    lines = _lines(_made("one gpu"), _answers("one gpu"))
    text = colour_text(lines)
    assert "\x1b[" in text
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert [row.rstrip() for row in stripped.splitlines()] == plain(lines).splitlines()


@pytest.mark.parametrize(("value", "length"), [(0, 0), (0.001, 1), (5, 5), (10, 10), (99, 10)])
def test_bar_lengths(value: float, length: int) -> None:
    """A bar is as long as its share, has a mark for any value above 0, and is never too wide."""
    assert len(bar(value, 10, 10)) == length


@pytest.mark.parametrize(("share", "filled"), [(0.0, 0), (0.5, 5), (1.0, 10), (7.0, 10)])
def test_gauge(share: float, filled: int) -> None:
    """A gauge is always as wide as asked."""
    assert gauge(share, 10) == "█" * filled + "░" * (10 - filled)


def test_stacked_parts_sum_to_the_rounded_whole() -> None:
    """Rounding parts one by one does not change the length of their sum."""
    assert sum(stack_widths([1, 1, 1, 1, 1], 10, 9)) == round(9 * 5 / 10)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (6_738_415_616, "6.74 B"),
        (124_439_808, "124 M"),
        (405_853_388_800, "406 B"),
        (1_500_000_000_000, "1.5 T"),
        (999, "999"),
    ],
)
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
    rows = plain(wrap_lines("note: ", "word " * 40)).splitlines()
    assert len(rows) > 1
    assert all(row.startswith("      word") for row in rows[1:])


def test_a_long_command_can_be_copied() -> None:
    """A command that is folded keeps its words, with a backslash at each fold."""
    words = ["gpu-mem-calc", "explain", *(["--set", "training.batch_size=8"] * 5)]
    text = plain(command("why:  ", words))
    assert max(map(len, text.splitlines())) <= 80
    assert text.replace("\\\n", " ").split()[1:] == words


@pytest.mark.parametrize(
    ("halves", "words"),
    [
        (0, "less fragmentation"),
        (1, "saves less than 1 GiB"),
        (2, "saves 1 GiB"),
        (8, "saves 4 GiB"),
    ],
)
def test_what_a_remedy_saves_is_never_0(halves: int, words: str) -> None:
    """Half a GiB is less than one."""
    remedy = Remedy(changes=("change",), settings=(), cost="slower", saves_bytes=halves * GIB // 2)
    assert remedy_words(remedy) == f"change: {words}; slower"

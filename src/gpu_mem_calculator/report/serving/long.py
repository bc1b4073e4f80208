"""The whole report on a server: every part, the table of users, the bound on speed, all notes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ...advice.serving.answers import Answers
from ...estimates.calculator import Estimate
from ...estimates.serving.capacity import CapacityMatrix
from ...estimates.serving.infer_command import InferCommand
from ...ledger.ledger import CPU
from ...run.cuda.runtimes import in_words_of
from ...run.served import POOL, ServerItem, ServerMemory
from ...runfile.inference_config import ServingResult
from ..headline import STYLES, headline, remarks, undecided_lines
from ..lines import (
    BOLD,
    DIM,
    GOOD,
    WARN,
    WIDTH,
    Line,
    command,
    gib,
    line,
    part_row,
    size,
    wrap_lines,
)
from ..shortfall import shortfall
from ..text import phases_table
from .parts import FIGURES, busiest_rank, memory_bar, memory_parts
from .words import change_gain, speed_words, start_lines, verdict_words

NAME, TEXT, FIGURE, BAR = 14, 42, 9, 11
CELL = 6
CONTEXT, MOST = 10, 9  # widths of the first and last column of the table of users


def long_report(estimate: Estimate, answers: Answers, asked: InferCommand) -> Iterator[Line]:
    """All that is known about a server."""
    served, serving = busiest_rank(estimate), estimate.result.serving
    style = STYLES[estimate.result.verdict]
    yield from wrap_lines("", verdict_words(estimate, answers), style)
    yield from undecided_lines(estimate.result)
    yield memory_bar(estimate, memory_parts(estimate))
    yield line()
    yield from headline(estimate)
    yield line()
    if served is None or serving is None:
        yield from _tensor_parts(estimate)
        yield line()
        yield from matrix_lines(answers.matrix, "share of the GPU that tensors take")
    else:
        yield from _parts(estimate, served)
        yield line()
        if estimate.result.host is not None:
            yield from phases_table(estimate.result.phases, estimate.result.host)
            yield line()
        if not served.problem and served.sequence_bytes(served.max_seq_len):
            yield from _capacity(serving, answers)
            yield from matrix_lines(answers.matrix, "share of the KV cache")
    if serving is None or not serving.problem:
        yield from _speed(answers)
    yield from _changes(estimate, answers)
    yield from remarks(estimate)
    if serving is not None and not serving.problem:
        yield from start_lines(serving.command)
    yield from command("details: ", [*asked.words(), "--explain"])


def _tensor_parts(estimate: Estimate) -> Iterator[Line]:
    """The parts of a run without a pool."""
    rows = memory_parts(estimate)
    yield line("GiB per GPU", BOLD)
    for row in rows:
        yield line(f"  {row.title:<{NAME}}{gib(row.bytes, 2).rjust(FIGURE)}")
    total = gib(sum(row.bytes for row in rows), 2)
    yield line(f"  {'total':<{NAME}}{total.rjust(FIGURE)}  what the GPU must have", BOLD)


def _parts(estimate: Estimate, served: ServerMemory) -> Iterator[Line]:
    width = 2 + NAME + TEXT + FIGURE - 3
    head, stage, stages = "on one GPU", estimate.result.busiest_stage, len(estimate.served)
    if stages > 1 and "n_gpu_layers" in estimate.resolved.run.options:
        head = f"on GPU {stage}, the fullest of {stages}"
    elif stages > 1:
        head += f", stage {stage + 1} of {stages}"
    yield [(head.ljust(width), BOLD), ("GiB", DIM)]
    runtime = estimate.resolved.run.runtime
    rows = [
        (in_words_of(runtime, title), _description(served, figure), served.figure(figure), colour)
        for figure, _, title, colour in FIGURES
        if served.figure(figure) > 0
    ]
    outside = in_words_of(runtime, "CUDA")
    if served.outside:
        names = _names([name.removeprefix(f"{outside} ") for name, _, _ in served.outside])
        rows.append((outside, names, estimate.result.outside_torch_bytes, ""))
    most = max(size for _, _, size, _ in rows)
    for title, text, num_bytes, colour in rows:
        left = f"  {title:<{NAME}}{text:<{TEXT}}"
        yield part_row(left, num_bytes, most, colour, FIGURE, BAR)
    total = gib(sum(size for _, _, size, _ in rows), 2)
    shown = in_words_of(runtime, "nvidia-smi")
    yield line("  " + shown.ljust(NAME + TEXT) + total.rjust(FIGURE), BOLD)
    for item in (i for i in served.items if i.place == CPU):
        left = f"  {'host RAM':<{NAME}}{_names([item.name]):<{TEXT}}"
        yield line(left + gib(item.bytes, 2).rjust(FIGURE), DIM)


def _description(served: ServerMemory, figure: str) -> str:
    """The names of the largest items of a figure."""
    items: list[ServerItem] = [i for i in served.items if i.figure == figure and i.place != CPU]
    if figure == POOL:
        return f"{served.tokens:,} tokens, {size(served.token_bytes)} each"
    largest = sorted(items, key=lambda i: -i.bytes)
    return _names(
        [i.name.removesuffix(": activations").removeprefix("CUDA graphs: ") for i in largest]
    )


def _names(names: Sequence[str]) -> str:
    """As many whole names as fit into the column, with dots for the others."""
    for most in range(len(names), 0, -1):
        text = ", ".join(names[:most]) + ", …" * (most < len(names))
        if len(text) < TEXT:
            return text
    return names[0][: TEXT - 2] + "…" if names else ""


def _capacity(serving: ServingResult, answers: Answers) -> Iterator[Line]:
    rows = [
        (serving.kv_tokens, "tokens in the KV cache"),
        (serving.users, f"concurrent users at {serving.users_context:,} tokens"),
        (serving.longest_context, "tokens in the longest single sequence"),
        (serving.most_sequences, "concurrent sequences allowed (max_num_seqs)"),
        (answers.largest_context or 0, "tokens in the largest context that fits"),
    ]
    yield line("capacity", BOLD)
    for figure, says in rows:
        if figure:
            yield [(f"{figure:>12,}", ""), (f"  {says}", DIM)]
    yield line()


def matrix_lines(matrix: CapacityMatrix, what: str) -> Iterator[Line]:
    """The capacity table: a row for each context, a column for each number of sequences.

    Cells have the share of the memory that `what` names; the last column has the most sequences.
    """
    first = max(CONTEXT, *(len(f"{context:,}") for context in matrix.contexts))
    widths = [max(CELL, 1 + len(f"{number:,}")) for number in matrix.concurrencies]
    shown = sum(first + total + MOST <= WIDTH for total in accumulate(widths))
    yield line(f"users by context: {what}, and the most users", BOLD)
    heads = zip(matrix.concurrencies[:shown], widths, strict=False)
    head = "".join(f"{number:,}".rjust(width) for number, width in heads)
    yield line(f"{'':>{first}}{head}{'most':>{MOST}}", DIM)
    for row, context in enumerate(matrix.contexts):
        spans: Line = [(f"{context:>{first},}", "")]
        for share, width in zip(matrix.shares[row][:shown], widths, strict=False):
            spans.append(_cell(share, width))
        yield [*spans, (f"{matrix.most[row]:>{MOST},}", BOLD)]
    yield line()


def _cell(share: float | None, width: int) -> tuple[str, str]:
    """A share in percent, or a dash where it does not fit, and its style."""
    if share is None or share > 1:
        return "-".rjust(width), DIM
    text = f"{100 * share:.0f}%" if share >= 0.01 else "<1%"
    return text.rjust(width), GOOD if share <= 0.5 else WARN


def _speed(answers: Answers) -> Iterator[Line]:
    """The bound, and what published benchmarks reach of it."""
    speed = answers.speed
    if speed is None:
        yield from wrap_lines("", answers.no_speed, DIM)
        yield line()
        return
    head = "theoretical upper bound on speed (roofline: compute, memory bandwidth, interconnect)"
    yield from ([(text, BOLD) for text, _ in row] for row in wrap_lines("", head))
    yield line(
        f"  first token   {1000 * speed.first_token_seconds:,.1f} ms for {speed.prompt_len:,} "
        f"tokens, {speed.prefill_tokens_per_second:,.0f} tokens/s ({speed.prefill_bound})"
    )
    for row in speed.decode:
        who = "one user" if row.sequences == 1 else f"{row.sequences:,} users"
        rate = row.tokens_per_second_each
        each = "" if row.sequences == 1 else f", {rate:,.{0 if rate >= 100 else 1}f} each"
        context = f"at {speed.context:,} tokens ({row.bound})"
        yield line(f"  {who:<13} {row.tokens_per_second:,.0f} tokens/s{each}, {context}")
    for note in speed.notes:
        yield from wrap_lines("  ", f"Computed {note}.", DIM)
    yield from wrap_lines("  ", shortfall(speed.engine), DIM)
    yield from wrap_lines("expected: ", speed_words(speed))
    yield line()


def _changes(estimate: Estimate, answers: Answers) -> Iterator[Line]:
    """Remedies, then changes one at a time, each with its effect and its command."""
    remedies, others = answers.remedies, answers.what_ifs
    for title, rows in (("what fits", remedies), ("what other changes bring", others)):
        if rows:
            yield line(title, BOLD)
        for change in rows:
            cost = f" ({change.cost})" if change.cost else ""
            gain = f"{change_gain(estimate, change)}{cost}"
            yield from wrap_lines(f"  {change.title}: ", gain, "" if change.fits else DIM)
            yield from command("    ", shlex.split(change.command))
        if rows:
            yield line()

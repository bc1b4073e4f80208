"""The report of a server: whether it starts, its memory, capacity, speed, and changes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ..core.calculator import Estimate
from ..core.inference_config import ServingResult
from ..core.serving_answers import Answers
from ..core.serving_capacity import CapacityMatrix
from ..core.serving_changes import ServingChange
from ..core.training_answers import TrainingAnswers
from ..cuda.runtimes import in_words_of
from ..ledger.ledger import CPU
from ..run.served import ACTIVATION, GRAPHS, NON_TORCH, POOL, WEIGHTS, ServerItem, ServerMemory
from .bars import bar, stack_widths
from .headline import remarks, server_words, setup_words
from .lines import (
    BAD,
    BOLD,
    DIM,
    GOOD,
    WARN,
    WIDTH,
    Line,
    command,
    count,
    gib,
    line,
    size,
    wrap_lines,
)
from .remedy_lines import Commands
from .shortfall import shortfall

# The parts of a card's memory in the order they are drawn: figure, shade, title, colour.
FIGURES = (
    (WEIGHTS, "█", "weights", "blue"),
    (POOL, "▓", "KV cache", "cyan"),
    (ACTIVATION, "▒", "activations", "green"),
    (GRAPHS, "░", "CUDA graphs", "yellow"),
    (NON_TORCH, "░", "libraries", "yellow"),
)
FREE = "·"
NAME, TEXT, FIGURE, BAR = 14, 42, 9, 11
CELL = 6
WHAT, SAYS = 21, 26  # widths of a change's title and of its effect
CONTEXT, MOST = 10, 9  # widths of the first and last column of the capacity table


def serving_report(estimate: Estimate, answers: Answers, words: Sequence[str]) -> Iterator[Line]:
    """The lines of the report; `words` are the arguments of the command that explains it."""
    served = estimate.served[estimate.result.busiest_stage] if estimate.served else None
    if served is None or estimate.result.serving is None:
        from .text import text_report

        yield from text_report(estimate, TrainingAnswers(), Commands(words, words))
        yield line()
        yield from matrix_lines(answers.matrix, "share of the card that tensors take")
        yield from _speed(answers)
        return
    yield from _headline(estimate)
    yield line()
    yield from _verdict(estimate, estimate.result.serving)
    yield from _card(estimate, served)
    yield line()
    yield from _parts(estimate, served)
    yield line()
    if not served.problem:
        if served.sequence_bytes(served.max_seq_len):
            yield from _capacity(estimate.result.serving)
            yield from matrix_lines(answers.matrix, "share of the cache")
        yield from _speed(answers)
    yield from _changes(estimate, answers)
    yield from remarks(estimate)
    if not served.problem:
        yield from command("start: ", shlex.split(estimate.result.serving.command))
    yield from command("why:   ", ["gpu-mem-calc", *words])


def _headline(estimate: Estimate) -> Iterator[Line]:
    words = [f"{count(estimate.result.num_parameters)} parameters", *server_words(estimate)]
    yield from wrap_lines(f"{estimate.resolved.model.title[:40]}  ", ", ".join(words))
    yield from wrap_lines("", ", ".join(setup_words(estimate)))


def _verdict(estimate: Estimate, serving: ServingResult) -> Iterator[Line]:
    if serving.problem:
        yield line("does not start", BAD)
        yield from wrap_lines("", serving.problem)
        return
    left = f"{serving.kv_tokens:,} tokens in {gib(serving.kv_pool_bytes)} GiB of cache"
    if not serving.kv_pool_bytes:
        in_host = f"{serving.kv_tokens:,} tokens, in the host's memory"
        left = in_host if serving.kv_tokens else "a model that keeps no cache"
    yield [(left, BOLD), ("fits".rjust(WIDTH - len(left)), GOOD)]


def sentence(estimate: Estimate) -> str:
    """The verdict in one sentence."""
    name, serving = estimate.resolved.model.title, estimate.result.serving
    if serving is None:
        from .headline import sentence as verdict

        return verdict(estimate, name)
    if serving.problem:
        return f"{name} does not start: {serving.problem}"
    if not serving.kv_tokens:
        return f"{name} fits; it keeps no cache."
    sequences = f"{serving.max_concurrency:.1f} sequences of {serving.max_seq_len:,}"
    return f"{name} fits: {serving.kv_tokens:,} tokens of cache, {sequences}."


def _card(estimate: Estimate, served: ServerMemory) -> Iterator[Line]:
    """The memory of the card as one bar, with its legend."""
    total = estimate.resolved.hardware.card_bytes
    sizes = [max(0, served.figure(figure)) for figure, _, _, _ in FIGURES]
    sizes[-1] += estimate.result.outside_torch_bytes
    lengths = stack_widths(sizes, max(total, sum(sizes)), WIDTH)
    drawn = zip(FIGURES, lengths, strict=True)
    spans: Line = [(shade * length, colour) for (_, shade, _, colour), length in drawn]
    yield [*spans, (FREE * (WIDTH - sum(lengths)), DIM)]
    free = total - sum(sizes)
    left = f"{FREE} {gib(free)} GiB free" if free >= 0 else f"{gib(-free)} GiB too much"
    legend = "  ".join(f"{shade} {title}" for _, shade, title, _ in FIGURES[:4])
    legend = in_words_of(estimate.resolved.run.runtime, legend)
    yield line(f"{legend}, rest  {left}", DIM)


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
        yield [
            (left, ""),
            (gib(num_bytes, 2).rjust(FIGURE), ""),
            (f"  {bar(num_bytes, most, BAR)}", colour),
        ]
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
    if figure == GRAPHS and len(largest) == 1:  # its name says no more than the figure's
        return _names([largest[0].formula or largest[0].name])
    return _names([i.name.removesuffix(": activations") for i in largest])


def _names(names: Sequence[str]) -> str:
    """As many whole names as fit into the column, with dots for the others."""
    for most in range(len(names), 0, -1):
        text = ", ".join(names[:most]) + ", …" * (most < len(names))
        if len(text) < TEXT:
            return text
    return names[0][: TEXT - 2] + "…" if names else ""


def _capacity(serving: ServingResult) -> Iterator[Line]:
    rows = [
        (f"{serving.max_concurrency:,.1f}", f"sequences of {serving.max_seq_len:,} tokens at once"),
        (f"{serving.longest_context:,}", "tokens in the longest single sequence"),
        (f"{serving.most_sequences:,}", "sequences at once at most, by its settings"),
    ]
    yield line("room for", BOLD)
    for figure, says in rows:
        yield [(figure.rjust(12), ""), (f"  {says}", DIM)]
    yield line()


def matrix_lines(matrix: CapacityMatrix, what: str) -> Iterator[Line]:
    """The capacity table: a row for each context, a column for each number of sequences.

    Cells have the share of the memory that `what` names; the last column has the most sequences.
    """
    first = max(CONTEXT, *(len(f"{context:,}") for context in matrix.contexts))
    widths = [max(CELL, 1 + len(f"{number:,}")) for number in matrix.concurrencies]
    shown = sum(first + total + MOST <= WIDTH for total in accumulate(widths))
    yield line(f"context × sequences at once: {what}, and the most that fit", BOLD)
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
    speed = answers.speed
    if speed is None:
        yield from wrap_lines("", answers.no_speed, DIM)
        yield line()
        return
    yield line("speed at best, by what the card computes, reads and sends", BOLD)
    yield line(
        f"  first token   {1000 * speed.first_token_seconds:,.1f} ms for {speed.prompt_len:,} "
        f"tokens, {speed.prefill_tokens_per_second:,.0f} tokens/s ({speed.prefill_bound})"
    )
    for row in speed.decode:
        who = "alone" if row.sequences == 1 else f"{row.sequences:,} at once"
        rate = row.tokens_per_second_each
        each = "" if row.sequences == 1 else f", {rate:,.{0 if rate >= 100 else 1}f} each"
        context = f"at {speed.context:,} tokens ({row.bound})"
        yield line(f"  {who:<13} {row.tokens_per_second:,.0f} tokens/s{each}, {context}")
    for note in speed.notes:
        yield from wrap_lines("  ", f"These are {note}.", DIM)
    yield from wrap_lines("  ", shortfall(speed.engine), DIM)
    yield line()


def _changes(estimate: Estimate, answers: Answers) -> Iterator[Line]:
    """The table of changes, with the effect of each."""
    rows = [*filter(None, [answers.fewest_gpus]), *answers.what_ifs]
    if not rows:
        return
    yield [("what if".ljust(WHAT + SAYS), BOLD), ("--set", DIM)]
    for change in rows:
        says = change_words(estimate, change)
        first, *more = change.setting
        yield [
            (f"  {change.title}".ljust(WHAT), ""),
            (f"{says:<{SAYS}}", "" if change.fits else DIM),
            (first, "cyan"),
        ]
        for one in more:
            yield [(" " * (WHAT + SAYS), ""), (one, "cyan")]
    yield line()


def change_words(estimate: Estimate, change: ServingChange) -> str:
    """The effect of a change: the tokens of the cache where they change, else the bytes taken."""
    if not change.fits:
        return change.verdict
    serving = estimate.result.serving
    now = 0 if serving is None or serving.problem else serving.kv_tokens
    if change.kv_tokens and change.kv_tokens != now:
        times = f", × {change.kv_tokens / now:.2f}" if now else ""
        return f"{change.kv_tokens:,} tokens{times}"
    return f"takes {gib(change.device_bytes)} GiB"


def change_lines(changes: Sequence[ServingChange]) -> Iterator[Line]:
    """The lines of a list of changes, such as the fewest GPUs or the largest models."""
    if not changes:
        yield line("nothing fits", BAD)
    for change in changes:
        says = f"takes {gib(change.device_bytes)} GiB"
        if change.kv_tokens:
            sequences = f"{change.max_concurrency:,.1f} sequences"
            says = f"{change.kv_tokens:>12,} tokens of cache, {sequences}"
        yield [(f"{change.title:<34}", BOLD), (says, "")]
        yield line("  " + " ".join(f"--set {one}" for one in change.setting), "cyan")

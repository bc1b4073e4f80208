"""The whole text report: verdict, picture of the step, parts, numbers, remedies, assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..advice.training.answers import LONGEST, OTHER_TOOLS, TrainingAnswers
from ..estimates.calculator import Estimate
from ..estimates.node import TITLES, NodeMemory, PhaseMemory
from .headline import basis, headline, remarks, verdict
from .lengths_words import long_lengths_words
from .lines import BOLD, DIM, Line, command, gib, line, wrap_lines
from .longest_sequence import failure_words, longest_sequence_words
from .numbers import four_numbers, numbers_table
from .parts import parts_table
from .remedy_lines import Commands, remedy_lines
from .steps import stage_table, step_picture

NAME, FIGURE, BAR = 24, 11, 20


def text_report(
    estimate: Estimate, answers: TrainingAnswers, commands: Commands, notes: Sequence[str] = ()
) -> Iterator[Line]:
    """The lines of the report, up to what is still looked for; notes: what was chosen for the
    user.
    """
    yield from verdict(estimate)
    yield from map(line, failure_words(estimate.result))
    if answers.sought == OTHER_TOOLS:  # it is one of the notes
        return
    yield line()
    yield from headline(estimate)
    for note in notes:
        yield from wrap_lines("", note, "dim")
    yield line()
    yield from step_picture(estimate)
    yield line()
    yield from parts_table(estimate)
    yield line()
    yield from stage_table(estimate)
    for text in long_lengths_words(estimate.result):
        yield from wrap_lines("", text)
    yield from [line()] if estimate.result.lengths else []
    yield from _numbers(estimate)
    yield from basis(estimate)
    yield from remarks(estimate)
    if answers.sought == LONGEST:
        return
    longest = longest_sequence_words(estimate, answers.longest_sequence)
    yield from [line(longest)] if longest else []
    for remedy, words in zip(answers.remedies, commands.remedies, strict=True):
        yield from remedy_lines(remedy, words)
    if not answers.sought:
        yield from command("details: ", ["gpu-mem-calc", *commands.explain])


def _numbers(estimate: Estimate) -> Iterator[Line]:
    """The tables of numbers on the GPU, of phases and host RAM, and of disk."""
    result = estimate.result
    yield from numbers_table(
        [
            *four_numbers(result, result.outside_torch_bytes, estimate.resolved.run.runtime),
            ("start-up", result.startup_bytes, "tensors while the model is set up"),
        ]
    )
    yield line()
    if result.host is not None:
        yield from phases_table(result.phases, result.host)
        yield line()
    if result.disk_bytes_per_node:
        disk = ("disk", result.disk_bytes_per_node, "what is offloaded to NVMe")
        yield from numbers_table([disk], "GiB per node")
        yield line()


def phases_table(phases: Sequence[PhaseMemory], node: NodeMemory) -> Iterator[Line]:
    """A row for each phase, those that take most marked."""
    highest = max(one.gpu_bytes for one in phases)
    heads = "".join(one.rjust(FIGURE) for one in ("GPU", "host RAM", "+ files", "disk"))
    yield [("from loading on, GiB".ljust(NAME), BOLD), (heads, DIM)]
    for one in phases:
        sizes = (one.gpu_bytes, one.host_bytes, one.file_bytes, one.disk_bytes)
        cells = "".join(gib(size, 2).rjust(FIGURE) if size else "-".rjust(FIGURE) for size in sizes)
        bar = "█" * round(BAR // 2 * one.gpu_bytes / max(highest, 1))
        title = TITLES[one.name] if one.asked else f"({TITLES[one.name]})"
        yield [(f"  {title:<{NAME - 2}}{cells}", "" if one.asked else DIM), (f" {bar}", "")]
    yield line("  GPU: tensors on the busiest; host: of a node, and pages of files, which", DIM)
    yield line("  the kernel takes back where memory is short; disk: files read or written", DIM)
    if node.node_bytes is not None:
        said = f" ({node.read_from})" if node.read_from else ""
        who = "card and host share" if node.shared else "a node has"
        yield line(f"  {who} {gib(node.node_bytes, 1)}{said}", DIM)

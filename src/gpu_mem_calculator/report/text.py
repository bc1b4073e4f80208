"""The whole text report: verdict, picture of the step, parts, numbers, remedies, assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..advice.training.answers import LONGEST, OTHER_TOOLS, TrainingAnswers
from ..estimates.calculator import Estimate
from ..run.cuda.runtimes import in_words_of
from .headline import basis, headline, remarks, verdict
from .lines import Line, command, gib, line, wrap_lines
from .longest_sequence import failure_words, longest_sequence_words
from .numbers import four_numbers, numbers_table
from .parts import parts_table
from .remedy_lines import Commands, remedy_lines
from .steps import stage_table, step_picture


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
    """The tables of numbers on the GPU, and of host RAM and disk."""
    result = estimate.result
    yield from numbers_table(
        [
            *four_numbers(result, result.outside_torch_bytes, estimate.resolved.run.runtime),
            ("start-up", result.startup_bytes, "tensors while the model is set up"),
        ]
    )
    yield line()
    yield from numbers_table(
        [
            ("host RAM", result.host_bytes_per_node, _host(estimate)),
            ("disk", result.disk_bytes_per_node or None, "what is offloaded to NVMe"),
        ],
        "GiB per node",
    )
    yield line()


def _host(estimate: Estimate) -> str:
    """What host memory is used for."""
    _, libraries, _ = estimate.resolved.host_libraries
    ranks = estimate.resolved.hardware.gpus_per_node
    processes = f"{ranks} process{'es' * (ranks > 1)}"
    runtime = in_words_of(estimate.resolved.run.runtime, "CUDA")
    each = f"{processes} × {gib(libraries, 2)} of"
    more = estimate.result.host_bytes_per_node > ranks * libraries
    return f"offloaded; {each} libraries" if more else f"{each} Python and {runtime} libraries"

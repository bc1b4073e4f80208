"""The text report: verdict, picture, parts, numbers, remedies, and how to see the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.calculator import Estimate
from .advice import advice_lines, remedies
from .headline import basis, headline, remarks, verdict
from .lines import Line, command, gib, line, wrap_lines
from .longest_sequence import length_lines
from .numbers import four_numbers, numbers_table
from .parts import parts_table
from .steps import stage_table, step_picture


def text_report(
    estimate: Estimate, words: Sequence[str], notes: Sequence[str] = ()
) -> Iterator[Line]:
    """The lines of the report.

    words: arguments of the command that explains it; notes: what was chosen for the user.
    """
    yield from headline(estimate)
    for note in notes:
        yield from wrap_lines("", note, "dim")
    yield line()
    yield from verdict(estimate)
    yield line()
    yield from step_picture(estimate)
    yield line()
    yield from parts_table(estimate)
    yield line()
    yield from stage_table(estimate)
    yield from _numbers(estimate)
    yield from basis(estimate)
    yield from remarks(estimate)
    yield from length_lines(estimate)
    yield from advice_lines(estimate, remedies(estimate))
    yield from command("why:  ", ["gpu-mem-calc", *words])


def _numbers(estimate: Estimate) -> Iterator[Line]:
    """The tables of numbers on the GPU, and of host RAM and disk."""
    result = estimate.result
    yield from numbers_table(
        [
            *four_numbers(
                result.allocated_bytes,
                result.reserved_bytes,
                result.needs_bytes,
                result.device_bytes,
                result.margin_bytes,
                result.outside_torch_bytes,
                estimate.resolved.run.runtime,
            ),
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
    text = f"libraries, {ranks} × {gib(libraries, 2)}"
    more = estimate.result.host_bytes_per_node > ranks * libraries
    return f"offloaded states and buffers; {text}" if more else text

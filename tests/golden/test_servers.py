"""Figures of many servers: drawn models, cards, versions and options, each with what it takes.

`python -m tests.golden.test_servers` writes the figures of the stored runs anew, `--draw` draws
other runs first: after an option, a version or a model was added.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.estimates.serving.capacity import matrix
from gpu_mem_calculator.estimates.serving.speed import no_speed, speed
from gpu_mem_calculator.runfile.inference_config import ServingResult, SpeedResult
from gpu_mem_calculator.serving import server, server_names
from tests.corpus import sampled
from tests.golden.stored_runs import HERE, check, digest, rounded, stored_settings, write

PARTS = 6  # tests for each server, so that a changed formula fails one early
NUMBER = 180  # runs that are drawn for each server
TITLE = (
    "weights activation non_torch graphs pool tokens, or allocated startup outside host; needs, "
    "whether it fits, prefill and decode tokens a second; digests of items, command, speed and "
    "capacity"
)
CONTEXTS, COUNTS = (300, 5000), (1, 7)  # of the capacities in the last digest


def file_of(name: str) -> Path:
    """The file of a server's runs."""
    return HERE / "servers" / f"{name}.txt"


def figures(run: dict[str, Any]) -> str:
    """The figures of a server: numbers to read, digests of the rest."""
    found = full_estimate(run, replay=False)
    serving = found.result.serving
    numbers = _own_numbers(found) if serving is None else _pool_numbers(serving)
    needs = found.result.needs_bytes
    head = (*numbers, needs, "fits" if found.result.fits_on_gpu else "short")
    rates = speed(found)
    return " ".join(map(str, (*head, *_speeds(rates), *_digests(found, serving, rates))))


def _pool_numbers(serving: ServingResult) -> tuple[int, ...]:
    return (
        serving.weights_bytes,
        serving.activation_bytes,
        serving.non_torch_bytes,
        serving.graph_bytes,
        serving.kv_pool_bytes,
        serving.kv_tokens,
    )


def _own_numbers(found: Estimate) -> tuple[int | None, ...]:
    result = found.result
    outside = result.outside_torch_bytes
    return result.allocated_bytes, result.startup_bytes, outside, result.host_bytes_per_node


def _speeds(rates: SpeedResult | None) -> tuple[str, str]:
    if rates is None:
        return "-", "-"
    return rounded(rates.prefill_tokens_per_second), rounded(rates.decode[-1].tokens_per_second)


def _digests(
    found: Estimate, serving: ServingResult | None, rates: SpeedResult | None
) -> tuple[str, ...]:
    """Digests of all items of all stages; of the command and what is assumed; of speed; of
    capacity.
    """
    items = [
        (entry.kind, int(entry.bytes), entry.place, [size for _, size in entry.parts])
        for ledger in found.ledgers
        for entry in ledger.entries
    ]
    outside = [(name, size) for name, size, _ in found.outside_torch]
    sizes = [
        (one.token_bytes, one.most_sequences, one.needs_bytes, one.on_host, one.longest_context)
        for one in found.served
    ]
    result = found.result
    said = len(result.warnings), result.assumed
    command = (serving and serving.command, serving and serving.max_seq_len, sizes, said)
    table = matrix(found, CONTEXTS, COUNTS)
    times = no_speed(found) if rates is None else _times(rates)
    shares = [rounded(share) for row in table.shares for share in row]
    return digest((items, outside)), digest(command), digest(times), digest((shares, table.most))


def _times(rates: SpeedResult) -> list[str]:
    steps = [
        (str(one.sequences), rounded(one.tokens_per_second_each), one.bound) for one in rates.decode
    ]
    first = (rounded(rates.first_token_seconds), rates.prefill_bound, str(rates.context))
    return [text for row in (first, *steps) for text in row]


@pytest.mark.parametrize("part", sampled(range(PARTS), keep=3))
@pytest.mark.parametrize("name", server_names())
def test_figures_of_a_server_are_as_they_were(name: str, part: int) -> None:
    """A formula that changes shows in the figures of the runs that use it."""
    check(file_of(name), part, PARTS, figures)


@pytest.mark.parametrize("name", server_names())
def test_every_option_of_a_server_is_drawn(name: str) -> None:
    """An option without a run here is one whose memory no stored figure shows."""
    runs = "\n".join(stored_settings(file_of(name)))
    missing = [key for key in server(name).options if f" {key}=" not in runs]
    assert not missing, "python -m tests.golden.test_servers --draw draws runs with them"


def main(draw: bool) -> None:
    """Write the files of all servers."""
    from tests.golden.drawn_servers import drawn

    for name in server_names():
        path = file_of(name)
        runs = drawn(name, NUMBER) if draw else stored_settings(path)
        write(path, TITLE, runs, figures)


if __name__ == "__main__":
    main("--draw" in sys.argv[1:])

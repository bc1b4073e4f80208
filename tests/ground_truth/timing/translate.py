"""A row of a public source becomes a run file and its measured seconds, or a reason why not.

A row is never completed by a guess. What its source states elsewhere (a launch script, the text
around a table) is in the functions of `megatron_sources.py`, `nemo_sources.py` and
`other_sources.py`, with the place where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read

from . import megatron_sources, nemo_sources, other_sources
from .rows import TimingRow, every_row
from .sections import RunFileParts, UnusableError
from .source_flops import seconds_of

Translator = Callable[[TimingRow], RunFileParts]
TRANSLATORS: Mapping[str, Translator] = {
    "vTrain": megatron_sources.vtrain,
    "BigScience": megatron_sources.bigscience,
    "Korthikanti": megatron_sources.korthikanti,
    "Megatron SC21": megatron_sources.sc21,
    "MegaScale": megatron_sources.megascale,
    "Llama 3": megatron_sources.llama3,
    "NVIDIA dgxc": nemo_sources.dgxc,
    "NVIDIA NeMo": nemo_sources.nemo,
    "llm-foundry": other_sources.llm_foundry,
    "InternEvo": other_sources.internevo,
    "stas00": other_sources.stas00,
    "ColossalAI": other_sources.unknown,
    "DeepSeek-V3": other_sources.unknown,
}
BITS_8 = "the run is in 8 bits, and training in 8 bits is not modelled"


class TimedRun(Struct, frozen=True, kw_only=True):
    """A row as a run file, with its measured seconds and their origin."""

    row: TimingRow
    file: dict[str, Any]
    seconds: float
    origin: str

    @property
    def source(self) -> str:
        """Where the row is from, as tables call it."""
        return self.row.source

    @property
    def tokens(self) -> int:
        """Tokens of a step over all GPUs."""
        training, axes = self.file["training"], self.file["parallelism"]
        sequences = training["batch_size"] * training["gradient_accumulation_steps"]
        return int(sequences * axes["data_parallel_size"] * training["seq_len"])


class Refused(Struct, frozen=True):
    """A row that is not used, and why, in a sentence."""

    row: TimingRow
    why: str


def translated(row: TimingRow) -> TimedRun:
    """A row as a run file; raises UnusableError with the reason."""
    if row.quality.startswith("low"):
        raise UnusableError(f"its source calls it unsure ({row.quality.partition(': ')[2]})")
    if "8" in row.precision:
        raise UnusableError(BITS_8)
    parts = TRANSLATORS[row.source](row)
    seconds, origin = seconds_of(row, parts)
    return TimedRun(row=row, file=parts.run_file(), seconds=seconds, origin=origin)


@cache
def every_run() -> tuple[tuple[TimedRun, ...], tuple[Refused, ...]]:
    """The rows that are used, each measurement once, and those that are not."""
    used: list[TimedRun] = []
    refused: list[Refused] = []
    seen: dict[str, str] = {}
    for row in every_row():
        try:
            run = translated(row)
        except UnusableError as reason:
            refused.append(Refused(row, str(reason)))
            continue
        key = repr((run.source, run.file, run.seconds))
        if key in seen:
            refused.append(Refused(row, "the same measurement stands in another row"))
            continue
        seen[key] = row.id
        used.append(run)
    return tuple(used), tuple(refused)


def resolved(run: TimedRun) -> ResolvedRun:
    """The run with every choice made; raises UnusableError where the calculator refuses it."""
    try:
        return resolve(read(run.file).file)
    except InputError as error:
        raise UnusableError(str(error).splitlines()[0]) from error


def resolved_runs(runs: tuple[TimedRun, ...]) -> Iterator[tuple[TimedRun, ResolvedRun | Refused]]:
    """Each run with every choice made, or why the calculator refuses it."""
    for run in runs:
        try:
            yield run, resolved(run)
        except UnusableError as reason:
            yield run, Refused(run.row, str(reason))

"""The report of a trace: verdict, timeline of the step, largest entries, four numbers; and the
differences between an estimate and a trace, as tables in MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..estimates.calculator import Estimate
from ..estimates.fit_verdict import FITS, headroom_bytes, replay_verdict
from ..estimates.verdict_words import CardVerdict, card_summary
from ..lab.trace.diff import DiffRow, DiffSide, KindDiff, LedgerDiff
from ..ledger.ledger import RUNTIME, Entry, Instant, Ledger
from ..ledger.units import MIB
from ..run.phases import STARTUP
from ..training.optimizers import OPTIMIZERS
from .headline import headline, setup_words, verdict_lines
from .lines import BOLD, DIM, WARN, WIDTH, Line, columns, count, line, size, wrap_lines
from .numbers import four_numbers, numbers_table
from .parts import KIND_TITLES
from .steps import picture

if TYPE_CHECKING:
    from ..lab.trace.run import RunTrace

SAME = MIB // 100  # less than this shows as 0.00
SIDES = 4  # entries of a kind that are listed on each side
LARGEST = 10
FIGURES = ("estimate", "trace", "difference")
SIZES = ("allocated", "startup", "reserved", "needs", "margin", "device")


def difference_lines(diff: LedgerDiff, titles: Mapping[str, str]) -> Iterator[Line]:
    """The differences by phase, then at the peak by kind, by place, and by entry.

    `titles` are the titles of phases by name.
    """
    yield line("the estimate against this trace, in MiB", BOLD)
    rows = [
        DiffRow(titles[row.name], row.estimate_bytes, row.trace_bytes)
        for row in sorted(_steps(diff.phases), key=lambda row: -abs(row.difference_bytes))
    ]
    yield from _table("peak of each phase", rows)
    yield line()
    text = f"trace: {diff.trace_instant}; estimate: {diff.estimate_instant}"
    yield from wrap_lines("at the peak  ", text)
    yield from _table("by kind", [_titled_row(kind) for kind in diff.kinds])
    if diff.places:
        yield line()
        yield from _table("activations by place", diff.places)
    for kind in diff.kinds:
        if abs(kind.row.difference_bytes) >= MIB:
            yield line()
            yield from _entries(kind)


def _titled_row(kind: KindDiff) -> DiffRow:
    row = kind.row
    return DiffRow(KIND_TITLES[row.name], row.estimate_bytes, row.trace_bytes)


def _steps(rows: Iterable[DiffRow]) -> Iterator[DiffRow]:
    """Leave out phases of later steps with equal figures: `s1.a0.fwd` is shown, `s2.a0.fwd` not."""
    shown: set[tuple[str, int, int]] = set()
    for row in rows:
        step, _, rest = row.name.partition(".")
        key = (rest if step != "s0" else row.name, row.estimate_bytes, row.trace_bytes)
        if key not in shown or not rest:
            shown.add(key)
            yield row


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.2f}"


def _table(title: str, rows: Sequence[DiffRow]) -> Iterator[Line]:
    """A table of the rows that differ, and a line with the names of the others."""
    differ = [row for row in rows if abs(row.difference_bytes) >= SAME]
    same = [row.name for row in rows if row not in differ]
    if differ:
        cells = []
        for row in differ:
            sizes = (_mib(row.estimate_bytes), _mib(row.trace_bytes))
            cells.append([row.name, *sizes, f"{row.difference_bytes / MIB:+,.2f}"])
        yield from columns((title, *FIGURES), cells, {1, 2, 3})
    if same:
        label = "no difference: " if differ else f"{title}, no difference: "
        yield from wrap_lines("", label + ", ".join(same), DIM)


def _entries(kind: KindDiff) -> Iterator[Line]:
    """The entries of a kind in the estimate and in the trace."""
    row = kind.row
    title = f"{KIND_TITLES[row.name]}, {row.difference_bytes / MIB:+,.2f} MiB"
    yield line(title, BOLD)
    yield from _side("estimate", kind.estimate)
    yield from _side("trace", kind.trace)


def _side(title: str, sides: Sequence[DiffSide]) -> Iterator[Line]:
    label = title
    for side in sides[:SIDES]:
        copies = f"{side.copies} × " if 1 < side.copies < side.bytes else ""
        text = f"  {label:<9}{_mib(side.bytes):>12}  {copies}{side.name}"
        yield line(text if len(text) <= WIDTH else text[: WIDTH - 1] + "…")
        label = ""
    rest = sides[SIDES:]
    if rest:
        total = sum(side.bytes for side in rest)
        yield line(f"  {label:<9}{_mib(total):>12}  {len(rest)} more", DIM)
    if not sides:
        yield line(f"  {label:<9}{'nothing':>12}", DIM)


class TraceReport(Struct, frozen=True, kw_only=True):
    """A trace and the other contents of its report.

    `estimate` is of the same run. A model that is not known to the estimate has a `title`; the
    estimate then has the run's engine and hardware, but another model, which is not shown. The
    `words` of a script say its dtypes and optimizer.
    """

    trace: RunTrace
    estimate: Estimate
    advice: str
    notes: tuple[str, ...] = ()
    title: str = ""
    batch: str = ""  # of a model with a title, in words
    words: tuple[str, ...] = ()
    num_parameters: int
    num_trained: int
    difference: LedgerDiff | None = None

    @property
    def peak(self) -> Instant:
        """The instant of the highest phase."""
        return peak_phase_instant(self.trace)

    @property
    def outside_torch_bytes(self) -> int:
        """Bytes that CUDA takes outside torch."""
        return sum(size for _, size, _ in self.trace.resolved.outside_torch)

    @property
    def verdict(self) -> CardVerdict:
        """Whether the run fits on its card."""
        trace, outside = self.trace, self.outside_torch_bytes
        has, needs = trace.resolved.hardware.memory_bytes, trace.needs_bytes + outside
        word = replay_verdict(trace, has - outside)
        headroom = headroom_bytes(word, has - needs - trace.margin_bytes)
        return CardVerdict(word, needs, trace.margin_bytes, has, headroom)


def peak_phase_instant(trace: RunTrace) -> Instant:
    """The instant of the highest phase; of several equal ones, the last."""
    instants, heights = trace.ledger.instants, trace.ledger.heights()
    top = int(heights[trace.peak_phase])
    return [i for i in instants if int(heights[i.name]) == top and i.phase != STARTUP][-1]


def tracing_report(traced: TraceReport) -> Iterator[Line]:
    """The lines of the report."""
    yield from verdict_lines(traced.verdict, card_summary(traced.verdict))
    yield line()
    yield from _headline(traced)
    for note in traced.notes:
        yield from wrap_lines("", note, DIM)
    yield line()
    yield from _timeline(traced)
    yield line()
    yield from _largest(traced)
    yield line()
    yield from numbers_table(four_numbers(traced.trace, traced.outside_torch_bytes))
    if traced.difference is not None:
        yield line()
        titles = {instant.name: instant.title for instant in traced.trace.ledger.instants}
        yield from difference_lines(traced.difference, titles)
    for note in traced.trace.notes:
        yield line()
        yield from wrap_lines("note: ", note, WARN)
    if traced.advice:
        yield line()
        yield from wrap_lines("advice: ", traced.advice)
        fix = "set it in PYTORCH_ALLOC_CONF; --alloc-conf shows it here"
        yield from wrap_lines(" " * 8, fix, DIM)


def _headline(traced: TraceReport) -> Iterator[Line]:
    if not traced.title:
        yield from headline(traced.estimate)
        return
    run = traced.trace.resolved.run
    words = [f"{count(traced.num_parameters)} parameters"]
    if traced.num_trained != traced.num_parameters:
        words.append(f"{count(traced.num_trained)} trained")
    optimizer = OPTIMIZERS[run.optimizer].title
    words += traced.words or (run.precision.replace("_", " "), optimizer)
    if traced.batch:
        words.append(traced.batch)
    if run.micro_batches > 1:
        words.append(f"{run.micro_batches} micro-batches a step")
    yield from wrap_lines(f"{traced.title[:40]}  ", ", ".join(words))
    yield from wrap_lines("", ", ".join(setup_words(traced.estimate)))


def _timeline(traced: TraceReport) -> Iterator[Line]:
    """A bar for each phase of start-up, the first step and the last one."""
    trace = traced.trace
    limit = trace.resolved.hardware.memory_bytes - traced.outside_torch_bytes
    rows: list[tuple[dict[str, Any], int]] = []
    for instant in shown(trace.ledger, traced.peak.name):
        parts = {kind: int(b) for kind, b in trace.ledger.parts(instant).items()}
        rows.append(({"title": instant.title, "bytes": parts}, sum(parts.values())))
    peak = next(row for row, _ in rows if row["title"] == traced.peak.title)
    yield from picture("start-up, first and last step", rows, peak, limit)


def shown(ledger: Ledger, peak_phase: str) -> Iterator[Instant]:
    """The phases that are drawn: start-up, the first step, the last step and that of the peak.

    Of the micro-batches after a step's first one, only the highest phase of each kind is drawn.
    """
    heights = {name: int(height) for name, height in ledger.heights().items()}
    steps = [_step(i.name) for i in ledger.instants if i.phase != STARTUP]
    wanted = {steps[0], steps[-1], _step(peak_phase)}
    later: dict[tuple[str, str], str] = {}
    for instant in ledger.instants:
        key = _step(instant.name), instant.phase
        if _later(instant) and heights[instant.name] >= heights.get(later.get(key, ""), -1):
            later[key] = instant.name
    for instant in ledger.instants:
        first = not _later(instant) or instant.name in later.values()
        if instant.phase == STARTUP or (_step(instant.name) in wanted and first):
            yield instant


def _step(name: str) -> str:
    return name.partition(".")[0]


def _later(instant: Instant) -> bool:
    """Whether a phase belongs to a micro-batch after the first of its step."""
    return re.fullmatch(r"s\d+\.[am][1-9]\d*\.\w+", instant.name) is not None


def largest(traced: TraceReport) -> list[tuple[Entry, int]]:
    """(entry, bytes) of the entries alive at the peak, largest first."""
    peak = traced.peak.name
    alive = [(entry, int(entry.at(peak))) for entry in traced.trace.ledger.entries]
    return sorted((pair for pair in alive if pair[1] > 0), key=lambda pair: -pair[1])


def _largest(traced: TraceReport) -> Iterator[Line]:
    """The ten largest entries at the peak: module, operation, and the line of code."""
    every = largest(traced)
    yield line(f"largest at the peak, {traced.peak.title}", BOLD)
    for entry, total in every[:LARGEST]:
        copies = int(entry.live[traced.peak.name])
        each = f"{copies} × {size(int(entry.bytes))}" if copies > 1 else ""
        if entry.kind == RUNTIME and int(entry.bytes) == 1:
            each = ""
        kind = KIND_TITLES[entry.kind]
        where, _, op = _without_backward(entry.name).rpartition(": ")
        left = f"{size(total):>11}  {each:<18}{f'{kind} ':<14}"
        yield [(left, ""), (_tail(where or op, WIDTH - len(left)), BOLD)]
        origin = f"{op}, {place(entry.source.text)}" if where else place(entry.source.text)
        yield line(" " * 13 + origin[: WIDTH - 13], DIM)
    rest = every[LARGEST:]
    if rest:
        left = size(sum(num_bytes for _, num_bytes in rest))
        yield line(f"{left:>11}  {len(rest)} more, in --format json", DIM)


def _without_backward(name: str) -> str:
    """The name without ` (backward)`, if the operation's name has it already."""
    return name.removesuffix(" (backward)") if "_backward" in name else name


def _tail(text: str, width: int) -> str:
    """A module's path, shortened at the front, since its end says more."""
    return text if len(text) <= width else "…" + text[1 - width :]


def place(source: str) -> str:
    """A source's path and line in short, such as `transformers/modeling_llama.py:175`."""
    match = re.fullmatch(r"(.*[/\\].*\.py):(\d+)", source)
    if match is None:
        return source
    path = PurePath(match[1])
    if "site-packages" in path.parts:
        package = path.parts[path.parts.index("site-packages") + 1]
    elif path.is_relative_to(Path(__file__).parents[1]):
        package = "gpu_mem_calculator"
    elif path.is_relative_to(Path.cwd()):
        return f"{path.relative_to(Path.cwd()).as_posix()}:{match[2]}"
    else:
        package = path.parent.name
    return f"{package}/{path.name}:{match[2]}"


def tracing_data(traced: TraceReport) -> dict[str, Any]:
    """The report as plain data, with every entry of the ledger."""
    import msgspec

    trace, hardware = traced.trace, traced.trace.resolved.hardware
    data: dict[str, Any] = {
        "model": traced.title or trace.resolved.model.title,
        "num_parameters": traced.num_parameters,
        "trainable_parameters": traced.num_trained,
        **{f"{name}_bytes": getattr(trace, f"{name}_bytes") for name in SIZES},
        "outside_torch_bytes": traced.outside_torch_bytes,
        "gpu_memory_bytes": hardware.memory_bytes,
        "fits_on_gpu": traced.verdict.word == FITS,
        "verdict": traced.verdict.word,
        "headroom_bytes": traced.verdict.headroom,
        "peak_phase": trace.peak_phase,
        "phases": {name: msgspec.to_builtins(phase) for name, phase in trace.phases.items()},
        "at_peak": _at_peak(trace),
        "entries": [_entry(entry, trace.peak_phase) for entry in trace.ledger.entries],
        "notes": [*traced.notes, *trace.notes],
        "advice": traced.advice or None,
        "run": {} if traced.title else traced.estimate.result.run,
    }
    if traced.difference is not None:
        data["difference"] = msgspec.to_builtins(traced.difference)
    return data


def _at_peak(trace: RunTrace) -> dict[str, int]:
    peak = next(i for i in trace.ledger.instants if i.name == trace.peak_phase)
    return {kind: int(size) for kind, size in trace.ledger.parts(peak).items()}


def _entry(entry: Entry, peak: str) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "bytes": int(entry.bytes),
        "copies_at_peak": int(entry.live.get(peak, 0)),
        "bytes_at_peak": int(entry.at(peak)),
        "alive": {name: int(copies) for name, copies in entry.live.items()},
        "source": entry.source.text,
    }

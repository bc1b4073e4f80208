"""What is alive at the peak, by kind, as a text table."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ..core.calculator import STEP, Estimate
from ..core.models import MemoryResult
from ..cuda.runtimes import in_words_of
from ..ledger.ledger import ACT, CACHE, COMM, GPU, GRAD, OPTIM, PARAM, RUNTIME, TEMP, Entry
from ..run.run import Options
from .bars import bar
from .headline import card_bytes
from .lines import BOLD, DIM, Line, count, gib, line

KIND_TITLES = {
    PARAM: "parameters",
    GRAD: "gradients",
    OPTIM: "optimizer",
    CACHE: "KV cache",
    ACT: "activations",
    TEMP: "temporaries",
    COMM: "communication",
    RUNTIME: "runtime",
}
STYLES = {
    PARAM: "blue",
    GRAD: "cyan",
    OPTIM: "magenta",
    CACHE: "cyan",
    ACT: "green",
    TEMP: "yellow",
    COMM: "red",
    RUNTIME: "white",
}
# Bytes per parameter that frameworks use.
WHOLE = {PARAM: (2, 4), GRAD: (2, 4), OPTIM: (2, 4, 6, 8, 10, 12)}
OUTSIDE, REST, MARGIN = "CUDA", "allocator", "margin"
CERTAIN = "what makes it certain to survive"
NAME, TEXT, FIGURE, BAR = 14, 42, 9, 11


class BreakdownRow(Struct, frozen=True):
    """One row: the kind, a description, and bytes."""

    title: str
    text: str
    bytes: int
    style: str = ""


def parts(estimate: Estimate) -> list[BreakdownRow]:
    """The rows of the table; their bytes add up to what the card must have."""
    ledger, result = estimate.ledger, estimate.result
    peak = ledger.peak_instant(phases=STEP)
    rows = []
    for kind, title in KIND_TITLES.items():
        alive = [
            (e, int(e.at(peak.name))) for e in ledger.entries if e.kind == kind and e.place == GPU
        ]
        total = sum(size for _, size in alive)
        if total:
            text = _description(estimate, kind, alive, peak.name, total)
            rows.append(BreakdownRow(title, text, total, STYLES[kind]))
    title = outside_title(estimate)
    names = [name.removeprefix(f"{title} ") for name, _, _ in estimate.resolved.outside_torch]
    rows.append(BreakdownRow(title, ", ".join(_fit_names([], names)), result.outside_torch_bytes))
    margin = result.margin_bytes or 0
    rest = card_bytes(estimate) - margin - sum(row.bytes for row in rows)
    if rest > 0:
        rows.append(BreakdownRow(REST, rest_words(result), rest))
    if margin > 0:
        rows.append(BreakdownRow(MARGIN, CERTAIN, margin))
    return rows


def outside_title(estimate: Estimate) -> str:
    """`CUDA`, or the word of another card's software."""
    return in_words_of(estimate.resolved.run.runtime, OUTSIDE)


def rest_words(result: MemoryResult) -> str:
    """Why torch needs more than the tensors of the peak."""
    more = (result.startup_bytes or 0) > result.allocated_bytes
    return "start-up, which takes more" if more else "rounding, and pieces too small to use"


def _description(
    estimate: Estimate, kind: str, alive: list[tuple[Entry, int]], peak: str, total: int
) -> str:
    """The names of the largest entries; for parameters and states, the bytes per parameter."""
    sizes: dict[str, int] = {}
    for entry, size in alive:
        if size:
            copies = int(entry.live[peak])
            name = _with_count(entry.name, copies)
            sizes[name] = sizes.get(name, 0) + size
    names = sorted(sizes, key=lambda name: -sizes[name])
    if kind not in (PARAM, GRAD, OPTIM):
        return ", ".join(_fit_names([], names))
    each = _bytes_each(estimate, kind, total)
    names = [n for n in names if n != KIND_TITLES[kind] and sizes[n] > total // 50]
    if not each and not names:
        return f"{total / estimate.result.num_parameters:.3g} bytes a parameter"
    return ", ".join(_fit_names([each] if each else [], names))


def _bytes_each(estimate: Estimate, kind: str, total: int) -> str:
    """`12 bytes × 6.74 B / 8`, where the total is a whole number of bytes per parameter."""
    resolved, result = estimate.resolved, estimate.result
    run, local = resolved.run, result.num_parameters
    if run.adapter is not None and kind != PARAM:
        local = result.trainable_parameters
    elif resolved.engine.parameters is not None:
        local = int(resolved.engine.parameters(replace(run, stage=result.busiest_stage)))
    for ranks in (int(run.mesh.dp), 1) if _is_sharded(run.options, kind) else (1,):
        each = total * ranks / local
        if each >= 0.95 and abs(each - round(each)) < 0.02 * each and round(each) in WHOLE[kind]:
            text = f"{round(each)} bytes × {count(local)}"
            return text if ranks == 1 else f"{text} / {ranks}"
    return ""


def _is_sharded(options: Options, kind: str) -> bool:
    """Whether the options shard a kind of state over the data-parallel ranks."""
    if "zero_stage" in options:
        return bool(options["zero_stage"] >= {OPTIM: 1, GRAD: 2, PARAM: 3}[kind])
    if "sharding_strategy" in options:
        return bool(options["sharding_strategy"] != "no_shard")
    return kind == OPTIM and bool(options.get("distributed_optimizer"))


def _with_count(name: str, copies: int) -> str:
    """An entry's name with its copies, such as `24 dense layers: kept for backward`."""
    if copies == 1:
        return name
    kind, layers, _ = name.partition(" layers: ")
    return f"{copies} {name}" if layers and " " not in kind else f"{copies} × {name}"


def _fit_names(start: list[str], names: list[str]) -> list[str]:
    """As many names as fit into a row after `start`; at least one, shortened if necessary."""
    fitting = list(start)
    for index, name in enumerate(names):
        remaining = len(names) - index - 1
        tail = [f"{remaining} more"] if remaining else []
        if len(", ".join([*fitting, name, *tail])) <= TEXT:
            fitting.append(name)
        elif fitting == start and fitting:
            return fitting
        elif fitting:
            more = [*fitting, f"{remaining + 1} more"]
            return more if len(", ".join(more)) <= TEXT else fitting
        else:
            width = TEXT - len(", ".join(["", *tail])) - 1
            return [name[:width] + "…", *tail]
    return fitting


def parts_table(estimate: Estimate) -> Iterator[Line]:
    """The lines of the table, with figures and bars."""
    rows = parts(estimate)
    head = f"at the peak: {estimate.result.peak_instant}"
    if len(estimate.ledgers) > 1:
        head += f", stage {estimate.result.busiest_stage}"
    width = 2 + NAME + TEXT + FIGURE - 3
    yield [(head[:width].ljust(width), BOLD), ("GiB", DIM)]
    most = max(row.bytes for row in rows)
    for row in rows:
        left = f"  {row.title:<{NAME}}{row.text[:TEXT]:<{TEXT}}"
        yield [
            (left, ""),
            (gib(row.bytes, 2).rjust(FIGURE), ""),
            (f"  {bar(row.bytes, most, BAR)}", row.style),
        ]
    total = gib(sum(row.bytes for row in rows), 2)
    yield line("  " + "total".ljust(NAME + TEXT) + total.rjust(FIGURE), BOLD)

"""What is alive at the peak, by kind, as a text table."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ..estimates.calculator import STEP, Estimate
from ..estimates.explain.worked_formula import parameter_product
from ..estimates.result import MemoryResult
from ..estimates.verdict_words import total_bytes
from ..ledger.ledger import ACT, CACHE, COMM, GPU, GRAD, OPTIM, PARAM, RUNTIME, TEMP, Entry, Instant
from ..run.cuda.runtimes import in_words_of
from ..run.phases import OPTIMIZER
from .lines import BOLD, DIM, Line, count, gib, line, part_row

KIND_TITLES = {
    PARAM: "parameters",
    GRAD: "gradients",
    OPTIM: "optimizer states",
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
OUTSIDE, REST, MARGIN = "CUDA, libraries", "fragmentation", "margin"
CERTAIN = "added to be certain to survive"
GAPS = "rounding and unusable gaps"
NAME, TEXT, FIGURE, BAR = 17, 41, 10, 8


class BreakdownRow(Struct, frozen=True):
    """One row: the kind, a description, and bytes."""

    title: str
    text: str
    bytes: int
    style: str = ""


def parts(estimate: Estimate, width: int = TEXT) -> list[BreakdownRow]:
    """The rows of the table, described in `width` columns; their bytes add up to what the card must
    have.
    """
    ledger, result = estimate.ledger, estimate.result
    peak = ledger.peak_instant(phases=STEP)
    rows = []
    for kind, title in KIND_TITLES.items():
        alive = [
            (e, int(e.at(peak.name))) for e in ledger.entries if e.kind == kind and e.place == GPU
        ]
        total = sum(size for _, size in alive)
        if total:
            text = _description(estimate, kind, alive, peak.name, total, width)
            rows.append(BreakdownRow(title, text, total, STYLES[kind]))
        elif kind in (GRAD, OPTIM) and not estimate.serves:
            rows.append(BreakdownRow(title, why_absent(estimate, kind, peak), 0))
    title = in_words_of(estimate.resolved.run.runtime, OUTSIDE)
    vendor = title.partition(",")[0]
    names = [name.removeprefix(f"{vendor} ") for name, _, _ in estimate.resolved.outside_torch]
    text = ", ".join(_fit_names([], names, width))
    rows.append(BreakdownRow(title, text, result.outside_torch_bytes))
    margin = result.margin_bytes or 0
    rest = total_bytes(estimate.result) - margin - sum(row.bytes for row in rows)
    if rest > 0:
        rows.append(BreakdownRow(REST, rest_words(result), rest))
    if margin > 0:
        rows.append(BreakdownRow(MARGIN, CERTAIN, margin))
    return rows


def why_absent(estimate: Estimate, kind: str, peak: Instant) -> str:
    """Why a kind of state takes nothing on the GPU at the peak."""
    entries = [entry for entry in estimate.ledger.entries if entry.kind == kind]
    if any(entry.place == GPU and int(entry.bytes) for entry in entries):
        freed = peak.phase == OPTIMIZER
        return "freed before the peak" if freed else "not yet allocated at the peak"
    return "offloaded from the GPU" if any(int(entry.bytes) for entry in entries) else "none"


def rest_words(result: MemoryResult) -> str:
    """Why torch needs more than the tensors of the peak."""
    more = (result.startup_bytes or 0) > result.allocated_bytes
    return "and start-up, which takes more" if more else GAPS


def _description(
    estimate: Estimate, kind: str, alive: list[tuple[Entry, int]], peak: str, total: int, width: int
) -> str:
    """The names of the largest entries; for parameters and states, the bytes per parameter."""
    sizes: dict[str, int] = {}
    for entry, size in alive:
        if size:
            copies = int(entry.live[peak])
            name = _with_count(entry.name, copies, estimate)
            sizes[name] = sizes.get(name, 0) + size
    names = sorted(sizes, key=lambda name: -sizes[name])
    if kind not in (PARAM, GRAD, OPTIM):
        return ", ".join(_fit_names([], names, width))
    each = _bytes_each(estimate, kind, total)
    names = [n for n in names if n != KIND_TITLES[kind] and sizes[n] > total // 50]
    packed = kind == PARAM and estimate.resolved.run.quantization
    if not each and (packed or not names):
        return f"{total / estimate.result.num_parameters:.3g} bytes a parameter"
    return ", ".join(_fit_names([each] if each else [], names, width))


def _bytes_each(estimate: Estimate, kind: str, total: int) -> str:
    """`12 bytes × 6.74 B / 8`, where the total is a whole number of bytes per parameter."""
    found = parameter_product(estimate, kind, total)
    if found is None:
        return ""
    text = f"{found.bytes_each} bytes × {count(found.num_parameters)}"
    return text if found.ranks == 1 else f"{text} / {found.ranks}"


def _with_count(name: str, copies: int, estimate: Estimate) -> str:
    """An entry's name with its copies, such as `saved by 24 layers for backward`."""
    kind, layers, what = name.partition(" layers: ")
    if what == "kept for backward":
        return f"saved by {_layer_words(copies, estimate)}"
    if copies == 1:
        return name
    return f"{copies} {name}" if layers and " " not in kind else f"{copies} × {name}"


def _layer_words(copies: int, estimate: Estimate) -> str:
    """`20 layers × 4 micro-batches` for copies that are more than the layers of a stage."""
    result = estimate.result
    layers = result.stages[result.busiest_stage].num_layers
    if copies <= layers:
        return f"{copies} layer{'s' * (copies > 1)} for backward"
    return f"{layers} layers × {-(-copies // layers)} micro-batches"


def _fit_names(start: list[str], names: list[str], width: int = TEXT) -> list[str]:
    """As many names as fit into a row after `start`, with how many more there are; at least one,
    shortened if necessary.
    """
    if not start and names and len(names[0]) > width:
        return [names[0][: max(0, width - 1)] + "…"]
    for shown in range(len(names), -1, -1):
        tail = [f"+ {len(names) - shown} smaller"] if shown < len(names) and not start else []
        fitting = [*start, *names[:shown], *tail]
        if len(", ".join(fitting)) <= width and (start or shown):
            return fitting
    return start or names[:1]


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
        yield part_row(left, row.bytes, most, row.style, FIGURE, BAR)
    total = gib(sum(row.bytes for row in rows), 2)
    says = "total".ljust(NAME) + "compare this with the card"
    yield line("  " + says.ljust(NAME + TEXT) + total.rjust(FIGURE), BOLD)

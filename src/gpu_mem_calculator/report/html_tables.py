"""The tables of the HTML report, and how sizes and user text are written in HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from msgspec import Struct

from ..estimates.calculator import STEP, Estimate
from ..estimates.explain.worked_formula import kind_terms
from ..estimates.node import TITLES as PHASE_TITLES
from ..estimates.node import NodeMemory
from ..estimates.result import MemoryResult
from ..estimates.verdict_words import total_bytes
from ..ledger.ledger import (
    CPU,
    GPU,
    GRAD,
    NVME,
    OPTIM,
    PARAM,
    RANK_0,
    RUNTIME,
    UNIFIED,
    Entry,
    Instant,
)
from ..ledger.units import GIB
from ..run.cuda.runtimes import in_words_of
from .instants import InstantColumn, KindSlice, column
from .lines import gib
from .parts import CERTAIN, MARGIN, REST, rest_words, why_absent
from .patterns import TITLES, swatch, titles

PLACES = {
    GPU: "",
    CPU: ", in host RAM",
    RANK_0: ", in rank 0's host RAM",
    NVME: ", on disk",
    UNIFIED: ", in unified memory",
}
MISSING = '<span class="absent">not replayed</span>'
PENDING = '<span class="pending">…</span>'
INVALID = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
COLUMNS = {"#": "num", "~": "what", "|": "bar-cell"}


class EstimatePage(Struct, frozen=True, kw_only=True):
    """An estimate, and the columns of its picture."""

    estimate: Estimate
    columns: tuple[InstantColumn, ...]
    peak: int  # index of the highest column of the step
    instant: Instant

    @property
    def result(self) -> MemoryResult:
        """The figures of the estimate."""
        return self.estimate.result

    @property
    def outside(self) -> list[tuple[str, int]]:
        """(name, bytes) of what is outside torch."""
        return [(name, num_bytes) for name, num_bytes, _ in self.estimate.outside_torch]

    @property
    def card_bytes(self) -> int:
        """Bytes that the card must have."""
        return total_bytes(self.result)


def text(value: object) -> str:
    """Any text made safe for HTML: markup is escaped, invalid characters are replaced."""
    return escape(INVALID.sub("\ufffd", str(value)))


def size(num_bytes: int) -> str:
    """Bytes in GiB, with the exact count as a tooltip."""
    shown = "&lt; 0.01" if 0 < num_bytes < 0.005 * GIB else gib(num_bytes, 2)
    return f'<span title="{num_bytes:,} bytes">{shown}</span>'


def remarks_list(texts: Iterable[object], kind: str = "remarks") -> str:
    """Texts as a list of a class; empty where there are none."""
    items = "".join(f"<li>{text(one)}</li>" for one in texts)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def opening_tag(tag: str, name: str, when: bool) -> str:
    """An opening tag, with the class `name` if `when`."""
    return f'<{tag} class="{name}">' if when else f"<{tag}>"


def table(
    caption: str, heads: Iterable[str], rows: Iterable[str], foot: str = "", kind: str = ""
) -> str:
    """A table in a scrolling box; a head's first character may set its column's class."""
    head = "".join(map(_head, heads))
    foot = f"<tfoot>{foot}</tfoot>" if foot else ""
    return (
        f'<div class="scroll"><table class="{kind}"><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>{foot}</table></div>"
    )


def _head(one: str) -> str:
    """The head cell of a column; an ordinary empty cell for a column without a name."""
    kind, name = COLUMNS.get(one[:1], ""), one.lstrip("#~|")
    return f'<th scope="col" class="{kind}">{name}</th>' if name else f'<td class="{kind}"></td>'


def num_cells(*values: object) -> str:
    """A cell for each value, aligned as numbers are."""
    return "".join(f'<td class="num">{value}</td>' for value in values)


def instants_table(page: EstimatePage) -> str:
    """The picture as a table: bytes of each kind at each instant."""
    rows = []
    for i, one in enumerate(page.columns):
        cells = num_cells(*(size(part.bytes) for part in one.slices), size(one.bytes))
        row = opening_tag("tr", "busiest", i == page.peak) + num_cells(i + 1)
        rows.append(f'{row}<th scope="row">{text(one.title)}</th>{cells}</tr>')
    kinds = (f"#{title}" for title in titles(page.estimate.ledger).values())
    caption = f"GiB on one GPU at each instant{'' if page.estimate.serves else ' of a step'}"
    return table(caption, ["#no.", "instant", *kinds, "#total"], rows, kind="entries")


def bar(parts: Iterable[KindSlice], whole: int) -> str:
    """A stacked bar of slices; lengths are shares of `whole` bytes."""
    rects, start = [], 0
    for part in parts:
        left, width = 100 * start / whole, 100 * part.bytes / whole
        rects.append(
            f'<rect x="{left:.3f}%" width="{width:.3f}%" height="14" fill="url(#p-{part.kind})"/>'
        )
        start += part.bytes
    return f'<svg class="bar" aria-hidden="true">{"".join(rects)}</svg>'


def breakdown_table(page: EstimatePage) -> str:
    """What is on the card at the peak, by kind; the rows add up to what the card must have."""
    whole = page.card_bytes
    rows = [
        f'<tr><th scope="row" class="name-cell">{swatch(part.kind)}{TITLES[part.kind]}</th>'
        f'<td class="what">{_made_of(page, part)}</td>'
        f"{num_cells(size(part.bytes), f'{100 * part.bytes / whole:.1f} %')}"
        f'<td class="bar-cell">{bar([part], whole)}</td></tr>'
        for part in page.columns[page.peak].slices
    ]
    margin = page.result.margin_bytes or 0
    rest = whole - margin - page.columns[page.peak].bytes
    for name, words, more in ((REST, rest_words(page.result), rest), (MARGIN, CERTAIN, margin)):
        if more > 0:
            cells = num_cells(size(more), f"{100 * more / whole:.1f} %")
            head = f'<th scope="row" class="name-cell">{name}</th><td class="what">{words}</td>'
            rows.append(f'<tr>{head}{cells}<td class="bar-cell"></td></tr>')
    cells = f'<td class="what"></td>{num_cells(size(whole), "100 %")}<td class="bar-cell"></td>'
    foot = f'<tr><th scope="row">per GPU</th>{cells}</tr>'
    heads = ["kind", "~how it adds up", "#GiB", "#share", "|"]
    return table(f"At {text(page.instant.title)}, GiB on one GPU", heads, rows, foot)


def _made_of(page: EstimatePage, part: KindSlice) -> str:
    """A line for each term of a kind's bytes: how they come about, with numbers put in."""
    if part.kind == RUNTIME:
        return text(", ".join(_names(part.entries)))
    if not part.bytes:
        state = part.kind in (GRAD, OPTIM) and not page.estimate.serves
        return text(why_absent(page.estimate, part.kind, page.instant)) if state else ""
    terms = kind_terms(page.estimate, part.kind, page.instant.name)
    return "".join(f'<span class="term">{text(term.words)}</span>' for term in terms)


def _names(entries: Iterable[tuple[str, int]]) -> list[str]:
    """The names of the three largest entries, and how many more there are."""
    names = list(dict.fromkeys(name for name, _ in entries))
    return names[:3] + ([f"{len(names) - 3} more"] if len(names) > 3 else [])


def stages_table(page: EstimatePage) -> str:
    """The peak of each pipeline stage by kind."""
    result = page.result
    peaks = [
        column(one, one.peak_instant(phases=STEP), page.outside) for one in page.estimate.ledgers
    ]
    most = max(one.bytes for one in peaks)
    rows = []
    for stage, one in zip(result.stages, peaks, strict=True):
        busiest = stage.stage == result.busiest_stage
        note = ", the busiest" if busiest else ""
        rows.append(
            f'{opening_tag("tr", "busiest", busiest)}<th scope="row">{stage.stage}{note}</th>'
            f'{num_cells(stage.num_layers)}<td class="what">{text(one.title)}</td>'
            f"{num_cells(size(stage.allocated_bytes), size(one.bytes))}"
            f'<td class="bar-cell">{bar(one.slices, most)}</td></tr>'
        )
    heads = ["stage", "#layers", "~highest at", "#allocated", "#on the card", "|"]
    caption = "GiB on one GPU of each pipeline stage; the rest of the report is about the busiest"
    return table(caption, heads, rows)


def phases_table(page: EstimatePage) -> str:
    """The phases of a run's life: what each takes of a GPU, and of the memory of its node."""
    result = page.result
    most = max(1, max((one.gpu_bytes for one in result.phases), default=0))
    rows = []
    for one in result.phases:
        title, highest = PHASE_TITLES[one.name], one.gpu_bytes == most
        note = "" if one.asked else " (if it does)"
        width = f"{100 * one.gpu_bytes / most:.2f}%"
        rect = f'<rect width="{width}" height="14" fill="url(#p-{PARAM})"/>'
        drawn = f'<svg class="bar" aria-hidden="true">{rect}</svg>'
        cells = num_cells(*map(size, (one.gpu_bytes, one.host_bytes, one.file_bytes)))
        rows.append(
            f'{opening_tag("tr", "busiest", highest)}<th scope="row">{text(title)}{note}</th>'
            f'{cells}<td class="bar-cell">{drawn}</td></tr>'
        )
    has = "" if result.host is None else _node_words(result.host)
    heads = ["phase", "#GPU", "#host RAM", "#files", "|"]
    return table(f"GiB on the busiest GPU and on one node, from loading on{has}", heads, rows)


def _node_words(node: NodeMemory) -> str:
    """What a node has, where that is known."""
    return "" if node.node_bytes is None else f"; a node has {size(node.node_bytes)}"


def numbers_list(page: EstimatePage, *, pending: bool = False) -> str:
    """Allocated, reserved, needs and device bytes, and memory outside the GPU.

    A number without a value was not replayed; with `pending`, the replay is still running.
    """
    rows = _step_numbers(page) if page.result.serving is None else _server_numbers(page)
    items = []
    for name, value, says in rows:
        absent = PENDING if pending else MISSING
        shown = absent if value is None else f"{size(value)} GiB"
        items.append(
            f'<div><dt>{name}</dt><dd>{shown}<span class="says">{text(says)}</span></dd></div>'
        )
    return f'<dl class="numbers">{"".join(items)}</dl>'


def _server_numbers(page: EstimatePage) -> list[tuple[str, int | None, str]]:
    result, num_gpus = page.result, page.estimate.resolved.hardware.num_gpus
    needs = "the smallest card on which it starts and holds one sequence of the context length"
    return [
        ("Takes", page.card_bytes, f"what {_smi(page)} shows, with the KV cache"),
        ("Needs", result.needs_bytes, needs),
        ("Outside", result.outside_torch_bytes, ", ".join(name for name, _ in page.outside)),
        ("Start-up", result.startup_bytes, "weights and the profiling pass"),
        ("Host RAM", result.host_bytes_per_node, "offloaded or swapped, per node"),
        ("All GPUs", page.card_bytes * num_gpus, f"{num_gpus:,} × one GPU"),
    ]


def _smi(page: EstimatePage) -> str:
    """The program that shows a card's memory in use."""
    return in_words_of(page.estimate.resolved.run.runtime, "nvidia-smi")


def _step_numbers(page: EstimatePage) -> list[tuple[str, int | None, str]]:
    result, hardware = page.result, page.estimate.resolved.hardware
    num_gpus, per_node = hardware.num_gpus, hardware.gpus_per_node
    _, libraries, _ = page.estimate.resolved.host_libraries
    outside, total = result.outside_torch_bytes, None
    if result.needs_bytes is not None:
        total = result.needs_bytes + (result.margin_bytes or 0) + outside
    most = "peak of live tensors on the busiest rank: torch’s max_memory_allocated"
    reserved = "by PyTorch’s cache when memory is plentiful: max_memory_reserved"
    host = f"per node; Python and CUDA libraries are {per_node:,} × {gib(libraries, 2)} GiB"
    return [
        ("Total", total, "compare with the card: PyTorch’s minimum + margin + outside PyTorch"),
        (_smi(page), result.device_bytes, "what it shows: reserved + outside PyTorch"),
        ("Torch needs", result.needs_bytes, "minimum for PyTorch, fragmentation included"),
        ("Margin", result.margin_bytes, CERTAIN),
        ("Outside torch", outside, ", ".join(name for name, _ in page.outside)),
        ("Allocated", result.allocated_bytes, most),
        ("Reserved", result.reserved_bytes, reserved),
        ("Start-up", result.startup_bytes, "tensors while the model is loaded and set up"),
        ("Host RAM", result.host_bytes_per_node, host),
        ("Disk", result.disk_bytes_per_node, f"per node, {per_node:,} ranks together"),
        ("All GPUs", page.card_bytes * num_gpus, f"{num_gpus:,} × the busiest GPU"),
    ]


def ledger_details(page: EstimatePage) -> str:
    """Every entry that is alive at the peak, largest first, with its source."""
    name = page.instant.name
    alive = [e for e in page.estimate.ledger.entries if int(e.at(name))]
    host, outside = page.estimate.resolved.host_libraries, []
    for one in (*page.estimate.outside_torch, host):
        (title, num_bytes, source), place = one, PLACES[CPU] if one is host else ""
        outside.append(_entry_row(text(title), RUNTIME, (num_bytes, "1", num_bytes), source, place))
    alive.sort(key=lambda e: (e.place != GPU, -int(e.at(name))))
    rows = []
    for e in alive:
        sizes = (int(e.bytes), f"{e.live[name]:,}", int(e.at(name)))
        head = text(e.name) + "".join(_parts(e))
        rows.append(_entry_row(head, e.kind, sizes, str(e.source), PLACES[e.place]))
    heads = ["entry", "kind", "#each", "#copies", "#GiB", "source"]
    caption = f"Alive at {text(page.instant.title)}, GiB"
    entries_table = table(caption, heads, [*rows, *outside], kind="entries")
    summary = f"{len(rows) + len(outside)} entries, with their sources"
    return f"<details><summary>{summary}</summary>{entries_table}</details>"


def _entry_row(head: str, kind: str, sizes: tuple[int, str, int], source: str, place: str) -> str:
    """The row of an entry; sizes: bytes of one copy, the number of copies, bytes of all."""
    each, copies, total = sizes
    return (
        f'<tr><th scope="row" class="name-cell">{head}</th>'
        f'<td class="kind">{swatch(kind)}{TITLES[kind]}{place}</td>'
        f'{num_cells(size(each), copies, size(total))}<td class="source">{text(source)}</td></tr>'
    )


def _parts(entry: Entry) -> Iterator[str]:
    """The list of an entry's tensors, where they are known."""
    if entry.parts:
        yield f'<details><summary>{len(entry.parts)} tensors</summary><ul class="parts">'
        for name, num_bytes in entry.parts:
            yield f"<li><span>{text(name)}</span><span>{size(int(num_bytes))}</span></li>"
        yield "</ul></details>"

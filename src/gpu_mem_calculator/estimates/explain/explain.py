"""The ledger with formulas: the same engine is run again with letters for the sizes.

The KV cache of one token as a formula: layers × heads × head size × bytes.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.formula import bytes_each, formula_text, numbers_of
from ...ledger.ledger import CPU, GPU, Entry, Ledger
from ...ledger.mesh import Mesh
from ...ledger.num import Num
from ...ledger.sym import Sym
from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention, Share
from ...models.arch.scaling import with_share
from ...models.arch.symbolic import symbolic
from ...run.cuda.runtimes import renamed_ledger
from ...run.run import Run
from ...run.served import SERVE
from ..calculator import STEP, Estimate
from ..stage_replay import with_block_rounding
from .textbook import TextbookFormula, textbook
from .worked_formula import AliveGroup, group_term


def token_formula(estimate: Estimate) -> str:
    """The bytes of one token on one rank of the busiest stage, and how they are computed.

    A server may pad its rows, or keep some layers' tokens elsewhere. Where the plain product is not
    the server's figure, the figure stands alone. "" for a run without a server's pool.
    """
    if not estimate.served:
        return ""
    stage = estimate.result.busiest_stage
    size = estimate.served[stage].token_bytes
    if not size:
        return ""
    found = (text for text, value in _candidates(estimate, stage) if value == size)
    text = next(found, "in all layers of this rank")
    return f"{text} = {size:,} bytes" if "×" in text else f"{size:,} bytes {text}"


def _candidates(estimate: Estimate, stage: int) -> Iterator[tuple[str, int]]:
    """Formulas and their values: with every layer, and without those that have a window."""
    run, places = estimate.resolved.run, _places(estimate, stage)
    full = [p for p in places if not (run.arch.windows and run.arch.windows[p])]
    dtype = str(run.options.get("kv_cache_dtype") or "auto")
    bits = 8 if "8" in dtype else 32 if run.precision == "fp32" else 16
    for ranks in {
        int(run.mesh.tp): None,
        max(1, int(run.mesh.tp) // max(1, int(run.mesh.dp))): None,
    }:
        for chosen in (places, full):
            yield _cache_formula(run, chosen, ranks, bits)


def _places(estimate: Estimate, stage: int) -> range:
    """The layers of a pipeline stage."""
    run, engine = estimate.resolved.run, estimate.resolved.engine
    if len(estimate.served) == 1:
        return range(len(run.arch.layers))
    assert engine.stage_layers is not None  # an engine with stages has it
    counts = engine.stage_layers(run)
    return range(sum(counts[:stage]), sum(counts[: stage + 1]))


def _cache_formula(run: Run, places: range | list[int], ranks: int, bits: int) -> tuple[str, int]:
    """The sum over layers, equal ones together; keys and values, or one latent of both."""
    widths: Counter[tuple[str, int]] = Counter()
    for place in places:
        for mixer in run.arch.layers[place].mixers:
            if isinstance(mixer, Attention):
                heads, value = max(1, mixer.kv_heads // ranks), mixer.value_dim or mixer.head_dim
                key = mixer.head_dim
                size = f"2 × {heads} KV heads × {key}"
                if value != key:
                    size = f"{heads} KV heads × ({key} of a key + {value} of a value)"
                widths[size, heads * (key + value)] += 1
            elif isinstance(mixer, LatentAttention):
                size = f"({mixer.kv_rank} of the latent + {mixer.rope_dim} rotary)"
                widths[size, mixer.kv_rank + mixer.rope_dim] += 1
    terms = [f"{count} layers × {size}" for (size, _), count in widths.items()]
    text = " + ".join(terms) if len(terms) == 1 else f"({' + '.join(terms)})"
    elements = sum(width * count for (_, width), count in widths.items())
    return f"{text} × {bytes_each(bits)}", elements * bits // 8


LETTERS = {
    "b": "micro-batch",
    "s": "sequence",
    "n": "new tokens",
    "m": "micro-batches a step",
    "P": "parameters given",
    "N": "parameters of the architecture",
    "h": "hidden size",
    "v": "vocabulary",
    "f": "feed-forward size",
    "a": "heads",
    "g": "key-value heads",
    "d": "head size",
    "e": "experts",
    "k": "experts a token",
    "d_v": "value head size",
    "d_n": "head size without rotary",
    "d_r": "rotary head size",
    "r_kv": "key-value rank",
    "r_q": "query rank",
    "dp": "data-parallel ranks",
    "tp": "tensor-parallel ranks",
    "pp": "pipeline stages",
    "cp": "context-parallel ranks",
    "ep": "expert-parallel ranks",
}
LOG = logging.getLogger(__name__)
AXES = ("dp", "tp", "pp", "cp", "ep")


class ExplainedEntry(Struct, frozen=True, kw_only=True):
    """One entry: what it is, its formula with letters and with numbers, when, and who says so.

    `words` is the arithmetic of all copies at the peak, `6.74 B parameters × 4 bytes / 8 GPUs =
    3.14 GiB`, and `short` the same with letters; empty where no such product gives the bytes.
    `alive` gives the copies at each instant, by the instant's title, in the order of a step;
    `parts` what one copy is made of: name, bytes, formula.
    """

    name: str
    kind: str
    place: str
    bytes: int
    formula: str
    numbers: str
    copies_at_peak: int
    bytes_at_peak: int
    alive: dict[str, int]
    always: bool
    source: str
    parts: tuple[tuple[str, int, str], ...] = ()
    words: str = ""
    short: str = ""


class Explanation(Struct, frozen=True, kw_only=True):
    """Every entry of the busiest stage's ledger; those alive at the peak first, largest first.

    `letters` are the sizes that formulas name, `meanings` what they stand for. `symbolic` is False
    where the engine's formulas are not written with letters: a server's are words and numbers, and
    `token_formula` is its KV cache of one token; others show plain numbers. `textbook` has the
    published formulas for the same.
    """

    peak: str
    stage: int
    num_stages: int
    allocated_bytes: int
    outside_torch_bytes: int
    symbolic: bool
    letters: dict[str, int]
    meanings: dict[str, str]
    entries: tuple[ExplainedEntry, ...]
    token_formula: str = ""
    verdict: str = ""
    summary: str = ""
    textbook: tuple[TextbookFormula, ...] = ()


def explain(estimate: Estimate) -> Explanation:
    """The explanation of the busiest pipeline stage of an estimate."""
    ledger = None if estimate.served else _symbolic_ledger(estimate)
    shown = ledger or estimate.ledger
    peak = shown.peak_instant(phases=STEP)
    entries = _merge_entries([_explain_entry(e, shown, peak.name) for e in shown.entries])
    entries = [_with_words(estimate, entry) for entry in entries]
    entries.sort(key=lambda e: (e.bytes_at_peak == 0, e.place != "gpu", -e.bytes_at_peak, -e.bytes))
    outside = [_outside_entry(GPU, *part) for part in estimate.outside_torch]
    outside.append(_outside_entry(CPU, *estimate.resolved.host_libraries))
    outside = [entry for entry in outside if entry.bytes]
    letters = _letters(shown)
    return Explanation(
        peak=peak.title,
        stage=estimate.result.busiest_stage,
        num_stages=len(estimate.ledgers),
        allocated_bytes=estimate.result.allocated_bytes,
        outside_torch_bytes=estimate.result.outside_torch_bytes,
        symbolic=ledger is not None,
        letters=letters,
        meanings={name: LETTERS[name] for name in letters if name in LETTERS},
        entries=(*entries, *outside),
        token_formula=token_formula(estimate),
        verdict=estimate.result.verdict,
        summary=estimate.result.summary,
        textbook=textbook(estimate),
    )


def _with_words(estimate: Estimate, entry: ExplainedEntry) -> ExplainedEntry:
    """The entry with the arithmetic of its bytes at the peak."""
    name = entry.name.rpartition(": ")[2]
    alive = AliveGroup(entry.kind, name, entry.copies_at_peak, entry.bytes_at_peak)
    term = group_term(estimate, alive) if entry.bytes_at_peak else None
    if term is None or not term.product:
        return entry
    return replace(entry, words=f"{term.product} {term.figure}", short=term.letters)


def _outside_entry(place: str, name: str, size: int, source: str) -> ExplainedEntry:
    """An entry for memory outside torch, on the GPU or on the host."""
    return ExplainedEntry(
        name=name,
        kind="outside torch",
        place=place,
        bytes=size,
        formula=f"{size:,}",
        numbers=f"{size:,}",
        copies_at_peak=1,
        bytes_at_peak=size,
        alive={},
        always=True,
        source=source,
    )


def _symbolic_ledger(estimate: Estimate) -> Ledger | None:
    """The ledger with letters; None where its bytes would differ from the plain one's."""
    run = replace(estimate.resolved.run, stage=estimate.result.busiest_stage)
    engine = estimate.resolved.engine
    try:
        ledger = renamed_ledger(run, engine.ledger(_symbolic_run(run)))
    except TypeError:  # an operation that letters do not have
        LOG.info("%s: formulas take numbers only", engine.name, exc_info=True)
        return None
    if _heights(ledger) != _heights(engine.ledger(run)):
        return None
    return ledger if estimate.replayed is None else with_block_rounding(ledger, estimate.replayed)


def _heights(ledger: Ledger) -> list[int]:
    """The bytes at each instant that is present in the run."""
    return [int(ledger.at(i)) for i in ledger.instants if int(i.present)]


def _symbolic_run(run: Run) -> Run:
    """The run with a letter for each size; an axis with one rank stays the number 1."""
    mesh = run.mesh
    axes = {axis: getattr(mesh, axis) for axis in AXES}
    given = run.parameters_given
    return replace(
        run,
        arch=_arch(run),
        batch=Sym.named(run.batch, "b"),
        seq=Sym.named(run.seq, "s"),
        new_tokens=Sym.named(run.new_tokens, "n") if run.new_tokens else run.new_tokens,
        micro_batches=Sym.named(run.micro_batches, "m") if run.micro_batches > 1 else 1,
        mesh=Mesh(**{a: Sym.named(n, a) if n > 1 else n for a, n in axes.items()}),
        parameters_given=None if given is None else Sym.named(given, "P"),
    )


def _arch(run: Run) -> Arch:
    """The architecture with letters. Where a parameter count P is given, its own count is N."""
    arch, given = symbolic(run.arch), run.parameters_given
    if given is None:
        return arch
    share = (Sym.named(given, "P"), Sym.named(run.arch.own_parameters, "N"))
    return with_share(arch, cast(Share, share))  # a model's sizes are typed as ints


def _explain_entry(entry: Entry, ledger: Ledger, peak: str) -> ExplainedEntry:
    present = [i for i in ledger.instants if int(i.present)]
    alive: dict[str, int] = {}
    for instant in present:
        copies = int(entry.live.get(instant.name, 0))
        if copies:
            alive[instant.title] = max(copies, alive.get(instant.title, 0))
    served = any(i.phase == SERVE for i in present)
    step = {i.title for i in present if served or i.phase in STEP}
    text = formula_text(entry.formula)
    copies = int(entry.live.get(peak, 0))
    return ExplainedEntry(
        name=entry.name,
        kind=entry.kind,
        place=entry.place,
        bytes=int(entry.bytes),
        formula=text or _formula(entry.bytes),
        numbers=numbers_of(text) if text else _numbers(entry.bytes),
        copies_at_peak=copies,
        bytes_at_peak=copies * int(entry.bytes),
        alive=alive,
        always=step <= alive.keys() and set(alive.values()) == {1},
        source=_written_out(str(entry.source)),
        parts=tuple((name, int(size), _formula(size)) for name, size in entry.parts),
    )


FOLDERS = {" F/": " distributed/fsdp/_fully_shard/", " D/": " distributed/fsdp/"}


def _written_out(source: str) -> str:
    """A source with whole paths in place of the letters that stand for folders of torch."""
    for letter, folder in FOLDERS.items():
        source = source.replace(letter, folder)
    return source


def _merge_entries(entries: list[ExplainedEntry]) -> list[ExplainedEntry]:
    """Merge equal entries of different instants, and leave out entries without bytes."""
    merged: dict[tuple[Any, ...], ExplainedEntry] = {}
    for entry in entries:
        key = (entry.name, entry.kind, entry.place, entry.formula, entry.source)
        if entry.bytes == 0 or not entry.alive:
            continue
        if key in merged:
            first = merged[key]
            copies = first.copies_at_peak + entry.copies_at_peak
            merged[key] = replace(
                first,
                alive=first.alive | entry.alive,
                copies_at_peak=copies,
                bytes_at_peak=copies * first.bytes,
            )
        else:
            merged[key] = entry
    return list(merged.values())


def _formula(number: Num) -> str:
    return number.formula if isinstance(number, Sym) else f"{int(number):,}"


def _numbers(number: Num) -> str:
    return number.numbers if isinstance(number, Sym) else f"{int(number):,}"


def _letters(ledger: Ledger) -> dict[str, int]:
    """The letters that the formulas of a ledger use, with their values."""
    used: dict[str, int] = {}
    for entry in ledger.entries:
        if isinstance(entry.bytes, Sym) and entry.bytes.value:
            used |= {n: v for n, v in entry.bytes.names.items() if re.fullmatch(r"\w+", n)}
    return {name: used[name] for name in (*LETTERS, *sorted(used)) if name in used}

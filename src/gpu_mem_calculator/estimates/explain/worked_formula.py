"""A kind's bytes as arithmetic that a reader can check: `6.74 B parameters × 4 bytes / 8 GPUs`.

The factors are found from the bytes of the ledger, so a sentence never says another figure than the
ledger. A product that is not quite the bytes, because of padding or small tensors, has `≈`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.formula import Formula, formula_text, numbers_of
from ...ledger.ledger import ACT, CACHE, COMM, GPU, GRAD, OPTIM, PARAM, Entry
from ...ledger.units import GIB, MIB, count, gib
from ...run.run import Options
from ..calculator import Estimate

# Bytes per parameter that frameworks use; servers also have weights of one byte.
WHOLE = {PARAM: (2, 4), GRAD: (2, 4), OPTIM: (2, 4, 6, 8, 10, 12)}
KEPT = "kept for backward"
EQUAL, NEAR = 0.005, 0.02  # a product is the bytes, or nearly the bytes
FEW, SMALL = 3, 0.005  # terms that are written out; a share of the kind that is left out


class ParameterProduct(Struct, frozen=True):
    """`num_parameters` × `bytes_each` / `ranks`; `noun`: which parameters they are."""

    num_parameters: int
    bytes_each: int
    ranks: int
    noun: str

    @property
    def bytes(self) -> float:
        """The product."""
        return self.num_parameters * self.bytes_each / self.ranks


class AliveGroup(Struct, frozen=True):
    """Entries of one kind and name that are alive: their copies, and the bytes of all of them.

    `formula`: of a server's, where it is one entry.
    """

    kind: str
    name: str
    copies: int
    bytes: int
    formula: Formula = ""


class Product(NamedTuple):
    """A product with numbers and its sign, and with letters; empty texts where there is none."""

    numbers: str = ""
    letters: str = ""


class FormulaTerm(Struct, frozen=True):
    """A part of a kind: its bytes, and the product that gives them, or an empty text."""

    name: str
    product: str
    bytes: int
    letters: str = ""

    @property
    def figure(self) -> str:
        """The bytes as a reader sees them."""
        if self.bytes < 0.01 * GIB:
            return f"{self.bytes / MIB:,.2f} MiB"
        return f"{gib(self.bytes, 2)} GiB"

    @property
    def words(self) -> str:
        """The term as a reader sees it."""
        if not self.product:
            return f"{self.name} {self.figure}"
        return f"{self.name}{': ' * bool(self.name)}{self.product} {self.figure}"


def kind_terms(estimate: Estimate, kind: str, instant: str) -> list[FormulaTerm]:
    """The terms of a kind's bytes on the GPU at an instant, largest first; small ones are summed
    up.
    """
    groups = _alive_groups(estimate.ledger.entries, kind, instant)
    total = sum(group.bytes for group in groups)
    whole = _exact_product(estimate, kind, total) if kind in WHOLE else None
    if whole:
        return [FormulaTerm("", whole.numbers, total, whole.letters)]
    terms = sorted((group_term(estimate, group) for group in groups), key=lambda term: -term.bytes)
    small = min(SMALL * total, 0.01 * GIB)
    shown = [term for term in terms[:FEW] if term.bytes >= small]
    rest = terms[len(shown) :]
    left = sum(term.bytes for term in rest)
    if left < small:
        return shown
    return [*shown, FormulaTerm(f"{len(rest)} more", "", left)] if len(rest) > 1 else terms


def _alive_groups(entries: Iterable[Entry], kind: str, instant: str) -> list[AliveGroup]:
    """Entries by what they are; `dense layers: sharded parameters` is `sharded parameters`."""
    found: dict[str, AliveGroup] = {}
    for entry in entries:
        size = int(entry.at(instant)) if entry.kind == kind and entry.place == GPU else 0
        if size:
            name = entry.name.rpartition(": ")[2]
            before = found.get(name, AliveGroup(kind, name, 0, 0))
            copies = before.copies + int(entry.live[instant])
            formula = "" if before.copies else entry.formula
            found[name] = AliveGroup(kind, name, copies, before.bytes + size, formula)
    return list(found.values())


def group_term(estimate: Estimate, group: AliveGroup) -> FormulaTerm:
    """The term of some entries of one kind and name."""
    found = next(_products(estimate, group), Product())
    return FormulaTerm(group.name, found.numbers, group.bytes, found.letters)


def _products(estimate: Estimate, group: AliveGroup) -> Iterator[Product]:
    """Products that give the bytes, the best first."""
    kind, name, total = group.kind, group.name, group.bytes
    if kind == COMM and name.startswith("gradient"):
        kind = GRAD  # they are reduced from there
    if kind in WHOLE:
        adapter = "adapter" in name.lower()
        yield from filter(None, [_exact_product(estimate, kind, total, adapter=adapter)])
        if kind == PARAM and name == "parameters" and estimate.resolved.run.quantization:
            yield _average_product(estimate, total)
    if kind == CACHE and estimate.result.serving is not None:
        serving = estimate.result.serving
        product = serving.kv_tokens * serving.kv_bytes_per_token
        words = f"{serving.kv_tokens:,} tokens × {serving.kv_bytes_per_token:,} bytes"
        yield from _written(words, product, total, "tokens × bytes a token")
    text = formula_text(group.formula)
    if text and numbers_of(text):
        yield Product(f"{text} =", text)
    if kind == ACT and name.startswith(KEPT):
        yield from _layers_product(estimate, group.copies, total)
    if kind == ACT and "logits" in name and estimate.result.serving is None:
        yield from _logits_product(estimate, total)


def _layers_product(estimate: Estimate, copies: int, total: int) -> Iterator[Product]:
    """What layers keep for backward, by the token."""
    run = estimate.resolved.run
    tokens = int(run.batch) * int(run.seq)
    each = round(total / (copies * tokens))
    shown = f"{int(run.seq):,}" if int(run.batch) == 1 else f"{int(run.batch):,} × {int(run.seq):,}"
    on_stage = estimate.result.stages[estimate.result.busiest_stage].num_layers
    saved = "saved " * (copies > on_stage)  # of several micro-batches
    layers = f"{copies:,} {saved}layer{'s' * (copies > 1)}"
    words = f"{layers} × {shown} tokens × {each:,} bytes"
    letters = f"layers × b × s × {each:,} bytes"
    yield from _written(words, copies * tokens * each, total, letters)


def _logits_product(estimate: Estimate, total: int) -> Iterator[Product]:
    """Logits in their copies: tokens × vocabulary × bytes."""
    run = estimate.resolved.run
    tokens, vocabulary = int(run.batch) * int(run.seq), int(run.arch.vocab)
    each = 2 * round(total / (2 * tokens * vocabulary))
    words = f"{tokens:,} tokens × vocabulary of {vocabulary:,} × {each} bytes"
    yield from _written(words, tokens * vocabulary * each, total, f"b × s × v × {each} bytes")


def _written(words: str, product: float, total: int, letters: str) -> Iterator[Product]:
    """The product with its sign, if it gives the bytes."""
    error = abs(product - total)
    if error <= NEAR * total:
        yield Product(f"{words} {'=' if error <= EQUAL * total else '≈'}", letters)


def _exact_product(
    estimate: Estimate, kind: str, total: int, *, adapter: bool = False
) -> Product | None:
    """Weights, gradients or optimizer states as parameters × bytes / GPUs."""
    found = parameter_product(estimate, kind, total, adapter=adapter)
    if found is None:
        return None
    each = f"{found.bytes_each} byte{'s' * (found.bytes_each > 1)}"
    shared = "" if found.ranks == 1 else f" / {found.ranks:,} GPUs"
    words = f"{count(found.num_parameters)} {found.noun} × {each}{shared}"
    axes = "tp × pp" if estimate.served else "dp"
    letters = f"{each} × P" + ("" if found.ranks == 1 else f" / ({axes})")
    return next(_written(words, found.bytes, total, letters.replace("(dp)", "dp")), None)


def _average_product(estimate: Estimate, total: int) -> Product:
    """Packed weights: some are 4 bits with their scales, others are not packed."""
    number = estimate.result.num_parameters
    each = f"{total / number:.3g} bytes"
    return Product(f"{count(number)} parameters × {each} on average =", f"{each} × P")


def parameter_product(
    estimate: Estimate, kind: str, total: int, *, adapter: bool = False
) -> ParameterProduct | None:
    """The whole number of bytes per parameter that gives a total, if there is one."""
    resolved, result = estimate.resolved, estimate.result
    run, local, noun = resolved.run, result.num_parameters, "parameters"
    if run.adapter is not None and (kind != PARAM or adapter):
        local, noun = result.trainable_parameters, "trained parameters"
    elif resolved.engine.parameters is not None:
        local = int(resolved.engine.parameters(replace(run, stage=result.busiest_stage)))
        noun = "parameters of this GPU" if local < result.num_parameters else noun
    known = (1, *WHOLE[kind]) if estimate.served else WHOLE[kind]
    for ranks in _sharing_ranks(estimate, kind):
        each = total * ranks / local if local else 0
        if each >= 0.95 and abs(each - round(each)) < NEAR * each and round(each) in known:
            return ParameterProduct(local, round(each), ranks, noun)
    return None


def _sharing_ranks(estimate: Estimate, kind: str) -> tuple[int, ...]:
    """How many ranks may share a kind of state, the likeliest first."""
    run = estimate.resolved.run
    if estimate.served:
        return (int(run.mesh.tp) * int(run.mesh.pp), 1)
    return (int(run.mesh.dp), 1) if is_sharded(run.options, kind) else (1,)


def is_sharded(options: Options, kind: str) -> bool:
    """Whether the options shard a kind of state over the data-parallel ranks."""
    if "zero_stage" in options:
        return bool(options["zero_stage"] >= {OPTIM: 1, GRAD: 2, PARAM: 3}[kind])
    if "sharding_strategy" in options:
        return bool(options["sharding_strategy"] != "no_shard")
    return kind == OPTIM and bool(options.get("distributed_optimizer"))

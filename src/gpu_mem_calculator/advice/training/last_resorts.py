"""Changes for runs that no small change helps: other hardware, and everything that saves memory."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ... import catalog
from ...estimates.calculator import Estimate, full_estimate, surely_fits, verdict_by_ledger
from ...estimates.fit_verdict import FITS, SHORT
from ...estimates.longest_sequence import STEP, longest_sequence
from ...ledger.units import GIB
from ...run.engine_row import MEGATRON_CORE, REPLICATE
from ...run.phases import EVALUATION
from ...runfile.read import with_settings
from ...runfile.resolve.hardware import CARDS
from ...runfile.text.errors import InputError
from ...training.engines import SHARDING, engine_row
from ...training.knob import OF_OWN_LAYERS, ON_ONE, SHARDED
from .change_candidates import (
    ADAPTER,
    Candidate,
    adapters,
    further_savings,
    more_gpus,
    offered,
    savings,
    to_engine,
)

FEW = (2, 4, 8)  # times the GPUs that are tried first
ROUNDS, MOST_GPUS = 16, 4096
MOST_TIMES = 8  # more GPUs than this many times those of the run only where nothing else helps
LARGER = 1.1  # times the ledger's figure that a larger card has
QLORA_KEYS = ("quantization", "double_quant", "upcast_unquantized", "autocast")
CARD_KEYS = ("gpu_memory_gb", "gpu_memory_bytes", "available_memory_bytes")


def smaller_evaluation(estimate: Estimate) -> Iterator[Candidate]:
    """The largest batch of an evaluation that fits, where the evaluation takes most; one sequence
    where none does.
    """
    run = estimate.resolved.run
    if run.evaluation is None or estimate.result.peak_phase != EVALUATION:
        return
    fits, dies = 0, int(run.evaluation.batch)
    while dies - fits > 1:
        size = (fits + dies) // 2
        changed = changed_estimate(estimate, evaluation_batch(size).settings)
        if changed is not None and _fits(changed):
            fits = size
        else:
            dies = size
    if dies > 1 or fits:
        yield evaluation_batch(max(fits, 1))


def evaluation_batch(size: int) -> Candidate:
    """A smaller batch of the evaluation, which changes no result."""
    return Candidate(f"evaluation batch {size}", (f"training.evaluation.batch_size={size}",), "", 0)


def offload_on_one_gpu(estimate: Estimate) -> Iterator[Candidate]:
    """Engines with the optimizer states in host RAM, for a run of PyTorch on one GPU."""
    if _replicates(estimate) and estimate.resolved.run.mesh.dp == 1 and not _adapts(estimate):
        yield from offered(estimate, ON_ONE)


def _replicates(estimate: Estimate) -> bool:
    """Whether ranks train replicas, whose states are not sharded."""
    name = estimate.resolved.engine.name
    return not estimate.serves and engine_row(name).ranks == REPLICATE


def _adapts(estimate: Estimate) -> bool:
    return estimate.resolved.run.adapter is not None


def without_megatron(estimate: Estimate) -> Iterator[Candidate]:
    """Engines that shard all states, on the GPUs of a Megatron-LM run.

    Their ranks are all data-parallel, so each has whole activations: with full recompute.
    """
    name = estimate.resolved.engine.name
    if estimate.serves or _adapts(estimate) or engine_row(name).layers != MEGATRON_CORE:
        return
    given = estimate.result.run.get("parallelism", {})
    rest = [f"parallelism.{key}=null" for key in given]
    rest.append("training.activation_checkpointing=full")
    for one in offered(estimate, OF_OWN_LAYERS):
        yield replace(one, settings=(*one.settings, *rest))


def wider_runs(estimate: Estimate) -> Iterator[Candidate]:
    """More GPUs, with an engine that shards the states where the run's does not."""
    run = estimate.resolved.run
    if estimate.serves:
        return
    if not _replicates(estimate):
        yield from (more_gpus(estimate, times) for times in FEW)
        yield from _wider_models(estimate)
        return
    settings, title = to_engine(estimate, SHARDING, {}), "FSDP on "
    if _adapts(estimate):  # fully_shard does not shard packed weights
        lora = adapters(estimate, "lora", SHARDING).settings
        packed = [f"training.{key}=null" for key in QLORA_KEYS if key in _training(estimate)]
        settings, title = (*settings, *lora, *packed), "LoRA with FSDP on "
    for times in FEW if run.mesh.dp == 1 else (1, *FEW[:2]):
        wider = more_gpus(estimate, times, *settings, title=title)
        yield Candidate(wider.title, wider.settings, SHARDED, wider.weight + 1)


def _training(estimate: Estimate) -> dict[str, object]:
    section: dict[str, object] = estimate.result.run.get("training", {})
    return section


def _wider_models(estimate: Estimate) -> Iterator[Candidate]:
    """Twice the GPUs, and twice the tensor or pipeline parallelism with them."""
    run, axes = estimate.resolved.run, estimate.resolved.engine.axes
    count = 2 * estimate.resolved.hardware.num_gpus
    for axis, key in (("tp", "tensor"), ("pp", "pipeline")):
        size = 2 * int(getattr(run.mesh, axis))
        if axis in axes and (axis != "tp" or size <= max(run.gpus_per_node, 8)):
            gpus = more_gpus(estimate).settings
            rest = [s for s in gpus if not s.startswith("parallelism.")]
            settings = (f"parallelism.{key}_parallel_size={size}", *rest)
            yield Candidate(f"{axis} {size} on {count} GPUs", settings, "twice the GPUs", 4)


def last_resort(estimate: Estimate) -> tuple[Candidate, ...]:
    """The changes that save most, one after the other, until the run fits; without those that turn
    out not to be needed. Where all of them do not suffice, a larger card with them, and at last the
    largest.
    """
    card = _largest_card(estimate)
    on_card = changed_estimate(estimate, card.settings)
    starts: list[tuple[Estimate, dict[str, Candidate]]] = [(estimate, {})]
    if on_card is not None:
        starts.append((on_card, {"hardware.gpu": card}))
    count = estimate.resolved.hardware.num_gpus
    limits = (count * MOST_TIMES, MOST_GPUS) if count * MOST_TIMES < MOST_GPUS else (MOST_GPUS,)
    found = (_descent(estimate, now, chosen, most) for most in limits for now, chosen in starts)
    return next(filter(None, found), ())


def _descent(
    estimate: Estimate, start: Estimate, chosen: dict[str, Candidate], most_gpus: int
) -> tuple[Candidate, ...]:
    """The changes of an estimate that make it fit, after those that are chosen to start with."""
    now, chosen, asked = start, dict(chosen), estimate.resolved.hardware.num_gpus
    for _ in range(ROUNDS):
        best = _most_saving(now, most_gpus)
        if best is None:
            break
        change, now = best
        key = change.settings[0].partition("=")[0]
        count = now.resolved.hardware.num_gpus
        if "the GPUs" in change.cost and count > 2 * asked:
            change = replace(change, cost=f"{count // asked} times the GPUs")
        chosen[key] = _after(chosen.pop(key, None), change)
        if _fits(now):
            return _needed(estimate, tuple(chosen.values()), now)
    more = _shorter(now) or _larger_card(now)
    return () if more is None else _needed(estimate, (*chosen.values(), more[0]), more[1])


def _after(before: Candidate | None, change: Candidate) -> Candidate:
    """A change with the settings of the one before it, which it overrides."""
    old = () if before is None else before.settings
    settings = {s.partition("=")[0]: s for s in (*old, *change.settings)}
    return replace(change, settings=tuple(settings.values()))


def _most_saving(estimate: Estimate, most_gpus: int) -> tuple[Candidate, Estimate] | None:
    """The change that saves most by the ledger, if more than 1 %, and the run with it."""
    best, least = None, estimate.result.total_memory_per_gpu_gb * 0.99
    every = (*savings(estimate), *further_savings(estimate), *wider_runs(estimate))
    for candidate in every:
        count = next((s for s in candidate.settings if s.startswith("hardware.num_gpus=")), "=1")
        if candidate.cost == ADAPTER or int(count.partition("=")[2]) > most_gpus:
            continue
        changed = changed_estimate(estimate, candidate.settings)
        if changed is not None and changed.result.total_memory_per_gpu_gb < least:
            best, least = (candidate, changed), changed.result.total_memory_per_gpu_gb
    return best


def changed_estimate(estimate: Estimate, settings: tuple[str, ...]) -> Estimate | None:
    """The estimate by the ledger of a run with some settings; None where they are refused."""
    try:
        data = with_settings(estimate.result.run, settings)
        return full_estimate(data, replay=False)
    except InputError:
        return None


def _fits(estimate: Estimate) -> bool:
    word = verdict_by_ledger(estimate.result)
    return word == FITS or (word != SHORT and surely_fits(estimate))


def _needed(
    estimate: Estimate, changes: tuple[Candidate, ...], fitting: Estimate
) -> tuple[Candidate, ...]:
    """The changes without those that the run fits without, the costliest left out first; none where
    it does not fit with all of them. `fitting` is known to fit, and usually has them all.
    """
    for change in sorted(changes, key=lambda one: -one.weight):
        fewer = tuple(one for one in changes if one != change)
        changed = changed_estimate(estimate, tuple(s for one in fewer for s in one.settings))
        if fewer and changed is not None and _fits(changed):
            changes, fitting = fewer, changed
    changed = changed_estimate(estimate, tuple(s for one in changes for s in one.settings))
    if changed is None or (changed.result.run != fitting.result.run and not _fits(changed)):
        return ()
    return changes


def shorter_sequence(estimate: Estimate, tokens: int) -> Candidate:
    """A shorter sequence or prompt."""
    serves = estimate.serves
    key, what = ("inference.prompt_len", "prompt") if serves else ("training.seq_len", "sequence")
    return Candidate(f"{what} {tokens:,}", (f"{key}={tokens}",), f"a shorter {what}", 5)


def _shorter(estimate: Estimate) -> tuple[Candidate, Estimate] | None:
    """The longest sequence that fits by the ledger, or up to a third less, and the run with it;
    None where none does.
    """
    longest = None if estimate.resolved.run.record else longest_sequence(estimate)
    for eighths in (8, 7, 6, 5):
        tokens = (longest or 0) * eighths // 8 // STEP * STEP
        if tokens and (found := _if_it_fits(estimate, shorter_sequence(estimate, tokens))):
            return found
    return None


def _largest_card(estimate: Estimate) -> Candidate:
    """The card with the most memory."""
    return _on_card(estimate, max(_cards(), key=lambda row: int(row["memory_bytes"])))


def _on_card(estimate: Estimate, row: catalog.Row) -> Candidate:
    """Another card, without the keys that give the memory of this one."""
    given = estimate.result.run.get("hardware", {})
    removed = tuple(f"hardware.{key}=null" for key in CARD_KEYS if key in given)
    return Candidate(row["title"], (f"hardware.gpu={row['name']}", *removed), "a larger card", 6)


def _cards() -> list[catalog.Row]:
    """Whole cards with CUDA whose memory is known."""
    return [
        row
        for row in catalog.rows("gpus")
        if row["vendor"] == "nvidia" and row["memory_bytes_known"] and row["kind"] in CARDS
    ]


def _larger_card(estimate: Estimate) -> tuple[Candidate, Estimate] | None:
    """The smallest card of the same vendor's software on which a run fits, and the run on it."""
    hardware = estimate.resolved.hardware
    least = max(hardware.memory_bytes, LARGER * estimate.result.total_memory_per_gpu_gb * GIB)
    for row in sorted(_cards(), key=lambda row: int(row["memory_bytes"])):
        if row["memory_bytes"] > least and (
            found := _if_it_fits(estimate, _on_card(estimate, row))
        ):
            return found
    return None


def _if_it_fits(estimate: Estimate, change: Candidate) -> tuple[Candidate, Estimate] | None:
    """A change and the run with it, where that fits by the ledger."""
    changed = changed_estimate(estimate, change.settings)
    return (change, changed) if changed is not None and _fits(changed) else None

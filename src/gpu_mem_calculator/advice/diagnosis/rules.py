"""Which causes a death can have: a function for each kind of message, which gives what it finds.

A cause is certain only where the message itself says it, or where the size that was asked for is
that of one tensor, and the stack has the same tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from ...ledger.units import GIB
from ...tools.logs.figure import Figure
from ...tools.logs.read import Log, LogLine
from .cause_rows import SHARE, line_cause, made_cause, rows, size_words
from .crash import OOM, OTHERS, Crash, told
from .diagnosis import CERTAIN, CERTAINTIES, LIKELY, POSSIBLE, Cause
from .other_release import other_release
from .places import (
    BACKWARD,
    CACHE,
    EVALUATION,
    FORWARD,
    GRAPHS,
    LOADING,
    OPTIMIZER_STEP,
    PROFILING,
    RESUMING,
    SAVING,
    SERVING,
    STARTING,
    SYNC,
)
from .programs import can_have
from .sizes import LEDGER, Explained
from .symptoms import (
    FIRST_STEPS,
    FULL,
    NO_ROOM,
    host,
    of_model,
    of_vendor,
    refused,
    said,
    static,
    steps,
    with_room,
)

HELD = (
    0.5  # of a card in nvidia-smi's table, from which on a run that starts there finds too little
)
MUCH = 0.1  # of the card: others that hold less are not named where freeing them would not help
FRAGMENTED = 0.08  # of the card, reserved and not allocated, from which on it can be the cause
# What a phase allocates in the size of a weight; "" where nothing but the size says it.
OF_WEIGHTS = {
    **dict.fromkeys(LEDGER, ""),
    LOADING: "weights",
    STARTING: "weights",
    SAVING: "weights",
    FORWARD: "weights",
    BACKWARD: "gradients",
    OPTIMIZER_STEP: "optimizer states",
}
WEIGHTS_ALONE = (LOADING, STARTING, SAVING)  # nothing of a step is there
# What a phase allocates that is as large as no weight and no logits of the run.
REST = {FORWARD: "activations", "generation": "activations", BACKWARD: "gradients of activations"}
OUTSIDE = 2 * GIB  # bytes outside torch from which on they are not the server's alone
LEAST_SHARE = 0.2  # of the card, below which no share is offered where the weights are not known
LITTLE = GIB / 2  # bytes by which a share of the card may be missed without somebody else
# What of llama.cpp's buffers failed, by the words of the lines that say it, the surest first.
BUFFERS = {
    "cache_buffer": re.compile(r"(?i)allocate (?:buffer for )?(?:kv.?cache|rs cache)"),
    "weights": re.compile(r"(?i)unable to allocate|alloc_tensor_range|load_tensors|error loading"),
    "compute_buffer": re.compile(""),
}
CACHE_FULL = "cache_full"
AGAIN = "kv_cache_update"  # a buffer that is reserved again while requests are served


def causes(crash: Crash) -> list[Cause]:
    """The causes that a death can have, the likeliest first."""
    every = [_placed(cause, crash) for rule in RULES for cause in rule(crash)]
    found = [one for one in every if can_have(rows()[one.id], crash.programs)] or every
    order = list(rows())
    found.sort(key=lambda one: (CERTAINTIES.index(one.certainty), order.index(one.id)))
    first: dict[str, Cause] = {}
    for each in found:
        one = of_vendor(with_room(each, crash), crash)
        first.setdefault(one.id, one)
    if len(first) > 1 and first.get(FULL) and first[FULL].certainty == POSSIBLE:
        del first[FULL]  # the others say why
    if first.keys() <= {FULL}:
        return [*of_model(crash), *first.values()]
    return list(first.values())


def _placed(cause: Cause, crash: Crash) -> Cause:
    """A cause of the GPU with the tensor that was asked for."""
    if cause.tensor or crash.death is None or not cause.phase:
        return cause
    same, other = _matching(crash)
    best = same or other
    return replace(cause, tensor=_tensor(crash, best), formula=best.formula if best else "")


def _printed(crash: Crash) -> Iterator[Cause]:
    """What a line says itself."""
    for name, row in rows().items():
        if name == CACHE_FULL and crash.log.of(*OOM):
            continue  # requests were retracted, which is no death
        for certainty in (CERTAIN, LIKELY):
            for what in row.get(certainty, ()):
                for line in crash.log.of(what)[:1]:
                    yield line_cause(crash, name, certainty, _with_limit(line, crash.log))


def _with_limit(line: LogLine, log: Log) -> LogLine:
    """A line of a host's death with the limit that another one says."""
    for limit in log.of("host_limit")[-1:] if rows()["host_ram"]["who"].get(line.what) else ():
        return replace(line, figures={**limit.figures, **line.figures})
    return line


def _ended(crash: Crash) -> Iterator[Cause]:
    """A signal from outside, where the GPU's memory did not end."""
    for line in crash.log.of("exit_signal")[:1]:
        if not crash.is_told:
            yield line_cause(crash, "host_ram_maybe", LIKELY, line)


def _server(crash: Crash) -> Iterator[Cause]:
    """What servers say with figures that have to be compared."""
    for line in crash.log.of("too_little_free")[:1]:
        free, total = line.bytes_of("free") or 0, line.bytes_of("total") or 1
        short = (line.bytes_of("wanted") or 0) - free
        least = _least(crash) or total * LEAST_SHARE
        share = f"{int(100 * free / total) / 100:.2f}" if free > least else ""
        name = "share_too_high" if short < LITTLE else "card_taken"
        words = {"share": share, "others": told(total - free)}
        yield replace(line_cause(crash, name, CERTAIN, line, **words), phase=STARTING)
    yield from _no_room(crash)
    failed = crash.log.of("buffer_failed")  # with these layers it did not start
    for line in [] if failed else crash.log.of("layers_on_card", "memory_plan", "served_model"):
        on, of = line.figures.get("layers"), line.figures.get("all_layers")
        partly = isinstance(on, Figure) and isinstance(of, Figure) and on.value < of.value
        if partly or "CPU" in str(line.figures.get("processor")):
            yield line_cause(crash, "cpu_layers", LIKELY, line)
            break
    yield from _buffer(crash)


def _least(crash: Crash) -> float:
    """What a server takes with a cache for one sequence; 0 where it is not known."""
    serving = None if crash.estimate is None else crash.estimate.result.serving
    if serving is None:
        return 0
    own = serving.weights_bytes + serving.activation_bytes + serving.non_torch_bytes
    return own + serving.kv_pool_bytes / max(serving.max_concurrency, 1)


def _buffer(crash: Crash) -> Iterator[Cause]:
    """Which of llama.cpp's buffers failed."""
    failed, size = crash.log.of("buffer_failed"), size_words(crash, None)
    for retried in crash.log.of("pipeline_retried"):
        if not any(one.line > retried.line for one in failed):
            yield line_cause(crash, "pipeline_retried", CERTAIN, retried, size=size)
            return
    for name, form in BUFFERS.items():
        for line in [one for one in failed if form.search(one.text)][:1]:
            copies = crash.log.of("pipeline_copies") if name == "compute_buffer" else []
            for one in copies[-1:]:
                yield line_cause(crash, "pipeline_copies", LIKELY, one, size=size)
            words = {} if line.bytes_of("tried") else {"size": size}
            found = line_cause(crash, name, POSSIBLE if copies else LIKELY, line, **words)
            yield replace(found, phase=SERVING) if AGAIN in line.text else found
            return


def _no_room(crash: Crash) -> Iterator[Cause]:
    """No memory left for the cache: certain where what takes it is printed, too."""
    for line in crash.log.of("profiled"):
        if (line.bytes_of("non_torch") or 0) >= OUTSIDE:
            figures = {"figures": ", which the profiling pass counts as the server's"}
            found = line_cause(crash, "card_taken", LIKELY, line, share="", **figures)
            yield replace(found, phase=STARTING)
            break
    for line in crash.log.of("kv_pool", "profiled"):
        pool = line.bytes_of("kv_pool")
        if pool is not None and pool <= 0:
            known = crash.log.of("weights_loaded") or line.bytes_of("weights")
            yield line_cause(crash, NO_ROOM, CERTAIN if known else LIKELY, line)
            return


def _others(crash: Crash) -> Iterator[Cause]:
    """Another process on the card."""
    if crash.others is None or crash.others < OTHERS or crash.death is None:
        return
    tried, free = crash.size("tried") or 0, crash.size("free") or 0
    if free >= tried:  # the card was not what was full
        return
    enough = free + crash.others >= tried
    if not enough and crash.others < MUCH * (crash.size("total") or 0):
        return
    words = f", and {told(tried)} was asked for with {told(free)} free"
    yield made_cause(
        crash,
        "card_taken",
        LIKELY if enough else POSSIBLE,
        phase=crash.when,
        others=told(crash.others),
        figures=words,
        share=SHARE,
        evidence=crash.death.text,
    )


def _table(crash: Crash) -> Iterator[Cause]:
    """nvidia-smi's table alone: a card that is held already."""
    if crash.is_told or crash.log.of("too_little_free"):
        return
    for line in crash.log.of("card_used"):
        used, total = line.bytes_of("used"), line.bytes_of("total")
        if used and total and used >= HELD * total:
            words = {"others": told(used), "figures": f", of {told(total)}", "share": SHARE}
            yield line_cause(crash, "card_taken", POSSIBLE, line, **words)
            return


def _fragmented(crash: Crash) -> Iterator[Cause]:
    """Memory that torch holds and cannot use."""
    unallocated, total = crash.size("unallocated"), crash.card
    tried, free = crash.size("tried"), crash.size("free")
    if unallocated is None or total is None or tried is None or free is None:
        return
    enough = unallocated + free >= tried
    much = unallocated >= FRAGMENTED * total
    if not much and not (enough and unallocated >= GIB):
        return
    both = f"{unallocated / GIB:.2f} + {free / GIB:.2f} = {(unallocated + free) / GIB:.2f} GiB"
    also = f", and with what was free {both} was there, not in one piece" if enough else ""
    words = {"unallocated": told(unallocated), "tried": told(tried), "sum": also}
    certainty = LIKELY if enough and much else POSSIBLE
    yield made_cause(crash, "fragmented", certainty, phase=crash.when, **words)


def _device(crash: Crash) -> Iterator[Cause]:
    """The GPU's memory: by the stack, and by the size that was asked for."""
    if crash.death is None:
        return
    phase = crash.place.phase
    same, other = _matching(crash)
    name = _name(crash, same or other)
    later = crash.step is not None and crash.step > FIRST_STEPS and phase in (FORWARD, BACKWARD)
    when = crash.when
    best = same or other
    certainty = CERTAIN if same is not None and same.exact else LIKELY
    if not name and not crash.is_told:
        return
    if not name:
        name = {BACKWARD: "backward", FORWARD: "activations"}.get(phase, FULL)
        certainty = LIKELY if phase else POSSIBLE
    size = size_words(crash, best)
    if later:
        yield made_cause(
            crash, "longer_batch", LIKELY, phase=when, step=f"step {crash.step:,}", size=size
        )
    found = made_cause(crash, name, certainty, phase=when, size=size, figures=_full(crash))
    yield replace(
        found,
        tensor=_tensor(crash, best),
        formula=best.formula if best else "",
        evidence=_stack_words(crash),
    )


def _name(crash: Crash, best: Explained | None) -> str:
    """The cause: by the phase, else by the tensor of the stack, else by the tensor of that size."""
    phase, tensor = crash.place.phase, crash.place.tensor
    if tensor in (ROUTER, COLLECTED):
        return BY_TENSOR[tensor]
    if (phase, tensor) == ("generation", GATHERED):
        return "gathered_to_generate"
    if phase == OPTIMIZER_STEP:
        return CAUSE_OF_TENSOR[tensor] or "optimizer_states"
    return BY_PHASE.get(phase) or CAUSE_OF_TENSOR[tensor] or BY_NAME.get(_first_word(best), "")


def _matching(crash: Crash) -> tuple[Explained | None, Explained | None]:
    """Of the tensors with that size the one that the stack has, too; and else the first."""
    family = CAUSE_OF_TENSOR[crash.place.tensor]
    same = [one for one in crash.explained if family and BY_NAME.get(_first_word(one)) == family]
    alone = len({_first_word(one) for one in crash.explained}) == 1
    first = crash.explained[0] if crash.explained else None
    return (same[0] if same and alone else None), (same[0] if same else first)


def _tensor(crash: Crash, best: Explained | None) -> str:
    """What was asked for: by the stack, else by its size; of what is as large as a weight, what the
    phase allocates.
    """
    phase = crash.place.phase
    if crash.place.tensor:
        return crash.place.tensor
    if best is None:
        rest = REST if crash.estimate is not None and crash.tried else {}
        return OF_WEIGHTS[phase] if phase in WEIGHTS_ALONE else rest.get(phase, "")
    as_weight = OF_WEIGHTS[phase] if best.of_weight or phase in WEIGHTS_ALONE else ""
    return as_weight or best.tensor


def _first_word(one: Explained | None) -> str:
    return one.tensor.split(":")[0].split(" in ")[0] if one is not None else ""


def _full(crash: Crash) -> str:
    tried, free = crash.size("tried"), crash.size("free")
    if tried is None:
        return ""
    left = f", {told(free)} was free" if free is not None else ""
    return f": {told(tried)} was asked for{left}"


def _stack_words(crash: Crash) -> tuple[str, ...]:
    frame = crash.place.frame
    if frame is None:
        return ()
    if not frame.file:
        return (f"the text has the line: {frame.code}",)
    where = f"{frame.file.rpartition('/')[2]}:{frame.number} in {frame.name}"
    return (f"the stack ends in {where}" + (f": {frame.code}" if frame.code else ""),)


BY_PHASE = {
    SAVING: "saving",
    RESUMING: "resume",
    EVALUATION: "evaluation",
    SYNC: "weight_sync",
    GRAPHS: "graphs",
    PROFILING: "trial_run",
    CACHE: NO_ROOM,
    "generation": "generation",
    LOADING: "weights",
    STARTING: "start_up",
}
ROUTER, GATHERED, COLLECTED = "router's loss", "gathered parameters", "collected predictions"
BY_TENSOR = {
    "optimizer states": "optimizer_states",
    "optimizer's temporaries": "optimizer_temporaries",
    "fp32 copies of the parameters": "optimizer_start",
    "logits": "logits",
    ROUTER: "router_loss",
    COLLECTED: "predictions",
    "sampler's buffers": "sampler",
    "weights": "weights",
    "attention": "activations",
    "attention's mask": "activations",
    "MLP": "activations",
    "experts": "activations",
    "norm": "activations",
    "embedding": "activations",
    "images": "activations",
    "LoRA's activations": "activations",
    "KV cache": "generation",
}
# Tensors of a stack that tell no cause; "" where a stack says no tensor.
WITHOUT_CAUSE = (
    *("", "flat buffer of the parameters", GATHERED, "dequantized weight"),
    *("gradients", "gradients' norm", "gradient buckets"),
)
CAUSE_OF_TENSOR = {**dict.fromkeys(WITHOUT_CAUSE, ""), **BY_TENSOR}
# The cause for a tensor that is known by its size alone.
BY_NAME = {
    "logits": "logits",
    "indices of sorted logits": "sampler",
    "adamw states": "optimizer_states",
    "adamw foreach temporaries": "optimizer_temporaries",
    "fp32 copies of the parameters": "optimizer_start",
    "hidden states": "activations",
    "MLP": "activations",
    "attention scores": "activations",
}
RULES: Sequence[Callable[[Crash], Iterator[Cause]]] = (
    _printed,
    _ended,
    _server,
    _others,
    _table,
    _fragmented,
    refused,
    host,
    steps,
    static,
    _device,
    other_release,
    said,
)

"""Which causes a death can have: a function for each kind of message, which gives what it finds.

A cause is certain only where the message itself says it, or where the size that was asked for is
that of one tensor, and the stack has the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from ...ledger.units import GIB
from ...tools.logs.read import LogLine
from .cause_rows import SHARE, figures_of, made_cause, rows, size_words
from .crash import OTHERS, Crash, told
from .diagnosis import CERTAIN, CERTAINTIES, LIKELY, POSSIBLE, Cause
from .places import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    GRAPHS,
    LOADING,
    OPTIMIZER_STEP,
    SAVING,
    STARTING,
    TRIAL_RUN,
)
from .sizes import Explained

HELD = (
    0.5  # of a card in nvidia-smi's table, from which on a run that starts there finds too little
)
MUCH = 0.1  # of the card: others that hold less are not named where freeing them would not help
FRAGMENTED = 0.08  # of the card, reserved and not allocated, from which on it can be the cause
# What a phase allocates in the size of a weight.
OF_WEIGHTS = {
    LOADING: "weights",
    STARTING: "weights",
    SAVING: "weights",
    FORWARD: "weights",
    BACKWARD: "gradients",
    OPTIMIZER_STEP: "optimizer states",
}
STEPS = (FORWARD, BACKWARD, OPTIMIZER_STEP)
OUTSIDE = 2 * GIB  # bytes outside torch from which on they are not the server's alone
LITTLE = GIB / 2  # bytes by which a share of the card may be missed without somebody else
FIRST_STEPS = 2  # steps after which a run has had every tensor once, but for other lengths


def causes(crash: Crash) -> list[Cause]:
    """The causes that a death can have, the likeliest first."""
    found = [_placed(cause, crash) for rule in RULES for cause in rule(crash)]
    order = list(rows())
    found.sort(key=lambda one: (CERTAINTIES.index(one.certainty), order.index(one.id)))
    first: dict[str, Cause] = {}
    for one in found:
        first.setdefault(one.id, one)
    return list(first.values())


def _placed(cause: Cause, crash: Crash) -> Cause:
    """A cause of the GPU with the tensor that was asked for."""
    if cause.tensor or crash.death is None or not cause.phase:
        return cause
    same, other = _matching(crash)
    return replace(cause, tensor=_tensor(crash, same or other))


def _host(crash: Crash) -> Iterator[Cause]:
    """The host's RAM."""
    for what, who in (
        ("ray_killed", "Ray"),
        ("host_killed", "the kernel"),
        ("oom_killed", "Kubernetes or the container's limit"),
        ("cpu_allocator", "torch could not allocate on the host, which"),
    ):
        for line in crash.log.of(what)[:1]:
            used, limit = line.bytes_of("used"), line.bytes_of("limit")
            words = f" ({told(used)} of {told(limit)})" if used and limit else ""
            yield made_cause(
                "host_ram", CERTAIN, who=who, figures=words, phase="", evidence=line.text
            )
    for line in crash.log.of("exit_signal")[:1]:
        if crash.death is None:
            yield made_cause("host_ram_maybe", LIKELY, evidence=line.text)
    for line in crash.log.of("shm_full")[:1]:
        yield made_cause("shared_memory", CERTAIN, evidence=line.text)
    for line in crash.log.of("host_cache")[:1]:
        cache_bytes = line.bytes_of("host_cache")
        words = told(cache_bytes) if cache_bytes else "much"
        yield made_cause("host_cache", LIKELY, cache=words, evidence=line.text)


def _server(crash: Crash) -> Iterator[Cause]:
    """What servers say themselves when they do not start."""
    for line in crash.log.of("kv_too_small")[:1]:
        yield _below_one_sequence(line)
    for line in crash.log.of("states_too_few")[:1]:
        want, have = figures_of(line, "max_num_seqs", "states")
        told_states = {"have": f"{have:,}", "want": f"{want:,}"}
        name = "states_below_sequences"
        yield made_cause(name, CERTAIN, phase=STARTING, evidence=line.text, **told_states)
    for line in crash.log.of("too_little_free")[:1]:
        yield _free(line)
    yield from _no_room(crash)
    for line in crash.log.of("images_too_large")[:1]:
        yield made_cause("images_in_trial_run", LIKELY, phase=TRIAL_RUN, evidence=line.text)
    for line in crash.log.of("layers_on_card", "memory_plan"):
        on, of = figures_of(line, "layers", "all_layers")
        if on is not None and of is not None and on < of:
            words = f"{on:,} of {of:,} layers"
            yield made_cause("cpu_layers", LIKELY, figures=words, evidence=line.text)
            break
    for line in crash.log.of("served_model"):
        if "CPU" in str(line.figures["processor"]):
            words = f"{line.figures['processor']} of it"
            yield made_cause("cpu_layers", LIKELY, figures=words, evidence=line.text)
            break
    for line in crash.log.of("buffer_failed")[:1]:
        name = "cache_buffer" if "kv" in line.text.lower() else "compute_buffer"
        yield made_cause(
            name, LIKELY, phase=STARTING, evidence=line.text, size=size_words(crash, None)
        )
    for what, name in (
        ("kv_full", "cache_full"),
        ("sampler_oom", "sampler"),
        ("prefill_oom", "trial_run"),
    ):
        for line in crash.log.of(what)[:1]:
            yield made_cause(name, CERTAIN, evidence=line.text)


def _no_room(crash: Crash) -> Iterator[Cause]:
    """No memory left for the cache: certain where what takes it is printed, too."""
    name = "no_room_for_cache"
    for line in crash.log.of("profiled"):
        outside = line.bytes_of("non_torch")
        if outside is not None and outside >= OUTSIDE:
            words = {
                "others": told(outside),
                "figures": ", which the trial run counts as the server's",
            }
            yield made_cause(
                "card_taken", LIKELY, phase=STARTING, evidence=line.text, share=SHARE, **words
            )
            break
    for line in crash.log.of("kv_pool", "profiled"):
        pool = line.bytes_of("kv_pool")
        if pool is not None and pool <= 0:
            words = {"figures": f" ({told(pool)} were left)"}
            known = crash.log.of("weights_loaded") or line.bytes_of("weights")
            certainty = CERTAIN if known else LIKELY
            yield made_cause(name, certainty, phase=STARTING, evidence=line.text, **words)
            return
    for line in crash.log.of("no_kv_memory")[:1]:
        yield made_cause(name, LIKELY, phase=STARTING, evidence=line.text)


def _below_one_sequence(line: LogLine) -> Cause:
    """A cache that does not hold one sequence, by bytes or by tokens."""
    wants, has = line.bytes_of("kv_wanted"), line.bytes_of("kv_pool")
    longest, tokens, fits = figures_of(line, "max_model_len", "kv_tokens", "longest")
    words = ""
    if wants is not None and has is not None:
        words = f": it needs {told(wants)}, and {told(has)} are left"
    elif longest is not None and tokens is not None:
        words = f": {longest:,} tokens, and it has room for {tokens:,}"
    fits = fits or tokens
    length = f" to {int(fits):,} tokens" if fits else ""
    name = "cache_below_one_sequence"
    return made_cause(
        name, CERTAIN, phase=STARTING, figures=words, evidence=line.text, length=length
    )


def _free(line: LogLine) -> Cause:
    """A share of the card that is not free."""
    free, total = line.bytes_of("free") or 0, line.bytes_of("total") or 1
    wanted = line.bytes_of("wanted") or 0
    share = f"{int(100 * free / total) / 100:.2f}"
    words = {
        "figures": f": {told(free)} of {told(total)} is free, and it wants {told(wanted)}",
        "others": told(total - free),
        "share": share,
    }
    name = "share_too_high" if wanted - free < LITTLE else "card_taken"
    return made_cause(name, CERTAIN, phase=STARTING, evidence=line.text, **words)


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
        "card_taken",
        LIKELY if enough else POSSIBLE,
        phase=_when(crash),
        others=told(crash.others),
        figures=words,
        share=SHARE,
        evidence=crash.death.text,
    )


def _table(crash: Crash) -> Iterator[Cause]:
    """nvidia-smi's table alone: a card that is held already."""
    if crash.death is not None or crash.log.of("too_little_free"):
        return
    for line in crash.log.of("card_used"):
        used, total = line.bytes_of("used"), line.bytes_of("total")
        if used and total and used >= HELD * total:
            words = {"others": told(used), "figures": f", of {told(total)}", "share": SHARE}
            yield made_cause("card_taken", POSSIBLE, evidence=line.text, **words)
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
    words = {"unallocated": told(unallocated), "tried": told(tried)}
    yield made_cause(
        "fragmented", LIKELY if enough and much else POSSIBLE, phase=_when(crash), **words
    )


def _device(crash: Crash) -> Iterator[Cause]:
    """The GPU's memory: by the stack, and by the size that was asked for."""
    for line in crash.log.of("nccl_oom")[:1]:
        yield made_cause("nccl", LIKELY, evidence=line.text)
    if crash.death is None:
        return
    phase = crash.place.phase
    same, other = _matching(crash)
    name = _name(crash, same or other)
    later = crash.step is not None and crash.step > FIRST_STEPS and phase in (FORWARD, BACKWARD)
    when = _when(crash)
    best = same or other
    certainty = CERTAIN if same is not None and same.exact else LIKELY
    if not name:
        name = {BACKWARD: "backward", FORWARD: "activations"}.get(phase, "card_full")
        certainty = LIKELY if phase else POSSIBLE
    size = size_words(crash, best)
    if later:
        yield made_cause("longer_batch", LIKELY, phase=when, step=f"{crash.step:,}", size=size)
    found = made_cause(
        name, certainty, phase=when or PHASES.get(name, ""), size=size, figures=_full(crash)
    )
    yield replace(
        found,
        tensor=_tensor(crash, best),
        formula=best.formula if best else "",
        evidence=_stack_words(crash),
    )


def _name(crash: Crash, best: Explained | None) -> str:
    """The cause: by the phase, else by the tensor of the stack, else by the tensor of that size."""
    phase, tensor = crash.place.phase, crash.place.tensor
    if tensor == ROUTER:
        return BY_TENSOR[tensor]
    if phase == OPTIMIZER_STEP:
        return CAUSE_OF_TENSOR[tensor] or "optimizer_states"
    return BY_PHASE.get(phase) or CAUSE_OF_TENSOR[tensor] or BY_NAME.get(_first_word(best), "")


def _when(crash: Crash) -> str:
    """The phase, with its step where that is known."""
    phase = crash.place.phase
    return f"{phase}, step {crash.step:,}" if crash.step and phase in STEPS else phase


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
    if crash.place.tensor or best is None:
        return crash.place.tensor
    return OF_WEIGHTS.get(crash.place.phase, best.tensor) if best.of_weight else best.tensor


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
    "resuming": "resume",
    EVALUATION: "evaluation",
    "weight sync": "weight_sync",
    GRAPHS: "graphs",
    TRIAL_RUN: "trial_run",
    "cache allocation": "no_room_for_cache",
    "generation": "generation",
    LOADING: "weights",
    STARTING: "start_up",
}
ROUTER = "router's loss"
BY_TENSOR = {
    "optimizer states": "optimizer_states",
    "optimizer's temporaries": "optimizer_temporaries",
    "fp32 copies of the parameters": "optimizer_start",
    "logits": "logits",
    ROUTER: "router_loss",
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
    *("", "flat buffer of the parameters", "gathered parameters", "dequantized weight"),
    *("gradients", "gradients' norm"),
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
PHASES = {
    "optimizer_states": OPTIMIZER_STEP,
    "optimizer_temporaries": OPTIMIZER_STEP,
    "optimizer_start": STARTING,
    "logits": FORWARD,
    "activations": FORWARD,
    "weights": LOADING,
}
RULES: Sequence[Callable[[Crash], Iterator[Cause]]] = (
    _host,
    _server,
    _others,
    _table,
    _fragmented,
    _device,
)

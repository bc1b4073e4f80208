"""Causes of which no stack and no server's line tells: by figures that do not go together, by
memory step after step, by the run's estimate, and by what people say of it; and what the estimate
and the card's vendor change of a cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from msgspec.structs import replace

from ...estimates.calculator import full_estimate
from ...estimates.fit_verdict import FITS
from ...ledger.units import GIB
from ...run.cuda.runtimes import VENDORS
from ...runfile.inference_config import ServingResult
from ...runfile.read import with_settings
from ...runfile.text.errors import InputError
from ...serving import server_row
from ...tools.logs.figure import Figure
from .cause_rows import SHARE, line_cause, made_cause, rows, size_words
from .crash import Crash, told
from .diagnosis import CERTAIN, LIKELY, POSSIBLE, Cause
from .places import EVALUATION, FORWARD, said_rows
from .sizes import GENERATING

FULL, NO_ROOM = "card_full", "no_room_for_cache"
USED = "used_memory_bytes"  # what others hold, of a run file's hardware
# Words of a text that say whose a machine is on which card and host share the memory.
WORDS_OF = {
    "nvidia": re.compile(r"\bGB10\b|(?i:DGX.Spark|\bJetson\b)|\bNVRM\b|\bNV_ERR_"),
    "amd": re.compile(r"(?i)HIP out of memory|Strix Halo|Ryzen AI|\bgfx1\d{3}|\bamdgpu\b|\bROCm\b"),
    "apple": re.compile(r"kIOGPU|ggml_metal|\bApple M\d|\bMacBook|\bMac (?:Studio|mini|Pro)\b"),
}
FIRST_STEPS = 2  # steps after which a run has had every tensor once, but for other lengths
# A server's share of the card, in its command, its code or its log.
SHARES = re.compile(
    r"(?i)(?:gpu.memory.utilization|mem.fraction.static|kv_cache_free_gpu_mem\w*|cuda-memory-fraction)"
    r"[\"'\s=:(]+(0?\.\d+|1\.0)"
)
FILLED = 0.9  # of that share, from which on weights and cache have taken it
RISES = 1.01  # times as much, from which on a step holds more than the one before
HOST_FULL = 90  # percent of the host's RAM, from which on what comes next fills it
SHOWN = 120  # characters of what is shown
NOT_SAID = {
    "figures": "",
    "sum": "",
    "who": "the kernel or the container",
    "limit": "the container's memory limit, --mem of Slurm, or a larger node",
    "step": "a later step",
    "others": "part",
    "cache": "much",
}
NOT_SAID["release"] = (
    "the set-up fits with another release: defaults and buffers differ between them"
)
NOT_SAID |= {"share": SHARE, "unallocated": "memory", "tried": "more in one piece"}


def refused(crash: Crash) -> Iterator[Cause]:
    """A request that the driver refused with enough memory free, or that a server's share left no
    room for.
    """
    tried, free, total = crash.size("tried"), crash.size("free"), crash.size("total")
    if tried is None or crash.death is None:
        return
    if free is not None and free >= 2 * tried and free - tried >= GIB:
        words = {"free": told(free), "tried": told(tried), "evidence": crash.death.text}
        yield made_cause(crash, "driver_refused", LIKELY, phase=crash.when, **words)
    share = SHARES.search(crash.begin)
    allocated = crash.size("allocated")
    if share is None or total is None or allocated is None:
        return
    asked = float(share[1])
    if asked <= 1 and allocated >= FILLED * asked * total and crash.place.phase in ("", FORWARD):
        size = size_words(crash, None)
        evidence = crash.death.text
        yield made_cause(
            crash, "server_share", LIKELY, share=share[1], size=size, evidence=evidence
        )


def said(crash: Crash) -> Iterator[Cause]:
    """What people say of it, with the options that are known for it."""
    known = {name for name, row in rows().items() if "{size}" in row["sentence"]}
    for row in said_rows():
        text = crash.begin if row.get("options") else crash.prose
        found = [one.search(text) for one in row["all"]]
        if not all(found) or any(one.search(text) for one in row["none"]):
            continue
        words = [" ".join(one[0].split())[:SHOWN] for one in found if one is not None]
        size = size_words(crash, None) if row["cause"] in known else ""
        yield made_cause(
            crash,
            row["cause"],
            row["certainty"],
            phase=crash.when,
            evidence=f"the text says: {'; '.join(dict.fromkeys(words))}",
            **{**NOT_SAID, "size": size},
        )


def host(crash: Crash) -> Iterator[Cause]:
    """The host's RAM by what was printed last, where the GPU's memory did not end."""
    if crash.is_told:
        return
    for line in crash.log.of("prompt_saved")[-1:]:
        yield line_cause(crash, "prompt_cache", LIKELY, line)
    for line in crash.log.of("host_memory")[-1:]:
        percent = line.figures.get("percent")
        if isinstance(percent, Figure) and percent.value >= HOST_FULL:
            yield line_cause(crash, "host_ram", LIKELY, line)


def of_model(crash: Crash) -> Iterator[Cause]:
    """Where no run is known, and no stack says the tensor: a size above every weight of the model
    that the text names, of which nothing is as wide as its logits.
    """
    name, found = crash.of_model
    if crash.tried is None or crash.place.tensor or crash.place.phase not in ("", FORWARD):
        return
    for one in [each for each in found if each.tokens][:1]:
        size = f": {told(crash.tried.value)} was asked for, {one.formula} of {name}"
        cause = made_cause(crash, "logits", POSSIBLE, phase=crash.when, size=size)
        yield replace(cause, tensor=one.tensor, formula=one.formula)


def steps(crash: Crash) -> Iterator[Cause]:
    """Memory by step: flat with peaks that differ: a longer batch; rising: something is kept."""
    lines = [one for one in crash.log.of("step_memory") if "allocated_bytes" in one.figures]
    held = [line.bytes_of("allocated") or 0 for line in lines]
    peaks = [line.bytes_of("highest") or 0 for line in lines]
    if crash.death is None or len(held) < FIRST_STEPS:
        return
    if all(after > before * RISES for before, after in pairwise(held)) and len(held) > FIRST_STEPS:
        yield line_cause(crash, "grows", LIKELY, lines[-1])
    elif min(held) * RISES > held[1] and max(peaks) > peaks[0] * RISES:
        step = crash.step or len(held)
        yield line_cause(crash, "longer_batch", LIKELY, lines[1], step=f"step {step:,}", size="")


def static(crash: Crash) -> Iterator[Cause]:
    """Where the run is known, and no stack says more: what it holds at all times, or its peak."""
    result = None if crash.estimate is None else crash.estimate.result
    if result is None or crash.estimate is None or crash.estimate.serves or crash.place.phase:
        return
    total, needs, one = crash.card, result.needs_bytes, result.breakdown
    if total is None or needs is None or crash.death is None or needs <= total:
        return
    held = round((one.model_params_gb + one.gradients_gb + one.optimizer_states_gb) * GIB)
    words = f": weights, gradients and states take {told(held)}, and the card has {told(total)}"
    if result.peak_instant in (EVALUATION, GENERATING):
        yield made_cause(crash, result.peak_instant, LIKELY, size=size_words(crash, None))
    elif held > total:
        yield made_cause(crash, FULL, LIKELY, figures=words)
    else:
        yield made_cause(
            crash, "activations", LIKELY, size=size_words(crash, None), evidence=words[2:]
        )


def of_vendor(cause: Cause, crash: Crash) -> Cause:
    """A cause with what helps on a card of that vendor; of one that is not known, nothing more."""
    own = rows()[cause.id].get("of_vendor")
    vendor = _vendor(crash) if own else ""
    return replace(cause, advice=(*own[vendor], *cause.advice)) if own and vendor in own else cause


def _vendor(crash: Crash) -> str:
    """Of the run's card, where it shares its memory with the host; else the only one that the text
    names.
    """
    hardware = None if crash.estimate is None else crash.estimate.resolved.hardware
    if hardware is not None and hardware.shared is not None:
        return next(name for name, one in VENDORS.items() if one == hardware.runtime)
    named = [vendor for vendor, words in WORDS_OF.items() if words.search(crash.text)]
    return named[0] if len(named) == 1 else ""


def with_room(cause: Cause, crash: Crash) -> Cause:
    """The cause of a cache without memory, where the estimate has enough of it for a sequence: what
    others hold, if the server counts that in its share; else the run was another.
    """
    estimate = crash.estimate
    if cause.id != NO_ROOM or cause.certainty == CERTAIN or estimate is None:
        return cause
    result, resolved = estimate.result, estimate.resolved
    if result.serving is None or result.verdict != FITS or result.serving.max_concurrency < 1:
        return cause
    release = resolved.run.options.get("engine_version")
    known = not release or any(one.release == release for one in result.versions.values())
    found = made_cause(
        crash,
        "share_with_others" if _counts_others(crash, result.serving) else "other_set_up",
        cause.certainty,
        phase=cause.phase,
        server=f"{server_row(resolved.engine.name).title} {release or ''}".rstrip(),
        room=told(result.serving.kv_pool_bytes),
        figures="" if known else ", with its release assumed",
    )
    return replace(found, evidence=cause.evidence)


def _counts_others(crash: Crash, serving: ServingResult) -> bool:
    """Whether others that hold as much as the cache has leave a server none, and fit beside it."""
    assert crash.asked is not None
    run = crash.asked.run
    held = (run.get("hardware") or {}).get(USED) or 0
    setting = f"hardware.{USED}={held + serving.kv_pool_bytes}"
    try:
        asked = replace(crash.asked, run=with_settings(run, [setting]))
        beside = full_estimate(asked, replay=False)
    except InputError:
        return False
    return any(one.others_bytes for one in beside.served)

"""The diagnosis of a text: what it says, set against the run's estimate."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...estimates.calculator import Estimate, full_estimate
from ...estimates.checked import CARD
from ...estimates.fit_verdict import FITS, SHORT, UNSURE
from ...estimates.memory_result import with_limits
from ...estimates.summary import summary
from ...ledger.secrets import hidden, hide_command
from ...ledger.units import GIB
from ...runfile.read import with_settings
from ...runfile.text.errors import InputError
from ...tools.logs.card import named_card
from ...tools.logs.figure import Figure
from ...tools.logs.read import Log, read_log
from ...tools.logs.snapshot import text_of
from ...tools.logs.stated_run import stated_run
from ...tools.read import HERE, TEXT_ALONE, Door, read
from .cause_rows import rows
from .crash import OOM, Crash, told
from .diagnosis import Advice, Cause, Diagnosis
from .other_release import ROW, compared, restores
from .parts import part_evidence, parts
from .programs import options_of, with_allocator
from .rules import causes

if TYPE_CHECKING:
    from ...tools.read import Anything, Asked

NO_CARD = "the card is not known, so nothing is said of whether it fits: give it with --gpu"
MOST_OTHERS, MOST_REMEDIES, MOST_LIVE = 3, 4, 3
NO_MEMORY = "no memory error"
ERROR = re.compile(r"^(?:\[rank\d+\]: )?(?P<line>(?P<kind>[A-Z]\w+Error): .*)$", re.MULTILINE)
MAYBE_MEMORY = (MemoryError, RuntimeError, OSError, SystemError)
ABOUT_MEMORY = re.compile("memory|alloc|cache|cuda", re.IGNORECASE)
MOST_SHOWN = 160  # characters of an error
OTHER_CARD = "hardware.gpu="
PLANS = ("memory_plan",)  # lines of Ollama that say what of the card is free
CARDS = ("too_little_free", "card_used", "card", "profiled")  # lines that say the card's memory

# Changes of what a run holds on the host, the cheapest first.
CHANGES = {
    "no data-loader workers": ("training.data_workers=0",),
    "each rank saves its shard": ("training.saving=sharded",),
    "one rank of a node loads the weights": ("training.loading=first_rank",),
    "optimizer states stay on the GPU": ("engine.offload_optimizer=null",),
    "parameters and states stay on the GPU": (
        "engine.offload_optimizer=null",
        "engine.offload_param=null",
    ),
    "nothing is offloaded": ("engine.cpu_offload=null",),
}
SAME_CARD = 0.03  # the share by which drivers report a card's memory apart
SAVES = GIB  # bytes of a node; a change that saves less is not offered


def diagnose(
    text: str | bytes,
    run: Anything | Asked | None = None,
    door: Door = TEXT_ALONE,
    *,
    gpu: str | None = None,
) -> Diagnosis:
    """Why a run died, by what it printed.

    text: of a file the bytes can be given, also those of torch's memory snapshot
    run: its run file, command or tool's file, where it is known
    door: what the one who asks knows of a run that the text alone states
    gpu: the card of the run, whatever it says; of one that is read already, by its own door
    """
    text = text_of(text) if isinstance(text, bytes) else text
    log = read_log(text)
    asked, estimate, notes = _estimated(run, text, log, door, gpu)
    crash = Crash(text=text, log=log, estimate=estimate, asked=asked)
    releases, unlike = compared(crash)
    crash = replace(crash, releases=releases)
    found = causes(crash)
    cause = found[0] if found else None
    restored = releases.advice() if releases is not None and restores(found) else ()
    other = _other_error(text) if cause is None else ""
    measured = parts(crash)
    differs = tuple(part_evidence(measured))
    helps = (*restored, *_remedies(crash, cause, asked))[:MOST_REMEDIES]
    answer = Diagnosis(
        read=(*log.lines, *log.set_up),
        run=None if estimate is None else dict(estimate.result.run),
        cause=cause,
        others=tuple(found[1 : MOST_OTHERS + 1]),
        evidence=(*_evidence(crash, cause), *differs),
        parts=measured,
        remedies=helps,
        error=other,
        question="" if other else _question(cause, crash),
        notes=(*notes, *([unlike] if unlike else []), *_left_out(log)),
        verdict=UNSURE if estimate is None else estimate.result.verdict,
        summary=f"{NO_MEMORY}: {other}" if other else _summary(cause, differs, helps, estimate),
    )
    return hidden(answer)  # whatever is printed of the text passes here


def _other_error(text: str) -> str:
    """The last error of a text, where Python itself says that it is not one of memory."""
    last = next(iter([*ERROR.finditer(text)][-1:]), None)
    kind = getattr(builtins, last["kind"], None) if last is not None else None
    if last is None or not isinstance(kind, type) or issubclass(kind, MAYBE_MEMORY):
        return ""
    return "" if ABOUT_MEMORY.search(last["line"]) else hide_command(last["line"])[:MOST_SHOWN]


def _estimated(
    run: Any, text: str, log: Log, door: Door, gpu: str | None
) -> tuple[Asked | None, Estimate | None, tuple[str, ...]]:
    """The run that is given, or that the text states, and its estimate; one that cannot be
    estimated is no reason to say nothing.
    """
    notes: tuple[str, ...] = ()
    here = HERE
    if gpu is not None:
        door, here = door.on_card(gpu), HERE.on_card(gpu)
    if run is None:
        stated = stated_run(text, log, door)
        run, notes = stated.asked, stated.problems
        if run is None:
            return None, None, (*notes, *_unused(door))
        notes = (f"the run is what line {stated.line:,} says; give its command for another",)
    try:
        asked = read(run, here)
        known = replace(asked, run=with_settings(asked.run, _printed(asked.run, text, log)))
        estimate = full_estimate(known)
        if not estimate.resolved.hardware.named:
            estimate = replace(estimate, result=with_limits(estimate.result, [CARD]))
        return known, estimate, (*notes, *_other_card(estimate, log))
    except InputError as error:
        return (
            None,
            None,
            (*notes, *(f"the run was not estimated: {one}" for one in error.problems)),
        )


def _other_card(estimate: Estimate, log: Log) -> Iterator[str]:
    """That the estimate is of a card of another size than the one that the message names."""
    has = estimate.resolved.hardware.card_bytes
    total = next(filter(None, (line.bytes_of("total") for line in log.of(*OOM))), None)
    if total is not None and abs(has - total) > SAME_CARD * total:
        yield f"the run's card has {told(has)}, the one in the message {told(total)}"


def _unused(door: Door) -> Iterator[str]:
    """The settings and the releases that go with a run."""
    releases = () if door.releases is None else door.releases.named.releases
    given = [*door.options({})[0], *(f"{one.package}={one.version}" for one in releases)]
    if given:
        yield f"{' and '.join(given)}: not used, as no run is known; give its command, too"


def _printed(run: Mapping[str, Any], text: str, log: Log) -> Iterator[str]:
    """Settings of a run that it leaves open, and that the text says: the card, its memory, and the
    server's release.
    """
    totals = (line.bytes_of("total") for line in log.of(*OOM, *CARDS))
    total = next(filter(None, totals), None)
    hardware, serves = run.get("hardware") or {}, run.get("inference")
    for line in log.of("host_limit")[-1:]:
        yield f"hardware.node_memory_gb={(line.bytes_of('limit') or 0) / GIB}"
        yield 'hardware.node_memory_read_from="the limit of the text"'
    if not hardware.keys() & {"gpu", "gpu_memory_gb", "gpu_memory_bytes"}:
        name = named_card(text, log, total)
        free = next(filter(None, (line.bytes_of("free") for line in log.of(*PLANS))), None)
        if name is not None:
            yield f"hardware.gpu={name}"
        if total is not None:
            yield f"hardware.gpu_memory_bytes={total}"
        elif free is not None:
            key = "gpu_memory_bytes" if name is None else "available_memory_bytes"
            yield f"hardware.{key}={free}"
    versions = [line.figures["version"] for line in log.of("server_version")]
    if versions and isinstance(versions[0], str) and serves and "engine_version" not in serves:
        yield f"inference.engine_version={versions[0]}"


def _evidence(crash: Crash, cause: Cause | None) -> Iterator[str]:
    """Measured against predicted."""
    if cause is not None:
        yield from cause.evidence
    for line in crash.log.of("snapshot_largest")[:MOST_LIVE]:
        count, size = line.figures["count"], line.bytes_of("live")
        if size is not None and isinstance(count, Figure):
            many = f"{count.value:,} allocation{'s' * (count.value != 1)}"
            yield f"{told(size)} was live at the dump: {many} made {line.figures['made']}"
    if crash.estimate is None or (cause is not None and rows()[cause.id].get("host")):
        return
    result = crash.estimate.result
    named = crash.estimate.resolved.hardware.named
    if named and crash.releases is not None and (cause is None or cause.id != ROW):
        yield f"by an estimate, {crash.releases.words}"
    total = crash.size("total")
    if total is not None and result.needs_bytes is not None:
        yield (
            f"it needs {told(result.needs_bytes)} of torch's memory, the most in"
            f" {result.peak_instant}; the card has {told(total)}"
        )


def _remedies(crash: Crash, cause: Cause | None, run: Asked | None) -> Iterator[Advice]:
    """What helps: changes that were estimated, in the words of the run's tool; then those of the
    cause.
    """
    if cause is None:
        return
    estimate, host = crash.estimate, rows()[cause.id].get("host", False)
    last: list[Advice] = []
    if host:
        yield from _host_advice(run, estimate) if run is not None and estimate is not None else ()
    elif estimate is not None and run is not None and estimate.result.verdict == SHORT:
        from .own_words import changed_words  # no format is written where no run is known
        from .program_words import program_words

        for words, settings, fits in _estimated_changes(estimate):
            own = changed_words(run, settings) or program_words(run, settings)
            ours = " ".join(f"--set {one}" for one in settings)
            one = Advice(sentence=words, command=own or ours, fits=fits)
            if any(each.startswith(OTHER_CARD) for each in settings):
                last.append(one)
            else:
                yield one
    if cause.advice:
        from .own_words import in_own_options

        tools = options_of(crash.programs)
        said = (in_own_options(one, tools) for one in cause.advice)
        yield from (Advice(sentence=with_allocator(one, crash.text)) for one in said)
    yield from last


def _host_advice(asked: Asked, estimate: Estimate) -> Iterator[Advice]:
    """Changes with which a node of a training run takes less; then the RAM that it needs as it is.

    `fits` is that of the node, None where nobody says what it has.
    """
    node = estimate.result.host
    if node is None or estimate.serves:
        return
    from .own_words import changed_words

    for title, settings in CHANGES.items():
        try:
            changed = full_estimate(with_settings(asked.run, settings), replay=False).result
        except InputError:
            continue
        after, has = changed.host, changed.gpu_memory_bytes
        if has is not None and changed.allocated_bytes > max(has, estimate.result.allocated_bytes):
            continue  # the GPU has no room for it
        if after is None or node.bytes_per_node - after.bytes_per_node < SAVES:
            continue
        fits = None if after.verdict is None else after.verdict == FITS
        command = changed_words(asked, settings) or " ".join(f"--set {one}" for one in settings)
        yield Advice(sentence=f"{title}: {after.words}", command=command, fits=fits)
    least = f"{-(-node.bytes_per_node // GIB):,} GiB"
    yield Advice(
        sentence=f"Give each node at least {least} of RAM, which the run takes by an estimate."
    )


def _estimated_changes(estimate: Estimate) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Changes with which it fits: words, settings, and whether that is certain."""
    if not estimate.serves:
        from ..training.remedies import remedies

        for one in remedies(estimate):
            yield f"{'; '.join(one.changes)}: {one.cost}", one.settings, one.certain
        return
    from ..serving.changes import Server
    from ..serving.server_remedies import remedies as server_remedies

    for change in server_remedies(Server.of(estimate)):
        words = f"{change.title}: {change.cost}" if change.cost else change.title
        yield words, change.setting, change.fits


def _question(cause: Cause | None, crash: Crash) -> str:
    """What to send if it is still unclear."""
    if cause is None:
        return "Send the whole error message, with the stack above it, and the launch command."
    if crash.estimate is not None and not crash.estimate.resolved.hardware.named:
        return f"{NO_CARD.capitalize()}."
    ask = rows()[cause.id].get("ask", "")
    return f"If it is still unclear, send {ask}." if ask and crash.estimate is None else ""


def _left_out(log: Log) -> Iterator[str]:
    """What was not read."""
    for what, count in log.left_out.items():
        if what == "characters":
            yield f"{count:,} characters in the middle were read for errors alone"
        else:
            yield f"{count:,} more lines of the kind {what} were left out"


def _summary(
    cause: Cause | None, differs: Sequence[str], helps: Sequence[Advice], estimate: Estimate | None
) -> str:
    """One line: the cause, then the run by its estimate with the change that fits; where no run is
    known, the first advice.
    """
    if cause is None:
        words = "; ".join(["nothing in the text says why it died", *differs[:1]])
    else:
        where = ", ".join(filter(None, (cause.phase, cause.tensor)))
        words = f"{cause.certainty}: {cause.sentence}" + (f" [{where}]" if where else "")
    if estimate is None:
        return f"{words}; try: {helps[0].sentence}" if helps else words
    if cause is not None and rows()[cause.id].get("host"):
        node = None if estimate.serves else estimate.result.host
        return words if node is None else f"{words}; by an estimate: {node.words}"
    if not estimate.resolved.hardware.named:
        return f"{words}; {NO_CARD}"
    fits = next((one for one in helps if one.fits), None)
    change = "" if fits is None else f"fits with {_code(fits)}"
    return f"{words}; by an estimate: {summary(estimate.result, change)}"


def _code(advice: Advice) -> str:
    """The words of a remedy; ours are left to its sentence."""
    own = advice.command and not advice.command.startswith("--set ")
    return (
        f"`{', '.join(advice.command.splitlines())}`" if own else advice.sentence.partition(": ")[0]
    )

"""The verdict on a card in words, and the figures it rests on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ..ledger.frameworks import FRAMEWORKS
from ..ledger.units import gib
from ..run.limits import BoundedLimit
from ..run.releases import OWN, UserRelease, package_name
from .bounds import deciding
from .fit_verdict import CLEAR, FITS, SHORT, UNSURE, WORDS
from .node import MARGIN

if TYPE_CHECKING:
    from ..runfile.inference_config import ServingResult
    from .result import MemoryResult

GAP = 2**20  # bytes short that are not said: the verdict is then that of a gap, not of a size
HELD = 2**26  # bytes that others hold and that are said
SPILLED = " in shared memory, which is slower"
NAMED = 2  # limits that the first line names
SETTLE = "gpu-mem-calc trace or measure"
STARTED = "start it once: its log says what it takes"  # of a server


class CardVerdict(Struct, frozen=True):
    """The verdict on a card, in bytes.

    - needs: what the card must have; margin: what must be added to be certain
    - has: what it has; held: what others hold of it besides
    - headroom: what it has beyond both
    - most: where nothing was replayed, the most that the card may have to have; `needs` is then the
      tensors alone
    - dying: in how many drawn orders of its batches the run dies, in words
    """

    word: str
    needs: int
    margin: int
    has: int
    headroom: int
    most: int | None = None
    held: int = 0
    dying: str = ""


def result_verdict(result: MemoryResult) -> CardVerdict:
    """The verdict of a result."""
    card, margin = total_bytes(result), result.margin_bytes or 0
    has, most = result.gpu_memory_bytes, None
    dying = _dying_orders(result) if result.verdict == UNSURE else ""
    if result.needs_bytes is None:
        highest = max(card, (result.startup_bytes or 0) + result.outside_torch_bytes)
        most = int(highest * CLEAR)
    return CardVerdict(
        *(result.verdict, card - margin, margin, has, result.headroom_bytes),
        *(most, result.held_bytes, dying),
    )


def _dying_orders(result: MemoryResult) -> str:
    """In how many drawn orders of its batches a run dies; empty where in none."""
    found = result.lengths
    dying = 0 if found is None or found.known else round(found.probability_to_die * found.orders)
    if found is None or not dying:
        return ""
    return f"it runs out of memory in {dying} of {found.orders} drawn orders of its batches"


def card_bounds(result: MemoryResult) -> dict[str, int]:
    """What a card must have, at least and to be certain; of a server one figure."""
    if result.serving is not None:
        needs = result.gpu_memory_bytes - result.headroom_bytes
        return {"card_low_bytes": needs, "card_high_bytes": needs}
    found = result_verdict(result)
    most = found.needs + found.margin if found.most is None else found.most
    return {"card_low_bytes": found.needs, "card_high_bytes": most}


def total_bytes(result: MemoryResult) -> int:
    """Bytes that the card must have: what torch needs with its margin (the peak where nothing was
    replayed), and what is outside torch. For a server, what it takes.
    """
    if result.serving is not None or result.needs_bytes is None:
        return result.allocated_bytes + result.outside_torch_bytes
    return result.needs_bytes + (result.margin_bytes or 0) + result.outside_torch_bytes


def needs_words(found: CardVerdict) -> str:
    """What the card must have, the margin included; where the card has the one and not the other,
    both. Where nothing was replayed, the bounds.
    """
    least, certain = gib(found.needs), gib(found.needs + found.margin)
    if found.most is not None:
        return f"at least {least}" if found.word == SHORT else f"about {least} to {gib(found.most)}"
    within = found.needs <= found.has < found.needs + found.margin
    return f"{least} to {certain}" if within and least != certain else certain


def has_words(found: CardVerdict) -> str:
    """`79.2 GiB`, or `20.1 GiB free of 79.2` where others hold memory of the card."""
    if found.held < HELD:
        return f"{gib(found.has)} GiB"
    return f"{gib(found.has)} GiB free of {gib(found.has + found.held)}"


def spare_words(found: CardVerdict) -> str:
    """How much memory is spare or short; empty where that is not what decides."""
    if found.word == UNSURE and (found.most is not None or found.headroom >= 0):
        return ""
    if -GAP < found.headroom < 0:
        return ""
    figure = gib(abs(found.headroom))
    figure = "<0.1" if figure == "0.0" else figure
    return f"{figure} GiB {'short' if found.headroom < 0 else 'to spare'}"


def verdict_words(found: CardVerdict) -> str:
    """The verdict in words, such as `fits, 8.7 GiB to spare`."""
    return ", ".join(filter(None, (WORDS[found.word], spare_words(found))))


def card_summary(
    found: CardVerdict, decisive: Sequence[str] = (), limits: Sequence[BoundedLimit] = ()
) -> str:
    """The verdict in one line: the outcome, the figures, what decides, what is assumed.

    - decisive: the assumptions that could turn it, in a few words each
    - limits: what is not modelled and keeps it open
    """
    figures = f"needs {needs_words(found)} of {has_words(found)} per GPU"
    spare = spare_words(found)
    if found.word == UNSURE:
        spare = "" if limits else open_words(found)
    if found.dying and not limits:
        figures, spare = f"{found.dying}; {figures}", ""
    line = ", ".join(filter(None, (f"{WORDS[found.word]}: {figures}", spare)))
    return line + _tail(decisive, limits if found.word == UNSURE else ())


def open_words(found: CardVerdict, limits: Sequence[BoundedLimit] = ()) -> str:
    """What keeps a verdict open, in a few words."""
    if limits:
        return f"open: {limit_names(limits)}"
    if found.dying:
        return found.dying
    return "torch's allocator was not replayed" if found.most else "within the margin"


def verdict_line(result: MemoryResult, also: str = "") -> str:
    """The verdict of a result in one line; `also`: more users of a server, in words."""
    limits = deciding(result) if result.verdict == UNSURE else []
    if result.serving is None:
        line = card_summary(result_verdict(result), result.decisive, limits)
        if result.spills_bytes and result.verdict == SHORT:
            line = line.replace(WORDS[SHORT], "spills", 1).replace(" short", SPILLED, 1)
        node = result.host
        if node is not None and node.node_bytes is not None and node.is_large:
            word, figures = WORDS[result.verdict], line.partition(": ")[2]
            decides = node.verdict != FITS
            line = f"{word}: {node.words}; {figures}" if decides else f"{line}; {node.words}"
        return line + release_words(result.versions)
    line = f"{server_outcome(result)}: {server_words(result.serving)}{also}"
    spare = f"{gib(abs(result.headroom_bytes))} GiB {_server_spare(result)}"
    figures = "" if result.serving.problem else f", {spare}"
    node = result.host
    if node is not None and node.verdict == SHORT and not result.serving.problem:
        line = f"{WORDS[result.verdict]}: {node.words}; {server_words(result.serving)}{also}"
    tail = f"{_tail(result.decisive, limits)}{release_words(result.versions)}"
    return f"{line.removesuffix('.')}{figures}{tail}"


def release_words(versions: Mapping[str, UserRelease]) -> str:
    """`; vLLM 0.14.1 (--at)`; empty where nobody says a release but the run file itself."""
    read = said_releases(versions, whence=True)
    return f"; {', '.join(read.values())}" if read else ""


def said_releases(versions: Mapping[str, UserRelease], *, whence: bool = False) -> dict[str, str]:
    """The releases that somebody says besides the run file, in words, by package; `whence`: with
    where each stands.
    """
    read = {name: one for name, one in versions.items() if one.read_from != OWN}
    titles = {package_name(row.package or row.name): row.name for row in FRAMEWORKS if read}
    return {
        name: f"{titles.get(name, name)} {one if whence else one.release}"
        for name, one in read.items()
    }


def server_outcome(result: MemoryResult) -> str:
    """The verdict on a server in words."""
    assert result.serving is not None
    serving = result.serving
    starts = result.verdict != SHORT or not serving.problem
    return WORDS[result.verdict] if starts else "will not start"


def _server_spare(result: MemoryResult) -> str:
    return "free" if result.headroom_bytes >= 0 else "short"


def users_words(users: int, context: int) -> str:
    """`27 users at 16,384 tokens`."""
    return f"{users:,} user{'s' * (users != 1)} at {context:,} tokens"


def server_words(serving: ServingResult) -> str:
    """How many users a server takes at which context, or why it does not start; and how many
    layers are on its GPUs, where not all are.
    """
    if serving.problem:
        return serving.problem
    return ", ".join(filter(None, (placed_words(serving), _users_words(serving))))


def placed_words(serving: ServingResult) -> str:
    """Which layers are not on the GPUs as a whole; empty where all are."""
    placed, every, part = serving.layers_on_gpus, serving.layers, serving.partial_layers
    rest = f"{part} of them without their experts" if part else ""
    if placed == every and not part:
        return ""
    return " and ".join(filter(None, (f"{placed} of {every} layers on the GPU", rest)))


def _users_words(serving: ServingResult) -> str:
    asked = serving.users_asked
    if asked is not None and serving.users < asked:
        if not serving.users:
            context = f"{serving.users_context:,} tokens"
            whole = (
                f"none of {asked:,} users at {context}"
                if asked > 1
                else f"not one user at {context}"
            )
            return f"{whole}, sequences of up to {serving.longest_context:,}"
        waits = f"{serving.users:,} of {asked:,} users at {serving.users_context:,} tokens"
        return f"{waits} run concurrently, the others wait"
    if asked is not None:
        most = f" each ({serving.users:,} would)" if serving.users > asked else " each"
        return f"{users_words(asked, serving.users_context)}{most}"
    if not serving.kv_tokens:
        return f"no KV cache; up to {serving.most_sequences:,} concurrent sequences"
    if serving.users:
        return f"{users_words(serving.users, serving.users_context)} each"
    whole = f"not one user at {serving.users_context:,} tokens"
    return f"{whole}, sequences of up to {serving.longest_context:,}"


def limit_names(limits: Sequence[BoundedLimit]) -> str:
    """The first limits, and the number of the others."""
    names = [one.key for one in limits[:NAMED]]
    more = len(limits) - len(names)
    return " and ".join([*names, *([f"{more} more"] if more else [])])


def _tail(decisive: Sequence[str], limits: Sequence[BoundedLimit]) -> str:
    decides = f"; open: {limit_names(limits)}" if limits else ""
    return decides + (f"; assumed: {', '.join(decisive)}" if decisive else "")


def bound_words(limit: BoundedLimit) -> str:
    """What a limit can add or save at most."""
    adds, saves = limit.adds_bytes, limit.saves_bytes
    words = {
        "adds": "" if adds == 0 else "an unknown amount" if adds is None else _at_most(adds),
        "saves": "" if saves == 0 else "an unknown amount" if saves is None else _at_most(saves),
    }
    given = {name: size for name, size in words.items() if size}
    if len(set(given.values())) == 1 and len(given) == 2:
        return f"adds or saves {given['adds']}"
    return ", ".join(f"{name} {size}" for name, size in given.items()) or "changes nothing"


def _at_most(size: int) -> str:
    return f"at most {gib(size, 2)} GiB"


DROP = "a lower share of the card, or echo 3 > /proc/sys/vm/drop_caches while it loads"


def in_form(settle: str) -> str:
    """A way to settle a limit in the words of the web form, which has a field for each key."""
    from ..runfile.keys.keys import rows  # few ask for it

    def field(match: re.Match[str]) -> str:
        row = rows().get(match[1])
        if row is not None:
            return f"fill in “{row.label}” in the form"
        return f"{match[1].rpartition('.')[2]}={match[2]} in the command"

    return re.sub(r"--set ([\w.]+)=([^\s,]+)", field, settle)


def undecided(result: MemoryResult) -> list[str]:
    """Where the verdict is open: what decides, a sentence each, with the way to settle it."""
    if result.verdict != UNSURE:
        return []
    if result.host is not None and result.host.verdict == UNSURE:
        if result.host.pages_bytes:
            return [
                f"{result.host.words}, which the driver does not get at once; settle it: {DROP}"
            ]
        share = f"{MARGIN:.0%}".replace("%", " %")
        return [f"{result.host.words}, and the estimate of host RAM is certain to {share}"]
    limits = deciding(result)
    if not limits and result.needs_bytes is None:
        return ["torch's allocator was not replayed, and takes more than the tensors"]
    if not limits:
        found = result_verdict(result)
        if found.dying:
            return ["each run draws its own order; with shorter sequences every order survives"]
        survives = f"it survives a replay of torch's allocator with {gib(found.needs)} GiB"
        certain = gib(found.needs + found.margin)
        return [f"{survives}, and is certain with {certain}; settle it with gpu-mem-calc measure"]
    usual = SETTLE if result.serving is None else STARTED
    return [f"{one} ({bound_words(one)}); settle it: {one.settle or usual}" for one in limits]

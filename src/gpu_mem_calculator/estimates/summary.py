"""The one line of an answer, made for an issue or a chat: what was asked, what that takes of what
there is, its largest parts, and how it ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..ledger.frameworks import FRAMEWORKS, RELEASE
from ..ledger.units import GIB, gib
from ..run.releases import package_name
from .bounds import deciding
from .fit_verdict import FITS, SHORT, UNSURE, WORDS
from .verdict_words import (
    HELD,
    has_words,
    needs_words,
    open_words,
    result_verdict,
    said_releases,
    server_outcome,
    server_words,
)

if TYPE_CHECKING:
    from ..runfile.resolve.resolved_run import ResolvedRun
    from .result import MemoryResult

LONGEST = 150  # characters, two rows of a terminal, with parts
TITLE = 40  # characters of a model's title
NAMED = 4  # parts that are at least this fraction of the whole are named, the two largest


def subject_words(resolved: ResolvedRun, program: tuple[str, str, str] | None = None) -> str:
    """What the line begins with: the model, how it is trained, the tool and others with their
    releases, the batch, the cards. `program`: the name of the tool whose words the run has, its
    package, and the release that is modelled.
    """
    run, hardware = resolved.run, resolved.hardware
    adapter = f" {'Q' * bool(run.quantization)}LoRA" if run.adapter is not None else ""
    card = short_card(hardware.title)
    cards = card if hardware.num_gpus == 1 else f"{hardware.num_gpus:,} × {card}"
    title = f"{resolved.model.title[:TITLE]}{adapter}"
    tools = _tools(resolved, program)
    return ", ".join(filter(None, [title, *tools, _batch(resolved), cards]))


def short_card(title: str) -> str:
    """A card's title without its maker's names."""
    return title.removeprefix("NVIDIA ").removeprefix("GeForce ")


def _tools(resolved: ResolvedRun, program: tuple[str, str, str] | None) -> Iterator[str]:
    """The tool with its release, and the others whose release somebody says."""
    said, package = resolved.versions, resolved.engine.package
    if program is None:
        yield _engine(resolved)
    else:
        name, package, release = program
        yield f"{name} {said[package].release if package in said else release}"
    own = package or package_name(resolved.engine.name)
    yield from (words for name, words in said_releases(said).items() if name != own)


def _engine(resolved: ResolvedRun) -> str:
    run, engine = resolved.run, resolved.engine
    title = (engine.alone_title if resolved.hardware.num_gpus == 1 else "") or engine.title
    stage = run.options.get("zero_stage")
    release = run.options.get("engine_version") or _release(resolved)
    words = [title, release, "" if stage is None else f"ZeRO-{stage}"]
    return " ".join(filter(None, [*words, run.options.get("sharding_strategy")]))


def _release(resolved: ResolvedRun) -> str:
    """The release of an engine that somebody says, else the one that is modelled."""
    package = resolved.engine.package
    if package in resolved.versions:
        return resolved.versions[package].release
    read = next((one.version for one in FRAMEWORKS if package and one.package == package), "")
    return read if re.match(RELEASE, read) else ""


def _batch(resolved: ResolvedRun) -> str:
    run = resolved.run
    if resolved.engine.serve is not None:
        return ""
    tokens = f"{int(run.seq):,}" + (f" + {run.new_tokens:,}" if run.new_tokens else "")
    return f"{run.batch} × {tokens} tokens"


def summary(result: MemoryResult, change: str = "") -> str:
    """The line of a result; `change`: the one change with which it fits, in words with `fits`."""
    figures = f"{result.subject}: {figures_words(result)}"
    ends, parts = _outcome(result, change), [*_largest(result)]
    lines = [f"{figures}{ends}"]
    for many in range(1, len(parts) + 1):
        words = ", ".join(f"{name} {gib(size, 2)}" for name, size in parts[:many])
        lines.append(f"{figures} ({words}){ends}")
    return next((one for one in reversed(lines[2:]) if len(one) <= LONGEST), lines[:2][-1])


def figures_words(result: MemoryResult) -> str:
    """`23.6 of 79.1 GiB`: what is needed, of what there is."""
    return f"{_needs(result)} of {has_words(result_verdict(result))}"


def _needs(result: MemoryResult) -> str:
    if result.serving is None:
        return needs_words(result_verdict(result))
    return gib(result.gpu_memory_bytes - result.headroom_bytes)


def _largest(result: MemoryResult) -> Iterator[tuple[str, int]]:
    """The two largest parts of those that are a quarter of what is needed."""
    whole = result.gpu_memory_bytes - result.headroom_bytes
    large = [(name, size) for name, size in _parts(result) if size * NAMED >= whole]
    yield from sorted(large, key=lambda one: -one[1])[:2]


def _parts(result: MemoryResult) -> Iterator[tuple[str, int]]:
    serving, found = result.serving, result.breakdown
    if serving is None:
        yield "weights", round(found.model_params_gb * GIB)
        yield "gradients", round(found.gradients_gb * GIB)
        yield "optimizer", round(found.optimizer_states_gb * GIB)
        yield "activations", round(found.activations_gb * GIB)
        return
    least = serving.kv_bytes_per_token * serving.max_seq_len if serving.problem else 0
    yield "weights", serving.weights_bytes
    yield "KV cache", max(serving.kv_pool_bytes, least)
    yield "activations", serving.activation_bytes


def _outcome(result: MemoryResult, change: str) -> str:
    """How the line ends: the verdict, what keeps it open, or the change with which it fits."""
    host, serving = result.host, result.serving
    word = server_outcome(result) if serving is not None else WORDS[result.verdict]
    if result.spills_bytes and result.verdict == SHORT:
        word = "spills to the host's memory"
    why = ""
    if host is not None and host.node_bytes and host.verdict == result.verdict != FITS:
        said = host.shared and result.headroom_bytes < 0  # the card's figures are the node's
        why = "" if said else host.words
    elif result.verdict == UNSURE and result.lengths is not None:
        why = "the order of its batches decides"
    elif result.verdict == UNSURE:
        why = open_words(result_verdict(result), deciding(result))
    elif serving is not None and (not change or result.headroom_bytes > -HELD):
        why = server_words(serving).removesuffix(".")
    ends = f", {word}: {why}" if why else f", {word}"
    if change and result.verdict != FITS:
        ends = f"{ends}; {change}" if why else f": {change}"
    others = (f"; {short_card(one.title)}: {WORDS[one.verdict]}" for one in result.other_cards)
    return "".join([ends, *others])

"""Two estimates side by side, and which key made the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from ..estimates.calculator import Estimate, full_estimate
from ..estimates.verdict_words import total_bytes
from ..runfile.own_names import with_setting
from ..runfile.text.errors import InputError

MOST_CAUSES = 24  # keys of which each is estimated by itself
SECTIONS = ("model", "training", "inference", "parallelism", "engine", "hardware")
RELEASE = "inference.engine_version"


class KeyDifference(Struct, frozen=True, kw_only=True):
    """A key that the two runs have with other values, and the bytes that it adds by itself to the
    first; None where it means nothing, or is refused, without the others.

    For a server, `adds_bytes` is what it takes beside its KV cache, `adds_cache_bytes` its cache.
    """

    key: str
    first: Any
    second: Any
    adds_bytes: int | None
    adds_cache_bytes: int | None = None


def used_bytes(estimate: Estimate) -> int:
    """What a run takes of a GPU; of a server, what it takes beside its cache."""
    return total_bytes(estimate.result) - cache_bytes(estimate)


def cache_bytes(estimate: Estimate) -> int:
    """The pool of a server; 0 where there is none."""
    serving = estimate.result.serving
    return serving.kv_pool_bytes if serving is not None else 0


def causes(first: Estimate, second: Estimate) -> list[KeyDifference]:
    """The keys whose values differ, those that add or save the most first."""
    same = first.resolved.engine.name == second.resolved.engine.name
    ours, theirs = (_keys(one, options=same) for one in (first, second))
    base = _run(ours)
    found = [
        _cause(first, base, key, ours.get(key), theirs.get(key)) for key in _different(ours, theirs)
    ]
    return sorted(found, key=lambda one: -abs(one.adds_bytes or 0) - abs(one.adds_cache_bytes or 0))


def _different(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The keys with other values; those of the first run stand first."""
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return keys[:MOST_CAUSES]


def _keys(estimate: Estimate, *, options: bool) -> dict[str, Any]:
    """The keys of a run; with `options`, those too that its framework chooses itself, such as
    `inference.max_num_seqs`.
    """
    run = {name: estimate.result.run.get(name) or {} for name in SECTIONS}
    keys = {f"{name}.{key}": value for name, part in run.items() for key, value in part.items()}
    if options and estimate.served:
        chosen = estimate.served[estimate.result.busiest_stage].chosen
        keys |= {f"inference.{key}": value for key, value in chosen.items()}
        keys[RELEASE] = estimate.resolved.run.options.get("engine_version")
    elif options and not estimate.serves:
        keys |= {f"engine.{key}": value for key, value in estimate.resolved.run.options.items()}
    return {key: value for key, value in keys.items() if value is not None}


def _run(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The run file of keys."""
    run: dict[str, Any] = {}
    for key, value in keys.items():
        with_setting(run, key, value)
    return run


def _cause(
    first: Estimate, base: dict[str, Any], key: str, ours: Any, theirs: Any
) -> KeyDifference:
    """What a key makes alone, on top of the first run with all its choices written out."""
    section, _, name = key.partition(".")
    changed = {**base, section: {**base.get(section, {}), name: theirs}}
    if theirs is None:
        changed[section].pop(name)
    try:
        found = full_estimate(changed)
    except InputError:
        return KeyDifference(key=key, first=ours, second=theirs, adds_bytes=None)
    return KeyDifference(
        key=key,
        first=ours,
        second=theirs,
        adds_bytes=used_bytes(found) - used_bytes(first),
        adds_cache_bytes=cache_bytes(found) - cache_bytes(first) if first.served else None,
    )


def limits_of_one(first: Estimate, second: Estimate) -> Iterator[str]:
    """What is not modelled of one of the two alone, so that the difference may be another."""
    ours, theirs = ({str(limit) for limit in one.result.limits} for one in (first, second))
    yield from sorted(ours ^ theirs)

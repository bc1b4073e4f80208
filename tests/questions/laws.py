"""Laws of an answer, whatever the question. Each is counted, and names what breaks it.

They read plain data, so they hold for Python's result, for JSON and for the service alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_mem_calculator.ledger.units import GIB

FITS, OPEN = ("fits",), ("may fit",)
SHORT = ("does not fit", "does_not_fit", "tight")
UNSURE = ("cannot tell", "cannot_tell")
SIGNED = ("headroom_bytes", "saves_bytes", "error_pct", "change_bytes")  # may be negative
UNITS = ("_bytes", "_gb", "_seconds", "_percent", "_flops", "_parameters", "_tokens")
CLOSE = 1e-9


class Checks:
    """How often each law was looked at, and what broke it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.broken: list[tuple[str, str]] = []

    def hold(self, law: str, held: object, why: str = "") -> None:
        """Count a law; `why` says what broke it."""
        self.counts[law] += 1
        if not held:
            self.broken.append((law, why))


def numbers(data: Any, path: str = "") -> Iterator[tuple[str, str, float]]:
    """Every number of plain data: its path, the key it belongs to, and the number."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from numbers(value, f"{path}.{key}")
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from numbers(value, f"{path}[{index}]")
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path, path.rpartition(".")[2].partition("[")[0], data


def plain_laws(checks: Checks, answer: Mapping[str, Any]) -> None:
    """No byte and no second is negative, and every number is one."""
    shown = {key: value for key, value in answer.items() if key != "run"}
    found = list(numbers(shown))
    odd = [path for path, _, number in found if not math.isfinite(number)]
    checks.hold("every number is finite", not odd, ", ".join(odd[:3]))
    negative = [
        f"{path} = {number}"
        for path, key, number in found
        if number < 0
        and key not in SIGNED
        and ".knobs[" not in path  # what another choice costs or saves
        and (key.endswith(UNITS) or ".bytes." in path)
    ]
    checks.hold("no byte and no second is negative", not negative, "; ".join(negative[:3]))


def result_laws(checks: Checks, result: Mapping[str, Any]) -> None:
    """The laws of a result of training or serving."""
    plain_laws(checks, result)
    _parts(checks, result)
    _verdict(checks, result)
    if result["serving"] is not None:
        _served(checks, result, result["serving"])
    else:
        _trained(checks, result)


def _parts(checks: Checks, result: Mapping[str, Any]) -> None:
    parts, total = result["breakdown"], result["total_memory_per_gpu_gb"]
    whole = math.isclose(sum(parts.values()), total, rel_tol=CLOSE, abs_tol=CLOSE)
    checks.hold("the parts add up to the total", whole, f"{parts} and {total}")
    above = {key: value for key, value in parts.items() if value > total * (1 + CLOSE)}
    checks.hold("no part is above its whole", not above, f"{above} of {total}")
    tops = [sum(one["bytes"].values()) for one in result["timeline"] if one["phase"] != "startup"]
    allocated = result["allocated_bytes"]
    checks.hold("no instant is above the peak", max(tops) <= allocated, f"{max(tops)} {allocated}")


def _verdict(checks: Checks, result: Mapping[str, Any]) -> None:
    word, fits = result["verdict"], result["fits_on_gpu"]
    known = word in (*FITS, *OPEN, *SHORT, *UNSURE)
    checks.hold("the verdict is a known word", known, word)
    if word in (*FITS, *SHORT):
        checks.hold("the verdict is fits_on_gpu", (word in FITS) == fits, f"{word} {fits}")
        sign = (result["headroom_bytes"] >= 0) == fits
        checks.hold("the headroom has the verdict's sign", sign, f"{result['headroom_bytes']}")
    if word in FITS and result["device_bytes"] is not None:
        device, has = result["device_bytes"], result["gpu_memory_bytes"]
        checks.hold("what fits is at most the card", device <= has, f"{device} of {has}")


def _trained(checks: Checks, result: Mapping[str, Any]) -> None:
    allocated, needs = result["allocated_bytes"], result["needs_bytes"]
    outside, margin = result["outside_torch_bytes"], result["margin_bytes"]
    total = (allocated if needs is None else needs) + (margin or 0) + outside
    same = round(result["total_memory_per_gpu_gb"] * GIB) == total
    checks.hold("the total is needs, margin and outside torch", same, f"{total}")
    stages = [one["allocated_bytes"] for one in result["stages"]]
    busiest = result["busiest_stage"]
    checks.hold("the busiest stage takes most", stages[busiest] == max(stages), f"{stages}")
    trained, every = result["trainable_parameters"], result["num_parameters"]
    checks.hold("something has parameters", every > 0, f"{trained} of {every}")
    if needs is None:
        return
    reserved = result["reserved_bytes"]
    order = allocated <= needs <= reserved
    checks.hold("allocated <= needs <= reserved", order, f"{allocated} {needs} {reserved}")
    checks.hold("the margin is not negative", margin >= 0, f"{margin}")
    for step in result["steps"]:
        peak, phases = step["peak_bytes"], step["phases"]
        most = max((one["peak_bytes"] for one in phases), default=peak)
        checks.hold("a step's peak is that of a phase", most == peak, f"{most} {peak}")
        above = [one["phase"] for one in phases if one["peak_bytes"] > one["reserved_bytes"]]
        checks.hold("a phase reserves what it allocates", not above, f"{above}")


def _served(checks: Checks, result: Mapping[str, Any], serving: Mapping[str, Any]) -> None:
    if result["verdict"] in FITS:
        checks.hold("what fits has a user", serving["users"] >= 1, serving["command"])
        enough = serving["users"] >= (serving["users_asked"] or 0)
        checks.hold("what fits has the users asked for", enough, f"{serving['users']}")
        checks.hold("what fits has no problem", not serving["problem"], serving["problem"])
        pool, has = serving["kv_pool_bytes"], result["gpu_memory_bytes"]
        checks.hold("the KV pool is at most the card", pool <= has, f"{pool} of {has}")
    total = round(result["total_memory_per_gpu_gb"] * GIB)
    taken = result["allocated_bytes"] + result["outside_torch_bytes"]
    checks.hold("a server takes its tensors and what is outside", total == taken, f"{total}")

"""Laws of memory. Each function gives a sentence for each law that is broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpu_mem_calculator.estimates.calculator import Estimate
from gpu_mem_calculator.estimates.result import MemoryResult
from gpu_mem_calculator.ledger.ledger import CPU, GPU, NVME, UNIFIED, Ledger
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.inference_config import ServingResult

FITS = "fits"
PLACES = (GPU, CPU, NVME, UNIFIED)
CLOSE = 1e-9 * GIB  # bytes that the fractions of GiB may be off


def least(number: Any) -> int:
    """The least of a number or an array of them."""
    return int(np.min(number))


def ledger_laws(ledger: Ledger) -> Iterator[str]:
    """No entry is negative at any instant; the parts of an instant add up to it; no instant is
    above the peak. Also for a ledger over arrays of runs.
    """
    for entry in ledger.entries:
        if least(entry.bytes) < 0:
            yield f"{entry.name} has {least(entry.bytes):,} B"
        for instant, copies in entry.live.items():
            if least(copies) < 0:
                yield f"{entry.name} has {least(copies)} copies at {instant}"
    for place in PLACES:
        peak = ledger.peak(place)
        for instant in ledger.instants:
            height, parts = ledger.at(instant, place), ledger.parts(instant, place)
            for kind, size in parts.items():
                if least(size) < 0:
                    yield f"{kind} has {least(size):,} B at {instant.name} in {place}"
                if least(height - size) < 0:
                    yield f"{kind} is above the whole at {instant.name} in {place}"
            if np.any(sum(parts.values()) != height):
                yield f"the parts of {instant.name} in {place} do not add up"
            if least(peak - height) < 0:
                yield f"{instant.name} in {place} is above the peak"


def estimate_laws(estimate: Estimate) -> Iterator[str]:
    """All laws of an estimate: of each stage's ledger, of the result, of a server."""
    for ledger in estimate.ledgers:
        yield from ledger_laws(ledger)
    yield from result_laws(estimate.result)


def result_laws(result: MemoryResult) -> Iterator[str]:
    """No negative byte; parts add up, none above its whole; allocated <= needs <= reserved; no
    negative margin; what fits is at most the card, and has a user.
    """
    for name in result.__struct_fields__:
        value = getattr(result, name)
        if name.endswith("_bytes") and name != "headroom_bytes" and value is not None and value < 0:
            yield f"{name} is {value:,}"
    total = result.total_memory_per_gpu_gb * GIB
    parts = [getattr(result.breakdown, name) * GIB for name in result.breakdown.__struct_fields__]
    if abs(sum(parts) - total) > CLOSE + total * 1e-12:
        yield f"the breakdown has {sum(parts):,} B of {total:,}"
    if min(parts) < -CLOSE or max(parts) > total + CLOSE:
        yield f"a part of the breakdown is {min(parts):,} or {max(parts):,} B of {total:,}"
    for one in result.timeline:
        if min(one["bytes"].values(), default=0) < 0:
            yield f"the timeline has {one['bytes']} at {one.get('instant')}"
    by_node = result.host is not None and result.host.verdict != FITS  # its memory decides
    decided = result.verdict != "cannot_tell" and not by_node
    if decided and (result.headroom_bytes >= 0) != (result.verdict == FITS):
        yield f"{result.verdict} with {result.headroom_bytes:,} B of room"
    if result.verdict == FITS and (result.device_bytes or 0) > result.gpu_memory_bytes:
        yield f"fits, and nvidia-smi shows {result.device_bytes:,} of {result.gpu_memory_bytes:,} B"
    yield from _server_laws(result, result.serving) if result.serving else _replay_laws(result)


def _replay_laws(result: MemoryResult) -> Iterator[str]:
    """The order of a run's figures; those of a replay only where there was one."""
    if result.allocated_bytes != max(stage.allocated_bytes for stage in result.stages):
        yield "the busiest stage is not the one that allocates most"
    needs, reserved, margin = result.needs_bytes, result.reserved_bytes, result.margin_bytes
    figures = f"{result.allocated_bytes:,}, {needs}, {reserved} B"
    if needs is None or reserved is None or margin is None:
        if (needs, reserved, margin) != (None, None, None):
            yield f"a part of a replay is missing: {figures}"
        needs, margin = result.allocated_bytes, 0
    elif not result.allocated_bytes <= needs <= reserved:
        yield f"allocated <= needs <= reserved does not hold: {figures}"
    if margin < 0:
        yield f"the margin is {margin:,} B"
    total = needs + margin + result.outside_torch_bytes
    if abs(result.total_memory_per_gpu_gb * GIB - total) > CLOSE + total * 1e-12:
        yield f"the total is not needs, margin and what is outside torch: {figures}"
    room = result.gpu_memory_bytes - result.outside_torch_bytes
    if result.reserved_on_card_bytes is not None and result.reserved_on_card_bytes > room:
        yield f"torch reserves {result.reserved_on_card_bytes:,} of {room:,} B"
    for step in result.steps:
        for phase in step.phases:
            if phase.peak_bytes > phase.reserved_bytes:
                yield f"step {step.step} allocates more than it reserves in {phase.phase}"


def _server_laws(result: MemoryResult, serving: ServingResult) -> Iterator[str]:
    """A server that fits starts, and has the users that are asked for, at least one."""
    if result.verdict == FITS:
        if serving.problem:
            yield f"fits, and does not start: {serving.problem}"
        if serving.users < (serving.users_asked or 1):
            yield f"fits with {serving.users} users of {serving.users_asked or 1}"
    for name in ("weights_bytes", "activation_bytes", "kv_pool_bytes", "kv_tokens", "users"):
        if getattr(serving, name) < 0:
            yield f"serving.{name} is {getattr(serving, name):,}"
    if serving.users_context > serving.max_seq_len and serving.users:
        tokens = f"{serving.users_context:,} of {serving.max_seq_len:,} tokens"
        yield f"{serving.users} users at {tokens}"

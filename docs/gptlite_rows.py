"""What docs/gptlite/ holds: predictions, measurements, trials, and what follows from them.

All memory is in GiB of torch's allocated bytes, of one rank of 8.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.published import zero_tables
from gpu_mem_calculator.tools.deepspeed.read import read

FOLDER = Path(__file__).with_name("gptlite")
CONFIGS = FOLDER.parents[1] / "examples" / "gptlite" / "configs"
GIB, RANKS = 2**30, 8
SMALL, HEAD, TOKENS, VOCABULARY = 12, 64, 2048, 65  # layers of GPT-3 Small; the same in every size
Row = dict[str, Any]


@cache
def rows(name: str) -> tuple[Row, ...]:
    """The lines of a file; none where there is no file yet."""
    path = FOLDER / f"{name}.jsonl"
    return tuple(map(json.loads, path.read_text("utf-8").splitlines())) if path.exists() else ()


def width(size: int) -> int:
    """Of a size's residual stream: as many heads as layers."""
    return HEAD * size


def parameters(size: int) -> int:
    """How many a size's model has: 12 matrices of width squared in each layer, and tables."""
    wide = width(size)
    around = (2 * VOCABULARY + TOKENS + 2) * wide
    return size * (12 * wide**2 + 10 * wide) + around


def error(predicted: float, measured: float) -> float:
    """In percent of what was measured."""
    return 100 * (predicted / measured - 1)


def percent(size: float) -> str:
    """An error as tables have it; nothing has no sign."""
    said = f"{size:+.{2 if abs(size) < 10 else 0}f}"
    return f"{said.lstrip('+-') if float(said) == 0 else said} %"


class Memory(Struct, frozen=True):
    """A configuration at GPT-3 Small's size: what was said, and what one GPU showed."""

    name: str
    estimated: float
    traced: float
    measured: float
    average: float
    held: float
    steps: dict[int, Row]

    @property
    def off(self) -> float:
        """Error of the estimate in percent."""
        return error(self.estimated, self.measured)

    @property
    def traced_off(self) -> float:
        """Error of the trace in percent."""
        return error(self.traced, self.measured)


def memories() -> Iterator[Memory]:
    """Each configuration that has been predicted and measured."""
    runs = {row["id"]: row for row in rows("measured")}
    for row in rows("predicted"):
        name = row["configuration"]
        found = {
            batch: runs[f"{name}-{SMALL}-b{batch}"]
            for batch in (1, 8)
            if f"{name}-{SMALL}-b{batch}" in runs
        }
        one = found[1]
        last = list(one["phases"].values())[-1]
        sizes = (
            row["estimated"]["allocated_bytes"],
            row["traced"]["allocated_bytes"],
            one["measured"]["allocated_bytes"],
            one["measured"]["average_bytes"],
            last["start_next_bytes"],
        )
        yield Memory(
            name,
            *(size / GIB for size in sizes),
            {batch: run["measured"] for batch, run in found.items()},
        )


class Largest(Struct, frozen=True):
    """The largest model of a configuration: the size that is predicted, and those tried."""

    name: str
    room: int | None
    size: int
    trained: list[int]
    failed: list[int]

    @property
    def below(self) -> bool:
        """Whether the predicted size trained."""
        return self.size in self.trained

    @property
    def above(self) -> bool:
        """Whether the next size ran out of memory."""
        return self.size + 1 in self.failed

    @property
    def wrong(self) -> bool:
        """Whether a trial says otherwise."""
        return any(n > self.size for n in self.trained) or any(n <= self.size for n in self.failed)


def trials(name: str, room: int | None) -> tuple[list[int], list[int]]:
    """The sizes that trained for two steps under a limit, and those that ran out of memory."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for row in rows("measured"):
        cap = row["environment"].get("cap_bytes")
        here = row["group"] == name and (cap and cap // GIB) == room
        if here and row["with"]["number"] != SMALL:
            failed = row.get("failed", "")
            if failed and not failed.startswith("out of memory"):
                continue  # it says nothing about memory
            found[not failed].add(row["with"]["number"])
    return sorted(found[True]), sorted(found[False])


def largests() -> list[Largest]:
    """Each configuration's."""
    return [
        Largest(
            row["configuration"],
            row["room_gib"],
            row["largest"],
            *trials(row["configuration"], row["room_gib"]),
        )
        for row in rows("predicted")
    ]


class Pipeline(Struct, frozen=True):
    """A pipeline's stages, in GiB."""

    name: str
    estimated: list[float]
    measured: list[float]

    @property
    def worst(self) -> float:
        """The largest error of a stage, with its sign."""
        pairs = zip(self.estimated, self.measured, strict=True)
        return max((error(*pair) for pair in pairs), key=abs)


def pipelines() -> Iterator[Pipeline]:
    """Each that has been predicted and measured."""
    known = {(row["configuration"], row["stages"]): row for row in rows("measured_pipelines")}
    for row in rows("pipelines"):
        found = known[row["configuration"], row["stages"]]
        yield Pipeline(
            row["configuration"],
            [size / GIB for size in row["estimated"]],
            [size / GIB for size in found["measured"]],
        )


def plain_model() -> Row:
    """The same sizes as plain numbers: neither masks nor heads one by one can be said."""
    return {
        "num_layers": SMALL,
        "hidden_size": width(SMALL),
        "num_attention_heads": SMALL,
        "intermediate_size": 4 * width(SMALL),
        "gated_mlp": False,
        "normalization": "layernorm",
        "position_embedding": "learned",
        "vocab_size": VOCABULARY,
        "max_seq_len": TOKENS,
        "dropout": 0.1,
    }


@cache
def plain(name: str) -> float:
    """The estimate from plain numbers."""
    found = read(CONFIGS / f"{name}.json", num_gpus=RANKS)
    data = {key: dict(found[key]) for key in ("training", "parallelism", "engine", "hardware")}
    data["training"]["attention"] = "eager"
    data["hardware"]["gpu"] = "h200"
    return full_estimate({**data, "model": plain_model()}).result.allocated_bytes / GIB


def deepspeeds(stage: int, *, offload: bool = False) -> float:
    """What DeepSpeed's own formulas say of a stage."""
    total = parameters(SMALL)
    if stage == 2:
        return zero_tables.zero2_bytes(total, RANKS, 1, cpu_offload=offload)[1] / GIB
    largest = 4 * width(SMALL) ** 2 + 4 * width(SMALL)  # the first matrix of the feed-forward
    made = zero_tables.estimate_zero3_model_states_mem_needs(
        total, largest, RANKS, 1, offload, offload
    )
    return made[1] / GIB


def masks() -> float:
    """The causal masks of all heads, in fp32."""
    return SMALL**2 * TOKENS**2 * 4 / GIB

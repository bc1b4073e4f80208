"""The estimate's stream of allocations for a generation."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mem_calculator import estimate
from gpu_mem_calculator.core.calculator import STEP
from gpu_mem_calculator.core.resolve import resolve
from gpu_mem_calculator.core.resolved_run import ResolvedRun
from gpu_mem_calculator.core.runfile import read
from gpu_mem_calculator.generation.decode_steps import STEPS, played
from gpu_mem_calculator.replay.stream import AllocationStream
from tests.serving.conftest import FAMILIES, assisted, served
from tests.streams import highest, rolled_and_written

ROWS = [
    row
    for name in ("runs", "serving_transformers")
    for line in (Path(__file__).parents[1] / f"ground_truth/{name}.jsonl").read_text().splitlines()
    if "inference" in (row := json.loads(line))["config"]
]


MODES: list[dict[str, Any]] = [
    {"cache_implementation": "static"}, {"cache_implementation": "static", "max_seq_len": 640},
    {"num_beams": 3}, {"num_beams": 2, "cache_implementation": "static"}, {"do_sample": True},
    {"do_sample": True, "top_p": 0.9}, {"do_sample": True, "num_return_sequences": 2},
    {"quantization": "nf4"}, {"quantization": "int8", "dtype": "fp16"},
]  # fmt: skip


def found(family: str = "llama", **inference: Any) -> ResolvedRun:
    """A run of a small model, resolved."""
    return resolve(read(served(family, **inference)))


def written(**inference: Any) -> AllocationStream:
    """What a small Llama asks of the allocator."""
    return rolled_and_written(found(**inference))[1]


def agrees(resolved: ResolvedRun) -> None:
    """A stream is as high as the rolled ledger says."""
    rolled, asked = rolled_and_written(resolved)
    assert highest(asked) == int(rolled.peak(phases=STEP))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_a_measured_run_is_as_high_as_its_ledger(row: dict[str, Any]) -> None:
    """To the byte, and nothing is freed that is not there."""
    agrees(resolve(read(row["config"])))


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from([f for f in FAMILIES if f != "bloom"]),
    batch=st.integers(1, 9),
    prompt=st.integers(1, 700),
    new=st.integers(0, 60),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    attention=st.sampled_from(["sdpa", "eager"]),
)
def test_any_run_is_as_high_as_its_ledger(
    family: str, batch: int, prompt: int, new: int, dtype: str, attention: str
) -> None:
    """Whatever the family, the sizes and the attention."""
    agrees(found(family, batch_size=batch, prompt_len=prompt, new_tokens=new, dtype=dtype,
                 attention=attention))  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from([f for f in FAMILIES if f != "bloom"]),
    batch=st.integers(1, 5),
    prompt=st.sampled_from([1, 2, 100, 127, 128, 129, 400]),
    new=st.sampled_from([1, 2, 3, 40]),
    mode=st.sampled_from(MODES),
    attention=st.sampled_from(["sdpa", "eager"]),
)
def test_so_is_every_way_to_generate(
    family: str, batch: int, prompt: int, new: int, mode: dict[str, Any], attention: str
) -> None:
    """Static caches, beams, samples, packed weights."""
    agrees(found(family, batch_size=batch, prompt_len=prompt, new_tokens=new, attention=attention,
                 **mode))  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "deepseek_v3"])
@pytest.mark.parametrize("new", [1, 2, 4, 5, 6, 30])
def test_so_is_an_assisted_generation(family: str, new: int) -> None:
    """Fewer tokens than candidates, as many, and more."""
    agrees(found(family, **assisted(new_tokens=new)))


def test_phases_are_those_of_a_measurement() -> None:
    """A model is loaded, then it generates; a plain forward is a prefill."""
    assert [name for _, name in written().marks] == ["load", "generate"]
    assert [name for _, name in written(new_tokens=0).marks] == ["load", "prefill"]


def test_new_keys_are_made_before_the_old_ones_go() -> None:
    """torch.cat makes keys that are a token longer; only then the old ones are let go."""
    asked = written(batch_size=3, prompt_len=512, new_tokens=3)
    old, new = (3 * tokens * 2 * 32 * 2 for tokens in (512, 513))
    made = [at for at, event in enumerate(asked.events) if asked.sizes[max(event, ~event)] == new]
    gone = [at for at, event in enumerate(asked.events)
            if event < 0 and asked.sizes[~event] == old and at > made[0]]  # fmt: skip
    assert gone[0] == made[0] + 1


def test_the_embedding_is_the_first_layers_input() -> None:
    """It is made once a pass, and there until the stack is done."""
    asked = written(batch_size=1, prompt_len=512, new_tokens=0)
    begin = asked.marks[0][0]
    size = 512 * 256 * 2
    first = next(e for e in asked.events[begin:] if e >= 0 and asked.sizes[e] == size)
    lasts = asked.events.index(~first) - asked.events.index(first)
    assert lasts > 0.8 * (len(asked.events) - begin)


def test_few_steps_are_played_whole() -> None:
    """More than that are played at even distances, the first and the last two one by one."""
    assert played(0) == played(1) == ()
    assert played(STEPS + 1) == tuple(range(1, STEPS + 1))
    some = played(512)
    assert len(some) == STEPS
    assert (*some[:2], *some[-2:]) == (1, 2, 510, 511)
    gaps = {b - a for a, b in pairwise(some[1:-1])}
    assert max(gaps) - min(gaps) <= 2


def test_an_estimate_says_what_is_reserved_and_needed() -> None:
    """As for training: no less reserved than needed, no less needed than allocated."""
    result = estimate(served())
    assert result.reserved_bytes is not None
    assert result.needs_bytes is not None
    assert result.device_bytes == result.reserved_bytes + result.outside_torch_bytes
    assert result.allocated_bytes <= result.needs_bytes <= result.reserved_bytes

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
from gpu_mem_calculator.estimates.calculator import STEP
from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.pytorch.autograd.events import BlockEvents
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.generation.decode_steps import STEPS, replayed_steps
from gpu_mem_calculator.training.generation.stream import SCORES, GenerationStreamWriter, PassEvents
from tests.serving.conftest import FAMILIES, assisted, served
from tests.streams import highest, rolled_and_written

ROWS = [
    row
    for name in ("runs", "serving_transformers")
    for line in (Path(__file__).parents[2] / f"ground_truth/{name}.jsonl").read_text().splitlines()
    if "inference" in (row := json.loads(line))["config"]
]


MODES: list[dict[str, Any]] = [
    {"cache_implementation": "static"},
    {"cache_implementation": "static", "max_seq_len": 640},
    {"num_beams": 3},
    {"num_beams": 2, "cache_implementation": "static"},
    {"do_sample": True},
    {"do_sample": True, "top_p": 0.9},
    {"do_sample": True, "num_return_sequences": 2},
    {"quantization": "nf4"},
    {"quantization": "int8", "dtype": "fp16"},
]


def resolved_run(family: str = "llama", **inference: Any) -> ResolvedRun:
    """A run of a small model, resolved."""
    return resolve(read(served(family, **inference)).file)


def written(**inference: Any) -> AllocationStream:
    """The allocation stream of a small Llama."""
    return rolled_and_written(resolved_run(**inference))[1]


def agrees(resolved: ResolvedRun) -> None:
    """The peak of a stream is that of the rolled ledger."""
    rolled, stream = rolled_and_written(resolved)
    assert highest(stream) == int(rolled.peak(phases=STEP))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_a_measured_run_has_the_peak_of_its_ledger(row: dict[str, Any]) -> None:
    """To the byte, and nothing is freed that is not alive."""
    agrees(resolve(read(row["config"]).file))


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from([f for f in FAMILIES if f != "bloom"]),
    batch=st.integers(1, 9),
    prompt=st.integers(1, 700),
    new=st.integers(0, 60),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    attention=st.sampled_from(["sdpa", "eager"]),
)
def test_any_run_has_the_peak_of_its_ledger(
    family: str, batch: int, prompt: int, new: int, dtype: str, attention: str
) -> None:
    """For all families, sizes and kinds of attention."""
    agrees(
        resolved_run(
            family,
            batch_size=batch,
            prompt_len=prompt,
            new_tokens=new,
            dtype=dtype,
            attention=attention,
        )
    )


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from([f for f in FAMILIES if f != "bloom"]),
    batch=st.integers(1, 5),
    prompt=st.sampled_from([1, 2, 100, 127, 128, 129, 400]),
    new=st.sampled_from([1, 2, 3, 40]),
    mode=st.sampled_from(MODES),
    attention=st.sampled_from(["sdpa", "eager"]),
)
def test_every_way_to_generate_has_the_peak_of_its_ledger(
    family: str, batch: int, prompt: int, new: int, mode: dict[str, Any], attention: str
) -> None:
    """Static caches, beams, samples, packed weights."""
    sizes = {"batch_size": batch, "prompt_len": prompt, "new_tokens": new}
    agrees(resolved_run(family, **sizes, attention=attention, **mode))


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "deepseek_v3"])
@pytest.mark.parametrize("new", [1, 2, 4, 5, 6, 30])
def test_an_assisted_generation_has_the_peak_of_its_ledger(family: str, new: int) -> None:
    """Fewer tokens than candidates, as many, and more."""
    agrees(resolved_run(family, **assisted(new_tokens=new)))


def test_phases_are_those_of_a_measurement() -> None:
    """A model is loaded, then it generates; a plain forward is a prefill."""
    assert [name for _, name in written().marks] == ["load", "generate"]
    assert [name for _, name in written(new_tokens=0).marks] == ["load", "prefill"]


def test_new_keys_are_allocated_before_the_old_ones_are_freed() -> None:
    """torch.cat allocates keys that are a token longer; only then the old ones are freed."""
    stream = written(batch_size=3, prompt_len=512, new_tokens=3)
    old, new = (3 * tokens * 2 * 32 * 2 for tokens in (512, 513))
    allocated = [
        at for at, event in enumerate(stream.events) if stream.sizes[max(event, ~event)] == new
    ]
    freed = [
        at
        for at, event in enumerate(stream.events)
        if event < 0 and stream.sizes[~event] == old and at > allocated[0]
    ]
    assert freed[0] == allocated[0] + 1


def test_the_embedding_is_the_first_layers_input() -> None:
    """It is allocated once in a pass, and alive until the last layer has run."""
    stream = written(batch_size=1, prompt_len=512, new_tokens=0)
    begin = stream.marks[0][0]
    size = 512 * 256 * 2
    first = next(e for e in stream.events[begin:] if e >= 0 and stream.sizes[e] == size)
    lasts = stream.events.index(~first) - stream.events.index(first)
    assert lasts > 0.8 * (len(stream.events) - begin)


def test_few_steps_are_all_replayed() -> None:
    """Of many steps the first two, the last two, and others at even distances are replayed."""
    assert replayed_steps(0) == replayed_steps(1) == ()
    assert replayed_steps(STEPS + 1) == tuple(range(1, STEPS + 1))
    some = replayed_steps(512)
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


@pytest.mark.parametrize(
    ("block", "output", "flow"), [(3, 1, 2), (3, 0, 0), (3, -1, -1), (SCORES, 1, -1)]
)
def test_a_block_s_output_is_the_next_one_s_input(block: int, output: int, flow: int) -> None:
    """It may be its own input; the chosen token goes to no block."""
    writer = GenerationStreamWriter(Ledger((), ()))
    writer.flow = writer.make(8)
    events = BlockEvents(sizes=(8, 4), entry=0, exit=output, forward=(1,))
    writer.forward(PassEvents(block=block, script=events, forward=True))
    assert writer.flow == flow
    assert list(writer.events) == [0, 2]

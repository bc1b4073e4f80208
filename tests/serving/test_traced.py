"""Estimates of inference against the same program on fake tensors, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.pytorch.replay.replays import replay
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from tests.corpus import sampled
from tests.serving.conftest import FAMILIES, assisted, served

pytest.importorskip("torch")
pytest.importorskip("transformers")

NEAR = 0.006  # share of the peak; the tests below name what is further off
SEGMENT_BYTES = 2 * 1024**2
CASES: dict[str, dict[str, Any]] = {
    "prompt": {},
    "eager": {"attention": "eager"},
    "steps": {"batch_size": 16, "prompt_len": 8, "new_tokens": 24},
    "forward": {"new_tokens": 0},
    "fp32": {"dtype": "fp32"},
}
# Ways to generate, each for a few families.
MORE: dict[str, dict[str, Any]] = {
    "static": {"cache_implementation": "static"},
    "static, longer": {"cache_implementation": "static", "max_seq_len": 1024},
    "static, eager": {"cache_implementation": "static", "attention": "eager"},
    "static, steps": {
        "cache_implementation": "static",
        "batch_size": 16,
        "prompt_len": 8,
        "new_tokens": 24,
    },
    "beams": {"num_beams": 3},
    "beams, steps": {"num_beams": 3, "batch_size": 16, "prompt_len": 8, "new_tokens": 24},
    "sample": {"do_sample": True, "batch_size": 16, "prompt_len": 2},
    "assisted": assisted(),
    "assisted, short": assisted(prompt_len=8, new_tokens=12),
}
FEW = ("llama", "mixtral", "gpt2", "gemma2", "falcon", "mistral")
WINDOWED = ("gemma2", "mistral")


@contextmanager
def on_a_gpu() -> Iterator[None]:
    """torch and generate as on a GPU, for a program on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from gpu_mem_calculator.lab.trace.attention import AttentionKernels
    from gpu_mem_calculator.lab.trace.cuda import as_on_cuda
    from gpu_mem_calculator.lab.trace.huggingface import (
        as_if_real,
        convertible_modules,
        simulated_generate,
        without_warnings,
    )

    with ExitStack() as stack:
        for one in (
            without_warnings(),
            FakeTensorMode(allow_non_fake_inputs=True),
            as_if_real(),
            simulated_generate(),
            convertible_modules(),
            as_on_cuda("9.0", AttentionKernels()),
        ):
            stack.enter_context(one)
        yield


@cache
def traced(family: str, case: str) -> AllocationStream:
    """What the program asks of the allocator."""
    from gpu_mem_calculator.lab.jobs.inference import infer
    from gpu_mem_calculator.lab.jobs.job import World
    from gpu_mem_calculator.lab.trace.recorder import Recorder
    from gpu_mem_calculator.run.cuda.chips import cublas_bytes

    config = served(family, **{**CASES, **MORE}[case])
    recorder = Recorder(cublas_bytes("9.0"))
    section = config["inference"]
    with on_a_gpu(), recorder.recording():
        infer(section, config["model"]["config"], World(device="cpu", mark=recorder.mark))
    recorder.sums.clear()  # sums of gradients, of which there are none
    return recorder.recorded()


def highest(stream: AllocationStream) -> int:
    """The most bytes of tensors after the model is loaded, each in steps of 512 bytes."""
    loaded, alive, peak = stream.marks[0][0], 0, 0
    for index, event in enumerate(stream.events):
        size = -(-stream.sizes[event if event >= 0 else ~event] // 512) * 512
        alive += size if event >= 0 else -size
        peak = max(peak, alive) if index >= loaded else 0
    return peak


RUNS = sampled(
    [(f, case) for f in FAMILIES for case in CASES if f != "bloom" or case == "eager"], keep=5
)
WAYS = sampled(
    [(f, way) for f in FEW for way in MORE if not ("assisted" in way and f in WINDOWED)], keep=3
)


@pytest.mark.reference
@pytest.mark.parametrize(("family", "case"), RUNS)
def test_an_estimate_is_the_traced_peak(family: str, case: str) -> None:
    """Within 0.6 % for 15 families, the cache, eager maps, masks and experts included."""
    peak = highest(traced(family, case))
    found = estimate(served(family, **CASES[case]), replay=False)
    assert abs(found.allocated_bytes - peak) <= NEAR * peak


@pytest.mark.reference
@pytest.mark.parametrize(("family", "case"), WAYS)
def test_so_it_is_however_tokens_are_generated(family: str, case: str) -> None:
    """Static caches, beams, samples, assistants: within 0.3 %."""
    peak = highest(traced(family, case))
    found = estimate(served(family, **MORE[case]), replay=False)
    assert abs(found.allocated_bytes - peak) <= NEAR / 2 * peak


@pytest.mark.reference
@pytest.mark.parametrize(("family", "case"), RUNS)
def test_an_estimate_reserves_what_a_trace_does(family: str, case: str) -> None:
    """Within one of the allocator's small segments."""
    reserved = estimate(served(family, **CASES[case])).reserved_bytes
    assert reserved is not None
    assert (
        abs(reserved - replay(traced(family, case), AllocatorSettings()).reserved_bytes)
        <= SEGMENT_BYTES
    )

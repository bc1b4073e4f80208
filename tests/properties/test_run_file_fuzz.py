"""Whatever a run file holds, the answer is a number or one sentence: never a traceback."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.core.calculator import estimate
from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.core.runfile import SECTIONS, hints
from gpu_mem_calculator.engines import spellings

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)  # fmt: skip
SIZES = st.sampled_from([1, 2, 3, 4, 8, 16, 64, 128, 512])
WORDS = st.sampled_from(
    ["none", "cpu", "nvme", "full", "selective", "bf16", "fp32", "bf16_pure", "fp16_mixed",
     "adamw", "sgd", "adafactor", "eager", "sdpa", "full_shard", "hybrid_shard", "local",
     "transformer_engine", "foreach", "fused", "rope", "learned", "layernorm", "nf4", "int8"]
)  # fmt: skip


def section(kind: type) -> st.SearchStrategy[dict[str, Any]]:
    """Some keys of a section, each with a plausible or an absurd value."""
    values = st.one_of(SIZES, WORDS, st.booleans(), JUNK)
    return st.dictionaries(st.sampled_from(sorted(hints(kind))), values, max_size=5)


@st.composite
def run_files(draw: st.DrawFn) -> dict[str, Any]:
    """A run file that is often nearly right."""
    run: dict[str, Any] = {name: draw(section(kind)) for name, kind in SECTIONS.items()}
    if draw(st.booleans()):
        run["model"]["name"] = draw(st.sampled_from(["gpt2", "llama3.2-1b", "mixtral-8x7b"]))
    if draw(st.booleans()):
        run["engine"]["type"] = draw(st.sampled_from(sorted(spellings())))
    if draw(st.booleans()):
        run["training"]["seq_len"] = draw(SIZES)
    if draw(st.booleans()):
        run[draw(st.text(max_size=6))] = draw(JUNK)
    return run


@given(run_files())
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_run_file_gives_a_number_or_a_sentence(run: dict[str, Any]) -> None:
    """No exception but InputError, no NaN, nothing negative, no line break in a problem."""
    try:
        result = estimate(run)
    except InputError as error:
        assert error.problems
        assert all(problem.strip() and "\n" not in problem for problem in error.problems)
        return
    numbers = [result.allocated_bytes, result.total_memory_per_gpu_gb, result.cpu_memory_gb,
               result.host_bytes_per_node, result.disk_bytes_per_node]  # fmt: skip
    assert all(number >= 0 and math.isfinite(number) for number in numbers)


@given(st.recursive(JUNK, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3)))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_junk_is_refused_in_a_sentence(junk: Any) -> None:
    """Data that is no run file at all is refused, whatever it is."""
    try:
        estimate({"model": {"config": junk}} if not isinstance(junk, dict) else junk)
    except InputError as error:
        assert error.problems

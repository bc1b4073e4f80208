"""Whatever a run file holds, the answer is a number or one sentence: never a traceback."""

from __future__ import annotations

import math
import os
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.estimates.explain.explain import explain
from gpu_mem_calculator.runfile.config import EngineConfig
from gpu_mem_calculator.runfile.read import SECTIONS, key_types, parts
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines import engine, engine_names, spellings

# `make proof` sets another profile, with more examples than a change can wait for
EXAMPLES = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 120
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**18), 10**18),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
SIZES = st.sampled_from([1, 2, 3, 4, 8, 16, 64, 128, 512])
WORDS = st.sampled_from(
    [
        "none",
        "cpu",
        "nvme",
        "full",
        "selective",
        "bf16",
        "fp32",
        "bf16_pure",
        "fp16_mixed",
        "adamw",
        "sgd",
        "adafactor",
        "eager",
        "sdpa",
        "full_shard",
        "hybrid_shard",
        "local",
        "transformer_engine",
        "foreach",
        "fused",
        "rope",
        "learned",
        "layernorm",
        "nf4",
        "int8",
    ]
)


def section(kind: type) -> st.SearchStrategy[dict[str, Any]]:
    """Some keys of a section, each with a plausible or an absurd value."""
    values = st.one_of(SIZES, WORDS, st.booleans(), JUNK)
    return st.dictionaries(st.sampled_from(sorted(key_types(kind))), values, max_size=5)


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
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_run_file_gives_a_number_or_a_sentence(run: dict[str, Any]) -> None:
    """No exception but InputError, no NaN, nothing negative, no line break in a problem."""
    try:
        result = estimate(run)
    except InputError as error:
        assert error.problems
        assert all(problem.strip() and "\n" not in problem for problem in error.problems)
        return
    numbers = [
        result.allocated_bytes,
        result.total_memory_per_gpu_gb,
        result.cpu_memory_gb,
        result.host_bytes_per_node,
        result.disk_bytes_per_node,
    ]
    assert all(number >= 0 and math.isfinite(number) for number in numbers)


@given(st.recursive(JUNK, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3)))
@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
def test_junk_is_refused_in_a_sentence(junk: Any) -> None:
    """Data that is no run file at all is refused, whatever it is."""
    try:
        estimate({"model": {"config": junk}} if not isinstance(junk, dict) else junk)
    except InputError as error:
        assert error.problems


CHOICES: dict[str, list[Any]] = {
    "precision": ["fp32", "bf16_mixed", "fp16_mixed", "bf16_pure", "fp16_pure"],
    "optimizer": [
        "adamw",
        "adam",
        "sgd",
        "sgd_momentum",
        "adafactor",
        "adamw_8bit",
        "lion",
        "paged_adamw_8bit",
        "lion_8bit",
        "muon",
    ],
    "optimizer_implementation": ["foreach", "fused", "forloop"],
    "activation_checkpointing": ["none", "selective", "full", 2, 3],
    "attention": ["eager", "sdpa", "flash_attention_2"],
    "quantization": ["nf4", "int8"],
    "upcast_unquantized": [True],
    "double_quant": [False],
    "lora": [{"r": 4}, {"r": 8, "target_modules": "all-linear", "dropout": 0.1, "dora": True}],
    "autocast": [True],
    "checkpoint_reentrant": [True],
    "gradient_clipping": [0.0],
    "batch_size": [1, 3],
    "seq_len": [16, 100, 640],
    "gradient_accumulation_steps": [2, 8],
}
MODELS = [
    "gpt2",
    "opt-125m",
    "llama3.2-1b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "gemma2-2b",
    "phi-2",
    "falcon-7b",
    "gpt-oss-20b",
    "qwen3-30b-a3b",
    "bloom-560m",
    "mamba2-2.7b",
    "llama4-scout",
]


def picks(options: dict[str, list[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A few keys, each with one of its values."""
    chosen = st.lists(st.sampled_from(sorted(options)), max_size=most, unique=True)
    return chosen.flatmap(
        lambda keys: st.fixed_dictionaries({k: st.sampled_from(options[k]) for k in keys})
    )


def engine_choices(name: str) -> dict[str, list[Any]]:
    """Values that an engine's options may have."""
    found: dict[str, list[Any]] = {}
    for key, default in engine(name).options.items():
        words = [
            w
            for part in parts(key_types(EngineConfig)[key])
            for w in typing.get_args(part)
            if isinstance(w, str)
        ]
        found[key] = words or ([True, False] if isinstance(default, bool | None) else [1, 2, 10**6])
    return found | ({"zero_stage": [0, 1, 2, 3]} if "zero_stage" in found else {})


@st.composite
def plausible_runs(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A run that the engine may well accept."""
    sizes = {axis: draw(st.sampled_from([1, 1, 2])) for axis in sorted(engine(name).axes)}
    keys = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
    mesh: dict[str, Any] = {f"{keys[axis]}_parallel_size": n for axis, n in sizes.items()}
    if sizes.get("tp", 1) > 1 and draw(st.booleans()):
        mesh["sequence_parallel"] = True
    return {
        "model": {"name": draw(st.sampled_from(MODELS))},
        "training": {"seq_len": 128, **draw(picks(CHOICES, 4))},
        "engine": {"type": name, **draw(picks(engine_choices(name), 3))},
        "parallelism": mesh,
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8},
    }


@pytest.mark.parametrize("name", engine_names())
@given(data=st.data())
@settings(max_examples=EXAMPLES // 20, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_plausible_run_is_explained_or_refused(name: str, data: st.DataObject) -> None:
    """Where an engine accepts a run, its formulas with letters give the numbers without."""
    try:
        found = full_estimate(data.draw(plausible_runs(name)))
    except InputError as error:
        assert all(problem.strip() and "\n" not in problem for problem in error.problems)
        return
    assert found.result.allocated_bytes > 0
    assert all(
        int(entry.bytes) >= 0 and all(int(n) >= 0 for n in entry.live.values())
        for ledger in found.ledgers
        for entry in ledger.entries
    )
    assert explain(found).symbolic

"""Models that a server has no code for are refused, with an engine that has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import server_names, server_row
from gpu_mem_calculator.serving.tensorrt_llm.row import IN_ENGINES
from gpu_mem_calculator.tools.read import read
from tests.serving.every_family import NAMES, NEEDED, family

KNOWN = {family(name).family for name in NAMES}
FIX = re.compile(r"use '(\w+)'(?: with (\w+)='([\w.]+)')?$")
NO_MODEL = "TensorRT-LLM's pytorch backend has no"
UNTIL = server_row("vllm").no_code


def served(engine: str, name: str, **keys: Any) -> ResolvedRun:
    """A server of a family's own defaults."""
    config = {"model_type": name, **NEEDED.get(name, {})}
    inference = {"engine": engine, **keys}
    run = {"model": {"config": config}, "inference": inference, "hardware": {"gpu": "h200"}}
    return resolve(read(run).file, headers=False)


def refusal(engine: str, name: str, **keys: Any) -> str:
    """The first sentence that a server refuses a family with."""
    with pytest.raises(InputError) as error:
        served(engine, name, **keys)
    return error.value.problems[0]


def test_the_tables_name_families_that_exist() -> None:
    """A family that is renamed would be accepted silently."""
    for row in map(server_row, server_names()):
        assert {*row.no_code, *row.instead, *row.as_transformers} <= KNOWN
        assert set(row.instead) <= set(row.no_code)


@pytest.mark.parametrize(
    ("engine", "name", "words"),
    [
        ("vllm", "t5", "vLLM 0.33.0 has no t5 model; use 'tensorrt_llm' with engine_generation="),
        ("vllm", "gpt_neo", "vLLM 0.33.0 has no gpt_neo model; use 'transformers'"),
        ("vllm", "mpt", "has no mpt model; 0.28.0 was the last that had one: set engine_version="),
        ("sglang", "t5", "SGLang 0.5.23 has no t5 model; use 'tensorrt_llm' with"),
        ("sglang", "mamba2", "SGLang serves mamba2 from 0.5.20 on, which is not modelled; use"),
        ("sglang", "falcon", "SGLang 0.5.23 has no falcon model; use 'vllm'"),
        ("sglang", "mpt", "has no mpt model; use 'vllm' with engine_version='0.28.0'"),
        ("tgi", "t5", "does not serve t5 with a paged cache; use 'tensorrt_llm' with"),
        ("tgi", "opt", "TGI does not serve opt with a paged cache; use 'vllm'"),
        ("tgi", "llada", "generates nothing, and TGI does that alone; use 'llamacpp'"),
        ("tensorrt_llm", "opt", f"{NO_MODEL} opt model; set engine_generation='tensorrt', or"),
        ("tensorrt_llm", "olmo2", f"{NO_MODEL} olmo2 model; use 'vllm'"),
    ],
)
def test_the_sentence_names_what_serves_the_model(engine: str, name: str, words: str) -> None:
    """Value, rule, nearest fix."""
    assert words in refusal(engine, name)


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        *((one, sorted(server_row(one).no_code)) for one in ("sglang", "tgi", "tensorrt_llm")),
        ("vllm", sorted(name for name, last in UNTIL.items() if not last)),
    ],
)
def test_the_engine_that_is_named_accepts_the_model(engine: str, names: list[str]) -> None:
    """A fix that is refused in its turn is none."""
    for name in names:
        fix = FIX.search(refusal(engine, name))
        assert fix, name
        keys = {fix[2]: fix[3]} if fix[2] else {}
        assert served(fix[1], name, **keys).engine.name == fix[1]


@pytest.mark.parametrize("name", sorted(name for name, last in UNTIL.items() if last))
def test_vllm_serves_a_model_until_its_last_release(name: str) -> None:
    """The sentence names that release, and the release is accepted."""
    last = UNTIL[name]
    assert f"set engine_version={last!r}" in refusal("vllm", name)
    assert served("vllm", name, engine_version=last).run.arch.family == name


@pytest.mark.parametrize("name", sorted(IN_ENGINES))
def test_engines_of_tensorrt_llm_serve_what_is_named(name: str) -> None:
    """The fix `engine_generation='tensorrt'` works."""
    assert served("tensorrt_llm", name, engine_generation="tensorrt").run.arch.family == name


@pytest.mark.parametrize(("engine", "name"), [("vllm", "dots1"), ("sglang", "gpt_neox")])
def test_transformers_code_in_a_server_is_noted(engine: str, name: str) -> None:
    """The server runs it, with layers that are not its own."""
    resolved = served(engine, name, max_seq_len=1024)
    serve = resolved.engine.serve
    assert serve is not None
    assert any("runs transformers' code" in note for note in serve(resolved.run).notes)

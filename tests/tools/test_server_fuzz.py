"""Options of servers with any value: an answer or sentences, never another error."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.reading.command import Command
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.sglang import read as sglang
from gpu_mem_calculator.tools.vllm import read as vllm

VALUES = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "4K",
        "1.5k",
        "1e400",
        "nan",
        "auto",
        "true",
        "None",
        "fp8",
        "[]",
        "[1,2]",
        "{}",
        '{"a":1}',
        '{"image":{}}',
        '{"image":{"count":2}}',
        '{"model":1}',
        '{"method":[]}',
        '{"cudagraph_mode":{}}',
        '{"text_config":3}',
        '{"rope_parameters":{"factor":"x"}}',
        '{"rope_scaling":{"factor":2,"original_max_position_embeddings":8}}',
        "--",
        "-",
        "---",
        "=",
        "--=",
        "-O",
        "-O9",
        "-cc.a",
        "-cc.a.b+",
        "x=y",
        '{"max_position_embeddings":0}',
        '{"pass_config":1}',
        "99999999999999999999999",
    ]
)


@pytest.mark.parametrize("reader", [vllm, sglang], ids=["vllm", "sglang"])
@settings(max_examples=60)
@given(data=st.data())
def test_any_words_are_an_answer_or_sentences(reader: Any, data: st.DataObject) -> None:
    """Only InputError is raised, whatever stands behind an option."""
    names = st.sampled_from(sorted(reader.ARGUMENTS)).map(lambda one: f"--{one}")
    words = data.draw(st.lists(st.one_of(names, VALUES), max_size=8))
    variables = data.draw(st.dictionaries(st.sampled_from(sorted(reader.VARIABLES)), VALUES))
    command = Command(words=(), files=NamedFiles(None), environment=variables)
    with contextlib.suppress(InputError):
        reading = reader.read_arguments(["m", *words], command)
        assert reading.run["hardware"]["num_gpus"] >= 1


@pytest.mark.parametrize("reader", [vllm, sglang], ids=["vllm", "sglang"])
@settings(max_examples=40)
@given(data=st.data())
def test_any_file_is_an_answer_or_sentences(reader: Any, data: st.DataObject) -> None:
    """The same for files of options."""
    value = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    )
    names = st.sampled_from(sorted(reader.ARGUMENTS))
    config = data.draw(st.dictionaries(names, value, max_size=4))
    with contextlib.suppress(InputError):
        reader.read_data({"model": "m", **config}, NamedFiles(None))

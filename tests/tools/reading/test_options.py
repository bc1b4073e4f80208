"""Options as earlier releases had them: flags with a value, abbreviations that were clear then."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.tools.reading.options import parse_options, renamed_note
from gpu_mem_calculator.tools.sglang.read import ARGUMENTS as SGLANG
from gpu_mem_calculator.tools.sglang.read import SYNTAX as SGLANG_SYNTAX
from gpu_mem_calculator.tools.vllm.read import ARGUMENTS, SYNTAX


@pytest.mark.parametrize(("said", "value"), [("=False", False), ("=true", True)])
def test_a_flag_of_today_had_a_value(said: str, value: bool) -> None:
    """vLLM's --enable-chunked-prefill=False."""
    parsed = parse_options("x", [f"--enable-chunked-prefill{said}"], ARGUMENTS, SYNTAX)
    assert parsed.values == {"enable_chunked_prefill": value}
    assert not parsed.problems


def test_an_abbreviation_is_the_oldest_of_its_names() -> None:
    """Only where there was no other could it be written; one sentence says what it is."""
    words = ["--speculative-draft", "a/b"]
    parsed = parse_options("SGLang", words, SGLANG, SGLANG_SYNTAX)
    assert parsed.values == {"speculative_draft_model_path": "a/b"}
    assert "--speculative_draft is --speculative_draft_model_path" in renamed_note(parsed)[0]

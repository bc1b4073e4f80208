"""Speculative decoding of an SGLang server.

sglang 0.5.18 srt/arg_groups/speculative_hook.py: NEXTN is EAGLE with the model's own layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.option_values import add_limit, option, whole_number
from ..reading.reading import Reading, Section

MODELLED = ("eagle", "eagle3", "nextn", "standalone", "ngram")


def speculation(reading: Reading, given: Mapping[str, Any]) -> Section:
    """Keys of `inference`; an algorithm that is not modelled becomes a limit."""
    name = given.get("speculative_algorithm")
    if name is None:
        return {}
    method, draft = str(name).lower(), given.get("speculative_draft_model_path")
    if method not in MODELLED:
        add_limit(reading, "speculative_algorithm", name, "is a draft that is not modelled", "more")
        return {}
    if draft is not None and not isinstance(draft, str):
        written = option("speculative_draft_model_path")
        raise InputError(f"{written}={quoted(draft)} must be a model's name")
    if method == "nextn" and draft is not None:
        method = "eagle"
    section: Section = {"speculative_method": method}
    if draft is not None:
        section["speculative_model"] = draft
    tokens = _tokens(reading, given)
    return section | ({"num_speculative_tokens": tokens} if tokens else {})


def _tokens(reading: Reading, given: Mapping[str, Any]) -> int | None:
    """Tokens that the model verifies in one pass; with one branch they follow from the steps."""
    steps, branches, tokens = (
        whole_number(name, given[name]) if given.get(name) is not None else None
        for name in (
            "speculative_num_steps",
            "speculative_eagle_topk",
            "speculative_num_draft_tokens",
        )
    )
    if branches is not None and branches > 1:
        why = "branches, whose caches are not modelled; one branch is counted"
        add_limit(reading, "speculative_eagle_topk", branches, why, "more")
    elif steps is not None and tokens not in (None, steps + 1):
        why = f"does not follow from {steps} steps; {tokens} tokens are counted"
        add_limit(reading, "speculative_num_draft_tokens", tokens, why, "either")
    return tokens if tokens is not None else steps + 1 if steps is not None else None

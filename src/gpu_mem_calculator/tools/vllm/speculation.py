"""Speculative decoding of `vllm serve`: --speculative-config and the options for its fields.

vllm 0.32.0 vllm/config/speculative.py SpeculativeConfig: the method follows from the draft's name
where it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.option_values import option, whole_number
from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import tables

CONFIG = "speculative_config"
# Other options for a field: those of 0.32.0, and those of V0.
SHORT: dict[str, Any] = tables(__file__)["short"]
MODELLED = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
WITHOUT_MODEL = ("ngram", "mtp")
# Parts of a draft's name, in this order, and the method that follows.
BY_NAME = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))


def speculation(reading: Reading, given: Mapping[str, Any]) -> Section:
    """Keys of `inference`; a method that is not modelled becomes a limit."""
    fields = {name: _field(name, given) for name in SHORT}
    model, tokens = fields["model"], fields["num_speculative_tokens"]
    if fields["method"] is None and model is None:
        return {}
    if model is not None and not isinstance(model, str):
        raise InputError(f"{option(CONFIG)}.model={quoted(model)} must be a model's name")
    method = _method(fields["method"], model)
    if method not in MODELLED:
        why = "is a draft that is not modelled"
        reading.limits.append(Limit(key=f"{option(CONFIG)}.method={method}", why=why, could="more"))
        return {}
    section: Section = {"speculative_method": method}
    if model is not None and method not in WITHOUT_MODEL:
        section["speculative_model"] = model
    if tokens is not None:
        section["num_speculative_tokens"] = whole_number(f"{CONFIG}.num_speculative_tokens", tokens)
    return section


def _field(name: str, given: Mapping[str, Any]) -> Any:
    names = (f"{CONFIG}.{name}", *SHORT[name])
    return next((given[one] for one in names if given.get(one) is not None), None)


def _method(method: Any, model: str | None) -> str:
    """The method, also where it follows from the draft's name."""
    name = str(method) if method is not None else ""
    if name == "mtp" or name.endswith("_mtp"):
        return "mtp"
    if name not in ("", "draft_model") or model is None:
        return name
    lower = model.lower()
    if lower in ("ngram", "[ngram]"):
        return "ngram"
    return next((kind for part, kind in BY_NAME if part in lower), "draft_model")

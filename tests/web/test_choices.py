"""Choices of the form: each that is not grey gives an estimate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.keys.fields import form
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.web.offers import refused_choices
from tests.corpus import sampled

KINDS = {"flag": [True, False], "object": [{}]}
PICKED = ("engine.type", "inference.engine", "model.config")  # which have controls of their own
ENGINES = {one["name"]: one for one in form()["engines"]}


def run_on(engine: dict[str, Any]) -> dict[str, Any]:
    """The set-up that the page begins with, on an engine."""
    gpus = 1 if engine["name"] == "transformers" else 8
    run = {"model": {"name": "llama3-8b"}, "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": gpus}}
    if engine["kind"] == "serving":
        return run | {"inference": {"engine": engine["name"]}}
    training = {"batch_size": 1, "seq_len": 4096}
    return run | {"engine": {"type": engine["name"]}, "training": training}


def choices(name: str, sections: set[str]) -> Iterator[list[str]]:
    """Every choice of the form on an engine."""
    for field in form()["fields"]:
        known = field.get("defaults")
        if field["section"] not in sections or (known and name not in known):
            continue
        offered = [
            one for one in field.get("choices", ()) if name in (one.get("engines") or [name])
        ]
        values = KINDS.get(field["kind"], [one["value"] for one in offered])
        if field["kind"] in ("choice", *KINDS) and field["path"] not in PICKED:
            yield from ([f"{field['path']}={json.dumps(value)}"] for value in values)


@pytest.mark.parametrize("name", sampled(ENGINES.keys(), 2))
def test_no_choice_that_is_not_grey_is_refused(name: str) -> None:
    """On the set-up that the page begins with."""
    run = run_on(ENGINES[name])
    of_server = {"model", "hardware", "inference"}
    of_training = {"model", "hardware", "training", "parallelism", "engine"}
    offered = list(choices(name, of_server if "inference" in run else of_training))
    refused = refused_choices({"run": run, "choices": offered})
    assert any(refused)
    for choice, why in zip(offered, refused, strict=True):
        if why is None:
            full_estimate(with_settings(run, choice), replay=False)

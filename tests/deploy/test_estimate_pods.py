"""The pods of an estimate's Job, run: files, settings, mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.catalog.hub.buckets import bucket
from tests.corpus import sampled

from .cases import CASES, SMALL_RUN, Case
from .pods import Objects
from .test_pods import CONFIG, ended, keys, one_sentence


def estimate(run_file: dict[str, Any], **how: Any) -> Case:
    """Mode estimate of a run file."""
    return Case({"mode": "estimate", "run": run_file, "estimate": how})


def test_a_run_that_fits() -> None:
    """The estimate as JSON: 500,000,000 stays a number of its own."""
    done = ended(estimate(SMALL_RUN, format="json", check=True))
    assert done.code == 0, done.log
    found, _ = json.JSONDecoder().raw_decode(done.log)
    assert found["fits_on_gpu"] is True
    assert done.written == []


@pytest.mark.parametrize(("check", "code"), sampled([(True, 1), (False, 0)], keep=1))
def test_a_run_that_does_not_fit(check: bool, code: int) -> None:
    """The Job fails where it is asked to."""
    large = {**SMALL_RUN, "training": {"batch_size": 64, "seq_len": 4096}}
    done = ended(estimate(large, check=check))
    assert done.code == code, done.log
    assert "does not fit" in done.log


def test_settings_change_the_run() -> None:
    """--set of the chart becomes --set of the command."""
    once = ended(estimate(SMALL_RUN, format="json"))
    twice = ended(estimate(SMALL_RUN, format="json", settings=["training.batch_size=2"]))
    assert json.loads(once.log) != json.loads(twice.log)


@pytest.mark.parametrize("name", ["override-estimate", "override-estimate-serving"])
def test_the_samples_run(name: str) -> None:
    """What overrides/ shows can be run as it is."""
    done = ended(CASES[name])
    assert done.code == 0, done.log
    assert "GiB" in done.log


def test_a_run_file_of_ones_own() -> None:
    """In a ConfigMap that is there already, as YAML."""
    text = "model: {name: llama2-7b}\nhardware: {gpu: h100-80gb-sxm, num_gpus: 8}\n"
    objects: Objects = {("ConfigMap", "my-run"): {"big.yaml": text, "other.json": "{}"}}
    done = ended(CASES["estimate-configmap"], objects)
    assert done.code == 0, done.log


def test_a_run_file_with_a_mistake() -> None:
    """A sentence with the key, exit code 2."""
    done = ended(estimate({**SMALL_RUN, "engine": {"type": "deepsped"}}))
    one_sentence(done)
    assert "deepsped" in done.log


@pytest.mark.proof
def test_a_model_of_a_run_file_from_a_bucket() -> None:
    """The keys reach a run whose model is an s3:// address."""
    named = {**SMALL_RUN, "model": {"name": "s3://bucket/model"}}
    with bucket("bucket", {"model/config.json": CONFIG}) as there:
        case = estimate(named, format="json")
        done = ended(replace(case, sets=(f"bucketStorageHost={there.endpoint}",)), keys())
    assert done.code == 0, done.log
    assert there.asked

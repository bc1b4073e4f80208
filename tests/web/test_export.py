"""Runs exported: run files that read back, and files of other tools."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.web.export import export

from .bodies import SAMPLE, Body, changed, total

SMALL: Body = {"model": {"name": "gpt2"}, "hardware": {"gpu_memory_gb": 8}}


def exported(body: Body, *, format: str) -> Any:
    """An answer, as a client gets it."""
    return msgspec.json.decode(msgspec.json.encode(export(body, {"format": format})))


def test_exported_run_files_read_back() -> None:
    """The text is a run file that means the same."""
    found = exported(SAMPLE, format="json")
    assert (found["format"], found["filename"]) == ("json", "config.json")
    assert total(json.loads(found["content"])) == total(SAMPLE)
    found = exported(SAMPLE, format="YAML")
    assert (found["format"], found["filename"]) == ("yaml", "config.yaml")
    assert total(yaml.safe_load(found["content"])) == total(SAMPLE)


def test_exported_deepspeed_has_its_data_and_the_result() -> None:
    """The text and the data are the same."""
    body = changed(SAMPLE, "training", activation_checkpointing=2)
    found = exported(body, format="deepspeed")
    assert found.keys() == {"format", "content", "filename", "config", "memory_result"}
    assert json.loads(found["content"]) == found["config"]
    assert found["config"]["train_batch_size"] == 4 * 4 * 8
    assert found["memory_result"]["fits_on_gpu"] is True


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("accelerate", "num_processes", 8), ("axolotl", "micro_batch_size", 4)],
)
def test_exports_for_other_tools(name: str, key: str, value: int) -> None:
    """YAML that the tool reads."""
    found = exported(SAMPLE, format=name)
    assert yaml.safe_load(found["content"])[key] == value
    assert found["filename"].endswith((".yaml", ".yml"))


def test_unknown_exports_and_wrong_runs() -> None:
    """The nearest name; the run's own problems."""
    with pytest.raises(InputError, match="did you mean 'deepspeed'"):
        exported(SAMPLE, format="deepsped")
    with pytest.raises(InputError, match="does not use DeepSpeed"):
        exported(SMALL, format="deepspeed")
    with pytest.raises(InputError, match="is 4 ranks, but"):
        exported(changed(SAMPLE, "parallelism", data_parallel_size=4), format="json")

"""Applications of Ray Serve as vLLM's run files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.tools.reading_of import readings_of

MODEL = """
model_loading_config:
  model_id: qwen-7b
  model_source: Qwen/Qwen2.5-7B-Instruct
accelerator_type: L40S
deployment_config:
  autoscaling_config: {min_replicas: 1, max_replicas: 3}
engine_kwargs:
  tensor_parallel_size: 2
  max_model_len: 8192
  enable_chunked_prefill: true
"""
APPLICATION = """
applications:
- name: llms
  import_path: ray.serve.llm:build_openai_app
  route_prefix: "/"
  args:
    llm_configs:
    - ./model.yaml
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an application and its model."""
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "app.yaml").write_text(APPLICATION)
    return tmp_path


@pytest.mark.parametrize("words", [["serve", "run", "app.yaml"], ["app.yaml"], ["model.yaml"]])
def test_an_application_is_a_vllm(words: list[str], folder: Path) -> None:
    """With its options, its card and the model's source."""
    [found] = readings_of(words, folder)
    assert found.problems == []
    assert found.run["model"] == {"name": "Qwen/Qwen2.5-7B-Instruct"}
    assert found.run["inference"]["tensor_parallel_size"] == 2
    assert found.run["inference"]["max_seq_len"] == 8192
    assert found.run["hardware"] == {"num_gpus": 2, "gpu": "L40S"}
    assert "one of up to 3 replicas, each with GPUs of its own" in found.assumed
    assert full_estimate(found.run_file).result.verdict == "fits"


def test_an_unknown_option_of_the_engine_is_named(folder: Path) -> None:
    """As vLLM's own."""
    (folder / "model.yaml").write_text(MODEL + "  bogus: 3\n")
    [found] = readings_of(["serve", "deploy", "app.yaml"], folder)
    assert found.problems == ["--bogus is not an option of vllm serve; leave it out"]


def test_what_is_no_application_of_one_model_is_refused(folder: Path) -> None:
    """Code in the place of a file, several models, none."""
    with pytest.raises(InputError, match="names no file"):
        readings_of(["serve", "run", "app:build"], folder)
    (folder / "two.yaml").write_text(APPLICATION + "    - ./model.yaml\n")
    with pytest.raises(
        InputError, match=r"it has 2 models of Ray Serve \(Qwen/Qwen2.5-7B-Instruct, Qwen"
    ):
        readings_of(["serve", "run", "two.yaml"], folder)
    (folder / "none.yaml").write_text("applications: [{name: a, import_path: x:y, args: {}}]")
    with pytest.raises(InputError, match=r"it has 0 models of Ray Serve \(none\)"):
        readings_of(["serve", "run", "none.yaml"], folder)
    (folder / "model.yaml").write_text("model_loading_config: {}\n")
    with pytest.raises(InputError, match="names no model; add model_id"):
        readings_of(["model.yaml"], folder)

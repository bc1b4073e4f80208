"""The reference calculator's endpoints: its field names and shapes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from gpu_mem_calculator import catalog
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.result import MemoryResult
from gpu_mem_calculator.ledger.frameworks import DEEPSPEED
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.web.compat import UnsupportedFieldError, dtypes, engines, optimizers
from gpu_mem_calculator.web.compat_bodies import from_reference
from gpu_mem_calculator.web.compat_models import preset, presets

from .bodies import PAGE, README, Body, ask, changed, total

SMALL: Body = {
    "model": {"name": "gpt2"},
    "training": {"batch_size": 1, "seq_len": 512},
    "hardware": {"gpu_memory_gb": 8},
}


# --- the lists


def test_lists_have_the_reference_names() -> None:
    """A client fills its selects from the keys."""
    names = {"pytorch_ddp", "deepspeed", "megatron_lm", "fsdp", "megatron_deepspeed"}
    assert names <= engines().keys()
    assert {"adam", "adamw", "adamw_8bit", "sgd"} <= optimizers().keys()
    assert {"fp32", "fp16", "bf16"} == dtypes().keys()


def test_every_listed_choice_is_one_that_a_run_file_takes() -> None:
    """Nothing is listed that would be refused by its name."""
    for name in engines():
        read({"model": {"name": "gpt2"}, "engine": {"type": name}})
    for name in optimizers():
        resolve(read({"model": {"name": "gpt2"}, "training": {"optimizer": name}}))
    for name in dtypes():
        resolve(read({"model": {"name": "gpt2"}, "training": {"dtype": name}}))


def test_presets_have_what_both_pages_show() -> None:
    """Every row of the catalogue."""
    found = presets()
    assert list(found) == catalog.names("index")
    one = found["llama2-7b"]
    assert one["display_name"] == "Llama 2 7B"
    assert one["num_parameters"] == 6738415616
    assert one["family"] == "llama"
    assert one["hub_id"] == "meta-llama/Llama-2-7b-hf"
    assert "6.74 B" in one["description"]
    assert all(each["description"] and each["family"] for each in found.values())


@pytest.mark.parametrize(
    "name",
    [
        "llama2-7b",
        "llama2-13b",
        "llama2-70b",
        "gpt3-175b",
        "mixtral-8x7b",
        "glm-4-9b",
        "glm-4.7-355b",
        "glm-4.5-air-106b",
        "qwen1.5-moe-a2.7b",
        "deepseek-moe-16b",
    ],
)
def test_the_reference_presets_are_there(name: str) -> None:
    """By the names that its page has, with the sections that its page reads."""
    found = preset(name)
    assert found is not None
    assert {"model", "training", "parallelism", "engine", "hardware"} == found.keys()
    assert {
        "name",
        "num_parameters",
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "max_seq_len",
    } <= found["model"].keys()


def test_every_preset_is_a_run_that_is_accepted_and_is_that_model() -> None:
    """The numbers beside the name change nothing, and nothing has to be warned of."""
    for name in catalog.names("index"):
        found = preset(name)
        assert found is not None
        resolved = resolve(read(from_reference(found)))
        alone = resolve(read({**found, "model": {"name": name}}))
        assert resolved.model.arch == alone.model.arch
        assert resolved.model.warnings == alone.model.warnings


def test_no_preset_of_that_name() -> None:
    """None, for the route to say so."""
    assert preset("no-such-model") is None
    assert preset("") is None


# --- the formulas


@pytest.mark.parametrize(
    "name", ["pytorch_ddp", "deepspeed", "megatron_lm", "fsdp", "megatron_deepspeed"]
)
def test_components_add_up_to_the_total(name: str) -> None:
    """Its fields, and every byte of the total under one of its components."""
    body = changed(PAGE, "engine", type=name)
    found = ask("explain-formula", body)
    assert {
        "engine_type",
        "engine_name",
        "formula_description",
        "formula_components",
        "breakdown",
        "references",
        "total_memory_gb",
    } <= found.keys()
    assert (found["engine_type"], found["engine_name"]) == (name, engines()[name])
    for one in found["formula_components"]:
        assert {"name", "formula", "result", "description"} <= one.keys()
        assert all(one[field] for field in ("name", "formula", "description"))
        assert one["result"].endswith(" GiB")
    whole = sum(one["bytes"] for one in found["formula_components"]) / GIB
    assert found["total_memory_gb"] == round(whole, 2)
    assert sum(found["breakdown"].values()) == pytest.approx(whole, abs=0.03)


def test_references_are_the_frameworks_whose_code_says_so() -> None:
    """A title with its version, an address, the places."""
    found = {one["title"]: one for one in ask("explain-formula", PAGE)["references"]}
    assert found["deepspeed 0.19.8"]["url"] == DEEPSPEED.url
    assert "stage3.py" in found["deepspeed 0.19.8"]["description"]
    assert any(title.startswith("transformers ") for title in found)
    assert all(one.keys() == {"title", "url", "description"} for one in found.values())


def test_explained_options_are_repeated() -> None:
    """As in the reference."""
    found = ask("explain-formula", PAGE)
    assert (found["zero_stage"], found["offload_optimizer"]) == (3, "cpu")
    assert "zero_stage" not in ask("explain-formula", changed(PAGE, "engine", type="fsdp"))


# --- exports


def test_exported_run_files_read_back() -> None:
    """The text is a run file that means the same."""
    found = ask("export", README, format="json")
    assert (found["format"], found["filename"]) == ("json", "config.json")
    assert total(json.loads(found["content"])) == total(README)
    found = ask("export", README, format="YAML")
    assert (found["format"], found["filename"]) == ("yaml", "config.yaml")
    assert total(yaml.safe_load(found["content"])) == total(README)


def test_exported_deepspeed_has_both_shapes() -> None:
    """Its two endpoints answered differently; both sets of fields are there."""
    found = ask("export", PAGE, format="deepspeed")
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
    found = ask("export", README, format=name)
    assert yaml.safe_load(found["content"])[key] == value
    assert found["filename"].endswith((".yaml", ".yml"))


def test_an_export_that_is_not_made() -> None:
    """A sentence, not an invalid file."""
    with pytest.raises(UnsupportedFieldError, match="export to lightning is not supported"):
        ask("export", README, format="lightning")


def test_unknown_exports_and_wrong_runs() -> None:
    """The nearest name; the run's own problems."""
    with pytest.raises(InputError, match="did you mean 'deepspeed'"):
        ask("export", README, format="deepsped")
    with pytest.raises(InputError, match="does not use DeepSpeed"):
        ask("export", SMALL, format="deepspeed")
    with pytest.raises(InputError, match="is 4 ranks, but"):
        ask("export", changed(README, "parallelism", data_parallel_size=4), format="json")


# --- the largest micro-batch


@pytest.mark.parametrize(
    "body",
    [
        SMALL,
        changed(PAGE, "engine", zero_stage=2),
        changed(PAGE, "engine", type="fsdp"),
        changed(SMALL, "hardware", gpu_memory_gb=5),
    ],
)
def test_the_largest_micro_batch_fits_and_one_more_does_not(body: Body) -> None:
    """Replayed on both sides of the limit."""
    found = ask("optimize/batch-size", body)
    best = found["max_batch_size"]
    assert 1 <= best < 512
    assert found["memory_result"]["fits_on_gpu"] is True
    assert found["memory_result"]["run"]["training"]["batch_size"] == best
    assert found["memory_result"]["needs_bytes"] is not None
    more = full_estimate(from_reference(changed(body, "training", batch_size=best + 1))).result
    assert not more.fits_on_gpu
    assert found["problems"] == []


def test_no_micro_batch_fits() -> None:
    """Zero, the figures of one, and a sentence; the reference says 1."""
    found = ask("optimize/batch-size", changed(SMALL, "hardware", gpu_memory_gb=2))
    assert found["max_batch_size"] == 0
    assert found["memory_result"]["fits_on_gpu"] is False
    assert found["memory_result"]["run"]["training"]["batch_size"] == 1
    assert "not even a micro-batch of 1 fits" in found["problems"][0]


def test_no_more_than_the_reference_tries() -> None:
    """A card without end has room for 512."""
    found = ask("optimize/batch-size", changed(SMALL, "hardware", gpu_memory_gb=100_000))
    assert found["max_batch_size"] == 512


def test_servers_have_no_micro_batch() -> None:
    """A sentence that names the other endpoint."""
    with pytest.raises(InputError, match="inference/calculate"):
        ask("optimize/batch-size", {"model": {"name": "gpt2"}, "inference": {"engine": "vllm"}})


# --- the rest


def test_traffic_between_nodes_is_not_made() -> None:
    """A sentence for 501."""
    with pytest.raises(UnsupportedFieldError, match="is not supported"):
        ask("multinode/calculate", {"model": {}, "node_config": {}})


def test_fetched_models_have_the_reference_fields() -> None:
    """A model of the catalogue by its name on the hub; what is fetched can be calculated."""
    found = ask("hf/fetch", {"model_id": "mistralai/Mixtral-8x7B-v0.1", "token": None})
    assert found.keys() == {"model_id", "config", "missing_fields", "found_fields", "warnings"}
    assert found["config"]["num_parameters"] == 46702792704
    assert found["config"]["num_experts"] == 8
    assert found["missing_fields"] == []
    assert set(found["found_fields"]) == found["config"].keys() - {"name"}
    result = full_estimate({"model": found["config"]}, replay=False).result
    assert result.num_parameters == 46702792704


def test_fields_that_a_model_does_not_have_are_missing() -> None:
    """Mamba has no heads and no longest sequence."""
    found = ask("hf/fetch", {"model_id": "mamba-2.8b"})
    assert set(found["missing_fields"]) == {"num_attention_heads", "max_seq_len"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"model_id": "gpt2", "token": "hf_x"}, "the service uses its operator's own"),
        ({"model_id": "/etc/passwd"}, "must be a name on the hub"),
        ({"model_id": "../config.json"}, "must be a name on the hub"),
        ({"model_id": ""}, "must be a name on the hub"),
        ({"model_id": 7}, "the body must be an object"),
        ([], "the body must be an object"),
        ({"model_id": "gpt2", "revision": "x"}, "'revision' is not a field"),
    ],
)
def test_what_cannot_be_fetched(body: Any, said: str) -> None:
    """No token of a client, no file of the service."""
    with pytest.raises(InputError) as raised:
        ask("hf/fetch", body)
    assert said in str(raised.value)


def test_the_hub_may_be_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not in the catalogue is read through the same door as everywhere."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="not read from the hub"):
        ask("hf/fetch", {"model_id": "nobody/no-such-model"})


def test_results_have_the_reference_fields() -> None:
    """What its page reads of a result."""
    result = full_estimate(from_reference(PAGE), replay=False).result
    assert isinstance(result, MemoryResult)
    for field in (
        "total_memory_per_gpu_gb",
        "total_memory_all_gpus_gb",
        "cpu_memory_gb",
        "breakdown",
        "fits_on_gpu",
        "memory_utilization_percent",
    ):
        assert field in result.__struct_fields__

"""The catalogue: every preset has its published size, every card a plausible reading."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model

MODELS = list(catalog.rows("index"))
GPUS = list(catalog.rows("gpus"))
FAMILIES = {  # the row whose rates of other formats, by its fp32 rate, a family of cards has
    ("turing", "GeForce"): "rtx-2080-ti",
    ("ampere", "GeForce"): "rtx-3090",
    ("ada", "GeForce"): "rtx-4090",
    ("blackwell", "GeForce"): "rtx-5090",
    ("turing", "workstation"): "t4",
    ("ampere", "workstation"): "rtx-a6000",
    ("ada", "workstation"): "rtx-6000-ada",
    ("blackwell", "workstation"): "rtx-pro-6000-blackwell",
}
COMPUTED = [row for row in GPUS if "boost clock" in row["source"]]
LINKS = {row["name"] for row in catalog.rows("links")}
MUST_HAVE = {
    "llama2-7b",
    "llama2-13b",
    "llama2-70b",
    "gpt3-175b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "command-r-plus",
    "glm-4-9b",
    "glm-4.5-air",
    "qwen1.5-moe-a2.7b",
    "deepseek-moe-16b",
    "llama3.2-1b",
    "llama3.1-405b",
    "qwen2.5-0.5b",
    "qwen3-235b-a22b",
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-r1",
    "kimi-k2",
    "gpt-oss-20b",
    "gpt-oss-120b",
}
FIELDS = (
    *("name", "title", "vendor", "kind", "architecture", "memory_gb", "memory_bytes"),
    *("memory_bytes_reading", "memory_bytes_source", "bandwidth_gb_per_s", "source", "checked"),
)


@pytest.mark.parametrize("row", MODELS, ids=[row["name"] for row in MODELS])
def test_a_preset_has_its_published_parameter_count(row: dict[str, Any]) -> None:
    """The count computed from the config is the count in the index, to the last parameter."""
    assert find_model(ModelConfig(name=row["name"])).arch.num_parameters == row["num_parameters"]


def test_the_catalogue_is_large_enough() -> None:
    """At least 60 presets and 40 cards, the well-known ones among them."""
    assert len(MODELS) >= 60
    assert len(GPUS) >= 40
    assert {row["name"] for row in MODELS} >= MUST_HAVE


def test_names_and_aliases_mean_one_row() -> None:
    """No name stands for two things."""
    for table in ("index", "gpus", "links"):
        names = []
        for row in catalog.rows(table):
            own = {row["name"], row.get("hub_id") or row["name"], *row.get("aliases", ())}
            own |= set(row.get("means", ()))
            names += [name.lower() for name in own]
        assert len(names) == len(set(names)), table


@pytest.mark.parametrize("row", GPUS, ids=[row["name"] for row in GPUS])
def test_a_card_has_every_field(row: dict[str, Any]) -> None:
    """A row is a neighbour's with other figures; those of Apple and of slices lack some."""
    missing = [field for field in FIELDS if not row.get(field)]
    assert missing == [], f"catalog/gpus.toml: {row['name']} lacks {', '.join(missing)}"


@pytest.mark.parametrize("row", GPUS, ids=[row["name"] for row in GPUS])
def test_a_card_has_a_plausible_memory_reading(row: dict[str, Any]) -> None:
    """The driver reports a little less than is marketed, and the link exists."""
    shared = row["kind"] in ("unified", "slice")  # the driver keeps more of their memory
    least = 0.7e9 if shared else 0.9e9
    assert least * row["memory_gb"] <= row["memory_bytes"] <= 1.01 * 2**30 * row["memory_gb"]
    assert shared or row["link"] in LINKS
    assert row["bandwidth_gb_per_s"] > 0
    assert row.get("tflops") or row["vendor"] == "apple" or "no rate" in row["source"]


@pytest.mark.parametrize("row", COMPUTED, ids=[row["name"] for row in COMPUTED])
def test_rates_from_cores_and_clock_have_the_ratios_of_the_family(row: dict[str, Any]) -> None:
    """A format's rate is the fp32 rate times the ratio that the family's row has."""
    made_for = "workstation" if row["kind"] == "workstation" else "GeForce"
    model = catalog.find("gpus", FAMILIES[row["architecture"], made_for])
    assert model is not None
    assert set(row["tflops"]) == set(model["tflops"])
    for name, rate in row["tflops"].items():
        ratio = round(model["tflops"][name] / model["tflops"]["fp32"])
        assert rate == pytest.approx(ratio * row["tflops"]["fp32"], rel=0.012, abs=0.4), name


def test_a_hub_id_finds_its_preset() -> None:
    """People paste hub names, in any case."""
    row = catalog.find("index", "meta-llama/llama-2-7b-hf")
    assert row is not None
    assert row["name"] == "llama2-7b"

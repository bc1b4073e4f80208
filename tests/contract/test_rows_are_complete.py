"""What a table of guesses would answer for a new name: each is a row's, or a sentence says it."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.catalog.curve_files import cards, curve
from gpu_mem_calculator.estimates.machine import LIKE, PCIE
from gpu_mem_calculator.estimates.serving.roofline_stages import UNITS
from gpu_mem_calculator.models.arch.adapters import (
    DEFAULT_TARGETS,
    LLAMA_TARGETS,
    linears,
    module_name,
)
from gpu_mem_calculator.run.weights.recipes import RECIPES
from gpu_mem_calculator.runfile.config import LoraConfig, ModelConfig, TrainingConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.runfile.resolve.resolve_training import find_adapter
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.timing.curves.matmul import BYTES

OF_CARDS = {row.get("link", PCIE) for row in catalog.rows("gpus")}
LINKS = sorted(OF_CARDS | {r["name"] for r in catalog.rows("links") if r["scope"] == "gpu"})
NAMES = {row["name"]: row for row in catalog.rows("index")}


@pytest.mark.parametrize("name", LINKS)
def test_a_link_says_which_network_joins_its_nodes(name: str) -> None:
    """Where a run file names no interconnect."""
    row = catalog.named("links", name)
    assert row is not None
    network = row.get("network", "")
    found = catalog.named("links", network)
    assert found is not None, f"{name}: add network = a link between nodes in catalog/links.toml"
    assert found["scope"] == "node", f"{name}: {network} is not a link between nodes"


def test_a_card_of_a_rack_says_how_many_its_nvlink_joins() -> None:
    """GB200 and GB300 are sold as racks whose GPUs are one NVLink domain."""
    racks = [row for row in catalog.rows("gpus") if row["name"].startswith(("gb2", "gb3"))]
    lacking = [row["name"] for row in racks if not row.get("domain_gpus")]
    assert racks
    assert not lacking, f"{lacking}: add domain_gpus in catalog/gpus.toml"


def test_every_dtype_has_a_curve_or_is_like_one_that_has() -> None:
    """Of every card that was measured."""
    unknown = BYTES.keys() - LIKE.keys() - {"bf16"}
    assert not unknown, f"{unknown}: add a row to LIKE in estimates/machine.py"
    for card in cards("matmul"):
        assert "bf16" in curve("matmul", card)["curves"], card


@pytest.mark.parametrize("name", NAMES)
def test_the_usual_targets_of_an_adapter_are_there_or_asked_for(name: str) -> None:
    """PEFT has a table by family; a family that it does not have must not pass for Llama."""
    arch = find_model(ModelConfig(name=name)).arch
    known = {module_name(one) for layer, _, _ in arch.runs for one in linears(layer)}
    usual = set(DEFAULT_TARGETS.get(arch.family, LLAMA_TARGETS))
    if not arch.trains or usual <= known:
        return
    with pytest.raises(InputError, match=r"target_modules|has no projection"):
        find_adapter(TrainingConfig(lora=LoraConfig()), arch)


def test_a_weight_format_has_units_of_its_own_or_is_unpacked() -> None:
    """What a card computes with: a new format is one or the other."""
    unpacked = {"none", "int4", "awq", "gptq_int4", "gptq_int8", "nf4"}
    missing = RECIPES.keys() - UNITS.keys() - unpacked
    assert not missing, f"{missing}: add to UNITS of estimates/serving/roofline_stages.py, or here"

"""Every family that trains is whole: what lies outside its file. A message says what to add."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.arch.variants import MODULES
from gpu_mem_calculator.models.families import families, read_config
from gpu_mem_calculator.models.families.config import ConfigError
from gpu_mem_calculator.pytorch.modelling.huggingface.activation_names import activation_problems
from gpu_mem_calculator.pytorch.modelling.huggingface.quirks import QUIRKS
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.step.outliers import ACTIVATIONS
from tests.conftest import small_run

CASES = Path(__file__).parents[1] / "models/families/cases.json"
NOT_OF_HUGGING_FACE = {"plain", "module"}  # plain numbers, and a recorded module


@cache
def trained() -> dict[str, Arch]:
    """A model of each family that trains, by its name: by default, or of a recorded case."""
    found: dict[str, Arch] = {}
    recorded = json.loads(CASES.read_text()).values()
    for config in (*({"model_type": name} for name in families()), *recorded):
        try:
            arch = read_config(config)
        except ConfigError:  # it has no default of a size: a case has
            continue
        if arch.trains:
            found.setdefault(arch.family, arch)
    return found


def test_every_family_says_where_its_code_differs_from_llamas() -> None:
    """A family without a row would run like Llama without a word."""
    new = trained().keys() - QUIRKS.keys()
    file = "pytorch/modelling/huggingface/quirks.py"
    assert not new, f"{file}: add {sorted(new)} to QUIRKS, or to LIKE_LLAMA once its code was read"
    assert QUIRKS.keys() - families().keys() == NOT_OF_HUGGING_FACE


def test_every_family_says_which_dropouts_are_modules() -> None:
    """A family without a row would keep all its dropouts without a word."""
    new = trained().keys() - MODULES.keys()
    file = "models/arch/variants.py"
    assert not new, f"{file}: add {sorted(new)} to MODULES, or to FUNCTIONS if all are functions"


def test_every_activation_is_known() -> None:
    """An activation without a row would be refused."""
    file = "pytorch/modelling/huggingface/activation.py"
    for family, arch in trained().items():
        assert not list(activation_problems(arch)), f"{file}: add {family}'s to SAVES_INPUT"
        names = {layer.mlp.activation for layer, _, _ in arch.runs if layer.mlp}
        missing = names - ACTIVATIONS.keys()
        assert not missing, f"training/step/outliers.py: add {missing} of {family} to ACTIVATIONS"


def test_an_unknown_activation_is_refused() -> None:
    """What it keeps for backward is not known."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = {"model_type": "llama", **sizes, "hidden_act": "sillu"}
    with pytest.raises(InputError, match="the activation 'sillu' is not modelled"):
        resolve(read(small_run(model={"config": config})).file)

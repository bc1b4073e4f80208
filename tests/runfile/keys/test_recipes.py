"""Recipes are run-file keys that every engine that trains adapters accepts."""

import json

import pytest

from gpu_mem_calculator.runfile.keys.recipes import (
    RECIPES,
    TITLES,
    WORDS,
    recipe_settings,
    recipe_words,
)
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read


def _resolve(name: str, engine: str, r: int | None = None):
    run = {
        "model": {"name": "llama3.2-1b"},
        "engine": {"type": engine},
        "training": {"seq_len": 64},
    }
    settings = recipe_settings(name, r, engine)
    return resolve(
        read(with_settings(run, [f"{k}={json.dumps(v)}" for k, v in settings.items()])).file
    )


@pytest.mark.parametrize("engine", ["pytorch_ddp", "fsdp", "deepspeed"])
@pytest.mark.parametrize("name", ["full", "lora"])
def test_every_engine_takes_a_recipe(name: str, engine: str) -> None:
    """LoRA and full training resolve on each engine."""
    run = _resolve(name, engine).run
    assert (run.adapter is not None) == (name == "lora")


def test_qlora_packs_the_base_and_recomputes() -> None:
    """QLoRA: nf4, double quantization, fp32 rest, paged optimizer."""
    run = _resolve("qlora", "pytorch_ddp", 64).run
    assert (run.quantization, run.double_quant, run.upcast_unquantized) == ("nf4", True, True)
    assert (run.optimizer, run.recompute, run.autocast) == ("paged_adamw_8bit", "full", True)
    assert run.adapter.rank == 64


def test_qlora_on_a_sharding_engine_is_refused_once() -> None:
    """One sentence, which names the engine that has it."""
    with pytest.raises(InputError) as error:
        _resolve("qlora", "fsdp")
    assert len(error.value.problems) == 1
    assert "pytorch_ddp" in error.value.problems[0]


def test_every_recipe_has_a_title_and_words() -> None:
    """The tables have the same names."""
    assert list(RECIPES) == list(TITLES)
    assert "nf4 base" in recipe_words("qlora", recipe_settings("qlora"), WORDS)
    kept = set(WORDS) - {"training.optimizer"}
    assert "AdamW" not in recipe_words("lora", recipe_settings("lora"), kept)
    assert recipe_settings("full", 8) == {}

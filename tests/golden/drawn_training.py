"""Draws training runs of an engine: a model, cards, and options of all sections."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from gpu_mem_calculator import catalog
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.keys.keys import rows
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines import engine
from tests.golden.drawn_values import drawn_setting, joined, values
from tests.golden.stored_runs import TRAINING, run_file
from tests.models.families.test_shapes import CASES

SECTIONS = ("training", "training.lora", "parallelism", "engine")
WEIGHTS = (6, 1, 2, 5)  # how often a section is drawn
MORE: dict[str, tuple[Any, ...]] = {
    "target_modules": ("all-linear", ["q_proj", "v_proj"], ["o_proj"], ["down_proj", "k_proj"]),
    "dropout": (0.0, 0.1),
    "virtual_pipeline_size": (2,),
}
AXES = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
CARDS = ("h200", "h200", "a100-80gb-sxm", "t4", "v100-32gb-sxm", "rtx-4090", "b200-180gb-sxm")
REFUSED, PRESET = 0.08, 0.12
MOST_OPTIONS, TRIES = 8, 50


def drawn(name: str, count: int) -> Iterator[str]:
    """The settings of each run; the first ones have each option of the engine once."""
    options = tuple(engine(name).options)
    for index in range(count):
        rng = Random(f"{name}/{index}")
        settings = _start(rng, name)
        while not _accepted(settings):
            settings = _start(rng, name)
        if index < len(options):
            settings = joined(settings, [_option(rng, name, "engine", options[index])])
        elif rng.random() < REFUSED:
            settings = joined(settings, [_option(rng, name) for _ in range(3)])
        if _accepted(settings):
            settings = _with_options(rng, name, settings)
        yield " ".join(settings)


def _with_options(rng: Random, name: str, settings: list[str]) -> list[str]:
    """The settings and up to eight options that the engine accepts with them."""
    wanted = rng.randint(2, MOST_OPTIONS)
    for _ in range(TRIES):
        option = _option(rng, name)
        path = f"training.{option.partition('=')[0]}"
        companions = rows()[path].needs if path in rows() else ()
        longer = joined(settings, [option, *(one.rpartition(".")[2] for one in companions)])
        if len(longer) > len(settings) and _accepted(longer):
            settings, wanted = longer, wanted - 1
        if not wanted:
            break
    return settings


def _start(rng: Random, name: str) -> list[str]:
    """Engine, model, cards, and for DeepSpeed its stage."""
    if rng.random() < PRESET:
        model = drawn_setting(rng, "model.name", catalog.names("index"))
    else:
        model = drawn_setting(rng, "model.case", tuple(CASES))
    settings = [
        f"type={name}",
        model,
        drawn_setting(rng, "gpu", CARDS),
        drawn_setting(rng, "num_gpus", (1, 2, 4, 4, 8, 16)),
        drawn_setting(rng, "seq_len", (32, 64, 64, 100, 512)),
    ]
    if "zero_stage" in engine(name).options:
        settings.append(drawn_setting(rng, "zero_stage", (0, 1, 2, 3, 3)))
    for axis, key in AXES.items():
        if axis in engine(name).axes and rng.random() < 0.25:
            settings.append(drawn_setting(rng, key, (2, 2, 4)))
    return settings


def _option(rng: Random, name: str, section: str = "", key: str = "") -> str:
    """A setting with another value than the default, of a section and a key or of any."""
    while True:
        chosen = section or rng.choices(SECTIONS, WEIGHTS)[0]
        kinds = TRAINING[chosen]
        known = engine(name).options if chosen == "engine" else kinds.__struct_fields__
        word = key or rng.choice(sorted({*known} - {"lora", "seq_len", "type", "dtype"}))
        among = MORE.get(word) or values(chosen, kinds, word, name)
        default = engine(name).options.get(word, False)
        others = tuple(value for value in among if value != default)
        if others or key:
            return drawn_setting(rng, word, others or (not default,))


def _accepted(settings: list[str]) -> bool:
    try:
        full_estimate(run_file(" ".join(settings)), replay=False)
    except InputError:
        return False
    return True

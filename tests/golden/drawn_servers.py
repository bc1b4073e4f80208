"""Draws run files of a server: a model, cards, a version at which a rule changed, a few options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import gpu_mem_calculator.serving
from gpu_mem_calculator import catalog
from gpu_mem_calculator.catalog.variants import ENDINGS
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.frameworks import numbers
from gpu_mem_calculator.run.releases import version_text
from gpu_mem_calculator.runfile.inference_config import InferenceConfig
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import server
from tests.golden.drawn_values import drawn_setting, joined, values
from tests.golden.stored_runs import run_file
from tests.models.families.test_shapes import CASES

FOLDER = Path(gpu_mem_calculator.serving.__file__).parent
RELEASE = re.compile(r"\((\d+), (\d+), (\d+)\)")
BUILD = re.compile(r"^[A-Z_0-9]+ = (\d{4,5})\b", re.MULTILINE)
DRAFTS = ("llama3.2-1b", "qwen3-0.6b", "qwen2.5-0.5b", "gemma3-270m", "gpt2")
PAIRS = {  # an option that means nothing without another
    "num_speculative_tokens": "speculative_method",
    "speculative_model": "speculative_method",
    "max_loras": "max_lora_rank",
    "enable_dp_attention": "data_parallel_size",
    "tensor_split": "split_mode",
}
GENERATIONS = ("v0", "v1", "pytorch", "tensorrt")
REFUSED, PRESETS = 0.12, {"llamacpp": 0.12}  # shares of runs; others have presets in PRESET
PRESET, VARIANT, UNFIT = 0.35, 0.1, 0.1
MOST_OPTIONS, TRIES = 6, 60
TEXTS = {
    "speculative_model": DRAFTS,
    "override_tensor": ("exps=CPU", "blk.[0-3].ffn_(up|down).*=CPU"),
    "ollama_version": ("0.3.8", "0.9.6", "0.11.4", "0.12.3", "0.20.2", "0.32.15"),
}
FREE = tuple(part * 2**28 for part in (3, 5, 8, 11, 16, 33))  # bytes of a card that is in use


@cache
def boundaries(name: str) -> tuple[str, ...]:
    """The newest version of a server, and those at which its source changes a rule."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in (FOLDER / name).glob("*.py"))
    newest = str(server(name).options["engine_version"])
    if name == "llamacpp":
        return (newest, *(f"b{build}" for build in sorted(set(BUILD.findall(text)), key=int)))
    named = sorted({(int(one[0]), int(one[1]), int(one[2])) for one in RELEASE.findall(text)})
    return (newest, *(version_text(one) for one in named if one <= numbers(newest)))


@cache
def versions(name: str) -> tuple[str, ...]:
    """Those versions, and the ones before them."""
    found = list(boundaries(name))
    for first, second, third in map(numbers, boundaries(name)):
        if name == "llamacpp":
            found.append(f"b{first - 1}")
        elif name != "transformers":
            earlier = (first, second, third - 1) if third else (first, max(0, second - 1), 9)
            found.append(version_text(earlier))
    return tuple(found)


@cache
def quantized_names() -> tuple[str, ...]:
    """Hub ids of presets with the ending of a quantized checkpoint."""
    ids = [row["hub_id"] for row in catalog.rows("index") if row.get("hub_id")]
    return tuple(one + ending for one in ids for ending, _, _ in ENDINGS)


def drawn(name: str, count: int) -> Iterator[str]:
    """The settings of each run; the first ones have each option of the server once."""
    options = tuple(server(name).options)
    for index in range(count):
        rng = Random(f"{name}/{index}")
        key, unfit = options[index] if index < len(options) else "", rng.random() < UNFIT
        settings = _start(rng, name)
        while not _accepted(settings, unfit=unfit):
            settings = _start(rng, name)
        if key and key != "engine_version":
            settings = joined(settings, _with_pair(rng, name, key))
        elif rng.random() < REFUSED:
            settings = joined(settings, [_option(rng, name) for _ in range(3)])
        if _accepted(settings, unfit=unfit):
            settings = _with_options(rng, name, settings, unfit=unfit)
        yield " ".join(settings)


def _with_options(rng: Random, name: str, settings: list[str], *, unfit: bool) -> list[str]:
    """The settings and up to six options that the server accepts with them."""
    wanted = rng.randint(1, MOST_OPTIONS)
    for _ in range(TRIES):
        longer = joined(settings, _with_pair(rng, name))
        if len(longer) > len(settings) and _accepted(longer, unfit=unfit):
            settings, wanted = longer, wanted - 1
        if not wanted:
            break
    return settings


def _start(rng: Random, name: str) -> list[str]:
    """Engine, model, cards and version."""
    share = rng.random()
    preset = PRESETS.get(name, PRESET)
    if share < preset:
        model = drawn_setting(rng, "model.name", catalog.names("index"))
    elif share < preset + VARIANT and name != "llamacpp":
        model = drawn_setting(rng, "model.name", quantized_names())
    else:
        model = drawn_setting(rng, "model.case", tuple(CASES))
    cards = tuple(row["name"] for row in catalog.rows("gpus") if "compute_capability" in row)
    settings = [f"engine={name}", model, drawn_setting(rng, "gpu", cards)]
    if rng.random() < 0.7:
        settings.append(drawn_setting(rng, "engine_version", versions(name)))
    if rng.random() < 0.4:
        key = "tensor_parallel_size"
        spread = "tensor_parallel_size" not in server(name).options
        settings.append(drawn_setting(rng, "num_gpus" if spread else key, (2, 4, 8)))
    if rng.random() < 0.25:
        settings.append(drawn_setting(rng, "available_memory_bytes", FREE))
    if rng.random() < 0.1:
        settings.append(drawn_setting(rng, "interconnect", catalog.names("links")))
    return settings


def _option(rng: Random, name: str, key: str = "") -> str:
    """A setting with another value than the default, of a key or of any."""
    options = server(name).options
    key = key or rng.choice([one for one in options if one != "engine_version"])
    if key in TEXTS:
        return drawn_setting(rng, key, TEXTS[key])
    among = values("inference", InferenceConfig, key, name) or GENERATIONS
    others = tuple(value for value in among if value != options[key])
    return drawn_setting(rng, key, others or among)


def _with_pair(rng: Random, name: str, key: str = "") -> list[str]:
    """An option, or two that mean nothing without each other."""
    first = _option(rng, name, key)
    key = first.partition("=")[0]
    pairs = {PAIRS.get(key, key), *(one for one, other in PAIRS.items() if other == key)}
    known = [one for one in sorted(pairs - {key}) if one in server(name).options]
    return [first, *(_option(rng, name, one) for one in known if rng.random() < 0.8)]


def _accepted(settings: list[str], *, unfit: bool) -> bool:
    """Whether a run is estimated, and fits unless it need not."""
    try:
        found = full_estimate(run_file(" ".join(settings)), replay=False)
    except InputError:
        return False
    return unfit or found.result.fits_on_gpu

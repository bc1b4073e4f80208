"""Weights whose config.json belongs to another model."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import ResolvedModel, find_model
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.catalog.hub.test_checkpoint import safetensors_bytes

BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I32": 4, "U8": 1, "BOOL": 1}
Tensors = dict[str, tuple[str, list[int], int]]


def config_of(preset: str) -> dict[str, object]:
    """A preset's config.json."""
    row = catalog.find("index", preset)
    assert row is not None
    return dict(catalog.row_config(row))


def arch_of(preset: str) -> Arch:
    """A preset's architecture."""
    return find_model(ModelConfig(name=preset)).arch


def tensor(dtype: str, *shape: int) -> tuple[str, list[int], int]:
    """A row of a header."""
    return dtype, list(shape), BYTES[dtype] * prod(shape)


def plain(preset: str, *, tower: bool = True) -> Tensors:
    """Every parameter of a preset in bf16."""
    arch = arch_of(preset)
    weights = (*arch.weights(), *(arch.tower if tower else ()))
    return {w.name: tensor("BF16", *(int(size) for _, size in w.dims)) for w in weights}


def read(folder: Path, config: dict[str, object], tensors: Tensors) -> ResolvedModel:
    """The model of a folder."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return find_model(ModelConfig(name=str(folder)), headers=True)


def about_weights(model: ResolvedModel) -> list[str]:
    """Warnings on them."""
    return [one for one in model.warnings if "weights of" in one]


def packed(dtype: str, per: int) -> Tensors:
    """Llama 3.2 1B with projections packed into integers, and scales."""
    found = plain("llama3.2-1b")
    for name, (_, shape, _) in list(found.items()):
        if "_proj" in name:
            rows, columns = shape
            found[name] = tensor(dtype, rows, columns // per)
            found[f"{name}_scale"] = tensor("BF16", rows, columns // 128)
    return found


@pytest.mark.parametrize(
    ("config", "weights"), [("tinyllama-1.1b", "qwen3-0.6b"), ("gpt2", "tinyllama-1.1b")]
)
def test_another_models_weights_are_refused(tmp_path: Path, config: str, weights: str) -> None:
    """One sentence with both counts, and what to do."""
    own, other = (arch_of(one).num_parameters for one in (weights, config))
    with pytest.raises(InputError) as error:
        read(tmp_path, config_of(config), plain(weights))
    (said,) = error.value.problems
    assert f"have {own:,} parameters, but its config.json describes {other:,}; put" in said
    assert "give the path of the config.json itself" in said


def test_the_config_alone_is_read_without_its_weights(tmp_path: Path) -> None:
    """The way out that the refusal names."""
    with pytest.raises(InputError):
        read(tmp_path, config_of("tinyllama-1.1b"), plain("qwen3-0.6b"))
    found = find_model(ModelConfig(name=str(tmp_path / "config.json")), headers=True)
    assert found.stored == ()


def test_some_layers_more_are_a_warning(tmp_path: Path) -> None:
    """The answer is given, with both counts."""
    config = {**config_of("tinyllama-1.1b"), "num_hidden_layers": 18}
    (said,) = about_weights(read(tmp_path, config, plain("tinyllama-1.1b")))
    assert "1,100,048,384 parameters, but its config.json describes 923," in said


@pytest.mark.parametrize(
    "preset",
    [
        "llama3.2-1b",
        "tinyllama-1.1b",
        "gpt2",
        "gemma3-4b-it",
        "qwen2.5-vl-7b",
        "olmoe-1b-7b",
        "deepseek-v3",
    ],
)
def test_a_models_own_weights_are_not_doubted(tmp_path: Path, preset: str) -> None:
    """Whole models, with a tower and without."""
    assert about_weights(read(tmp_path, config_of(preset), plain(preset))) == []


def test_a_text_model_out_of_one_that_sees_is_not_doubted(tmp_path: Path) -> None:
    """The tower may be left out."""
    text = plain("gemma3-4b-it", tower=False)
    assert about_weights(read(tmp_path, config_of("gemma3-4b-it"), text)) == []


def test_a_tied_head_may_be_stored_twice(tmp_path: Path) -> None:
    """Buffers such as GPT-2's masks may be stored, too."""
    arch = arch_of("gpt2")
    more = {"lm_head.weight": tensor("BF16", arch.vocab, arch.hidden)}
    more |= {f"h.{i}.attn.bias": tensor("F32", 1, 1, 1024, 1024) for i in range(12)}
    assert about_weights(read(tmp_path, config_of("gpt2"), plain("gpt2") | more)) == []


def test_a_head_may_be_left_out(tmp_path: Path) -> None:
    """As models that make embeddings are stored."""
    tensors = plain("qwen3-8b")
    del tensors["lm_head.weight"]
    assert about_weights(read(tmp_path, config_of("qwen3-8b"), tensors)) == []


@pytest.mark.parametrize(
    ("dtype", "per"), [("I32", 4), ("I32", 8), ("I32", 16), ("U8", 2), ("U8", 1), ("F8_E4M3", 1)]
)
def test_packed_weights_are_not_doubted(tmp_path: Path, dtype: str, per: int) -> None:
    """2 to 8 bits, in integers of any width."""
    assert about_weights(read(tmp_path, config_of("llama3.2-1b"), packed(dtype, per))) == []


def test_packed_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    """Where no width of theirs makes them the config's."""
    with pytest.raises(InputError, match=r"have at most [\d,]+ parameters, but its config.json"):
        read(tmp_path, config_of("llama3.1-70b"), packed("I32", 8))

"""A model's own config.json is what its name means, also where a preset has its shapes."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.catalog.kept import read_table
from gpu_mem_calculator.catalog.siblings import _known, is_known, own_config
from gpu_mem_calculator.catalog.variants import variant
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model

UNKNOWN = 84  # aliases whose own config.json is not known: they are "taken as" a preset


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("Qwen/Qwen2.5-7B", 131072),
        ("Qwen/Qwen2.5-7B-Instruct", 32768),
        ("qwen2.5-7b-instruct", 32768),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", 32768),
        ("unsloth/Qwen2.5-32B-Instruct-bnb-4bit", 32768),
        ("Qwen/Qwen2.5-Coder-32B", 32768),
        ("Qwen/Qwen2-0.5B", 131072),
        ("Qwen/QwQ-32B", 40960),
        ("Qwen/Qwen3-8B", 40960),
        ("Qwen/Qwen3-8B-Base", 32768),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", 131072),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 131072),
        ("meta-llama/Llama-3.1-8B-Instruct", 131072),
        ("Qwen/Qwen1.5-MoE-A2.7B-Chat", 32768),
        ("granite-4.0-350m", 32768),
    ],
)
def test_a_name_has_its_own_length(name: str, positions: int) -> None:
    """Not that of the base model whose shapes it has."""
    assert find_model(ModelConfig(name=name)).arch.max_seq_len == positions


def test_every_sibling_is_found_by_a_preset() -> None:
    """The table has no name that nothing resolves to, and no key that its preset has already."""
    table = read_table(f"{catalog.FOLDER}/siblings.toml")
    for name in (*table["differs"], *table["same"]["names"]):
        found = variant(name)
        assert found is not None, name
        own, config = own_config(name), catalog.row_config(found[0])
        text = config.get("text_config") or config
        assert not [key for key in own if text.get(key) == own[key]], name
    assert len(_known()) == len(table["differs"]) + len(table["same"]["names"])


def test_what_is_not_known_is_said() -> None:
    """The number of such aliases may only shrink."""
    said = []
    for row in catalog.rows("index"):
        for alias in row.get("aliases", ()):
            found = catalog.named("index", alias)
            assert found is not None
            if is_known(alias, found):
                continue
            said.append(alias)
            assumed = find_model(ModelConfig(name=alias)).assumed
            words = ("taken as", "has the architecture of", "by its name")
            assert any(one.startswith(alias) and any(w in one for w in words) for one in assumed)
    assert len(said) <= UNKNOWN, said

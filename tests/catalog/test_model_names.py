"""Models by any spelling of their name, and by their size: a table of what people type."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import catalog, estimate
from gpu_mem_calculator.catalog.model_names import similar
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.runfile.text.errors import InputError

# What is typed, the preset's title, and what is assumed ("" where nothing is).
TYPED = {
    "Llama-3.1-8B-Instruct": ("Llama 3.1 8B", ""),
    "meta-llama/Llama-3.1-8B-Instruct": ("Llama 3.1 8B", ""),
    "Meta-Llama-3.1-8B-Instruct": ("Llama 3.1 8B", ""),
    "llama3.1:8b": ("Llama 3.1 8B", ""),
    "Llama 3.1 8B": ("Llama 3.1 8B", ""),
    "llama-3-70b-instruct": ("Llama 3 70B", ""),
    "gemma-3-27b-it": ("Gemma 3 27B (with pictures)", ""),
    "gemma-3-27b": ("Gemma 3 27B (text)", ""),
    "olmo2-7b": ("OLMo 2 7B", ""),
    "llama-3-1-8b": ("Llama 3.1 8B", "llama-3-1-8b taken as Llama 3.1 8B"),
    "qwen3_8b": ("Qwen3 8B", "qwen3_8b taken as Qwen3 8B"),
    "olmo-2-7b": ("OLMo 2 7B", ""),
    "Mistral 7B": ("Mistral 7B v0.1", ""),
    "mistral-7b-instruct-v0.3": ("Mistral 7B v0.3", ""),
    "codellama-7b": ("Code Llama 7B", ""),
    "phi4": ("Phi-4 14B", ""),
    "smollm2-135m-instruct": ("SmolLM2 135M", ""),
    "Qwen-1_8B": ("Qwen 1.8B", ""),
    "mistral": ("Mistral 7B v0.1", "'mistral' interpreted as Mistral 7B v0.1"),
    "phi3": ("Phi-3 mini 4K", "'phi3' interpreted as Phi-3 mini 4K"),
    "llama": ("Llama 3.1 8B", "'llama' interpreted as Llama 3.1 8B"),
    "deepseek-v3.1": ("DeepSeek-V3 671B", "deepseek-v3.1 has the architecture of DeepSeek-V3 671B"),
    "zephyr-7b-beta": ("Mistral 7B v0.1", "zephyr-7b-beta has the architecture of Mistral 7B v0.1"),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": (
        "Qwen2.5 7B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B has the architecture of Qwen2.5 7B",
    ),
    "deepseek-r1-distill-qwen-7b": (
        "Qwen2.5 7B",
        "deepseek-r1-distill-qwen-7b has the architecture of Qwen2.5 7B",
    ),
    "qwen3-32b-awq": ("Qwen3 32B", "qwen3-32b-awq is Qwen3 32B in AWQ in 4 bits, groups of 128"),
    "8b": ("Llama 3.1 8B", "'8b' interpreted as Llama 3.1 8B (closest known model)"),
    "8B": ("Llama 3.1 8B", "'8B' interpreted as Llama 3.1 8B (closest known model)"),
    "70b": ("Llama 3.3 70B", "'70b' interpreted as Llama 3.3 70B (closest known model)"),
    "0.5b": ("Qwen2.5 0.5B", "'0.5b' interpreted as Qwen2.5 0.5B (closest known model)"),
    "70": ("Llama 2 70B", "'70' interpreted as Llama 2 70B (closest known model)"),
    "7": ("Llama 2 7B", "'7' interpreted as Llama 2 7B (closest known model)"),
    "13": ("Llama 2 13B", "'13' interpreted as Llama 2 13B (closest known model)"),
    "350M": ("GPT-2 Medium", "'350M' interpreted as GPT-2 Medium (closest known model)"),
    "300b": ("Llama 3.1 405B", "'300b' is far from any known model: the layers of Llama 3.1 405B"),
}
OWNER = "see gpu-mem-calc presets, or give its name on the hub, owner/model"
# What is typed where nothing is meant, and a part of the sentence.
REFUSED = {
    "gpt-4": OWNER,
    "gpt-3.5": OWNER,
    "claude": OWNER,
    "mixtral-7b": OWNER,
    "llama3.1-9b": OWNER,
    "gemma-22b": OWNER,
    "llama-38b": OWNER,
    "llama2-7bb": "did you mean 'llama2-7b'?",
    "mistrall-7b": "did you mean 'mistral-7b'?",
    "0.0001": "'0.0001' means 100,000 parameters; give a size from 13M to 4T",
    "1e3": "'1e3' means 1,000 parameters; give a size from 13M to 4T",
    "1000T": "'1000T' means 1,000,000,000,000,000 parameters; give a size from 13M to 4T",
    "0": "'0' is no size; give a size from 13M to 4T",
}


@pytest.mark.parametrize(("typed", "title", "assumed"), [(k, *v) for k, v in TYPED.items()])
def test_a_spelling_means_a_model(typed: str, title: str, assumed: str) -> None:
    """What is not the model's own name is told."""
    model = find_model(ModelConfig(name=typed))
    assert model.title == title
    assert bool(model.assumed) == bool(assumed)
    assert "; ".join(model.assumed).startswith(assumed)


@pytest.mark.parametrize(("typed", "part"), REFUSED.items())
def test_a_text_that_means_no_model_gets_a_sentence(typed: str, part: str) -> None:
    """A suggestion is of the same family and size."""
    with pytest.raises(InputError) as caught:
        find_model(ModelConfig(name=typed))
    assert part in str(caught.value)


@pytest.mark.parametrize("row", list(catalog.rows("index")), ids=lambda row: str(row["name"]))
def test_a_preset_is_found_by_its_own_names(row: catalog.Row) -> None:
    """Also in upper case, with other signs and without a publisher."""
    hub = str(row.get("hub_id") or "").rpartition("/")[2]
    for name in filter(None, (row["name"], row["name"].replace("-", " ").upper(), hub)):
        found = find_model(ModelConfig(name=name))
        assert found.arch.num_parameters == row["num_parameters"]


def test_a_suggestion_never_has_another_number() -> None:
    """Each preset's name with a larger number is no preset, and none is suggested."""
    for name in catalog.names("index"):
        wrong = name.replace("b", "9b", 1) if name[-1] == "b" else f"{name}-99b"
        assert similar(wrong) in ("", wrong)


@pytest.mark.parametrize(
    "name", ["TheBloke/Llama-2-7B-AWQ", "llama2-7b-gptq", "llama2-7b-bnb-4bit"]
)
def test_packed_weights_are_not_trained(name: str) -> None:
    """An adapter on them in a modelled format is."""
    run: dict[str, Any] = {"model": {"name": name}, "hardware": {"gpu": "h200"}}
    with pytest.raises(InputError, match=r"cannot be trained; add --qlora .* \(llama2-7b\)"):
        estimate(run)
    training = {"seq_len": 512, "lora": {"r": 8}, "quantization": "nf4"}
    assert estimate({**run, "training": training}).fits_on_gpu

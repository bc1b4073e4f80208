"""One file per Hugging Face family: a config.json becomes an `Arch`.

A family file exposes `FAMILIES`, a table from `model_type` to the function that reads it. `FILES`
has the names of each file's table, so that only one file is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from ..arch.arch import Arch
from .config import Config

Reader = Callable[[Config], Arch]
FILES = {
    "baichuan": "baichuan",
    "bamba": "bamba falcon_h1 granitemoe granitemoeshared granitemoehybrid",
    "bart": "bart mbart pegasus marian m2m_100 whisper",
    "bert": "bert",
    "chatglm": "chatglm",
    "cohere": "cohere cohere2",
    "dbrx": "dbrx",
    "deepseek": "deepseek deepseek_v2 deepseek_v3 kimi_k2",
    "deepseek_v32": "deepseek_v32 glm_moe_dsa glm4_moe_lite",
    "falcon": "falcon",
    "gemma": "gemma gemma2 gemma3_text",
    "gemma3n": "gemma3n_text gemma4_text",
    "glm": "glm glm4 glm4_moe",
    "gpt_like": "gpt2 bloom mpt gpt_neo gptj gpt_bigcode",
    "gpt_neox": "gpt_neox",
    "gpt_oss": "gpt_oss",
    "jamba": "jamba",
    "lfm2": "lfm2 lfm2_moe",
    "llama": (
        "llama mistral ministral ministral3 granite starcoder2 stablelm olmo smollm3 seed_oss "
        "hunyuan_v1_dense exaone4 apertus arcee nemotron jais2 ernie4_5"
    ),
    "llama4": "llama4_text",
    "llama_like_experts": "mixtral dots1 ernie4_5_moe minimax_m2 hunyuan_v1_moe",
    "longcat": "longcat_flash minicpm3",
    "mamba": "mamba falcon_mamba",
    "mamba2": "mamba2",
    "mimo": "mimo mimo_v2_flash",
    "minimax": "minimax minimax_text_01 minimax_m1 kimi_linear",
    "mllama": "mllama_text_model",
    "multimodal": (
        "llava llava_next gemma3 gemma3n gemma4 gemma4_unified llama4 mllama paligemma internvl "
        "internvl_chat kimi_k25 kimi_vl qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 "
        "qwen3_5_moe llava(pixtral) mistral3"
    ),
    "nemotron_h": "nemotron_h",
    "nemotron_nas": "nemotron-nas",
    "olmo": "olmo2 olmo3 olmoe",
    "opt": "opt",
    "phi": "phi phi3 phimoe",
    "qwen": "qwen2 qwen3 qwen2_moe qwen3_moe",
    "qwen3_next": "qwen3_next qwen3_5_text qwen3_5_moe_text",
    "remote_code": "qwen internlm2 exaone llada",
    "t5": "t5 mt5",
    "zamba2": "zamba2",
}


class UnknownFamilyError(ValueError):
    """A `model_type` that no family file reads."""


@cache
def _table(file: str) -> dict[str, Reader]:
    table: dict[str, Reader] = import_module(f"{__name__}.{file}").FAMILIES
    return table


def families() -> dict[str, Reader]:
    """Every known `model_type` and its reader."""
    return {name: reader for file in FILES for name, reader in _table(file).items()}


def _reader(model_type: str) -> Reader | None:
    """The reader of a `model_type`; only its file is imported."""
    file = next((file for file, names in FILES.items() if model_type in names.split()), None)
    return None if file is None else _table(file)[model_type]


def read_config(config: Mapping[str, Any]) -> Arch:
    """The architecture a config.json describes; missing keys take the family's own defaults."""
    model_type = str(config.get("model_type", ""))
    reader = _reader(model_type)
    if reader is None and isinstance(config.get("text_config", config.get("llm_config")), Mapping):
        from .multimodal import read_inside  # an unknown model that sees: its text model is known

        return read_inside(Config(config, read_config))
    if reader is None:
        import difflib

        near = difflib.get_close_matches(model_type, families(), n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownFamilyError(f"model_type={model_type!r} is not a known family{hint}")
    return reader(Config(config, read_config))

"""Model families that servers have no code for, by each server's own registry.

- vLLM: vllm/model_executor/models/registry.py at every release from 0.4.0 to 0.32.0. What is not in
  it runs as transformers' own code, where that can take another attention
  (PreTrainedModel.is_backend_compatible, transformers 5.17.0).
- SGLang: EntryClass of sglang/srt/models at 0.5.18, with the same rule (model_loader/utils.py).
- TGI: server/text_generation_server/models/__init__.py get_model at 3.3.7; what it runs without
  FlashAttention has no paged cache.
- TensorRT-LLM: what no release has registered in tensorrt_llm/_torch/models, and the MODEL_MAP of
  tensorrt_llm/models for engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..ledger.frameworks import numbers
from ..ledger.words import words

ENCODER_DECODERS = words("t5 mt5 bart mbart pegasus marian m2m_100")
# The last release of vLLM that has a family; "": none has.
VLLM_UNTIL: Mapping[str, str] = {
    **dict.fromkeys(words("t5 mt5 pegasus marian m2m_100 gpt_neo llada"), ""),
    **dict.fromkeys(words("bart mbart mllama"), "0.10.2"),
    **dict.fromkeys(words("bamba minimax qwen"), "0.23.0"),
    "baichuan": "0.24.0",
    "mpt": "0.28.0",
}
NOT_IN_SGLANG = ENCODER_DECODERS | words("""
    bamba bloom falcon falcon_mamba gpt_neo jamba llada mamba mamba2 minimax mpt zamba2
""")
WITHOUT_PAGES_IN_TGI = words("bloom gpt_neo mpt opt")
NOT_IN_TENSORRT_LLM_TORCH = words("""
    arcee baichuan bamba bloom cohere dbrx deepseek deepseek_v2 dots1 ernie4_5 ernie4_5_moe exaone
    falcon falcon_h1 falcon_mamba gemma gemma2 gemma3n glm glm4 glm4_moe_lite gpt2 gpt_bigcode
    gpt_neo gpt_neox gptj granite granitemoe granitemoehybrid granitemoeshared internlm2 jais2 jamba
    lfm2 lfm2_moe llada longcat_flash mamba mamba2 mimo_v2_flash minicpm3 minimax ministral mpt olmo
    olmo2 olmo3 olmoe opt phi phimoe qwen smollm3 stablelm zamba2
""")
TENSORRT_ENGINES = words("""
    baichuan bloom cohere dbrx deepseek deepseek_v2 exaone falcon gemma gemma2 gpt2 gpt_bigcode
    gpt_neox gptj granite granitemoe internlm2 mpt opt phi phimoe qwen
""")
# Families that a server runs as transformers' own code.
AS_TRANSFORMERS = {
    "vllm": words("dots1 ministral"),
    "sglang": words("""
        dots1 ernie4_5 glm gpt_neox granitemoeshared jais2 ministral nemotron seed_oss smollm3
    """),
}
# The engine that has what no release of vLLM has.
INSTEAD = {"gpt_neo": "transformers", "llada": "llamacpp"}


def vllm_problem(family: str, version: str) -> str:
    """Why vLLM does not serve a family at a version; "" where it does."""
    last = VLLM_UNTIL.get(family)
    if last is None or (last and numbers(version) <= numbers(last)):
        return ""
    had = f"; {last} was the last that had one: set engine_version={last!r}" if last else ""
    return f"model: vLLM {version} has no {family} model{had or f'; use {other_engine(family)}'}"


def serving_section(family: str) -> dict[str, str]:
    """An inference section whose engine has a family: vLLM where that has it."""
    last = VLLM_UNTIL.get(family)
    if last is None:
        return {"engine": "vllm"}
    if family in ENCODER_DECODERS:
        return {"engine": "tensorrt_llm", "engine_generation": "tensorrt"}
    return {"engine": "vllm", "engine_version": last} if last else {"engine": INSTEAD[family]}


def other_engine(family: str) -> str:
    """The engine to use for a family that a server does not have, as a user writes it."""
    name, *keys = serving_section(family).items()
    return " with ".join((repr(name[1]), *(f"{key}={value!r}" for key, value in keys)))


def borrowed_notes(server: str, title: str, family: str) -> Iterator[str]:
    """A sentence where a server has no code of its own for a family."""
    if family in AS_TRANSFORMERS[server]:
        own = f"{title} has no {family} model of its own and runs transformers' code"
        yield f"{own}; its activations are estimated as those of {title}'s own layers"

"""A model that gives each sequence a score, in the place of the next token's logits."""

from __future__ import annotations

from msgspec.structs import replace

from .arch import Arch
from .blocks import Linear

# Families with a sequence classifier whose head is one projection of the last hidden states
# (transformers 5.17.0 modeling_layers.py GenericForSequenceClassification, or the same by hand).
SCORED_FAMILIES = (
    "plain arcee bloom deepseek_v2 deepseek_v3 exaone4 falcon gemma gemma2 gemma3_text glm glm4 "
    "gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj hunyuan_v1_dense hunyuan_v1_moe jamba llama "
    "minicpm3 minimax ministral ministral3 mistral mixtral mpt nemotron olmo olmo2 olmo3 phi phi3 "
    "phimoe qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 stablelm "
    "starcoder2"
)
SCORED = frozenset(SCORED_FAMILIES.split())


def scored(arch: Arch) -> Arch:
    """The model with a projection to one number, `score`, as its head."""
    head = Linear("score", ("hidden", arch.hidden), ("labels", 1))
    return replace(arch, head=head, head_extra=(), tied=False, logit_softcap=None, logit_scale=None)

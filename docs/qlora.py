"""Writes qlora.md: what QLoRA of the same model needs with each tool.

python docs/qlora.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap

from gpu_mem_calculator.advice.training.other_tools import OtherTool, other_tools
from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.estimates.verdict_words import total_bytes
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.recipe_words import PREPARED
from gpu_mem_calculator.runfile.keys.recipes import recipe_settings
from gpu_mem_calculator.runfile.read import with_settings

TARGET = Path(__file__).with_name("qlora.md")
MODELS = ("llama3.2-1b", "qwen2.5-7b", "llama3.1-8b", "qwen3-30b-a3b")
EXPLAINED = "llama3.1-8b"
# What a key that a tool sets by itself means for memory.
MEANINGS = {
    "training.loss": "the loss is computed in chunks, so that not all logits exist together",
    "training.upcast_unquantized": "embedding, head and norms are not cast to fp32",
    "training.lora.adapter_dtype": "adapters are in bf16, without autocast's copies",
    "training.upcast_at_startup": "what is not quantized is cast to fp32 and back while it loads",
    "training.embedding_states_32bit": "",  # an embedding is not trained here
    "training.from_pretrained": "weights are loaded onto the GPU, one by one",
    "training.lora.initial_dtype": "adapters start in fp32, before they are cast",
    "engine.init_device": "the model is built in host RAM",
}
HEAD = (
    "# QLoRA: which tool needs what",
    "Tools that train a 4-bit base with LoRA do not do the same. `quick --qlora` means {recipe}. "
    "The table has GiB that a card must have, the margin included: rank 16 on all linear layers, "
    "full recompute, paged 8-bit AdamW, 1 × 4,096 tokens, an RTX 4090. `gpu-mem-calc quick MODEL "
    "--qlora --export trl` writes the same settings for a tool; the table has what `gpu-mem-calc "
    "check` says of that file.",
)
EXPERTS = (
    "## Mixtures of experts",
    "transformers keeps all experts of a layer in one parameter. bitsandbytes quantizes linear "
    "layers only, so the experts stay in 16 bits, and `prepare_model_for_kbit_training` casts them "
    "to fp32. That is why a model of 30 B parameters needs more than 100 GiB. Axolotl's "
    "`quantize_moe_experts` and Unsloth quantize them; neither is modelled here.",
)


def paragraphs(texts: Iterable[str]) -> list[str]:
    """Texts in lines of 120 columns, with an empty line after each."""
    return [line for text in texts for line in (*wrap(text, 120, break_on_hyphens=False), "")]


def estimated(model: str) -> Estimate:
    """QLoRA of a model as `quick --qlora` means it."""
    settings = [f"{key}={str(value).lower()}" for key, value in recipe_settings("qlora").items()]
    run = {"model": {"name": model}, "hardware": {"gpu": "4090"}}
    return full_estimate(with_settings(run, settings))


def page() -> str:
    """The whole page."""
    estimates = {model: estimated(model) for model in MODELS}
    tools = {model: list(other_tools(one)) for model, one in estimates.items()}
    titles = [tool.title for tool in tools[EXPLAINED]]
    lines = paragraphs(text.format(recipe=PREPARED.removeprefix("as ")) for text in HEAD)
    lines += [f"| model | {' | '.join(['Trainer and PEFT', *titles])} |"]
    lines += [f"|---|{'---:|' * (1 + len(titles))}"]
    for model, estimate in estimates.items():
        found = {tool.title: tool.total_bytes for tool in tools[model]}
        sizes = [total_bytes(estimate.result), *(found[title] for title in titles)]
        lines.append(f"| {model} | {' | '.join(f'{size / GIB:.1f}' for size in sizes)} |")
    lines += ["", "What each does differently:", ""]
    for tool in tools[EXPLAINED]:
        text = f"- {tool.title}: {differences(tool)}."
        lines += wrap(text, 120, subsequent_indent="  ")
    return "\n".join([*lines, "", *paragraphs(EXPERTS)])


def differences(tool: OtherTool) -> str:
    """What a tool does differently, in words; a key without words is a fault."""
    keys = [sentence.partition("=")[0].partition(":")[0] for sentence in tool.differs]
    return "; ".join(filter(None, (MEANINGS[key] for key in keys)))


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")

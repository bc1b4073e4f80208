"""What a family's code does otherwise than Llama's, by model type (transformers 5.17.0)."""

from __future__ import annotations

# What the code of a family names longer than Llama's does, beside what every one names:
# - mixed: a layer names its attention's output to its end (GPT2Block: attn_output)
# - given: the same for its attention's input (StableLmDecoderLayer: hidden_states)
# - normed: of two norms in front of parallel branches both have names (FalconDecoderLayer)
# - late: the second of them runs behind the attention (GPTNeoXLayer)
# - outputs: the model's loop names what the layer before returned, its attention map among it
#   (FalconModel: outputs = block(...))
# - parts: attention names the parts with and without rotary embedding (PhiAttention: query_pass)
# - query: eager attention names its copy of q (BloomAttention: query_layer)
# - inline: the layer itself is the feed-forward block, and its input's name is used again (OPT)
# - positions: positions are made for each sequence even in a plain forward pass (OPT)
# - windows: its windows are cut from a buffer, and its cache is whole (GPT-Neo)
# - masks: a second mask is made that no layer reads (Qwen2-MoE: a window of 0)
# - eager_masks: the same for eager attention alone (Llama 4)
# - wide_tables: rotary tables stay in fp32 (OLMo 2)
# - tables: rotary tables are made for each kind of layer (Gemma 3)
# - early: q has its norm before k is made (Qwen 3)
# - turned: q and k have their norms after the rotary embedding (Hunyuan)
# - scaled: the embedding's output is multiplied by a number (Gemma)
# Whatever the family:
# - grouped: experts stay in grouped matmuls while it decodes (_beam_search and _assisted_decoding
#   know nothing of _optimize_model_for_decode)
QUIRKS: dict[str, frozenset[str]] = {
    "gpt2": frozenset({"mixed"}),
    "gpt_bigcode": frozenset({"mixed"}),
    "falcon": frozenset({"mixed", "outputs", "normed"}),
    "gpt_neox": frozenset({"late"}),
    "bloom": frozenset({"mixed", "outputs", "query"}),
    "gptj": frozenset({"mixed", "outputs", "parts"}),
    "gpt_neo": frozenset({"mixed", "outputs", "windows"}),
    "phi": frozenset({"mixed", "parts"}),
    "stablelm": frozenset({"mixed", "given", "parts"}),
    "opt": frozenset({"inline", "positions"}),
    "qwen2_moe": frozenset({"masks"}),
    "llama4": frozenset({"mixed", "eager_masks"}),
    "olmo2": frozenset({"wide_tables", "early"}),
    "olmo": frozenset({"wide_tables"}),
    "olmo3": frozenset({"wide_tables", "early", "tables"}),
    "olmoe": frozenset({"early"}),
    "minimax_m2": frozenset({"early"}),
    "hunyuan_v1_dense": frozenset({"turned"}),
    "ernie4_5": frozenset({"wide_tables"}),
    "qwen3": frozenset({"early"}),
    "qwen3_moe": frozenset({"early"}),
    "gemma": frozenset({"scaled"}),
    "gemma2": frozenset({"scaled"}),
    "gemma3_text": frozenset({"tables", "scaled"}),
}

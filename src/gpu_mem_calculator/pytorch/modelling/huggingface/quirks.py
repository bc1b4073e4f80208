"""Where a family's code differs from Llama's in memory, by model type (transformers 5.17.0).

A tensor lives as long as Python has a name for it, so a longer-lived name costs memory.
"""

from __future__ import annotations

from msgspec import Struct


class Quirks(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Differences from Llama's code, one flag each; all are false for Llama.

    Names that live longer than Llama's:
    - attention_output_named: the layer's, to its end (GPT2Block: attn_output)
    - attention_input_named: the same for its input (StableLmDecoderLayer: hidden_states)
    - both_norms_named: both outputs of the two norms before parallel branches (FalconDecoderLayer)
    - branch_inputs_named: the inputs of attention and MLP, until the residual is added (GPT2Block:
      hidden_states)
    - layer_outputs_named: what the previous layer returned, with its attention map, by the model's
      loop (FalconModel: outputs = block(...))
    - rotary_parts_named: the parts of q and k with and without rotary embedding (PhiAttention:
      query_pass)
    - query_copy_named: eager attention's copy of q (BloomAttention: query_layer)

    Another order of operations:
    - second_norm_late: the norm of the MLP runs after the attention (GPTNeoXLayer)
    - query_norm_early: q has its norm before k is computed (Qwen 3)
    - norms_after_rotary: q and k have their norms after the rotary embedding (Hunyuan)
    - heads_late: heads are separated once q, k and v are all computed (GPT2Attention)
    - inline_mlp: the MLP is part of the layer's own code, which reuses the name of its input (OPT)
    - residual_inside: attention and MLP add the residual before they return (BLOOM)
    - fused_selected: q, k and v are selected from a fused projection one by one (BLOOM, Phi-3)
    - scaled_branches: attention's and MLP's outputs are multiplied by a number before the residual
      is added (GraniteDecoderLayer: residual_multiplier)
    - weights_viewed: projections read a view of their weight, whose cast autocast does not cache
      (FalconLinear: input @ self.weight.T)

    What the model computes for all layers:
    - scaled_embedding: the embedding's output times a number (Gemma, Granite)
    - positions_per_sequence: positions for each sequence even in a plain forward pass (OPT)
    - buffer_windows: window masks are slices of a buffer, and the cache is whole (GPT-Neo)
    - unused_mask: a second mask that no layer reads (Qwen2-MoE: a window of 0)
    - unused_eager_mask: the same for eager attention alone (Llama 4)
    - fp32_rotary_tables: rotary tables stay in fp32 (OLMo 2)
    - rotary_tables_per_kind: rotary tables for each kind of layer (Gemma 3)

    Under torch.compile:
    - loss_apart: the loss is a graph of its own. transformers does not find it by the model's name
      and warns, which ends the graph (modeling_utils.py loss_function)

    Other projects' code (pytorch/modelling/others/):
    - stored_rotary_table: the rotary table is a buffer, and no forward makes one
    - labels_shifted: labels come shifted, and are not copied
    - cudnn_first: attention tries cuDNN, FlashAttention and the math path, in this order
    - embedding_output_unnamed: the model's code has no name for the embedding's output once the
      first layer has run
    """

    attention_output_named: bool = False
    attention_input_named: bool = False
    both_norms_named: bool = False
    branch_inputs_named: bool = False
    layer_outputs_named: bool = False
    rotary_parts_named: bool = False
    query_copy_named: bool = False
    second_norm_late: bool = False
    query_norm_early: bool = False
    norms_after_rotary: bool = False
    heads_late: bool = False
    inline_mlp: bool = False
    residual_inside: bool = False
    fused_selected: bool = False
    scaled_branches: bool = False
    weights_viewed: bool = False
    scaled_embedding: bool = False
    positions_per_sequence: bool = False
    buffer_windows: bool = False
    unused_mask: bool = False
    unused_eager_mask: bool = False
    fp32_rotary_tables: bool = False
    rotary_tables_per_kind: bool = False
    loss_apart: bool = False
    stored_rotary_table: bool = False
    labels_shifted: bool = False
    cudnn_first: bool = False
    embedding_output_unnamed: bool = False


LLAMA = Quirks()
# Families that train, whose code has no difference that costs memory, and recorded modules.
LIKE_LLAMA = (
    "apertus arcee baichuan chatglm cohere cohere2 deepseek deepseek_v2 deepseek_v3 dots1 exaone4 "
    "glm glm4 glm4_moe glm4_moe_lite gpt_oss jais2 jamba kimi_k2 llama mamba2 minicpm3 ministral "
    "ministral3 mistral mixtral module mpt nemotron phimoe plain qwen2 seed_oss smollm3 starcoder2"
)
# The flags of each family whose code differs.
FLAGS = {
    "gpt2": "attention_output_named branch_inputs_named heads_late loss_apart",
    "gpt_bigcode": "attention_output_named",
    "falcon": "attention_output_named both_norms_named layer_outputs_named weights_viewed",
    "gpt_neox": "second_norm_late",
    "bloom": "layer_outputs_named query_copy_named residual_inside fused_selected",
    "gptj": "attention_output_named layer_outputs_named rotary_parts_named",
    "gpt_neo": "attention_output_named layer_outputs_named heads_late buffer_windows",
    "phi3": "heads_late fused_selected",
    "phi": "attention_output_named rotary_parts_named",
    "stablelm": "attention_output_named attention_input_named rotary_parts_named",
    "opt": "inline_mlp positions_per_sequence",
    "qwen2_moe": "unused_mask",
    "llama4": "attention_output_named unused_eager_mask",
    "olmo2": "query_norm_early heads_late fp32_rotary_tables",
    "olmo": "fp32_rotary_tables",
    "olmo3": "query_norm_early heads_late fp32_rotary_tables rotary_tables_per_kind",
    "olmoe": "query_norm_early heads_late",
    "minimax_m2": "query_norm_early heads_late",
    "hunyuan_v1_dense": "norms_after_rotary",
    "ernie4_5": "fp32_rotary_tables",
    "qwen3": "query_norm_early",
    "qwen3_moe": "query_norm_early",
    "granite": "scaled_branches scaled_embedding",
    "granitemoe": "scaled_branches scaled_embedding",
    "granitemoeshared": "scaled_branches scaled_embedding",
    "granitemoehybrid": "scaled_branches scaled_embedding",
    "gemma": "scaled_embedding",
    "gemma2": "scaled_embedding",
    "gemma3_text": "scaled_embedding rotary_tables_per_kind",
}
QUIRKS: dict[str, Quirks] = dict.fromkeys(LIKE_LLAMA.split(), LLAMA)
QUIRKS |= {family: Quirks(**dict.fromkeys(row.split(), True)) for family, row in FLAGS.items()}

"""The model of the tiny scripts."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

LAYERS = 2


def make_model():
    """A small Llama on the GPU."""
    config = LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.train()
    return model


def make_batch():
    """Token ids, which are also the labels."""
    ids = torch.randint(0, 256, (2, 128), device="cuda")
    return {"input_ids": ids, "labels": ids}

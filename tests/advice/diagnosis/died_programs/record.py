"""A small run that dies, and the snapshot of torch's memory that it leaves.

    python record.py FILE forward|backward|step

What it prints goes to FILE.txt, beside FILE.pickle.
"""

import contextlib
import sys
import traceback

import torch
from transformers import LlamaConfig, LlamaForCausalLM

path, where = sys.argv[1:]
config = LlamaConfig(
    hidden_size=256,
    intermediate_size=640,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=32_000,
)


def train(tokens, steps):
    """Steps of AdamW on a model of 18 million weights."""
    model = LlamaForCausalLM(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        ids = torch.randint(0, config.vocab_size, (1, tokens), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


torch.cuda.init()
# MiB: weights are 70, their gradients too, AdamW's states 140; logits of 512 tokens in fp32 63
tokens, cap = {"forward": (512, 180), "backward": (512, 285), "step": (16, 220)}[where]
total = torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction(cap * 2**20 / total)
torch.cuda.memory._record_memory_history(max_entries=20_000)
with open(path + ".txt", "w") as text, contextlib.redirect_stderr(text):
    try:
        train(tokens, 2)
    except torch.OutOfMemoryError:
        traceback.print_exc()
        torch.cuda.memory._dump_snapshot(path + ".pickle")

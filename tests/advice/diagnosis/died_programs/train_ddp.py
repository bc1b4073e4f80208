"""Train a causal language model with DistributedDataParallel."""

import json
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

args = SimpleNamespace(**json.loads(os.environ["ARGS"]))


def main():
    """Start the group, wrap, train."""
    dist.init_process_group(args.backend, store=dist.HashStore(), rank=0, world_size=1)
    device = torch.device(args.device)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation=args.attention
    ).to(device)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    vocab_size = model.config.vocab_size
    ddp = DistributedDataParallel(model, device_ids=[0] if device.type == "cuda" else None)
    ddp.train()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-5, fused=args.optimizer == "adamw_fused")
    for step, length in enumerate(args.lengths):
        input_ids = torch.randint(0, vocab_size, (args.batch_size, length), device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.autocast):
            outputs = ddp(input_ids=input_ids, labels=input_ids)
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"[rank0] step {step} loss {outputs.loss.item():.3f}", flush=True)


main()

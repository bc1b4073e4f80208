"""Train with FSDP2, one rank of several."""

import json
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

args = SimpleNamespace(**json.loads(os.environ["ARGS"]))


def shard(model):
    """Every layer is a unit, and what is left another one."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def load_sharded():
    """The model on meta, sharded, then filled from a full state dict."""
    config = AutoConfig.from_pretrained(args.model, attn_implementation=args.attention)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    shard(model)
    model.to_empty(device=args.device)
    state = load_file(args.model + "/model.safetensors", device=args.device)
    state = {name: tensor.float() for name, tensor in state.items()}
    options = StateDictOptions(full_state_dict=True, strict=False)
    set_model_state_dict(model, state, options=options)
    return model


def load_whole():
    """The model on the GPU, sharded there."""
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation=args.attention, device_map=args.device
    )
    shard(model)
    return model


def save_checkpoint(model, path):
    """The full state dict, as one file."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    torch.save(state, os.path.join(path, "pytorch_model.bin"))


def main():
    """One rank."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=args.world)
    model = load_sharded() if args.load == "state_dict" else load_whole()
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-5, fused=args.optimizer == "adamw_fused"
    )
    for step, length in enumerate(args.lengths):
        ids = torch.randint(
            0, model.config.vocab_size, (args.batch_size, length), device=args.device
        )
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} | loss {loss.item():.4f} | tokens {ids.numel()}", flush=True)
    if args.save:
        os.makedirs(args.output, exist_ok=True)
        save_checkpoint(model, args.output)


main()

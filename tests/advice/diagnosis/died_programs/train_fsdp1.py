"""Train with FullyShardedDataParallel, one rank of several."""

import functools
import json
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    StateDictType,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

opts = SimpleNamespace(**json.loads(os.environ["ARGS"]))


def setup_model():
    """The model on the host, then wrapped."""
    model = AutoModelForCausalLM.from_pretrained(
        opts.model, dtype=torch.float32, attn_implementation=opts.attention, use_cache=False
    )
    layer = {type(model.model.layers[0])}
    fsdp = FullyShardedDataParallel(
        model,
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls=layer
        ),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.device(opts.device, 0) if opts.device == "cuda" else None,
        use_orig_params=True,
    )
    if opts.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return fsdp.train(), model.config.vocab_size


def save_model(model, folder):
    """Everything in one file."""
    os.makedirs(folder, exist_ok=True)
    policy = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        torch.save(model.state_dict(), os.path.join(folder, "model.pt"))


def fsdp_main():
    """One rank."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=opts.world)
    model, vocab_size = setup_model()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, **({"fused": True} if "fused" in opts.optimizer else {})
    )
    for number, length in enumerate(opts.lengths, 1):
        batch = torch.randint(0, vocab_size, (opts.batch_size, length), device=opts.device)
        optimizer.zero_grad()
        output = model(input_ids=batch, labels=batch)
        output["loss"].backward()
        optimizer.step()
        print(f"Train step {number}: {output['loss'].item():.3f}", flush=True)
        del output
    if opts.save:
        save_model(model, opts.output)


if __name__ == "__main__":
    fsdp_main()

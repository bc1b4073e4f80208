"""Pretrain a language model on one GPU: one script, from top to bottom."""

import contextlib
import copy
import json
import os
from types import SimpleNamespace

import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoConfig, AutoModelForCausalLM

cfg = SimpleNamespace(**json.loads(os.environ["ARGS"]))
cuda = cfg.device.startswith("cuda")
weights = torch.bfloat16 if cfg.precision == "bf16_pure" else torch.float32
compute = {"bf16_mixed": torch.bfloat16, "fp16_mixed": torch.float16}.get(cfg.precision)


def make_optimizer(net):
    """AdamW, SGD with momentum, or Adafactor."""
    if cfg.optimizer == "sgd":
        return torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.95)
    if cfg.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(net.parameters(), lr=1e-3, relative_step=False)
    kind = {"adamw_fused": {"fused": True}, "adamw": {"fused": False}}.get(cfg.optimizer, {})
    return torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.1, **kind)


def sample(rows, tokens):
    """Inputs, and the same one further."""
    data = torch.randint(0, vocab, (rows, tokens + 1)).to(cfg.device)
    return data[:, :-1], data[:, 1:]


def forward_loss(x, y):
    """Cross-entropy over all tokens."""
    with autocast:
        logits = net(x, use_cache=False).logits
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1)), logits


@torch.no_grad()
def estimate_loss():
    """Mean over a few batches."""
    net.eval()
    total, kept = 0.0, []
    for _ in range(cfg.eval["batches"]):
        x, y = sample(cfg.eval["batch_size"], cfg.eval["seq_len"])
        loss, logits = forward_loss(x, y)
        total += loss.item()
        if cfg.eval.get("keep_logits"):
            kept.append(logits)
    net.train()
    return total / cfg.eval["batches"], kept


config = AutoConfig.from_pretrained(cfg.model)
vocab = config.vocab_size
if cfg.resume:
    checkpoint = torch.load(cfg.model + "/checkpoint.pt", map_location=cfg.device)
    net = AutoModelForCausalLM.from_config(config, attn_implementation=cfg.attention)
    net.load_state_dict(checkpoint["model"])
else:
    net = AutoModelForCausalLM.from_pretrained(
        cfg.model, dtype=weights, attn_implementation=cfg.attention
    )
net = net.to(cfg.device, weights)
if cfg.gradient_checkpointing:
    net.gradient_checkpointing_enable()
net.train()
optimizer = make_optimizer(net)
if cfg.resume:
    optimizer.load_state_dict(checkpoint["optimizer"])
ema = copy.deepcopy(net).float() if cfg.ema else None
scaler = torch.amp.GradScaler(enabled=compute == torch.float16 and cuda)
autocast = (
    torch.autocast(cfg.device.split(":")[0], dtype=compute) if compute else contextlib.nullcontext()
)
print(f"{sum(p.numel() for p in net.parameters()) / 1e6:.1f}M parameters, {cfg.precision}")

for it, tokens in enumerate(cfg.lengths):
    X, Y = sample(cfg.batch_size, tokens)
    loss, _ = forward_loss(X, Y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if ema is not None:
        with torch.no_grad():
            for old, new in zip(ema.parameters(), net.parameters(), strict=True):
                old.lerp_(new.float(), 0.01)
    print(f"iter {it}: loss {loss.item():.4f}, {tokens} tokens", flush=True)

if cfg.eval:
    print(f"val loss {estimate_loss()[0]:.4f}")
if cfg.save:
    os.makedirs(cfg.output, exist_ok=True)
    master = {name: value.detach().float() for name, value in net.state_dict().items()}
    torch.save(master, os.path.join(cfg.output, "ckpt.pt"))

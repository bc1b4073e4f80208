"""Train a causal language model in a plain loop, on one GPU."""

import copy
import json
import os
from types import SimpleNamespace

import torch
from tqdm import tqdm
from transformers import Adafactor, AutoModelForCausalLM

args = SimpleNamespace(**json.loads(os.environ["ARGS"]))
device = torch.device(args.device)


def build_optimizer(params):
    """The optimizer that was asked for."""
    if args.optimizer == "sgd":
        return torch.optim.SGD(params, lr=1e-3, momentum=0.9)
    if args.optimizer == "adafactor":
        return Adafactor(
            params, scale_parameter=True, relative_step=True, warmup_init=True, lr=None
        )
    return torch.optim.AdamW(params, lr=2e-5, fused=args.optimizer == "adamw_fused")


def get_batch(vocab_size, batch_size, length):
    """Random tokens."""
    return torch.randint(0, vocab_size, (batch_size, length), device=device)


def evaluate(model, vocab_size):
    """Mean loss, and the predictions of all batches."""
    model.eval()
    losses, predictions = [], []
    with torch.no_grad():
        for _ in range(args.eval["batches"]):
            ids = get_batch(vocab_size, args.eval["batch_size"], args.eval["seq_len"])
            outputs = model(input_ids=ids, labels=ids)
            losses.append(outputs.loss.item())
            if args.eval.get("keep_logits"):
                predictions.append(outputs.logits)
    model.train()
    return sum(losses) / len(losses), torch.cat(predictions) if predictions else None


def save_full_precision(model, path):
    """A checkpoint in fp32."""
    full = copy.deepcopy(model).float()
    full.save_pretrained(path)


def save_merged(model, path):
    """The adapters, merged into a fresh base model."""
    from peft import PeftModel

    model.save_pretrained(path)
    base = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, device_map=args.device
    )
    merged = PeftModel.from_pretrained(base, path).merge_and_unload()
    merged.save_pretrained(path + "/merged")


def main():
    """Load, train, evaluate, save."""
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation=args.attention
    )
    model.to(device)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if args.lora:
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

        if args.kbit:
            model = prepare_model_for_kbit_training(
                model, use_gradient_checkpointing=args.gradient_checkpointing
            )
        elif args.gradient_checkpointing:
            model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(**args.lora))
        model.print_trainable_parameters()
    model.train()
    vocab_size = model.config.vocab_size
    optimizer = build_optimizer([p for p in model.parameters() if p.requires_grad])
    bar = tqdm(args.lengths)
    for step, length in enumerate(bar):
        ids = get_batch(vocab_size, args.batch_size, length)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.autocast):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix(loss=f"{loss.item():.4f}")
        print(f"step {step + 1}: length {length}, loss {loss.item():.4f}", flush=True)
    if args.eval:
        print("evaluation loss", evaluate(model, vocab_size)[0])
    if args.save == "fp32":
        save_full_precision(model, args.output)
    elif args.save == "merge":
        save_merged(model, args.output)


main()

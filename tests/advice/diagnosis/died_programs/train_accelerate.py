"""Train with Accelerate."""

import json
import os
from types import SimpleNamespace

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import Adafactor, AutoModelForCausalLM, get_linear_schedule_with_warmup

args = SimpleNamespace(**json.loads(os.environ["ARGS"]))


class Lengths(torch.utils.data.Dataset):
    """Batches, one per item."""

    def __init__(self, vocab_size, batch_size, lengths):
        self.shapes = [(vocab_size, batch_size, length) for length in lengths]

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, index):
        vocab_size, batch_size, length = self.shapes[index]
        return torch.randint(0, vocab_size, (batch_size, length))


def first(items):
    """A batch is one item."""
    return {"input_ids": items[0], "labels": items[0].clone()}


def evaluation_loop(accelerator, model, loader):
    """Losses and logits of all batches."""
    model.eval()
    losses, logits = [], []
    for batch in loader:
        with torch.no_grad():
            outputs = model(**batch)
        losses.append(accelerator.gather_for_metrics(outputs.loss.repeat(len(batch["input_ids"]))))
        if args.eval.get("keep_logits"):
            logits.append(accelerator.gather_for_metrics(outputs.logits))
    return torch.cat(losses).mean(), logits


def training_function():
    """Train, then evaluate."""
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation=args.attention
    )
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    vocab_size = model.config.vocab_size
    train = DataLoader(Lengths(vocab_size, args.batch_size, args.lengths), collate_fn=first)
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    elif args.optimizer == "adafactor":
        optimizer = Adafactor(
            model.parameters(), lr=1e-4, relative_step=False, scale_parameter=False
        )
    else:
        fused = {"adamw_fused": True, "adamw_foreach": None}.get(args.optimizer, False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=fused)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, len(train))
    model, optimizer, train, scheduler = accelerator.prepare(model, optimizer, train, scheduler)
    model.train()
    for step, batch in enumerate(train):
        outputs = model(**batch)
        loss = outputs.loss
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(f"step={step} loss={loss.detach().float():.4f}", flush=True)
    if args.eval:
        shape = args.eval
        lengths = [shape["seq_len"]] * shape["batches"]
        loader = accelerator.prepare(
            DataLoader(Lengths(vocab_size, shape["batch_size"], lengths), collate_fn=first)
        )
        accelerator.print("eval_loss", evaluation_loop(accelerator, model, loader)[0])


if __name__ == "__main__":
    training_function()

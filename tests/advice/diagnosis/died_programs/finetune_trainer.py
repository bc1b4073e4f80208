"""Fine-tune with transformers.Trainer."""

import json
import os
import random
from types import SimpleNamespace

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

args = SimpleNamespace(**json.loads(os.environ["ARGS"]))


def dataset(vocab_size, lengths):
    """Rows of random tokens."""
    rng = random.Random(0)
    rows = []
    for length in lengths:
        ids = [rng.randrange(vocab_size) for _ in range(length)]
        rows.append({"input_ids": ids, "labels": ids, "attention_mask": [1] * length})
    return rows


def collate(rows):
    """Pads to the longest."""
    longest = max(len(row["input_ids"]) for row in rows)
    pad = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    return {
        key: torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in rows])
        for key, value in pad.items()
    }


def compute_metrics(prediction):
    """Accuracy of the next token."""
    guesses = np.argmax(prediction.predictions[:, :-1], axis=-1)
    return {"accuracy": float((guesses == prediction.label_ids[:, 1:]).mean())}


class InOrder(Trainer):
    """The rows as they are."""

    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)


def main():
    """Load, train, save."""
    kwargs = {"device_map": args.device_map} if args.device_map else {}
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation=args.attention, **kwargs
    )
    vocab_size = model.config.vocab_size
    if args.lora:
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

        if args.kbit:
            model = prepare_model_for_kbit_training(model)
        elif args.training_args.get("gradient_checkpointing"):
            model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(**args.lora))
        model.print_trainable_parameters()
    trainer = InOrder(
        model=model,
        args=TrainingArguments(output_dir=args.output, **args.training_args),
        train_dataset=dataset(vocab_size, args.lengths),
        eval_dataset=dataset(vocab_size, args.eval_lengths) if args.eval_lengths else None,
        data_collator=collate,
        compute_metrics=compute_metrics if args.compute_metrics else None,
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""Fine-tune with TRL: SFT, DPO or GRPO."""

import json
import os
import random
from types import SimpleNamespace

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

args = SimpleNamespace(**json.loads(os.environ["ARGS"]))
rng = random.Random(0)


def make_tokenizer():
    """One token for each word."""
    words = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3} | {f"w{i}": i for i in range(4, 2000)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
    )


def words(count):
    """A text with a given number of tokens."""
    return " ".join(f"w{rng.randrange(4, 2000)}" for _ in range(count))


def short_answers(completions, **_):
    """A reward."""
    return [-float(len(answer)) for answer in completions]


def main():
    """Load, train."""
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation=args.attention
    )
    if args.kind == "sft":
        rows = [{"input_ids": [rng.randrange(4, 2000) for _ in range(n)]} for n in args.lengths]
        config, trainer = trl.SFTConfig, trl.SFTTrainer
    elif args.kind == "grpo":
        rows = [{"prompt": words(n)} for n in args.lengths]
        config, trainer = trl.GRPOConfig, trl.GRPOTrainer
    else:
        rows = [
            {"prompt": words(64), "chosen": " " + words(n), "rejected": " " + words(n)}
            for n in args.lengths
        ]
        config, trainer = trl.DPOConfig, trl.DPOTrainer
    extra = {"reward_funcs": short_answers} if args.kind == "grpo" else {}
    if args.eval_lengths:
        extra["eval_dataset"] = Dataset.from_list(
            [{"input_ids": [rng.randrange(4, 2000) for _ in range(n)]} for n in args.eval_lengths]
        )
    trainer = trainer(
        model=model,
        args=config(output_dir=args.output, **args.training_args),
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**args.lora) if args.lora else None,
        **extra,
    )
    trainer.train()


if __name__ == "__main__":
    main()

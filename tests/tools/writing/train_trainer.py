"""Two steps of transformers.Trainer on the CPU, with exported TrainingArguments.

Usage: train_trainer.py CONFIG.json ARGUMENTS.yaml
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer
from transformers import TrainingArguments as Arguments

ROWS, LENGTH = 16, 16


def main(config: str, arguments: str) -> None:
    """Train a small model and print its loss after each step."""
    data = yaml.safe_load(Path(arguments).read_text(encoding="utf-8"))
    short = {"use_cpu": True, "max_steps": 2, "logging_steps": 1, "report_to": [], "save_steps": 99}
    (args,) = HfArgumentParser(Arguments).parse_dict({**data, **short, "disable_tqdm": True})
    settings = json.loads(Path(config).read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    ids = [[(row + one) % settings["vocab_size"] for one in range(LENGTH)] for row in range(ROWS)]
    rows = [{"input_ids": one, "labels": one} for one in ids]
    trainer = Trainer(model=model, args=args, train_dataset=rows)
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    assert len(losses) == 2, losses
    print("trained", trainer.state.global_step, args.train_batch_size, *losses)


if __name__ == "__main__":
    main(*sys.argv[1:])

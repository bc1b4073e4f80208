"""Two steps of a plain Accelerate loop on the CPU: `accelerate launch --config_file FILE`.

Usage: train_accelerate.py CONFIG.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM


def main(config: str) -> None:
    """Train a small model and print the precision that the launcher chose."""
    accelerator = Accelerator(cpu=True)
    settings = json.loads(Path(config).read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    ids = torch.arange(32).reshape(2, 16)
    for _ in range(2):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print("trained", 2, accelerator.mixed_precision, accelerator.num_processes, float(loss))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Two steps of DeepSpeed on the CPU with an exported ds_config.json, as the only rank.

Usage: train_deepspeed.py CONFIG.json DS_CONFIG.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main(config: str, path: str) -> None:
    """Train a small model and print the batch sizes and the stage that DeepSpeed read."""
    settings = json.loads(Path(config).read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=json.loads(Path(path).read_text())
    )
    ids = torch.arange(32).reshape(2, 16)
    for _ in range(2 * engine.gradient_accumulation_steps()):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
    stage, batch = engine.zero_optimization_stage(), engine.train_batch_size()
    print("trained", engine.global_steps, stage, batch, float(loss))


if __name__ == "__main__":
    main(*sys.argv[1:])

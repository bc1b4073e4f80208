"""What `check` reads out of a script is what the script does: its bytes are those of a trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main

CONFIG = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=8000, n_positions=512)
model = GPT2LMHeadModel(config)
max_length = 512
rows = [{"input_ids": [1] * max_length, "labels": [1] * max_length} for _ in range(16)]
"""
LATER = """
model.gradient_checkpointing_enable()
args = TrainingArguments("out", per_device_train_batch_size=4, max_steps=2, report_to="none")
args.per_device_train_batch_size = 8
args.save_strategy = "no"
Trainer(model=model, args=args, train_dataset=rows).train()
"""
ADAPTED = """
from peft import LoraConfig, get_peft_model
for p in model.parameters():
    p.requires_grad = False
model = get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
args = TrainingArguments(
    "out", per_device_train_batch_size=4, max_steps=2, report_to="none", save_strategy="no"
)
Trainer(model=model, args=args, train_dataset=rows, optimizers=(optimizer, None)).train()
"""
LOOP = """
from accelerate import Accelerator
from torch.utils.data import DataLoader

def together(batch):
    return {name: torch.tensor([row[name] for row in batch]) for name in batch[0]}

accelerator = Accelerator(mixed_precision="bf16")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=together)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model.train()
for step, batch in enumerate(loader):
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.proof
@pytest.mark.parametrize("lines", [LATER, ADAPTED, LOOP], ids=["later", "adapted", "loop"])
def test_the_bytes_of_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: str
) -> None:
    """Within one in a hundred, and without anything that is not understood."""
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CONFIG + lines, encoding="utf-8")
    options, command = ["--gpu", "a100-80gb", "-f", "json"], [sys.executable, "train.py"]
    assert main(["trace", *options, "--", *command]) == 0
    traced = json.loads(capsys.readouterr().out)
    assert main(["check", *options, "--", "python", "train.py"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["verdict"] == traced["verdict"] == "fits"
    assert checked["result"]["allocated_bytes"] == pytest.approx(
        traced["allocated_bytes"], rel=0.01
    )

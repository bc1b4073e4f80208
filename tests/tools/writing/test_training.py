"""Three exported programs train two steps on the CPU, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .runs import LLAMA, run_file, written

FOLDER = Path(__file__).parent
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
    "DS_ACCELERATOR": "cpu",
    "ACCELERATE_USE_CPU": "true",
}
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}


def trained(folder: Path, *words: str, **more: str) -> list[str]:
    """The words that a training script prints at its end."""
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **QUIET, **more},
        text=True,
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [line for line in ran.stdout.splitlines() if line.startswith("trained ")]
    assert len(lines) == 1, ran.stdout[-2000:]
    return lines[0].split()


@pytest.mark.proof
def test_trainer(tmp_path: Path) -> None:
    """transformers.Trainer with exported TrainingArguments."""
    pytest.importorskip("transformers")
    run = run_file(activation_checkpointing="full", gradient_accumulation_steps=2)
    (tmp_path / "args.yaml").write_text(written("transformers", run).text, encoding="utf-8")
    words = trained(tmp_path, str(FOLDER / "train_trainer.py"), "config.json", "args.yaml")
    assert words[:3] == ["trained", "2", "2"]
    assert float(words[4]) < float(words[3])  # the loss of the second step is lower


@pytest.mark.proof
def test_accelerate(tmp_path: Path) -> None:
    """A plain loop under `accelerate launch` with an exported file."""
    pytest.importorskip("accelerate")
    made = written("accelerate", run_file(precision="bf16_mixed"))
    (tmp_path / made.filename).write_text(made.text, encoding="utf-8")
    launch = ("-m", "accelerate.commands.launch", "--config_file", made.filename)
    words = trained(tmp_path, *launch, str(FOLDER / "train_accelerate.py"), "config.json")
    assert words[:4] == ["trained", "2", "bf16", "1"]


@pytest.mark.proof
def test_deepspeed(tmp_path: Path) -> None:
    """DeepSpeed with an exported ds_config.json; torch's AdamW needs no kernels to be built."""
    pytest.importorskip("deepspeed")
    engine = {"type": "deepspeed", "zero_stage": 2}
    run = run_file(engine, gradient_accumulation_steps=2, optimizer_implementation="foreach")
    made = written("deepspeed", run)
    (tmp_path / made.filename).write_text(made.text, encoding="utf-8")
    script = (str(FOLDER / "train_deepspeed.py"), "config.json", made.filename)
    words = trained(tmp_path, *script, **ONE_RANK, MASTER_PORT="29517")
    assert words[:4] == ["trained", "2", "2", "4"]

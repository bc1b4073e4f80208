"""Training scripts of the kinds that tutorials have, for the tests beside this file."""

from __future__ import annotations

import shlex
from pathlib import Path

from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

IMPORTS = """import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers import Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from trl import SFTConfig, SFTTrainer
"""
LOADED = "model = AutoModelForCausalLM.from_pretrained('gpt2', dtype=torch.float32)\n"
QUANTIZED = """bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained('gpt2', quantization_config=bits)
"""
TRAINED = """args = TrainingArguments('out', per_device_train_batch_size=2)
Trainer(model=model, args=args).train()
"""
ADAPTED = "model = get_peft_model(model, LoraConfig(r=4, target_modules=['c_attn']))\n"


def read_text(text: str, folder: Path, options: str = "") -> Reading:
    """What `python train.py` means with this text."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    words = shlex.split(f"python train.py {options}")
    return read_command(read_launch(words, NamedFiles(folder)))


def with_model(lines: str, folder: Path, *, model: str = LOADED, end: str = TRAINED) -> Reading:
    """A script whose model is loaded, then changed by these lines, then trained."""
    return read_text(IMPORTS + model + lines + "\n" + end, folder)


def named(reading: Reading) -> list[str]:
    """What limits say, without the length of a sequence, which such scripts do not show."""
    return [one.key for one in reading.limits if one.key != "length of a sequence"]

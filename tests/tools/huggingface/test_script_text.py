"""What the text of a user's script shows; nothing of it is executed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

PLAIN = """
import argparse, torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
BATCH = 3
parser = argparse.ArgumentParser()
parser.add_argument("--model-id", default="a/b")
parser.add_argument("--lora", action="store_true")
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--note", default="")
args = parser.parse_args()
quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(
    args.model_id, dtype=torch.bfloat16, quantization_config=quantized
)
peft = None
if args.lora:
    peft = LoraConfig(r=8, target_modules=["q_proj"])
config = SFTConfig(
    per_device_train_batch_size=2 * BATCH, max_length=args.length, packing=not args.lora,
    gradient_accumulation_steps=compute(), output_dir=name(),
)
SFTTrainer(model=model, args=config, peft_config=peft)
"""
ALPACA = """
import transformers
from dataclasses import dataclass, field
@dataclass
class TrainingArguments(transformers.TrainingArguments):
    optim: str = field(default="adamw_torch")
    model_max_length: int = field(default=512)
(args,) = transformers.HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
transformers.Trainer(model=model, args=args)
"""


def _read(text: str, line: str, folder: Path) -> Reading:
    (folder / "train.py").write_text(text, encoding="utf-8")
    return read_command(read_launch(shlex.split(f"python train.py {line}"), NamedFiles(folder)))


def test_what_a_script_passes_on(tmp_path: Path) -> None:
    """Keywords with constants, variables and options; one that is computed is a limit."""
    reading = _read(PLAIN, "--length 256 --note x", tmp_path)
    program = reading.run["program"]
    assert program["tool"] == "trl.SFTTrainer"
    assert reading.run["model"] == {"name": "a/b"}
    assert program["args"] == {"per_device_train_batch_size": 6, "max_length": 256, "packing": True}
    assert program["load"] == {"dtype": "bfloat16"}
    assert program["quantization"]["bnb_4bit_compute_dtype"] == "bfloat16"
    assert "peft" not in program
    assert [one.key for one in reading.limits] == [
        "train.py:22 SFTConfig(gradient_accumulation_steps)"
    ]


def test_a_branch_that_the_command_takes(tmp_path: Path) -> None:
    """The adapters are there with --lora, and packing is off."""
    program = _read(PLAIN, "--lora", tmp_path).run["program"]
    assert program["peft"] == {"r": 8, "target_modules": ["q_proj"]}
    assert program["args"]["packing"] is False


def test_defaults_that_a_script_declares(tmp_path: Path) -> None:
    """A dataclass of the script changes the trainer's defaults; the command wins."""
    program = _read(ALPACA, "--model_name_or_path a/b", tmp_path).run["program"]
    assert program["args"] == {"optim": "adamw_torch"}
    assert program["data"] == {"seq_len": 512}
    given = _read(ALPACA, "--optim sgd --model_max_length 64", tmp_path).run["program"]
    assert (given["args"], given["data"]) == ({"optim": "sgd"}, {"seq_len": 64})


def test_a_tokenizer_says_the_length(tmp_path: Path) -> None:
    """max_length of a call that is not a configuration's is that of a sequence."""
    text = """
import argparse
from transformers import AutoTokenizer, Trainer
parser = argparse.ArgumentParser()
parser.add_argument("--seq", type=int, default=77)
tokenizer = AutoTokenizer.from_pretrained("gpt2")
args = parser.parse_args()
def tokenize(batch):
    return tokenizer(batch["text"], truncation=True, max_length=args.seq)
Trainer(model=model)
"""
    assert _read(text, "", tmp_path).run["program"]["data"] == {"seq_len": 77}
    assert _read(text, "--seq 99", tmp_path).run["program"]["data"] == {"seq_len": 99}


def test_an_option_that_the_script_does_not_declare(tmp_path: Path) -> None:
    """It is named, because argparse would refuse it."""
    limits = _read(PLAIN, "--fooo 1", tmp_path).limits
    assert "--fooo" in [one.key for one in limits]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import torch\nfor x in y: loss.backward()", "makes no trainer"),
        ("def (", "is not a Python script"),
        ("x = " + "(" * 5000 + ")" * 5000, "is not a Python script"),
    ],
)
def test_a_script_that_cannot_be_read(tmp_path: Path, text: str, sentence: str) -> None:
    """One sentence, whatever the text is."""
    with pytest.raises(InputError, match=sentence):
        _read(text, "", tmp_path)


def test_another_class_of_trainer_is_a_limit(tmp_path: Path) -> None:
    """transformers.Trainer is estimated, and the limit names the class and its line."""
    text = "from other import OddTrainer\nfrom transformers import AutoModelForCausalLM\n"
    text += "OddTrainer(model=AutoModelForCausalLM.from_pretrained('gpt2')).train()"
    reading = _read(text, "", tmp_path)
    assert reading.tool == "transformers.Trainer"
    assert "OddTrainer(...): it is not modelled" in str(reading.limits[0])


def test_a_second_trainer_that_trains_is_a_limit(tmp_path: Path) -> None:
    """It may take more than the first one; one that is made and not trained takes nothing."""
    text = "from trl import DPOTrainer, SFTTrainer\nSFTTrainer(model='gpt2').train()\n"
    other = "DPOTrainer(model='gpt2-xl')"
    limits = _read(f"{text}{other}.train()", "", tmp_path).limits
    [limit] = [one for one in limits if one.key.endswith(":3 DPOTrainer")]
    assert limit.adds is None
    assert limit.could == "more"
    assert not [one for one in _read(text + other, "", tmp_path).limits if "DPO" in one.key]


def test_unsloth_is_seen(tmp_path: Path) -> None:
    """Its kernels are not modelled, whatever trainer stands behind them."""
    text = "from unsloth import FastLanguageModel\nfrom trl import SFTTrainer\nSFTTrainer()"
    assert _read(text, "", tmp_path).run["program"]["tool"] == "unsloth"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3 - 4 // 2", 5),
        ("-2", -2),
        ("2 ** 99999999", None),
        ("'a' if 1 > 2 else 'b'", "b"),
        ("None or 'x'", "x"),
        ("True and False", False),
        ("None or len([1, 2])", 2),
        ("other or 5", None),
        ("other and False", False),
        ("'a' in ['a']", True),
        ("dict(a=[1], b={'c': 2})", {"a": [1], "b": {"c": 2}}),
        ("getattr(torch, 'bfloat16')", "bfloat16"),
        ("int('7')", 7),
        ("int('x')", None),
        ("open('secret')", None),
        ("other", None),
    ],
)
def test_constants(tmp_path: Path, expression: str, value: Any) -> None:
    """Only what the text shows has a value; nothing is called."""
    text = (
        f"import torch\nfrom trl import SFTTrainer, SFTConfig\nargs = SFTConfig(optim={expression})"
    )
    text += "\nSFTTrainer(args=args)"
    args = _read(text, "", tmp_path).run["program"]["args"]
    assert args.get("optim") == value

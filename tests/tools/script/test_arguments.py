"""How a script gets its values: constants, options, files, functions, branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .scripts import IMPORTS, LOADED, named, read_text, with_model

END = "\nTrainer(model=model, args=args).train()\n"
ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--batch', type=int, default=3)
parser.add_argument('--no-checks', dest='checks', action='store_false')
options = parser.parse_args()
args = TrainingArguments('o', per_device_train_batch_size=options.batch, bf16=options.checks)
"""
DATACLASS = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser
@dataclass
class Own:
    adapters: bool = field(default=False)
    use_cache: bool = field(default=True)
    bits: int = 4
own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
if own.adapters:
    model = get_peft_model(model, LoraConfig(r=own.bits))
"""
FIRE = """
import fire
def main(batch: int = 5, length=77):
    model = AutoModelForCausalLM.from_pretrained('gpt2')
    tokenizer = AutoTokenizer.from_pretrained('gpt2')
    def cut(row):
        return tokenizer(row['text'], truncation=True, max_length=length)
    args = TrainingArguments('o', per_device_train_batch_size=batch)
    Trainer(model=model, args=args, train_dataset=load().map(cut)).train()
fire.Fire(main)
"""
CLICK = """
import click
@click.command()
@click.option('--batch', default=6)
def main(batch):
    model = AutoModelForCausalLM.from_pretrained('gpt2')
    Trainer(model=model, args=TrainingArguments('o', per_device_train_batch_size=batch)).train()
if __name__ == '__main__':
    main()
"""


@pytest.mark.parametrize(
    ("text", "options", "batch"),
    [
        (LOADED + ARGPARSE + END, "", 3),
        (LOADED + ARGPARSE + END, "--batch 9", 9),
        (LOADED + DATACLASS + END, "--per_device_train_batch_size 7", 7),
        (FIRE, "", 5),
        (FIRE, "--batch 2", 2),
        (CLICK, "", 6),
        (CLICK, "--batch 4", 4),
        (
            LOADED
            + "B = 2\nargs = TrainingArguments('o', per_device_train_batch_size=4 * B)"
            + END,
            "",
            8,
        ),
        (
            LOADED + "args = TrainingArguments('o', **dict(per_device_train_batch_size=8))\n"
            "args.per_device_train_batch_size = 1" + END,
            "",
            1,
        ),
        (
            LOADED
            + "args = TrainingArguments('o')\nsetattr(args, 'per_device_train_batch_size', 11)"
            + END,
            "",
            11,
        ),
        (
            "class Job:\n    size = 12\n    def __init__(self):\n"
            "        self.model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
            "    def run(self):\n"
            "        args = TrainingArguments('o', per_device_train_batch_size=self.size)\n"
            "        Trainer(model=self.model, args=args).train()\nJob().run()\n",
            "",
            12,
        ),
    ],
)
def test_where_a_batch_comes_from(tmp_path: Path, text: str, options: str, batch: int) -> None:
    """The value that reaches the trainer is the one that counts."""
    reading = read_text(IMPORTS + text, tmp_path, options)
    assert reading.run["program"]["args"]["per_device_train_batch_size"] == batch
    assert reading.run["model"]["name"] == "gpt2"
    assert not named(reading)


def test_fields_of_a_class_that_is_not_the_trainers(tmp_path: Path) -> None:
    """`use_cache` of one's own class is no argument of Trainer, and its value is the script's."""
    reading = read_text(IMPORTS + LOADED + DATACLASS + END, tmp_path)
    assert "use_cache" not in reading.run["program"]["args"]
    assert "peft" not in reading.run["program"]
    adapted = read_text(IMPORTS + LOADED + DATACLASS + END, tmp_path, "--adapters true --bits 8")
    assert adapted.run["program"]["peft"] == {"r": 8}


def test_own_keys_of_a_file(tmp_path: Path) -> None:
    """A key that the script's class declares is not a mistake of TRL's."""
    (tmp_path / "run.yaml").write_text(
        "model_id: gpt2\nmax_length: 64\nper_device_train_batch_size: 2\n", encoding="utf-8"
    )
    text = """
from dataclasses import dataclass
from trl import TrlParser
@dataclass
class Own:
    model_id: str = None
own, args = TrlParser((Own, SFTConfig)).parse_args_and_config()
SFTTrainer(model=own.model_id, args=args).train()
"""
    reading = read_text(IMPORTS + text, tmp_path, "--config run.yaml")
    assert not reading.problems
    assert reading.run["model"] == {"name": "gpt2"}
    args = reading.run["program"]["args"]
    assert (args["max_length"], args["per_device_train_batch_size"]) == (64, 2)


def test_values_of_a_file_that_the_script_reads(tmp_path: Path) -> None:
    """A YAML file beside the script, and a module beside it."""
    (tmp_path / "c.yaml").write_text("train: {batch: 13}\n", encoding="utf-8")
    (tmp_path / "parts.py").write_text("NAME = 'gpt2'\n", encoding="utf-8")
    text = """
import yaml
from parts import NAME
def load(path='c.yaml'):
    with open(path) as file:
        return yaml.safe_load(file)
c = load()
model = AutoModelForCausalLM.from_pretrained(NAME)
args = TrainingArguments('o', per_device_train_batch_size=c['train']['batch'])
"""
    reading = read_text(IMPORTS + text + END, tmp_path)
    assert reading.run["program"]["args"]["per_device_train_batch_size"] == 13
    assert reading.run["model"] == {"name": "gpt2"}


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ("if ask():\n    model.gradient_checkpointing_enable()", "if ask()"),
        ("args = TrainingArguments('o', optim=ask())", "TrainingArguments(optim)"),
        ("args = TrainingArguments('o', **ask())", "TrainingArguments(**...)"),
        ("args = ask()", "Trainer(args)"),
    ],
)
def test_what_only_a_run_would_show_is_a_limit(tmp_path: Path, lines: str, where: str) -> None:
    """Without a bound, and with the line."""
    text = IMPORTS + LOADED + "args = TrainingArguments('o')\n" + lines + END
    reading = read_text(text, tmp_path)
    found = [one for one in reading.limits if where in one.key]
    assert [(one.could, one.adds, one.saves) for one in found] == [("either", None, None)]
    assert found[0].key.startswith("train.py:")


def test_a_line_that_sets_a_name_is_accounted_for(tmp_path: Path) -> None:
    """By the line that uses it; a branch that is not taken is free."""
    lines = "RANK = 4\nWIDE = False\nif WIDE:\n    RANK = 64\n"
    reading = with_model(lines + "model = get_peft_model(model, LoraConfig(r=RANK))", tmp_path)
    effects: dict[str, Any] = {key.split(" ")[0]: one for key, one in reading.keys.items()}
    assert effects["train.py:7"] == "memory"
    assert effects["train.py:10"] == "free"
    assert reading.run["program"]["peft"] == {"r": 4}


def test_options_of_an_unknown_script_that_are_dropped() -> None:
    """--lora_r without a word of adapters: full training is estimated, and that is said."""
    from ..reading_of import reading_of

    reading = reading_of("python tune.py --model_name_or_path gpt2 --max_length 8 --lora_r 64")
    assert reading.keys["--lora_r"] == "refused"
    assert [(one.key, one.could) for one in reading.limits] == [("--lora_r", "less")]
    used = reading_of(
        "python tune.py --model_name_or_path gpt2 --max_length 8 --lora_r 4 --use_peft"
    )
    assert used.keys["--lora_r"] == "memory"
    assert not used.limits

"""Trainers and loops of a script: keywords, replaced methods, optimizers, evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main

from .scripts import IMPORTS, LOADED, named, read_text, with_model

LOOP = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
accelerator = Accelerator(mixed_precision='bf16', gradient_accumulation_steps=2)
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(rows, batch_size=6, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    outputs = model(**batch)
    loss = outputs.loss / 2
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    """In the words of Trainer: batch, precision, optimizer, clipping."""
    reading = read_text(IMPORTS + LOADED + LOOP, tmp_path)
    assert reading.run["program"]["args"] == {
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 2,
        "optim": "adamw_torch",
        "max_grad_norm": 1.0,
        "bf16": True,
        "gradient_checkpointing": True,
    }
    assert not named(reading)


def test_a_loss_of_ones_own_in_a_loop_is_named(tmp_path: Path) -> None:
    """It may keep other tensors than the model's."""
    own = LOOP.replace("outputs.loss / 2", "torch.nn.functional.cross_entropy(outputs.logits, y)")
    assert any("cross_entropy" in one for one in named(read_text(IMPORTS + LOADED + own, tmp_path)))


@pytest.mark.parametrize(
    ("optimizer", "value"),
    [
        ("torch.optim.AdamW(model.parameters())", "adamw_torch"),
        ("torch.optim.AdamW(model.parameters(), fused=True)", "adamw_torch_fused"),
        ("torch.optim.SGD(model.parameters(), lr=1)", "sgd"),
        ("bnb.optim.PagedAdamW8bit(model.parameters())", "paged_adamw_8bit"),
    ],
)
def test_an_optimizer_made_by_hand(tmp_path: Path, optimizer: str, value: str) -> None:
    """`optimizers=(...)` replaces `optim`."""
    end = f"Trainer(model=model, optimizers=({optimizer}, None)).train()"
    reading = with_model("import bitsandbytes as bnb", tmp_path, end=end)
    assert reading.run["program"]["args"]["optim"] == value
    other = end.replace(optimizer, "torch.optim.Muon(model.parameters())")
    assert named(with_model("", tmp_path, end=other)) != []


@pytest.mark.parametrize(
    ("body", "is_named"),
    [
        ("def log(self, logs):\n        print(logs)", False),
        ("def compute_loss(self, model, x, **k):\n        return model(**x).loss", False),
        ("def compute_loss(self, model, x, **k):\n        return f(model(**x).logits)", True),
        ("def create_optimizer(self):\n        self.optimizer = Own()", True),
    ],
)
def test_a_trainer_of_ones_own(tmp_path: Path, body: str, is_named: bool) -> None:
    """A method that it replaces is free or named by its line."""
    end = f"class Mine(Trainer):\n    {body}\nMine(model=model).train()"
    assert bool(named(with_model("", tmp_path, end=end))) is is_named


def test_keywords_of_earlier_releases(tmp_path: Path) -> None:
    """SFTTrainer once took arguments of SFTConfig; TrainingArguments keep their defaults."""
    end = "SFTTrainer(model=model, args=TrainingArguments('o'), max_seq_length=99, packing=True)"
    reading = with_model("", tmp_path, end=end)
    args = reading.run["program"]["args"]
    assert (args["max_length"], args["packing"]) == (99, True)
    assert (args["gradient_checkpointing"], args["bf16"]) == (False, False)


def test_an_unknown_trainer_is_estimated_as_the_plain_one(tmp_path: Path) -> None:
    """And the limit has no bound."""
    reading = with_model(
        "from elsewhere import MyTrainer", tmp_path, end="MyTrainer(model).train()"
    )
    assert reading.run["program"]["tool"] == "transformers.Trainer"
    assert any("MyTrainer" in one for one in named(reading))


def test_an_evaluation_that_is_called(tmp_path: Path) -> None:
    """trainer.evaluate() is the evaluation of the arguments."""
    end = "t = Trainer(model=model, args=TrainingArguments('o'))\nt.train()\nt.evaluate()"
    args = with_model("", tmp_path, end=end).run["program"]["args"]
    assert args["eval_strategy"] == "epoch"


def test_a_length_that_the_user_sets_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit of the length goes where --set gives it."""
    monkeypatch.chdir(tmp_path)
    end = "Trainer(model=model, args=TrainingArguments('o')).train()"
    (tmp_path / "train.py").write_text(IMPORTS + LOADED + end, encoding="utf-8")
    command = ["python", "train.py"]
    assert main(["check", "--gpu", "a100-80gb", *command]) == 3
    assert "length of a sequence" in "".join(capsys.readouterr())
    given = ["--set", "program.data.seq_len=64"]
    assert main(["check", "--gpu", "a100-80gb", *given, *command]) == 0
    assert "length of a sequence" not in "".join(capsys.readouterr())

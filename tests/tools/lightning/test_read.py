"""LightningCLI's commands and files as programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.tools.reading_of import reading_of, readings_of

FILE = """
seed_everything: 1
trainer:
  devices: 4
  precision: bf16-true
  max_epochs: 3
  strategy:
    class_path: lightning.pytorch.strategies.FSDPStrategy
    init_args:
      auto_wrap_policy: [LlamaDecoderLayer]
model:
  class_path: my.Module
  init_args:
    model_name: llama3.2-1b
    dropout: 0.1
data:
  batch_size: 2
  max_length: 512
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of LightningCLI."""
    (tmp_path / "fit.yaml").write_text(FILE)
    return tmp_path


def test_a_file_and_options(folder: Path) -> None:
    """The Trainer's words, and the module's by their usual names; the rest is a limit."""
    found = reading_of("python main.py fit --config fit.yaml --trainer.devices=8", folder)
    assert found.problems == []
    assert found.run["model"] == {"name": "llama3.2-1b"}
    assert found.run["hardware"] == {"num_gpus": 8}
    program = found.run["program"]
    assert program["data"] == {"seq_len": 512}
    assert program["args"]["batch_size"] == 2
    wrap = {"name": "fsdp", "auto_wrap_policy": ["LlamaDecoderLayer"]}
    assert program["args"]["strategy"] == wrap
    assert any("model.dropout" in one.key for one in found.limits)
    run = {**found.run_file, "hardware": {"gpu": "h100", "num_gpus": 8}}
    assert full_estimate(run).result.allocated_bytes > 0


def test_a_file_alone(folder: Path) -> None:
    """The same keys."""
    [found] = readings_of(["fit.yaml"], folder)
    assert found.run["hardware"] == {"num_gpus": 4}
    assert found.run["program"]["tool"] == "lightning"


def test_a_stage_of_deepspeed_and_a_switch() -> None:
    """Options alone; one without a value is true."""
    line = "python main.py fit --trainer.strategy deepspeed_stage_2 --trainer.devices 2"
    found = reading_of(f"{line} --model.model_id gpt2 --model.gradient_checkpointing")
    args = found.run["program"]["args"]
    assert args["strategy"] == "deepspeed_stage_2"
    assert args["gradient_checkpointing"] is True
    assert found.run["model"] == {"name": "gpt2"}


def test_a_class_of_deepspeed_has_its_stage(folder: Path) -> None:
    """In the name of the strategy."""
    text = FILE.replace("FSDPStrategy", "DeepSpeedStrategy")
    (folder / "fit.yaml").write_text(
        text.replace("auto_wrap_policy: [LlamaDecoderLayer]", "stage: 3")
    )
    found = reading_of("python main.py fit -c fit.yaml", folder)
    assert found.run["program"]["args"]["strategy"] == "deepspeed_stage_3"


def test_mistakes_get_a_sentence(folder: Path) -> None:
    """An argument that Trainer does not have, a word that is no option, a file without keys."""
    found = reading_of("python main.py fit --trainer.bogus 3")
    assert found.problems[0].startswith("trainer.bogus is not a key of Lightning 2.6.6")
    with pytest.raises(InputError, match="is not an option of LightningCLI"):
        reading_of("python main.py fit word")
    (folder / "list.yaml").write_text("[1, 2]")
    with pytest.raises(InputError, match="a file of LightningCLI has keys"):
        reading_of("python main.py fit --config list.yaml", folder)

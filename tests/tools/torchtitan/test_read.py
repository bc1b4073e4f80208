"""torchtitan's commands and files as programs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.reading.reading import Reading
from tests.tools.reading_of import readings_of

FILE = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
[activation_checkpoint]
mode = "full"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a job's file."""
    (tmp_path / "job.toml").write_text(FILE)
    return tmp_path


def _read(line: str, folder: Path) -> Reading:
    [found] = readings_of(shlex.split(line), folder)
    assert found.problems == []
    return found


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node 4 -m torchtitan.train --job.config_file job.toml",
        "torchrun --nproc_per_node=4 ./train.py --job.config_file=job.toml",
        "CONFIG_FILE=job.toml NGPU=4 ./run_train.sh",
        "NGPU=4 ./run_train.sh --job.config_file job.toml",
    ],
)
def test_a_job_is_the_same_however_it_is_started(line: str, folder: Path) -> None:
    """With the keys of its file."""
    found = _read(line, folder)
    expected = {
        "model.flavor": "8B",
        "training.local_batch_size": 2,
        "activation_checkpoint.mode": "full",
    }
    assert expected.items() <= found.run["program"]["args"].items()
    assert found.run["hardware"] == {"num_gpus": 4}
    assert estimate({**found.run, "hardware": {"gpu": "h100", "num_gpus": 4}}).allocated_bytes > 0


def test_an_option_wins_over_the_file(folder: Path) -> None:
    """Also in the form that turns something off."""
    words = "--training.seq_len 8192 --profiling.no-enable-profiling"
    found = _read(f"python -m torchtitan.train --job.config_file job.toml {words}", folder)
    args = found.run["program"]["args"]
    assert args["training.seq_len"] == 8192
    assert args["profiling.enable_profiling"] is False


def test_a_file_alone_is_a_job(folder: Path) -> None:
    """Not a run file, though it has sections of its names."""
    assert _read("job.toml", folder).run["program"]["args"]["training.seq_len"] == 4096


def test_another_model_and_another_key_get_a_sentence(folder: Path) -> None:
    """Its flavors are those of another table."""
    line = "python -m torchtitan.train --job.config_file job.toml --model.name qwen3 --a.b 3"
    [found] = readings_of(shlex.split(line), folder)
    assert "model.name='qwen3' is not modelled; llama3 is" in found.problems
    assert any(one.startswith("--a.b is not an option of torchtitan") for one in found.problems)


def test_a_command_without_a_file_is_refused(folder: Path) -> None:
    """It needs one."""
    with pytest.raises(InputError, match=r"needs --job\.config_file"):
        readings_of(["python", "-m", "torchtitan.train"], folder)

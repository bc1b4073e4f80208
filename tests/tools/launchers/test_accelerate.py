"""`accelerate launch`: options over its file, in the names of the file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.accelerate import FILE_KEYS, OLD_KEYS
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.launchers.launcher_options import syntaxes
from gpu_mem_calculator.tools.reading.command import Command
from gpu_mem_calculator.tools.reading.named_files import NamedFiles

FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, reshard_after_forward: true, fsdp_offload_params: false}
mixed_precision: bf16
num_processes: 8
num_machines: 1
"""
OLD = """
{distributed_type: DEEPSPEED, fp16: true, dynamo_backend: INDUCTOR, num_processes: 4,
 deepspeed_config: {zero_stage: 3}}
"""


def _launch(folder: Path, text: str, options: str) -> Command:
    (folder / "a.yaml").write_text(text, encoding="utf-8")
    line = f"accelerate launch --config_file a.yaml {options} train.py"
    return read_launch(shlex.split(line), NamedFiles(folder))


def _merged(folder: Path, text: str, options: str) -> dict[str, Any]:
    return dict(_launch(folder, text, options).accelerate or {})


def test_options_win_over_the_file(tmp_path: Path) -> None:
    """A value on the command line replaces that of the file, also inside a section."""
    options = "--num_processes 2 --fsdp_offload_params true --mixed_precision no"
    merged = _merged(tmp_path, FSDP, options)
    assert merged["num_processes"] == 2
    assert merged["mixed_precision"] == "no"
    assert merged["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_offload_params": True,
    }
    assert _launch(tmp_path, FSDP, "").num_gpus == 8


def test_old_keys_are_converted(tmp_path: Path) -> None:
    """Keys of older releases become those of this one."""
    merged = _merged(tmp_path, OLD, "--zero_stage 2")
    assert merged["mixed_precision"] == "fp16"
    assert "fp16" not in merged
    assert merged["dynamo_config"] == {"dynamo_backend": "INDUCTOR"}
    assert merged["deepspeed_config"] == {"zero_stage": 2}


def test_an_option_chooses_another_kind(tmp_path: Path) -> None:
    """--multi_gpu wins over the distributed_type of the file."""
    assert _merged(tmp_path, FSDP, "--multi_gpu")["distributed_type"] == "MULTI_GPU"


def test_a_file_for_one_process_starts_one(tmp_path: Path) -> None:
    """Without distribution, one process is started whatever num_processes says."""
    assert _launch(tmp_path, "{distributed_type: 'NO', num_processes: 4}", "").num_gpus == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{distributed_type: FSDP, num_procesess: 1}", "did you mean 'num_processes'"),
        ("[1]", "an object of settings"),
        ("{distributed_type: FSDP, fsdp_config: 3}", "must be an object"),
        ("{distributed_type: MEGATRON_LM}", "is not read"),
        ("{distributed_type: FSDP, num_processes: -1}", "must be a count"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """A key or value that is wrong is named."""
    with pytest.raises(InputError, match=sentence):
        _launch(tmp_path, text, "")


def test_files_that_may_not_be_opened_are_named() -> None:
    """Where no file may be opened, the sentence names the option."""
    words = shlex.split("accelerate launch --config_file a.yaml train.py")
    with pytest.raises(InputError, match="no files are opened"):
        read_launch(words, NamedFiles(None))


def test_tables_have_every_option_of_the_launchers() -> None:
    """The tables equal the parsers of the installed packages."""
    launch = pytest.importorskip("accelerate.commands.launch")
    run = pytest.importorskip("torch.distributed.run")
    config = pytest.importorskip("accelerate.commands.config.config_args")
    parsers = {"accelerate": launch.launch_command_parser(), "torchrun": run.get_args_parser()}
    for name, parser in parsers.items():
        syntax, own = syntaxes()[name], {"torchrun": {"use_env"}}.get(name, set())
        actions = [one for one in parser._actions if one.option_strings and one.dest != "help"]
        long = {max(one.option_strings, key=len).lstrip("-").replace("-", "_") for one in actions}
        flags = {
            max(one.option_strings, key=len).lstrip("-").replace("-", "_")
            for one in actions
            if one.nargs == 0
        }
        assert set(syntax.names) - own == long
        assert set(syntax.flags) - own == flags
    fields = set(config.ClusterConfig.__dataclass_fields__)
    assert set(FILE_KEYS) == fields
    assert not set(OLD_KEYS) & fields


def test_llamafactorys_own_file_is_known_where_it_is_not_here() -> None:
    """Its users write the number of processes, so that is open; another file must be there."""
    words = ["accelerate", "launch", "--config_file", "../accelerate/fsdp_config.yaml", "train.py"]
    command = read_launch(words, NamedFiles(None))
    assert command.accelerate is not None
    assert command.accelerate["fsdp_config"]["fsdp_sharding_strategy"] == "FULL_SHARD"
    assert any("is not here" in one for one in command.assumed)
    words[3] = "fsdp_config.yaml"
    with pytest.raises(InputError, match="no files are opened here"):
        read_launch(words, NamedFiles(None))

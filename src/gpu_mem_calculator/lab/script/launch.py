"""The command of a script: `python train.py`, `torchrun train.py` or `accelerate launch train.py`.

The launchers' own parsers read their options, so every spelling that they take is known.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec import Struct
from msgspec.structs import replace

from ...runfile.text.errors import InputError

PYTHON = re.compile(r"python(3(\.\d+)?)?(\.exe)?")
WITH_VALUE = ("-X", "-W")  # options of Python
TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
ACCELERATE = "accelerate.commands.launch"
KNOWN = "python FILE, python -m MODULE, torchrun FILE and accelerate launch FILE"


class Launch(Struct, frozen=True, kw_only=True):
    """A script and how it is started: `ranks` processes, of which rank 0 is traced."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    ranks: int = 1
    ranks_per_node: int = 1
    environment: Mapping[str, str] = {}

    @property
    def nodes(self) -> int:
        """Machines that the ranks are on."""
        return self.ranks // self.ranks_per_node


def read_launch(words: Sequence[str]) -> Launch:
    """The script that a command starts."""
    settings = {}
    words = list(words)
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        name, _, settings[name] = words.pop(0).partition("=")
    if not words:
        raise InputError(f"there is no script after --; known commands: {KNOWN}")
    launch = _command(words)
    if not launch.module and not Path(launch.target).is_file():
        raise InputError(f"{launch.target} is no file in {Path.cwd()}")
    ranks = _rank_environment(launch) if launch.ranks > 1 or _has_group(words) else {}
    return replace(launch, environment={**ranks, **launch.environment, **settings})


def _command(words: list[str]) -> Launch:
    name, rest = Path(words[0]).name, words[1:]
    if PYTHON.fullmatch(name):
        return _python(rest)
    if name == "torchrun":
        return _torchrun(rest)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _accelerate(rest[1:])
    if name.endswith(".py"):
        return Launch(target=words[0], arguments=tuple(rest))
    raise InputError(f"{name!r} does not start a script in a way that is known: {KNOWN}")


def _has_group(words: list[str]) -> bool:
    return Path(words[0]).name == "torchrun" or any(word in TORCHRUN for word in words[:4])


def _python(words: list[str]) -> Launch:
    while words and words[0].startswith("-") and words[0] != "-m":
        if words[0] in ("-c", "-"):
            raise InputError("python -c has no script; write it to a file")
        del words[: 2 if words[0] in WITH_VALUE else 1]
    if not words or words == ["-m"]:
        raise InputError("python needs a script or -m MODULE after it")
    if words[0] != "-m":
        return Launch(target=words[0], arguments=tuple(words[1:]))
    module, rest = words[1], words[2:]
    if module in TORCHRUN:
        return _torchrun(rest)
    if module == ACCELERATE:
        return _accelerate(rest)
    return Launch(target=module, arguments=tuple(rest), module=True)


def _torchrun(words: list[str]) -> Launch:
    from torch.distributed.run import get_args_parser

    with _one_sentence("torchrun"):
        args = get_args_parser().parse_args(words)
    per_node = _number("torchrun --nproc-per-node", args.nproc_per_node)
    nodes = _number("torchrun --nnodes", str(args.nnodes).partition(":")[0])
    return _launched(args, nodes * per_node, per_node)


def _number(option: str, text: Any) -> int:
    if not str(text).isdigit() or int(text) < 1:
        raise InputError(f"{option} {text} depends on the machine; give a number")
    return int(text)


def _launched(args: Any, ranks: int, per_node: int, **rest: Any) -> Launch:
    if args.no_python:
        raise InputError("--no-python starts no Python script; leave it out")
    return Launch(
        target=args.training_script,
        arguments=tuple(args.training_script_args),
        module=bool(args.module),
        ranks=ranks,
        ranks_per_node=per_node,
        **rest,
    )


def _accelerate(words: list[str]) -> Launch:
    import torch

    try:
        launch: Any = import_module(ACCELERATE)
    except ModuleNotFoundError:
        raise InputError("accelerate launch needs accelerate; pip install accelerate") from None
    with (
        _one_sentence("accelerate launch"),
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "device_count", lambda: 1),
        patch.object(torch.cuda, "is_bf16_supported", lambda *_: True),
        patch.dict(os.environ),
    ):
        before = dict(os.environ)
        args, _, _ = launch._validate_launch_command(
            launch.launch_command_parser().parse_args(words)
        )
        _refuse(args)
        ranks = args.num_processes or 1
        if ranks > 1:
            environment = launch.prepare_multi_gpu_env(args)
        else:
            environment = launch.prepare_simple_launcher_cmd_env(args)[1]
    changed = {key: value for key, value in environment.items() if before.get(key) != value}
    per_node = ranks // (args.num_machines or 1)
    return _launched(args, ranks, per_node, environment=changed)


def _refuse(args: Any) -> None:
    for name in ("use_deepspeed", "use_megatron_lm", "tpu", "cpu", "use_parallelism_config"):
        if getattr(args, name, False) not in (False, None, "false"):
            why = "is not simulated for scripts; describe the run in a run file"
            raise InputError(f"accelerate launch --{name} {why}")


@contextmanager
def _one_sentence(launcher: str) -> Iterator[None]:
    """Turn errors of a launcher's parser into one sentence."""

    def error(parser: Any, message: str) -> None:
        raise InputError(f"{launcher}: {message}")

    try:
        with patch.object(argparse.ArgumentParser, "error", error):
            yield
    except InputError:
        raise
    except (SystemExit, ValueError, TypeError, AttributeError, OSError) as problem:
        raise InputError(f"{launcher}: {problem}") from None


def _rank_environment(launch: Launch) -> dict[str, str]:
    """What a launcher tells rank 0 (torch/distributed/elastic/agent/server/local_elastic_agent.py,
    _start_workers)."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0"),
        "WORLD_SIZE": str(launch.ranks),
        "LOCAL_WORLD_SIZE": str(launch.ranks_per_node),
        "GROUP_WORLD_SIZE": str(launch.nodes),
        "ROLE_WORLD_SIZE": str(launch.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
    }

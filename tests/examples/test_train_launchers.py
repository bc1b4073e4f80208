"""run.sh with each launcher, from another directory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ENVIRONMENT, GPTLITE, SIZES

pytest.importorskip("deepspeed")

PROGRAMS = Path(sys.executable).parent
LIMIT = 120  # seconds


def shell(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit status and output of run.sh; nothing of it is left running."""
    environment = {**ENVIRONMENT, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", **variables}
    with subprocess.Popen(
        [str(GPTLITE / "run.sh"), *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            text, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, text


@pytest.mark.proof
@pytest.mark.parametrize(
    ("launcher", "config", "flags"),
    [
        ("deepspeed", "pipeline_fp32", ["--deepspeed", "--pipeline_spec_layers"]),
        ("torchrun", "zero3_fp32", []),
    ],
)
def test_it_trains(tmp_path: Path, launcher: str, config: str, flags: list[str]) -> None:
    """In two processes; paths are those of where it is started."""
    (tmp_path / "text.txt").write_text("To be, or not to be: that is the question. " * 9, "utf-8")
    few = ("--steps", "2", "--torch_adam", "--text", "text.txt", "--report", "report.json")
    code, text = shell(
        tmp_path, launcher, config, *SIZES, *few, *flags, PROCESSES="2", PORT=free_port()
    )
    assert code == 0, text
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [one["rank"] for one in report["ranks"]] == [0, 1]
    assert set(report["losses"]) == {"1", "2"}
    assert len(report["sample"]) == 200


def free_port() -> str:
    """One that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.proof
def test_a_refusal_reaches_the_shell(tmp_path: Path) -> None:
    """DeepSpeed's launcher ends all processes when one ends, and hands on how: there is one
    sentence, and exit status 2."""
    code, text = shell(
        tmp_path, "deepspeed", "zero2_bf16", "--pipeline", PROCESSES="2", PORT=free_port()
    )
    assert code == 2
    assert text.count("zero_optimization.stage=2 does not go with a pipeline") == 1


@pytest.mark.parametrize(
    ("launcher", "variables", "command"),
    [
        ("python", {}, "python {train}"),
        ("deepspeed", {}, "deepspeed --num_gpus 4 --master_port 29500 {train}"),
        ("torchrun", {}, "torchrun --standalone --nproc-per-node 4 {train}"),
        (
            "hostfile",
            {"HOSTFILE": "hosts"},
            "deepspeed --hostfile hosts --master_port 29500 {train}",
        ),
        (
            "nodes",
            {"NODES": "2", "HEAD": "worker-0", "PORT": "7"},
            "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint worker-0:7 "
            "{train}",
        ),
    ],
)
def test_what_run_sh_starts(
    tmp_path: Path, launcher: str, variables: dict[str, str], command: str
) -> None:
    """With launchers that only say how they were called."""
    for name in ("python", "deepspeed", "torchrun"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$(basename "$0") $*"\n', "utf-8")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    given = {"PATH": path, "PROCESSES": "4", **variables}
    code, text = shell(tmp_path, launcher, "ddp_fp32", "--steps", "3", **given)
    train = f"{GPTLITE}/train.py --deepspeed_config {GPTLITE}/configs/ddp_fp32.json --steps 3"
    assert (code, text.strip()) == (0, command.format(train=train))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "run.sh deepspeed CONFIG"),
        (["mpirun", "ddp_fp32"], 2, "'mpirun' is none of deepspeed, torchrun"),
        (["hostfile", "ddp_fp32"], 1, "HOSTFILE: is needed"),
        (["nodes", "ddp_fp32"], 1, "NODES: is needed"),
    ],
)
def test_what_run_sh_refuses(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    """In a sentence."""
    found, text = shell(tmp_path, *arguments)
    assert found == code
    assert said in text

"""The memory of a node that a file or a launcher names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_mem_calculator.estimates.checked import CheckQuestion, asked_readings, check_reading
from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.tools.reading.node_memory import (
    docker_memory,
    kubernetes_memory,
    skypilot_memory,
    slurm_memory,
)

TRAINS = "deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B"
RUN = "accelerate launch --num_processes 8 --use_deepspeed --zero_stage 3"
RUN += " --offload_optimizer_device cpu sft.py --model_name_or_path meta-llama/Llama-3.1-8B"
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: train}}
spec:
  containers:
    - name: main
      image: pytorch
      command: [{words}]
      resources: {{limits: {{nvidia.com/gpu: 8, memory: {memory}}}}}
"""
COMPOSE = """
services:
  train:
    image: pytorch
    command: {command}
    deploy:
      resources:
        limits: {{memory: {memory}}}
        reservations: {{devices: [{{driver: nvidia, count: 8, capabilities: [gpu]}}]}}
"""


@pytest.mark.parametrize(
    ("read", "text", "size"),
    [
        (docker_memory, "64g", 64 * GIB),
        (docker_memory, "512m", GIB // 2),
        (docker_memory, "1.5GiB", GIB * 3 // 2),
        (docker_memory, "1073741824", GIB),
        (docker_memory, "$SIZE", None),
        (docker_memory, "-1", None),
        (kubernetes_memory, "64Gi", 64 * GIB),
        (kubernetes_memory, "64G", 64 * 10**9),
        (kubernetes_memory, "64e9", 64 * 10**9),
        (kubernetes_memory, 68719476736, 64 * GIB),
        (kubernetes_memory, "{{ .Values.memory }}", None),
        (kubernetes_memory, None, None),
    ],
)
def test_sizes(read: Callable[[Any, str], Any], text: Any, size: int | None) -> None:
    """In the units of each, with where they stand."""
    found = read(text, "here")
    assert (found and found.num_bytes) == size
    assert found is None or found.said == f"here={text}"


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"--mem": "128G"}, 128),
        ({"--mem": "131072"}, 128),
        ({"--mem": "0"}, None),
        ({"--mem-per-gpu": "64G"}, 512),
        ({"--mem-per-cpu": "4G", "--cpus-per-task": "12"}, 4 * 12 * 2),
        ({"--mem-per-cpu": "4G", "--cpus-per-gpu": "6"}, 4 * 6 * 8),
        ({"--mem-per-cpu": "4G"}, None),
        ({}, None),
    ],
)
def test_slurm(given: dict[str, str], size: int | None) -> None:
    """A node with eight GPUs and two tasks."""
    found = slurm_memory(given, 8, 2)
    assert (found and found.num_bytes) == (size and size * GIB)


def test_a_multiple_of_cpus_is_not_known() -> None:
    """And `64+` is at least that."""
    assert skypilot_memory("4x") is None
    found = skypilot_memory("64+")
    assert found is not None
    assert (found.num_bytes, "the least" in found.said) == (64 * GIB, True)


def _pod(memory: str) -> str:
    return POD.format(words=", ".join(RUN.split()), memory=f"{memory}Gi")


def _compose(memory: str) -> str:
    return COMPOSE.format(command=RUN, memory=f"{memory}g")


def _sbatch(memory: str) -> str:
    return f"#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=8\n#SBATCH --mem={memory}G\n{RUN}\n"


def _per_gpu(memory: str) -> str:
    each = int(memory) // 8
    return f"#!/bin/bash\n#SBATCH -N 1 --gres=gpu:8 --mem-per-gpu={each}G\n{RUN}\n"


def _srun(memory: str) -> str:
    return f"srun --nodes=1 --gpus-per-node=8 --mem={memory}G {RUN}"


def _docker(memory: str) -> str:
    return f"docker run --gpus 8 -m {memory}g --entrypoint accelerate pytorch {RUN[11:]}"


def _sky(memory: str) -> str:
    return f"resources: {{accelerators: H100:8, memory: {memory}+}}\nrun: |\n  {RUN}\n"


DOORS = (_pod, _compose, _sbatch, _per_gpu, _srun, _docker, _sky)


@pytest.mark.parametrize("write", DOORS)
@pytest.mark.parametrize(("memory", "word"), [("64", SHORT), ("512", FITS)])
def test_no_answer_above_what_is_said_fits(
    write: Callable[[str], str], memory: str, word: str
) -> None:
    """Offloaded states of 8 B parameters take about 125 GiB; the answer says where the limit
    stands.
    """
    question = CheckQuestion(hardware={"gpu": "h100-80gb-sxm"})
    (reading,) = asked_readings(write(memory), question, None)
    found = check_reading(reading, question).result
    assert found is not None
    assert found.host is not None
    assert found.host.node_bytes == int(memory) * GIB
    assert found.verdict == word
    assert found.host.read_from
    assert (found.host.read_from in verdict_line(found)) == (word == SHORT)


def test_an_option_replaces_what_is_said() -> None:
    """And then it no longer stands in the file."""
    question = CheckQuestion(hardware={"gpu": "h100-80gb-sxm", "node_memory_gb": 512})
    (reading,) = asked_readings(_sbatch("64"), question, None)
    found = check_reading(reading, question).result
    assert found is not None
    assert found.host is not None
    assert (found.host.node_bytes, found.host.read_from) == (512 * GIB, "")
    assert found.verdict == FITS


@pytest.mark.parametrize(("has", "word"), [(64, SHORT), (1024, FITS)])
def test_the_machines_own_limit_binds_where_it_is_less(has: int, word: str) -> None:
    """A job may ask for more than there is."""
    here = {"gpu": "h100-80gb-sxm", "node_memory_gb": has, "node_memory_read_from": "MemTotal"}
    question = CheckQuestion(machine=here)
    (reading,) = asked_readings(_srun("512"), question, None)
    found = check_reading(reading, question).result
    assert found is not None
    assert found.host is not None
    assert (found.verdict, found.host.read_from == "MemTotal") == (word, has == 64)

"""Launchers in front of a command: the program behind them, GPUs, nodes and variables."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.command import Command
from gpu_mem_calculator.tools.reading.named_files import NamedFiles


def _launch(line: str, folder: Path | None = None) -> Command:
    return read_launch(shlex.split(line), NamedFiles(folder))


@pytest.mark.parametrize(
    ("line", "words", "num_gpus", "num_nodes"),
    [
        ("python train.py --a 1", "train.py --a 1", None, 1),
        ("apptainer exec --nv -B /a:/b --env A=1 x.sif python train.py", "train.py", None, 1),
        ("srun -n 4 singularity run -C --nv x.sif python train.py", "train.py", 4, 1),
        ("python3.11 -u -X dev train.py", "train.py", None, 1),
        ("torchrun --nproc-per-node 8 train.py -x", "train.py -x", 8, 1),
        ("torchrun --nproc_per_node=4 --nnodes=1:2 train.py", "train.py", 8, 2),
        ("torchrun --standalone --nproc-per-node gpu train.py", "train.py", None, 1),
        ("torchrun --nproc 2 train.py", "train.py", 2, 1),  # argparse takes unique beginnings
        ("PET_NPROC_PER_NODE=2 torchrun train.py", "train.py", 2, 1),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", "train.py", 2, 1),
        ("python -m torch.distributed.launch --use_env --nproc_per_node 2 t.py", "t.py", 2, 1),
        ("torchrun --nproc_per_node 2 -m pkg.train --a", "pkg.train --a", 2, 1),
        ("deepspeed train.py --deepspeed ds.json", "train.py --deepspeed ds.json", None, 1),
        ("deepspeed --num_gpus 2 --num_nodes=2 train.py", "train.py", 4, 2),
        ("deepspeed --num_gpus=8 --module pkg.train", "pkg.train", 8, 1),
        ("deepspeed --include localhost:0,1,3 train.py", "train.py", 3, 1),
        ("deepspeed --include a:0,1@b:2 train.py", "train.py", 3, 2),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed train.py", "train.py", 2, 1),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 1 train.py", "train.py", 1, 1),
        ("srun -N 2 --ntasks-per-node=8 python train.py", "train.py", 16, 2),
        ("srun -n8 -l --gres=gpu:4 python train.py", "train.py", 8, 1),
        ("srun --nodes 2 --ntasks 2 --gres gpu:h100:8 python train.py", "train.py", 16, 2),
        ("srun -N2 torchrun --nproc_per_node 4 --nnodes 2 train.py", "train.py", 8, 2),
        ("srun --gres=gpu:8 torchrun --nproc_per_node gpu train.py", "train.py", 8, 1),
        ("mpirun -np 8 --allow-run-as-root -x A=1 -mca pml ob1 python t.py", "t.py", 8, 1),
        ("mpirun -H a:4,b:4 python t.py", "t.py", 8, 2),
        ("mpiexec -n 16 -ppn 8 python t.py", "t.py", 16, 2),
        ("docker run --gpus all -it --rm -p 8000:8000 img python t.py", "t.py", None, 1),
        ("docker run --gpus device=0,1 vllm/vllm-openai:v1 -q m", "vllm serve -q m", 2, 1),
        ("docker run --gpus 1 ghcr.io/ggml-org/llama.cpp:server -m x", "llama-server -m x", 1, 1),
        ("docker run --entrypoint python img t.py", "t.py", None, 1),
        ("env A=1 nohup uv run --with trl trl sft --a", "trl sft --a", None, 1),
        ("conda run -n env python t.py", "t.py", None, 1),
        ("nsys profile -o x --trace=cuda python t.py", "t.py", None, 1),
        ("ray job submit --working-dir . -- python -m pkg.main a=1", "pkg.main a=1", None, 1),
        ("accelerate launch train.py", "train.py", None, 1),
        ("accelerate launch --num_processes 4 --num-machines 2 -m pkg.train", "pkg.train", 4, 2),
        ("accelerate-launch --multi_gpu --num_processes 4 t.py", "t.py", 4, 1),
        ("python -m accelerate.commands.launch --num_processes 4 t.py", "t.py", 4, 1),
    ],
)
def test_program(line: str, words: str, num_gpus: int | None, num_nodes: int) -> None:
    """The words of the program, the GPUs of all nodes, and the nodes."""
    command = _launch(line)
    assert (" ".join(command.words), command.num_gpus, command.num_nodes) == (
        words,
        num_gpus,
        num_nodes,
    )


def test_a_module_and_variables_are_kept() -> None:
    """Variables of every wrapper are collected."""
    command = _launch("A=1 env B=2 torchrun -m pkg.train --x")
    assert command.module
    assert command.environment == {"A": "1", "B": "2"}
    assert command.launcher == "torchrun"


def test_a_hostfile_counts_slots(tmp_path: Path) -> None:
    """A hostfile gives the GPUs of each host; filters take some away."""
    (tmp_path / "hosts").write_text("a slots=8\n# no\nb slots=4\n", encoding="utf-8")
    every = _launch("deepspeed --hostfile hosts train.py", tmp_path)
    assert (every.num_gpus, every.num_nodes) == (12, 2)
    some = _launch("deepspeed -H hosts --exclude a:0,1 train.py", tmp_path)
    assert (some.num_gpus, some.num_nodes) == (10, 2)
    first = _launch("deepspeed -H hosts --num_nodes 1 train.py", tmp_path)
    assert (first.num_gpus, first.num_nodes) == (8, 1)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("torchrun --nproc_per_nod3 2 t.py", "did you mean 'nproc_per_node'"),
        ("accelerate launch --num_proceses 2 t.py", "did you mean 'num_processes'"),
        ("accelerate config", "only accelerate launch"),
        ("accelerate launch --tpu t.py", "is not read"),
        ("accelerate launch --num_processes two t.py", "must be a count"),
        ("torchrun --nnodes", "needs a value"),
        ("python", "needs a script"),
        ("python -c 1", "write it to a file"),
        ("docker build .", "use docker run"),
        ("ray status", "only ray job submit"),
        ("deepspeed --num_gpus 2 --include a t.py", "leave one out"),
        ("env A=1", "there is no command"),
        ("", "there is no command"),
    ],
)
def test_what_is_wrong_is_one_sentence(line: str, sentence: str) -> None:
    """A launcher that cannot be read is a sentence with the nearest fix."""
    with pytest.raises(InputError, match=sentence):
        _launch(line)


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("accelerate launch --gpu_ids 2,3 --num_processes 2 train.py", ("2", "3")),
        ("accelerate launch --gpu_ids all --num_processes 2 train.py", ()),
        ("deepspeed --include localhost:4,5 train.py", ("4", "5")),
        ("deepspeed --include a:0,1@b:0,1 train.py", ()),
        ("deepspeed --num_gpus 2 train.py", ()),
        ("CUDA_VISIBLE_DEVICES=6 python train.py", ("6",)),
    ],
)
def test_the_gpus_that_a_launcher_names(line: str, devices: tuple[str, ...]) -> None:
    """Of one machine; several hosts have GPUs of their own."""
    assert _launch(line).devices == devices

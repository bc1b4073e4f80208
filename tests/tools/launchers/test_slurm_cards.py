"""The card that Slurm's options name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.catalog.cards import meant
from tests.tools.reading_of import readings_of

A100 = ["a100-40gb-pcie", "a100-40gb-sxm", "a100-80gb-pcie", "a100-80gb-sxm"]
H100 = ["h100-80gb-pcie", "h100-80gb-sxm", "h100-94gb-nvl"]
SERVE = "vllm serve Qwen/Qwen3-8B"


def cards(lines: str, tmp_path: Path, words: tuple[str, ...] = ("sbatch",)) -> list[str]:
    """The cards of a job with these lines."""
    text = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines.split(";") if line)
    (tmp_path / "job.sh").write_text(f"{text}\n{SERVE}\n", encoding="utf-8")
    (one,) = readings_of([*words, "job.sh"], tmp_path)
    name = one.run["hardware"].get("gpu")
    return [row["name"] for row in meant(name)] if name else []


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("--gres=gpu:a100:8", A100),
        ("--gres=gpu:h100", H100),
        ("--gres=nvme:1,gpu:rtx8000:2", ["quadro-rtx-8000"]),
        ("--gpus=l40s:4", ["l40s"]),
        ("-G l40s:4", ["l40s"]),
        ("--gpus-per-node=h100:8", H100),
        ("--gpus-per-task=l4:1; --ntasks=2", ["l4"]),
        ("--gres=gpu:4; --constraint=v100-32g", ["v100-32gb-pcie", "v100-32gb-sxm"]),
        ('--gres=gpu:4; -C "l4|l40s"', ["l4", "l40s"]),
        ("--gres=gpu:4; --constraint='[l4|l40s]'", ["l4", "l40s"]),
        ("--gres=gpu:4; --constraint=l4&ib", ["l4"]),
        ("--gres=gpu:a100:4; --constraint=gpu80", ["a100-80gb-pcie", "a100-80gb-sxm"]),
        ("--gres=gpu:a100_3g.40gb:1", ["a100-80gb-mig-3g.40gb"]),
        ("--gres=gpu:nvidia_h100_80gb_hbm3_3g.40gb:1", ["h100-80gb-mig-3g.40gb"]),
        ("--gres=gpu:4; -p gpu_l40s", ["l40s"]),
        ("--gres=gpu:l4:4; -p a100", ["l4"]),
        ("--gres=gpu:4", []),
        ("--gres=gpu:4; -p gpu-a100-small", []),
        ("--gres=gpu:4; -p m2", []),
        ("--gres=gpu:ampere:4", []),
        ("--gres=gpu:4; --constraint='l4|ib'", []),
        ("--gres=gpu:l4:1; --constraint=t4", []),
    ],
)
def test_a_job_names_its_card(tmp_path: Path, lines: str, names: list[str]) -> None:
    """By the type of a GPU, by features, by a partition whose name is a card's."""
    assert cards(lines, tmp_path) == names


def test_options_of_sbatch_win_over_the_script(tmp_path: Path) -> None:
    """The same options stand in front of the script."""
    words = ("sbatch", "--gres=gpu:t4:1", "-N", "1")
    assert cards("--gres=gpu:l4:1", tmp_path, words) == ["t4"]


def test_srun_names_a_card(tmp_path: Path) -> None:
    """Also in front of a command."""
    words = ["srun", "--gres=gpu:l4:2", *SERVE.split(), "--tensor-parallel-size=2"]
    (one,) = readings_of(words, tmp_path)
    assert one.run["hardware"] == {"gpu": "l4", "num_gpus": 2}

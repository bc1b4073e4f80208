"""Under a launcher."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs.job import World
from gpu_mem_calculator.lab.measure import ranks
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.program import MeasuredProgram
from gpu_mem_calculator.lab.measure.ranks import RankPlace, check_gpus, launched_rank, measure_rank
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import small_run

from .conftest import FakeCuda


def test_a_launcher_is_known_by_its_environment() -> None:
    """torchrun and deepspeed set the same names; one rank needs no launcher."""
    found = launched_rank({"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"})
    assert found == RankPlace(rank=5, ranks=8, local_rank=1, local_ranks=2)
    found = launched_rank(
        {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    )
    assert found is not None
    assert found.local_ranks == 4
    assert launched_rank({}) is None
    assert launched_rank({"WORLD_SIZE": "1", "RANK": "0"}) is None
    assert launched_rank({"WORLD_SIZE": "many", "RANK": "0"}) is None


@pytest.fixture
def jobs(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """Jobs of 8 ranks that mark one step; torch.distributed gathers this rank's row 8 times."""
    found: list[World] = []

    def start(world: World) -> None:
        found.append(world)
        world.mark("s0.opt")
        if world.rank == 6:
            raise RuntimeError("CUDA out of memory")

    def gather(rows: list[Any], row: Any) -> None:
        rows[:] = [{**row, "rank": number} for number in range(len(rows))]

    monkeypatch.setattr(
        ranks,
        "program",
        lambda *of_case: MeasuredProgram(
            start=start, group="fsdp", num_ranks=8, process_group="fake"
        ),
    )
    dist = SimpleNamespace(all_gather_object=gather, destroy_process_group=lambda: None)
    monkeypatch.setattr(sys.modules["torch"], "distributed", dist, raising=False)
    return found


CASE = MeasureCase(id="run", config=small_run("fsdp"))


def test_every_rank_runs_with_real_nccl_and_rank_0_has_all_rows(
    jobs: list[World], cuda: FakeCuda
) -> None:
    """Ids say the rank; ranks other than 0 have nothing to report."""
    rows = measure_rank(CASE, RankPlace(rank=0, ranks=8, local_rank=0), None)
    assert [row["rank"] for row in rows] == list(range(8))
    assert rows[0]["id"] == "run.rank0"
    assert rows[0]["environment"]["process_group"] == "nccl"
    assert measure_rank(CASE, RankPlace(rank=5, ranks=8, local_rank=1), None) == []
    assert (jobs[1].rank, jobs[1].process_group, cuda.device) == (5, "nccl", 1)


def test_the_launcher_must_start_as_many_as_the_run_has(jobs: list[World]) -> None:
    """One sentence with both numbers."""
    with pytest.raises(InputError, match="num_gpus=8, but the launcher starts 4 processes"):
        measure_rank(CASE, RankPlace(rank=0, ranks=4, local_rank=0), None)


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        (4, "8 processes on a node that shows 4 GPUs; start 4 on each"),
        (1, "8 processes on a node that shows 1 GPU; start 1 on each"),
        (0, "measure needs a CUDA GPU, and this node shows none"),
    ],
)
def test_every_process_of_a_node_has_a_gpu(
    jobs: list[World], cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, shown: int, sentence: str
) -> None:
    """Said by all of them, rather than as CUDA's own error by those without one."""
    monkeypatch.setattr(cuda, "device_count", lambda: shown)
    with pytest.raises(InputError, match=sentence):
        measure_rank(CASE, RankPlace(rank=0, ranks=8, local_rank=0, local_ranks=8), None)


def test_one_process_needs_one_gpu() -> None:
    """A node may have more; where the launcher says nothing, it started one process."""
    place = RankPlace(rank=1, ranks=2, local_rank=0)
    check_gpus(1, place)
    check_gpus(2, place)


def test_a_rank_that_fails_and_cannot_keep_its_row_says_both(
    jobs: list[World],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another node may lack the folder; why the rank failed comes first."""

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        measure_rank(CASE, RankPlace(rank=6, ranks=8, local_rank=0), str(tmp_path / "no" / "runs"))
    failed, lost = capsys.readouterr().err.splitlines()
    assert "rank 6: out of memory" in failed
    assert "cannot be written" in lost


def test_a_rank_that_fails_keeps_its_row_and_ends(
    jobs: list[World],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The others wait for it in vain: it ends so that the launcher can end them."""
    path = tmp_path / "runs.jsonl"

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit) as end:
        measure_rank(CASE, RankPlace(rank=6, ranks=8, local_rank=0), str(path))
    assert end.value.code == 1
    row = json.loads(path.read_text())
    assert (row["id"], row["rank"]) == ("run.rank6", 6)
    assert row["failed"].startswith("out of memory after s0.opt")
    assert "rank 6: out of memory" in capsys.readouterr().err

"""What a trace does not cover."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.lab.trace.coverage import check_covered
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run


@pytest.mark.parametrize(
    ("gpus", "rank", "has"), [(1, 1, "one rank, 0"), (4, 4, "the ranks 0 to 3"), (4, 3, "")]
)
def test_a_rank_is_one_of_the_run(gpus: int, rank: int, has: str) -> None:
    """Ranks are counted from 0."""
    resolved = resolve(read(small_run("pytorch_ddp", gpus)).file)
    if not has:
        check_covered(resolved, rank)
        return
    with pytest.raises(InputError) as error:
        check_covered(resolved, rank)
    assert error.value.problems == [f"rank {rank} is not in the run, which has {has}"]

"""A set-up in full: the figures of all stages at once are those of one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_mem_calculator.advice.planner.training.full import StagesTogether
from gpu_mem_calculator.advice.planner.training.memory import highest_stage, peak_bytes
from gpu_mem_calculator.advice.planner.training.search import at_sizes, evaluate
from gpu_mem_calculator.estimates.calculator import STEP, stage_ledgers
from gpu_mem_calculator.ledger.ledger import CPU
from tests.corpus import sampled

from .test_search import question, some_structures


@pytest.mark.parametrize(
    ("engine", "model", "gpus", "step", "together"),
    sampled(
        [
            ("megatron_lm", "llama3.1-405b", 512, 31, True),
            ("megatron_lm", "mixtral-8x7b", 64, 43, True),
            ("megatron_lm", "deepseek-v2-lite", 216, 61, False),
            ("deepspeed", "llama3.1-8b", 64, 17, True),
            ("megatron_deepspeed", "llama3.1-8b", 64, 9, False),
        ],
        keep=2,
    ),
)
def test_stages_together_have_the_figures_of_stages_alone(
    engine: str, model: str, gpus: int, step: int, together: bool
) -> None:
    """Peaks of each stage, the highest of all, and bytes on the host."""
    batch, seen = 2 * gpus, set()
    for structure in some_structures(question(model, gpus, batch, engine), step):
        arrays = evaluate(structure, batch)
        for place in range(0, len(arrays.total), max(len(arrays.total) // 5, 1)):
            sizes = structure.sizes(int(arrays.pipes[place]), int(arrays.ranks[place]))
            resolved = at_sizes(structure, sizes, batch)
            assert resolved is not None
            found, alone = StagesTogether(resolved), stage_ledgers(resolved)
            assert found.peaks(STEP) == alone.peaks(STEP)
            for stage in {0, 1 % alone.stages, alone.stages - 1}:
                assert found.highest(stage) == alone.highest(stage)
                assert found.unified_bytes(stage) == alone.unified_bytes(stage)
            assert found.host_bytes(8) == alone.host_bytes(8)
            if found.together:
                assert int(np.max(peak_bytes(resolved, resolved.run))) == highest_stage(resolved)
            seen.add(bool(found.together))
    assert (True in seen) is together


def test_bytes_on_the_host_are_those_of_every_stage() -> None:
    """They are counted stage by stage where there are any."""
    for structure in some_structures(question("llama3.1-8b", 64, 128, "deepspeed"), 1):
        places = {entry.place for entry in stage_ledgers(structure.resolved)[0].entries}
        if CPU in places:
            alone = stage_ledgers(structure.resolved).host_bytes(8)
            assert StagesTogether(structure.resolved).host_bytes(8) == alone > 0
            return
    raise AssertionError("no set-up offloads")

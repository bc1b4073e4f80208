"""Which results a checkpoint keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs.recompute import _contexts
from gpu_mem_calculator.run.recompute import ATTENTION, EVERY_SECOND_MM

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("keeps", "kept"),
    [((ATTENTION, EVERY_SECOND_MM), [True, False, True, False]), ((ATTENTION,), [False] * 4)],
)
def test_every_second_product_is_kept(
    keeps: tuple[str, ...], kept: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and recompute count for themselves; an addition is never kept."""
    checkpoint = torch.utils.checkpoint
    monkeypatch.setattr(checkpoint, "create_selective_checkpoint_contexts", lambda one: one)
    policy, saves = _contexts(keeps), checkpoint.CheckpointPolicy.MUST_SAVE
    for recomputes in (False, True):
        context = SimpleNamespace(is_recompute=recomputes)
        found: list[Any] = [policy(context, torch.ops.aten.mm.default) for _ in range(4)]
        assert [one == saves for one in found] == kept
        assert policy(context, torch.ops.aten.add.Tensor) != saves

"""The tests of the replay run twice: in C, and in Python."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.pytorch.replay import native_library, plan

RUNS = ("native", "python") if native_library.library() else ("python",)


@pytest.fixture(autouse=True, params=RUNS, scope="package")
def replay_in(request: pytest.FixtureRequest) -> object:
    """Which of them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(plan, "library", lambda: None)
        yield request.param

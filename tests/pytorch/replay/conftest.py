"""The tests of the replay run twice: with the blocks in C, and in Python alone."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.pytorch.replay import allocator, native, native_library

RUNS = ("native", "python") if native_library.is_wanted() and native.library() else ("python",)


@pytest.fixture(autouse=True, params=RUNS, scope="package")
def replay_in(request: pytest.FixtureRequest) -> object:
    """Which of them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(allocator, "is_wanted", lambda: False)
        yield request.param

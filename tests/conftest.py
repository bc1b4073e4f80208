"""What several tests share: measured runs, a small run that every engine can do, a service."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings

# The same examples every time, so that a test run says something about the change alone;
# HYPOTHESIS_PROFILE=explore looks further.
# A busy machine is no fault: nothing here is timed.
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, database=None, **UNTIMED)
settings.register_profile("explore", **UNTIMED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Names that look like the hub's are never asked for, except of a test's own server.
os.environ["HF_HUB_OFFLINE"] = "1"

HERE = Path(__file__).parent
ROOT = HERE.parent
# Whole programs, many examples and code above the floor: coverage would take four times as long
# there, and other tests cover the same lines.
UNCOVERED = """
architecture browser cli container core/test_run_changes core/test_stage_replay deploy docs
engines/test_remembered examples families/test_training generation/test_stream golden/test_servers
golden/test_training golden/test_versions ground_truth measure/test_launchers properties random_runs
replay/test_histories replay/test_needs serving/test_traced timing/test_measured tools
trace/test_deepspeed_measured trace/test_measured web/test_compat web/test_fuzz web/test_killed
"""
PAUSED = tuple(str(HERE / path) for path in UNCOVERED.split())
# Each worker takes the next file when it has done one: those that take long come first, so that
# none is left alone at the end.
LONGEST_FIRST = """
browser examples container deploy trace cli core serving docs families web properties random_runs
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Stop coverage during those. In a worker of xdist two run: one of the process, one of the
    tests; pytest-cov's own mark stops the second alone.
    """
    stopped: list[Coverage] = []
    while str(item.path).startswith(PAUSED) and (running := Coverage.current()) is not None:
        running.stop()
        stopped.append(running)
    try:
        return (yield)
    finally:
        for one in reversed(stopped):
            one.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the folders by how long their tests take."""
    first = LONGEST_FIRST.split()

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
        return first.index(folder) if folder in first else len(first)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Take what collection made out of every later garbage collection."""
    gc.collect()
    gc.freeze()


SMALL_LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def small_run(
    kind: str = "pytorch_ddp", gpus: int = 8, **sections: dict[str, Any]
) -> dict[str, Any]:
    """A run file that every engine accepts; sections are laid over it."""
    run: dict[str, Any] = {
        "model": {"config": SMALL_LLAMA},
        "training": {"batch_size": 2, "seq_len": 512, "precision": "bf16_mixed"},
        "parallelism": {},
        "engine": {"type": kind},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": gpus},
    }
    for name, values in sections.items():
        run[name] = {**run.get(name, {}), **values}
    return run


def measured_runs(name: str = "runs") -> list[dict[str, Any]]:
    """The runs of one file that were measured on an H200."""
    text = (HERE / "ground_truth" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def run_file() -> dict[str, Any]:
    """A small run file that a test may change."""
    return small_run()


@pytest.fixture(scope="session")
def service() -> Iterator[str]:
    """The address of a service with the default settings."""
    from gpu_mem_calculator.web.settings import ServiceSettings

    from .services import running

    with running(ServiceSettings(log_level="error")) as address:
        yield address

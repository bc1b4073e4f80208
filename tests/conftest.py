"""What several tests share: measured runs, a small run that every engine can do, a service."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from . import corpus, probes

probes.install()  # before the package is imported

# The same examples every time, so that a test run says something about the change alone;
# HYPOTHESIS_PROFILE=explore looks further.
# A busy machine is no fault: nothing here is timed.
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, database=None, **UNTIMED)
settings.register_profile("explore", **UNTIMED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Tests run side by side: threads of torch that wait for each other take longer than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Names that look like the hub's are never asked for, except of a test's own server.
os.environ["HF_HUB_OFFLINE"] = "1"
# What is installed beside the tests decides nothing.
os.environ["GPU_MEM_CALC_AT"] = "newest"

HERE = Path(__file__).parent
ROOT = HERE.parent
# Each worker takes the next file when it has done one: those that take long come first, so that
# none is left alone at the end.
LONGEST_FIRST = """
site browser stream_order deploy container examples lab web advice golden contract cli training
properties timing models architecture serving docs runfile maintenance random_runs report
"""
# jsonschema would make grammars of addresses for seconds, and no schema here has one.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


def pytest_configure(config: pytest.Config) -> None:
    """Make no case of a long corpus that would be left out."""
    corpus.whole = config.option.markexpr != "not proof"


@cache
def place(path: Path) -> int:
    """A file's place by how long the tests of its folder take."""
    first = LONGEST_FIRST.split()
    folder = path.relative_to(HERE).parts[0] if path.is_relative_to(HERE) else ""
    return first.index(folder) if folder in first else len(first)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the folders."""
    items.sort(key=lambda item: place(item.path))


def pytest_sessionfinish() -> None:
    """Leave what the tests reached."""
    probes.save()


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

"""Any file gets an answer or a sentence within bounds of CPU time and memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.corpus import sampled

SECONDS, BYTES = 6, 600 * 10**6  # of CPU time and address space: 2 s and 300 MB, and a slow machine
JSON, SLOW, RUNS = 2 * 2**20 - 64, 2**18 - 64, 8 * 2**20 - 64


def keys(size: int) -> bytes:
    """Keys of an object in JSON."""
    return b",".join(b'"k%d":1' % index for index in range(size // 12))


FILES: dict[str, Callable[[], bytes]] = {
    "large.json": lambda: b"1" * 10**7,
    "list.json": lambda: b"[" + b"{}," * (JSON // 4) + b"{}]",
    "keys.json": lambda: b"{" + keys(JSON) + b"}",
    "section.json": lambda: b'{"model": {"name": "gpt2"}, "training": {' + keys(JSON) + b"}}",
    "deepspeed.json": lambda: b'{"train_batch_size": 8,' + keys(JSON) + b"}",
    "comments.json": lambda: b"#\n" * (JSON // 2),
    "escapes.json": lambda: b'{"a": "' + b'\\"' * (JSON // 2),
    "deep.json": lambda: b"[" * JSON,
    "large.yaml": lambda: b"- a\n" * (25 * 10**5),
    "list.yaml": lambda: b"- a\n" * (SLOW // 4),
    "deep.yaml": lambda: b"- " * (SLOW // 2),
    "list.toml": lambda: b"x = [" + b"1," * (SLOW // 2) + b"1]",
    "dotted.toml": lambda: b"a." * (SLOW // 2) + b"a = 1",
    "runs.jsonl": lambda: b'{"id": "a", "config": {}, "measured": {"x": 1}}\n' * (RUNS // 48),
    "list.jsonl": lambda: b"[" + b"{}," * (RUNS // 4) + b"{}]",
}


@pytest.mark.parametrize("name", sampled(FILES.keys(), keep=6))
def test_a_file_is_answered_within_bounds(name: str, tmp_path: Path) -> None:
    """The process is ended by its limits where it is not."""
    file = tmp_path / name
    file.write_bytes(FILES[name]())
    verb = "backtest" if name.endswith(".jsonl") else "validate"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))

    found = subprocess.run(
        [sys.executable, "-m", "gpu_mem_calculator", verb, str(file)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2, found.stderr[-500:]
    assert found.stderr.startswith("gpu-mem-calc: ")
    assert "Traceback" not in found.stderr

"""The diagnosis inside the program that dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator import explain_oom, oom_callback
from tests.conftest import ROOT

RUN = {"model": {"name": "qwen2.5-1.5b"}, "training": {"batch_size": 4, "seq_len": 1024}}
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 39.39 GiB of"
    " which 1.00 GiB is free. Including non-PyTorch memory, this process has 38.30 GiB memory in"
    " use. Of the allocated memory 36.00 GiB is allocated by PyTorch, and 1.10 GiB is reserved by"
    " PyTorch but unallocated."
)


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def cross_entropy() -> None:
    """Where it dies."""
    raise OutOfMemoryError(MESSAGE)


def test_the_error_is_explained_and_raised_again(capsys: pytest.CaptureFixture[str]) -> None:
    """With the stack of the error itself."""
    with pytest.raises(OutOfMemoryError), explain_oom(RUN):
        cross_entropy()
    printed = capsys.readouterr().err
    assert printed.startswith("\ncertain: the logits of the whole vocabulary did not fit"), printed
    assert "4 × 1,024 tokens × 151,936 logits × 4 bytes" in " ".join(printed.split())


def test_another_error_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed."""
    with pytest.raises(KeyError), explain_oom():
        raise KeyError("x")
    assert not capsys.readouterr().err


def test_torchs_counters_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the torch that the program has imported."""
    table = "| Allocated memory      |  36864 MiB |  38003 MiB |  98562 GiB |  98548 GiB |"
    cuda = SimpleNamespace(is_initialized=lambda: True, memory_summary=lambda: table)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    with pytest.raises(OutOfMemoryError), explain_oom():
        cross_entropy()
    assert "38003 MiB" in capsys.readouterr().err


def _torch(**more: Any) -> Any:
    """A torch with a GPU that has what is given."""
    memory = SimpleNamespace(_snapshot=lambda: SNAPSHOT)
    cuda = SimpleNamespace(is_initialized=lambda: True, memory_summary=lambda: "", memory=memory)
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(**more))


FRAMES = [
    {"name": "at::empty(int)", "filename": "??", "line": 0},
    {"name": "keep", "filename": "/app/hooks.py", "line": 7},
]
BLOCK = {"size": 2**33, "requested_size": 2**33, "state": "active_allocated", "frames": FRAMES}
SNAPSHOT = {
    "segments": [
        {"device": 0, "total_size": 2**34, "allocated_size": 2**33, "active_size": 2**33}
        | {"blocks": [BLOCK], "segment_pool_id": (0, 0)}
    ],
    "device_traces": [[{"action": "alloc", "size": 2**33, "addr": 1, "frames": FRAMES}]],
}


@pytest.mark.parametrize(
    ("more", "read"),
    [
        ({"_cuda_isHistoryEnabled": lambda: True}, True),
        ({"_cuda_isHistoryEnabled": lambda: False}, False),
        ({}, True),  # a torch that cannot say whether it records
    ],
)
def test_recorded_history_names_who_made_what_is_live(
    more: dict[str, Any],
    read: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside the error, whose stack is still the one that is told."""
    monkeypatch.setitem(sys.modules, "torch", _torch(**more))
    with pytest.raises(OutOfMemoryError), explain_oom(RUN):
        cross_entropy()
    printed = " ".join(capsys.readouterr().err.split())
    assert ("8.00 GiB was live at the dump: 1 allocation made in keep" in printed) == read
    assert printed.startswith("certain: the logits of the whole vocabulary did not fit"), printed


def test_a_history_of_another_form_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is told without it."""
    torch = _torch()
    torch.cuda.memory._snapshot = lambda: {"segments": object()}
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(OutOfMemoryError), explain_oom(RUN):
        cross_entropy()
    assert capsys.readouterr().err.startswith("\ncertain:")


DIES = f"""
from gpu_mem_calculator import explain_oom
class OutOfMemoryError(RuntimeError):
    pass
def cross_entropy():
    raise OutOfMemoryError({MESSAGE!r})
with explain_oom():
    cross_entropy()
"""


def _die(tmp_path: Path, ranks: int, **names: str) -> list[str]:
    """What each rank prints."""
    printed = []
    for rank in range(ranks):
        own = {"LOCAL_RANK": str(rank), "TMPDIR": str(tmp_path), "MASTER_PORT": "29500", **names}
        done = subprocess.run(
            [sys.executable, "-c", DIES],
            env={**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "OutOfMemoryError" in done.stderr
        printed.append(done.stderr)
    return printed


def test_the_first_rank_of_a_node_prints(tmp_path: Path) -> None:
    """The others raise their errors alone; a restart, and a later death, print again."""
    first, second = _die(tmp_path, 2)
    assert "read: " in first
    assert "read: " not in second
    assert "read: " in _die(tmp_path, 1, TORCHELASTIC_RESTART_COUNT="1")[0]
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    assert "read: " in _die(tmp_path, 1)[0]


def test_each_rank_prints_where_no_file_can_be_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than none."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/dev/null")
    with pytest.raises(OutOfMemoryError), explain_oom():
        cross_entropy()
    assert "read: " in capsys.readouterr().err


def test_a_process_that_dies_twice_prints_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a search for a batch size does."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for _ in range(2):
        with pytest.raises(OutOfMemoryError), explain_oom():
            cross_entropy()
    assert capsys.readouterr().err.count("read: ") == 2


def test_a_fault_of_ours_hides_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one sentence, and the program's own error is raised."""

    def fails(*_: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("gpu_mem_calculator.advice.diagnosis.diagnose.diagnose", fails)
    with pytest.raises(OutOfMemoryError), explain_oom():
        cross_entropy()
    assert "could not explain the error: ValueError: broken" in capsys.readouterr().err


def test_lightning_calls_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a callback of the Lightning that the program has imported."""
    with pytest.raises(ImportError, match=r"lightning\.pytorch"):
        oom_callback()
    module: Any = ModuleType("lightning.pytorch")
    module.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
    made = oom_callback(RUN)
    assert isinstance(made, module.Callback)
    try:
        cross_entropy()
    except OutOfMemoryError as error:
        made.on_exception(None, None, error)
    made.on_exception(None, None, KeyError("x"))
    assert capsys.readouterr().err.count("read: ") == 1

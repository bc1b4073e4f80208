"""The diagnosis inside the program that dies."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator import explain_oom, oom_callback

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
    assert printed.startswith("certain: the logits of the whole vocabulary did not fit"), printed
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
    assert capsys.readouterr().err.count("to paste:") == 1

"""torchrun as `measure` starts it, with real agents and processes on this machine's CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.measure import torchrun
from tests.conftest import small_run

LAUNCH = [sys.executable, "-m", "gpu_mem_calculator.measure.torchrun"]


def failure(code: int, second: int = 0, *problems: str) -> SimpleNamespace:
    """What torchrun knows of a rank that failed."""
    message = {"message": "", "problems": list(problems)} if problems else "<NONE>"
    return SimpleNamespace(exitcode=code, timestamp=second, error_file_data={"message": message},
                           signal_name=lambda: "SIGKILL")  # fmt: skip


@pytest.mark.parametrize(("failures", "code", "said"), [
    ({0: failure(-15), 1: failure(3)}, 3, "gpu-mem-calc: rank 1 ended with exit code 3\n"),
    ({0: failure(1, 9), 5: failure(1, 7)}, 1, "gpu-mem-calc: rank 5 ended with exit code 1\n"),
    ({2: failure(-9)}, 137, "gpu-mem-calc: rank 2 was ended by SIGKILL\n"),
    ({0: failure(-15), 1: failure(2, 0, "a", "b")}, 2, "gpu-mem-calc: a\ngpu-mem-calc: b\n"),
])  # fmt: skip
def test_the_rank_that_failed_first_is_named(
    failures: dict[int, SimpleNamespace], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that torchrun ended because of it come after."""
    assert torchrun.ended(failures) == code
    assert capsys.readouterr().err == said


def test_a_rank_leaves_its_problems_only_where_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a plain torchrun, each rank says them itself."""
    path = tmp_path / "error.json"
    monkeypatch.setenv(torchrun.ERROR_FILE, str(path))
    assert not torchrun.refused(InputError(["wrong"]))
    monkeypatch.setenv(torchrun.ASKED, "1")
    assert torchrun.refused(InputError(["wrong"]))
    assert json.loads(path.read_text())["message"]["problems"] == ["wrong"]


def test_without_torch_it_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same that the verb has."""
    monkeypatch.setattr(torchrun, "find_spec", lambda name: None)
    assert torchrun.main([]) == 2
    assert "torch, which is not installed" in capsys.readouterr().err


def test_two_ranks_without_cuda_say_one_sentence_and_end_with_2(tmp_path: Path) -> None:
    """No traceback of torchrun's around it."""
    if pytest.importorskip("torch").version.cuda is not None:
        pytest.skip("this torch could measure")
    path = tmp_path / "run.json"
    path.write_text(json.dumps(small_run("fsdp", 2)))
    done = subprocess.run(
        [*LAUNCH, "--standalone", "--nproc-per-node", "2", "-m", "gpu_mem_calculator", "measure",
         "--config", str(path)],
        capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        "gpu-mem-calc: measure needs a CUDA GPU, and this torch was built without CUDA; "
        "gpu-mem-calc trace runs the same job without one"
    ]

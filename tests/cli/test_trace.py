"""`trace`, on a model that takes a second."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from gpu_mem_calculator.cli import trace as verb
from gpu_mem_calculator.cli.parser import Parser
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.lab.trace.conftest import TINY, tiny_run
from tests.lab.trace.test_foreign_model import CONFIG as STABLELM

from .conftest import Command

Write = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    """Write a run file, with sections over the tiny run's."""

    def write(**sections: Any) -> str:
        path = tmp_path / "run.json"
        path.write_text(json.dumps({**tiny_run(), **sections}))
        return str(path)

    return write


def test_a_run_is_traced(command: Command, file: Write) -> None:
    """The report goes to stdout, and nothing to stderr."""
    answer = command("trace", "--config", file(), "--steps", "1")
    assert (answer.code, answer.err) == (0, "")
    assert "\ntiny  107 K parameters" in answer.out
    assert "largest at the peak" in answer.out


def test_json_is_data(command: Command, file: Write) -> None:
    """The four numbers, and the difference where it is asked for."""
    answer = command("trace", "--config", file(), "--format", "json", "--diff", "--steps", "2")
    assert answer.code == 0
    assert answer.data["needs_bytes"] >= answer.data["allocated_bytes"]
    assert (
        abs(
            sum(
                row["estimate_bytes"] - row["trace_bytes"]
                for row in answer.data["difference"]["places"]
            )
        )
        < 2**20
    )


def test_a_snapshot_is_written(command: Command, file: Write, tmp_path: Path) -> None:
    """For torch's memory viewer, as a line on stderr says."""
    target = tmp_path / "run.pickle"
    answer = command("trace", "--config", file(), "--steps", "1", "--snapshot", str(target))
    assert "torch's memory viewer" in answer.err
    assert set(pickle.loads(target.read_bytes())) >= {"segments", "device_traces"}


def test_the_allocator_s_settings_are_used(command: Command, file: Write) -> None:
    """Expandable segments reserve pages of 20 MiB, one pool after another."""
    words = ("trace", "--config", file(), "--steps", "1", "--format", "json")
    plain = command(*words).data
    other = command(*words, "--alloc-conf", "expandable_segments:True").data
    assert plain["allocated_bytes"] <= other["allocated_bytes"]
    assert plain["reserved_bytes"] != other["reserved_bytes"]


def test_settings_are_compared_too(command: Command, file: Write) -> None:
    """Trace and estimate replay the same settings of the allocator."""
    words = ("trace", "--config", file(), "--steps", "1", "--alloc-conf", "max_split_size_mb:64")
    answer = command(*words, "--diff", "--format", "json")
    assert answer.code == 0
    rows = answer.data["difference"]["phases"]
    assert rows
    assert all(abs(row["estimate_bytes"] - row["trace_bytes"]) < 2**20 for row in rows)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            (
                "--set",
                "engine.type=deepspeed",
                "--set",
                "engine.zero_stage=3",
                "--set",
                "engine.offload_optimizer=nvme",
            ),
            "engine.offload_optimizer='nvme' is not traced",
        ),
        (("--set", "engine.type=megatron_lm"), "engine.type='megatron_lm' is not traced"),
        (("--set", "training.optimizer=adamw_8bit"), "it is bitsandbytes'"),
        (
            ("--set", "training.quantization=nf4", "--set", "training.lora.r=8"),
            "training.quantization='nf4' is not traced",
        ),
        (("--rank", "3"), "rank 3 is not in the run, which has one rank, 0"),
        (("--alloc-conf", "expandable:True"), "did you mean 'expandable_segments'?"),
        (("--function", "no_such_module:f"), "there is no module 'no_such_module'"),
        (("--function", "x:f", "--diff"), "--diff compares with the estimate"),
        (("--set", "model.config.hidden_act=foo"), "the activation 'foo' is not modelled"),
        (("--set", "model.config.rope_theta=x"), "the traced run failed in transformers/"),
        (("--steps", "0"), "must be a whole number, 1 or more"),
    ],
)
def test_faults_are_sentences(
    command: Command, file: Write, words: tuple[str, ...], sentence: str
) -> None:
    """Exit code 2, one line, no traceback."""
    answer = command("trace", "--config", file(), *words)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in answer.err
    assert answer.err.count("\n") == 1


def test_without_torch_one_sentence(
    command: Command, file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That says what to install."""
    monkeypatch.setitem(sys.modules, "torch", None)
    answer = command("trace", "--config", file())
    assert answer.err == (
        "gpu-mem-calc: trace runs the model with torch, and torch is not installed; "
        'pip install -e ".[torch]" in the clone of the project\n'
    )


@pytest.mark.parametrize(("missing", "named"), [("tokenizers", "tokenizers"), (None, "torch")])
def test_the_missing_package_is_named(
    missing: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the import did not find, which may be one that torch needs; else torch."""

    def load(_: str) -> None:
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(importlib, "import_module", load)
    with pytest.raises(InputError, match=f"and {named} is not installed"):
        verb.needs_torch("trace")


def test_a_function_needs_no_run_file(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parameters shown are the module's own, under the function's name."""
    (tmp_path / "my_own_net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x): return super().forward(x).sum()\n"
        "def make(): return Net(100, 10), torch.randn(4, 100)\n"
    )
    monkeypatch.chdir(tmp_path)
    answer = command("trace", "--function", "my_own_net:make", "--steps", "1")
    sys.modules.pop("my_own_net")
    assert "\nmy_own_net:make  1.01 K parameters, bf16 mixed, AdamW\n" in answer.out
    assert "my_own_net.py:3" in answer.out


def test_a_function_s_error_is_its_own(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a line of ours."""
    (tmp_path / "failing_net.py").write_text("def make(): return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    answer = command("trace", "--function", "failing_net:make")
    sys.modules.pop("failing_net")
    assert answer.code == 2
    assert answer.err.startswith("gpu-mem-calc: --function failing_net:make failed with its own")
    assert answer.err.endswith("ZeroDivisionError: division by zero\n")


def test_models_that_only_transformers_knows(command: Command, file: Write) -> None:
    """Any causal model of transformers is traced; there is no estimate to compare with."""
    config = {**TINY, "model_type": "stablelm", "qk_layernorm": True}
    path = file(model={"name": "mine", "config": config})
    answer = command("trace", "--config", path, "--steps", "1")
    assert "\nmine  107 K parameters, bf16 mixed, AdamW, micro-batch 2 × 128\n" in answer.out
    assert "does not know mine" in command("trace", "--config", path, "--diff").err


def test_remote_code_is_refused(command: Command, file: Write) -> None:
    """Unless it is asked for."""
    config = {**TINY, "model_type": "own_thing", "auto_map": {"AutoConfig": "code.Config"}}
    answer = command("trace", "--config", file(model={"config": config}))
    assert answer.code == 2
    assert "--trust-remote-code runs it" in answer.err


def test_code_that_transformers_has_needs_no_trust(command: Command, file: Write) -> None:
    """A config that names remote code of an architecture that transformers knows, too."""
    config = {**TINY, "auto_map": {"AutoConfig": "code.Config"}}
    assert command("trace", "--config", file(model={"config": config}), "--steps", "1").code == 0


def test_phases_are_told_on_a_terminal(
    command: Command, file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one line, which is gone at the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with verb._phase_line() as heard:
        assert heard is not None
        heard("s0.a0.fwd")
    answer = command("trace", "--config", file(), "--steps", "1")
    assert "step 1: backward" in answer.err
    assert answer.err.endswith("\r\033[K")


@pytest.mark.parametrize(
    ("engine", "device"), [("fsdp", "meta"), ("deepspeed", "cuda"), ("pytorch_ddp", "cpu")]
)
def test_a_foreign_model_is_made_where_its_engine_takes_it(
    file: Write, engine: str, device: str
) -> None:
    """FSDP shards a model that has no memory yet; DeepSpeed's is on the GPU by name."""
    parser = Parser()
    parser.add("trace", verb.NAMED)
    path = file(model={"config": STABLELM}, engine={"type": engine})
    maker = verb.trace_input(parser.parse_args(["--config", path])).maker
    assert maker is not None
    assert maker.device == device

"""`deepspeed` with models from everywhere: the table is the end of the log, whatever is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.catalog.hub import sources
from tests.catalog.hub.buckets import SECRET, Bucket, bucket
from tests.catalog.hub.models import OWN_CODE
from tests.catalog.hub.servers import Hub, hub

from .conftest import Command
from .test_deepspeed import LLAMA_70B

TOKEN = "hf_not_to_be_told"
COUNTED = "69,503,033,344 parameters without its output head"
STAGE_2 = (
    "deepspeed",
    "--stage",
    "2",
    "--nodes",
    "1",
    "--gpus-per-node",
    "8",
    "--buffer-factor",
    "1.5",
    "--model-path",
)


def llama() -> bytes:
    """The config.json of Llama 3.1 70B."""
    row = catalog.find("index", "llama3.1-70b")
    assert row is not None
    return json.dumps(catalog.row_config(row)).encode()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine's, and nothing remembered."""
    for name in [one for one in os.environ if one.startswith(("HF_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    sources.forget()


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the documented model for those who have a token, and one that brings code."""
    own = json.loads(llama()) | {"auto_map": {"AutoModel": "modeling_own.Own"}}
    models = {
        "meta-llama/Llama-3.1-70B@v1": {"config.json": llama()},
        "owner/llama": {"config.json": llama()},
        "owner/mystery": OWN_CODE,
        "owner/own": {"config.json": json.dumps(own).encode()},
    }
    with hub(models, TOKEN, private=["meta-llama/Llama-3.1-70B"]) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The documented bucket."""
    files = {"models/meta-llama/Llama-3.1-70B/config.json": llama()}
    with bucket("default-bucket", files) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.mark.parametrize("name", ["owner/llama", "meta-llama/Llama-3.1-70B@v1"])
def test_a_model_on_the_hub(command: Command, there: Hub, name: str) -> None:
    """The documented table, and on stderr what was counted; one file was asked for."""
    assert command(*STAGE_2, name) == (
        0,
        LLAMA_70B,
        f"gpu-mem-calc: {name}, from the hub: {COUNTED}\n",
    )
    assert {path.rpartition("/")[2] for path, _ in there.asked} == {"config.json"}


def test_a_model_in_a_bucket(command: Command, kept: Bucket) -> None:
    """The documented second command."""
    name = "s3://default-bucket/models/meta-llama/Llama-3.1-70B"
    said = f"gpu-mem-calc: {name}, from a bucket: {COUNTED}\n"
    assert command(*STAGE_2, name) == (0, LLAMA_70B, said)
    assert len(kept.asked) == 1


def test_an_address(command: Command, there: Hub) -> None:
    """A config.json that is somewhere, and a page of the hub."""
    place = f"{there.address}/owner/llama/resolve/main/config.json"
    assert command(*STAGE_2, f"{place}?signed=secret") == (
        0,
        LLAMA_70B,
        f"gpu-mem-calc: {place}, from the hub: {COUNTED}\n",
    )


def test_a_count_is_the_documented_third_command(command: Command) -> None:
    """As Helm writes it, with the chart's default for what is not given."""
    for count in ("70e9", "7e+10"):
        words = ["deepspeed", "--stage", "1", "--num-parameters", count]
        answer = command(*words, "--largest-layer-parameters", "-1")
        assert (answer.code, answer.err) == (0, "")
        assert "SW: Model with 70000M total params." in answer.out
    answer = command(
        "deepspeed", "--stage", "3", "--num-parameters", "70e9", "--largest-layer-parameters", "-1"
    )
    assert answer.code == 2
    assert "needs --largest-layer-parameters" in answer.err


def test_the_model_wins_over_the_count(command: Command, there: Hub) -> None:
    """As documented, and a line says so."""
    answer = command(*STAGE_2, "owner/llama", "--num-parameters", "7e9")
    assert answer.out == LLAMA_70B
    assert answer.err.splitlines()[1:] == [
        "gpu-mem-calc: --num-parameters 7e9 is not used: --model-path wins"
    ]


def test_trust_is_taken_and_nothing_is_run(command: Command, there: Hub) -> None:
    """A family that is known is read as it is; a line says that no code was."""
    for name in ("owner/own", "owner/llama"):
        answer = command(*STAGE_2, name, "--trust-remote-code")
        assert answer.out == LLAMA_70B
        assert answer.err.splitlines()[1:] == [
            "gpu-mem-calc: --trust-remote-code: no code of the repository is run; the model is "
            "read as llama, a family that is known here"
        ]


@pytest.mark.parametrize("trust", [(), ("--trust-remote-code",)])
def test_code_that_would_be_needed_is_a_sentence(
    command: Command, there: Hub, trust: tuple[str, ...]
) -> None:
    """With trust or without."""
    answer = command(*STAGE_2, "owner/mystery", *trust)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "brings code of its own, which is never run here" in answer.err


@pytest.mark.parametrize("option", ["--trust-remote-code", "--set=model.num_layers=2"])
def test_what_is_about_a_model_needs_one(command: Command, option: str) -> None:
    """A count has nothing that it would change."""
    answer = command("deepspeed", "--stage", "2", "--num-parameters", "7e9", option)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "needs --model-path" in answer.err


@pytest.mark.parametrize("words", [[], ["--output", "x"]])
def test_neither_is_a_sentence(command: Command, words: list[str]) -> None:
    """One of the two is needed."""
    assert "give one of --num-parameters" in command("deepspeed", *words).err


def test_the_log_ends_in_the_table(there: Hub, kept: Bucket) -> None:
    """Both streams in one, as a pod's log has them; no token and no key in it."""
    for name in (
        "meta-llama/Llama-3.1-70B@v1",
        "s3://default-bucket/models/meta-llama/Llama-3.1-70B",
    ):
        log = subprocess.run(
            [sys.executable, "-m", "gpu_mem_calculator", *STAGE_2, name, "--trust-remote-code"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        ).stdout
        assert log.endswith(f"known here\n{LLAMA_70B}")
        assert TOKEN not in log
        assert SECRET not in log


def test_what_is_not_there_is_one_line(there: Hub, kept: Bucket, command: Command) -> None:
    """Exit code 2, nothing on stdout, no key on stderr."""
    for name in ("owner/gone", "s3://default-bucket/gone", "https://127.0.0.1:9/config.json?k=w"):
        answer = command(*STAGE_2, name)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert TOKEN not in answer.err
        assert "k=w" not in answer.err

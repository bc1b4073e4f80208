"""`POST /api/check`: the answers of the command of that name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette")

from gpu_mem_calculator.cli.main import main

SERVER = "vllm serve Qwen/Qwen3-8B --max-model-len 4096"
CASES = {
    "a server that fits": (SERVER, "h100"),
    "training that does not": ("trl sft --model_name_or_path Qwen/Qwen2.5-7B", "4090"),
    "no model": ("trl sft", "4090"),
}


def of_command(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON of `check`."""
    main(["check", "--format", "json", *words])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", CASES)
def test_a_text_is_checked_as_the_command_is(
    client: httpx.Client, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The same verdict, figures, keys and limits."""
    text, card = CASES[name]
    found = client.post("/api/check", params={"gpu": card}, json={"text": text})
    assert found.status_code == 200, found.text
    assert found.json() == of_command(capsys, "--gpu", card, *text.split())


def test_several_commands_are_answered_together(client: httpx.Client) -> None:
    """Two servers on one GPU have not enough of it."""
    found = client.post("/api/check?gpu=h100", json={"text": f"{SERVER} &\n{SERVER} --port 1 &"})
    data = found.json()
    assert [one["verdict"] for one in data["answers"]] == ["fits", "fits"]
    assert data["verdict"] == "does_not_fit"
    assert data["together"][0]["verdict"] == "does_not_fit"


def test_a_list_of_packages_beside_the_command_says_the_releases(client: httpx.Client) -> None:
    """As people paste it; ?at= opens no file of the service."""
    text = f"Package Version\n------- -------\nvllm    0.9.2\n\n{SERVER}"
    found = client.post("/api/check?gpu=h100", json={"text": text}).json()
    assert found["result"]["versions"]["vllm"] == {
        "release": "0.9.2",
        "read_from": "what was pasted",
    }
    named = client.post("/api/check?gpu=h100&at=vllm=0.10.1", json={"text": text}).json()
    assert named["result"]["versions"]["vllm"]["release"] == "0.10.1"
    alone = client.post("/api/check?gpu=h100", json={"text": "vllm==0.9.2\ntrl==0.19.1\n"})
    assert alone.status_code == 422
    assert "add the command that runs with them" in alone.text
    opened = client.post("/api/check?gpu=h100&at=/etc/hostname", json={"text": SERVER})
    assert opened.status_code == 422
    assert "is none of" in opened.text


def test_a_card_that_nobody_names_is_a_limit(client: httpx.Client) -> None:
    """It may be any: the service's own machine is not asked."""
    data = client.post("/api/check", json={"text": SERVER}).json()
    assert [one["key"] for one in data["limits"]] == ["the card"]


def test_an_unknown_tool_cannot_be_told(client: httpx.Client) -> None:
    """With the exit code of the command."""
    data = client.post("/api/check", json={"text": "mytool train --all"}).json()
    assert (data["verdict"], data["exit_code"]) == ("cannot_tell", 3)
    assert "starts no tool that is known" in data["problems"][0]


def test_files_of_the_service_are_not_opened(client: httpx.Client) -> None:
    """A command that names one is refused, whether it is there or not."""
    found = client.post("/api/check", json={"text": "axolotl train qlora.yml"})
    assert found.status_code == 422
    assert "no files are opened here" in found.text


@pytest.mark.parametrize("address", ["calculate", "validate", "explain", "look", "infer"])
def test_a_text_is_a_body(client: httpx.Client, address: str) -> None:
    """Wherever a run file is."""
    run = {"model": {"name": "gpt2"}, "inference": {"engine": "vllm"}}
    found = [
        client.post(f"/api/{address}", json=body).json()
        for body in (run, {"text": json.dumps(run)})
    ]
    assert found[0] == found[1]


def test_candidates_may_be_texts(client: httpx.Client) -> None:
    """Ranked beside run files."""
    run = {"model": {"name": "gpt2"}, "hardware": {"gpu": "h100"}}
    body = {"candidates": [{"text": json.dumps({**run, "training": {"batch_size": 2}})}, run]}
    found = client.post("/api/plan", json=body, timeout=60)
    assert found.status_code == 200, found.text
    assert len(found.json()["plans"]) == 2


def test_the_release_of_a_check_may_be_named(client: httpx.Client) -> None:
    """As --at names it; one that names nothing is refused."""
    body = {"text": SERVER}
    found = client.post("/api/check", params={"gpu": "h100", "at": "vllm=0.14.1"}, json=body)
    assert "vLLM 0.14.1" in found.json()["summary"]
    wrong = client.post("/api/check", params={"gpu": "h100", "at": "vllm"}, json=body)
    assert wrong.status_code == 422
    assert "is none of TOOL=RELEASE" in wrong.json()["problems"][0]


SMI = """Thu Nov 19 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.15              Driver Version: 570.86.15      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   31C    P0             61W /  400W |   42000MiB /  81920MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|    0   N/A  N/A     12345      C   /usr/bin/python3                            41990MiB |
+-----------------------------------------------------------------------------------------+
"""


@pytest.mark.parametrize(
    "text", [f"{SMI}\n{SERVER}", f"{SERVER}\n\nuser@host:~$ nvidia-smi\n{SMI}"]
)
def test_a_table_of_nvidia_smi_beside_the_command_is_what_others_hold(
    client: httpx.Client, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    """As --nvidia-smi of the command: the card, and what is free of it."""
    (tmp_path / "smi.txt").write_text(SMI)
    found = client.post("/api/check", json={"text": text})
    assert found.status_code == 200, found.text
    named = ("--nvidia-smi", str(tmp_path / "smi.txt"))
    assert found.json() == of_command(capsys, *named, *SERVER.split())
    assert found.json()["verdict"] == "does_not_fit"
    broken = client.post("/api/check", json={"text": f"NVIDIA-SMI has failed\n{SERVER}"})
    assert "it has no card" in broken.text
    named_card = client.post("/api/check", params={"gpu": "a100-80gb"}, json={"text": text})
    assert named_card.json()["verdict"] == "does_not_fit"

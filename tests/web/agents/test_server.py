"""`gpu-mem-calc mcp`: what its clients may do, on standard input and output and on HTTP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("mcp")

from mcp.client import Client

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.web.agents import server
from gpu_mem_calculator.web.agents.tools import LOCAL, TOOLS
from gpu_mem_calculator.web.pool import CalculatorProcess

from .sessions import http_server, in_process, on_http, on_stdio, text

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total"
    " capacity of 79.15 GiB of which 3.10 GiB is free. Of the allocated memory 52.90 GiB is"
    " allocated by PyTorch, and 22.00 GiB is reserved by PyTorch but unallocated."
)
SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"
LONG_PLAN = {"model": "llama3.1-70b", "gpus": 512, "gpu": "h100", "global_batch": 1024}
GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server on HTTP."""
    with http_server() as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tool's file and a log."""
    (tmp_path / "qlora.yml").write_text(
        "base_model: Qwen/Qwen2.5-1.5B\nadapter: qlora\nload_in_4bit: true\nsequence_len: 2048\n"
        "micro_batch_size: 1\nlora_r: 16\nlora_target_linear: true\noptimizer: adamw_8bit\n"
        "datasets: [{path: a/b, type: alpaca}]\nbf16: true\n"
    )
    (tmp_path / "out.log").write_text(f"HF_TOKEN={SECRET}\n{OOM}\n")
    return tmp_path


async def tools_of(client: Client) -> dict[str, Any]:
    """The tools with their schemas."""
    return {one.name: one.input_schema for one in (await client.list_tools()).tools}


def call(name: str, **arguments: Any) -> Any:
    """What asks a tool one question."""

    async def asks(client: Client) -> Any:
        return await client.call_tool(name, arguments)

    return asks


def test_on_stdio_files_are_opened_that_a_call_names(folder: Path) -> None:
    """The command's file in its folder, and the log; without them a sentence says what to give."""
    command = "axolotl train qlora.yml"

    async def asks(client: Client) -> list[Any]:
        given = await client.call_tool(
            "check", {"source": command, "gpu": "4090", "folder": str(folder)}
        )
        bare = await client.call_tool("check", {"source": command, "gpu": "4090"})
        alone = await client.call_tool(
            "check", {"source": "qlora.yml", "gpu": "4090", "folder": str(folder)}
        )
        log = await client.call_tool("diagnose", {"file": str(folder / "out.log")})
        return [await tools_of(client), given, bare, alone, log]

    tools, given, bare, alone, log = on_stdio(asks)
    assert list(tools) == list(TOOLS)
    assert "folder" in tools["check"]["properties"]
    assert text(given).startswith("fits: needs ")
    assert text(alone).startswith("fits: needs ")
    assert bare.is_error
    assert "names the file qlora.yml" in text(bare)
    assert "give folder" in text(bare)
    assert "fragmentation" in text(log)
    assert SECRET not in text(log)


def test_on_http_the_same_figures_and_no_files(address: str, folder: Path) -> None:
    """Neither in the tools' lists nor where a client asks for it."""

    async def asks(client: Client) -> list[Any]:
        found = await client.call_tool(
            "estimate", {"model": "llama3.1-8b", "gpu": "4090", "method": "qlora"}
        )
        file = await client.call_tool("diagnose", {"file": str(folder / "out.log")})
        check = await client.call_tool(
            "check", {"source": "axolotl train qlora.yml", "folder": str(folder)}
        )
        model = await client.call_tool("estimate", {"model": str(folder), "gpu": "4090"})
        return [await tools_of(client), found, file, check, model]

    tools, found, *refused = on_http(address, asks)
    assert not [one for one in tools.values() if one["properties"].keys() & set(LOCAL)]
    assert "18.3 of 23.5 GiB" in text(found)
    for one in refused:
        assert one.is_error
        assert "opens" in text(one)
        assert "give folder" not in text(one)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({}, 200),
    ],
)
def test_a_page_of_another_site_is_refused(
    address: str, headers: dict[str, str], status: int
) -> None:
    """By host and origin, as the web service does it."""
    found = httpx.post(address, json=GREETING, headers={**ACCEPT, **headers}, timeout=60)
    assert found.status_code == status, found.text


def test_a_large_body_is_refused(address: str) -> None:
    """At the limit of the web service."""
    headers = {**ACCEPT, "content-type": "application/json"}
    found = httpx.post(address, content=b"[" + b" " * 2**21, headers=headers, timeout=60)
    assert found.status_code == 413


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("estimate", {"model": "llama3.1-8b", "gpu": "h1000"}, "'h1000' is not a known card"),
        ("estimate", {"model": "gpt2", "method": "lorra"}, "did you mean 'lora'"),
        ("estimate", {"model": "gpt2", "gpus": 0}, "a whole number from 1"),
        ("estimate", {"model": "gpt2", "gpuss": 1}, "estimate.gpuss is not a known key"),
        ("estimate", {}, "estimate needs model: a model's name"),
        ("serve", {"model": "gpt2", "engine": "vlm"}, "did you mean 'vllm'"),
        ("plan", {"model": "gpt2", "gpus": 2, "gpu": "h100", "goal": "x"}, "'fastest'"),
        ("diagnose", {}, "diagnose needs text or file"),
        ("compare", {"a": "gpt2"}, "compare needs b"),
        ("chek", {}, "did you mean 'check'"),
        ("check", {"source": {"model": {"name": "gpt2"}, "trainin": {}}}, "trainin"),
    ],
)
def test_bad_input_is_a_tool_error_of_one_sentence(
    tool: str, arguments: dict[str, Any], sentence: str
) -> None:
    """With the value, the rule and the nearest fix; the session goes on."""
    found = in_process(call(tool, **arguments))
    assert found.is_error
    assert sentence in text(found)
    assert "\n" not in text(found)
    assert "Traceback" not in text(found)


def test_a_secret_is_not_printed_again() -> None:
    """Of a command, a log, or a run that cannot be read."""

    async def asks(client: Client) -> list[Any]:
        command = f"HF_TOKEN={SECRET} vllm serve Qwen/Qwen3-8B --api-key {SECRET}"
        log = f"token: {SECRET}\n{OOM} token={SECRET}"
        return [
            await client.call_tool("check", {"source": command, "gpu": "h100"}),
            await client.call_tool("diagnose", {"text": log, "run": command}),
            await client.call_tool("check", {"source": f"unknown --token {SECRET}"}),
            await client.call_tool("compare", {"a": command, "gpu_a": "h100", "b": "gpt2"}),
        ]

    for found in in_process(asks):
        assert SECRET not in found.model_dump_json()


def test_the_card_and_the_release_are_those_of_a_stated_run() -> None:
    """Where diagnose is given no run."""
    stated = f"vllm serve Qwen/Qwen3-8B\n{OOM.partition(' GPU 0')[0]}"
    found = in_process(call("diagnose", text=stated, gpu="a40", at="vllm=0.11.2"))
    assert "by an estimate, from vLLM 0.11.2 to " in text(found)


def test_a_plan_tells_its_progress_and_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a client that asks for it; the next call is answered."""
    monkeypatch.setattr(server, "TICK_SECONDS", 0.05)
    told: list[tuple[float, float | None]] = []

    async def progress(passed: float, total: float | None, _: str | None) -> None:
        told.append((passed, total))

    async def asks(client: Client) -> list[Any]:
        await client.call_tool("estimate", {"model": "gpt2"})
        late = await client.call_tool("plan", LONG_PLAN, progress_callback=progress)
        return [late, await client.call_tool("estimate", {"model": "gpt2", "gpu": "h100"})]

    late, after = in_process(asks, plan_seconds=0.7)
    assert late.is_error
    assert text(late).startswith("plan takes longer than 0.7 seconds")
    assert len(told) > 2
    assert told == sorted(told)
    assert {total for _, total in told} == {0.7}
    assert text(after).startswith("fits")


def test_a_call_that_is_cancelled_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is interrupted, and answers the next call, though it is the only one."""
    interrupt, ready = CalculatorProcess.interrupt, list[bool]()

    async def recorded(process: CalculatorProcess) -> bool:
        ready.append(await interrupt(process))
        return ready[-1]

    monkeypatch.setattr(CalculatorProcess, "interrupt", recorded)

    async def asks(client: Client) -> Any:
        await client.call_tool("estimate", {"model": "gpt2"})
        task = asyncio.create_task(client.call_tool("plan", LONG_PLAN))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await client.call_tool("estimate", {"model": "gpt2", "gpu": "h100"})

    found = in_process(asks, plan_seconds=300)
    assert text(found).startswith("fits")
    assert ready == [True]


def test_many_calls_at_the_same_time_are_answered() -> None:
    """Each with its own answer, though there is one process."""
    models = ["gpt2", "llama3.2-1b", "qwen2.5-7b", "llama3.1-8b"]

    async def asks(client: Client) -> list[Any]:
        calls = (client.call_tool("serve", {"model": one, "gpu": "h100"}) for one in models)
        return await asyncio.gather(*calls)

    found = in_process(asks)
    titles = ["GPT-2", "Llama 3.2 1B", "Qwen2.5 7B", "Llama 3.1 8B"]
    assert all(title in text(one) for title, one in zip(titles, found, strict=True))


def test_options_of_http_need_it(capsys: pytest.CaptureFixture[str]) -> None:
    """None is accepted and has no effect."""
    assert main(["mcp", "--port", "8100"]) == 2
    assert "--port is for --http" in capsys.readouterr().err


def test_without_the_package_a_sentence_says_how_to_install_it() -> None:
    """And its help needs nothing."""
    code = (
        "import sys\nsys.modules['mcp'] = None\n"
        "from gpu_mem_calculator.cli.main import main\nraise SystemExit(main(sys.argv[1:]))"
    )
    for words, status in ((["mcp"], 2), (["mcp", "--help"], 0)):
        command = [sys.executable, "-c", code, *words]
        found = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        assert found.returncode == status
        assert found.stderr.count("\n") == (status > 0)
        assert ('pip install -e ".[mcp]" in the clone' in found.stderr) == (status > 0)

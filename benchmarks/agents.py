"""Seconds of an agent's questions over `gpu-mem-calc mcp`, as multiples of `python -c pass`.

The 25 questions of the skill page are asked one after the other by the official client.
"""

from __future__ import annotations

import time
import tomllib
from statistics import median

from mcp.client import Client
from tests.web.agents.sessions import on_stdio

from .questions import IN_C, ROOT
from .speed import ROUNDS, bare

QUESTIONS = ROOT / "skills" / "gpu-mem-calculator" / "questions.toml"


async def asked(client: Client) -> list[float]:
    """The seconds of each answer; the process that calculates has started before."""
    await client.call_tool("estimate", {"model": "gpt2"})
    seconds = []
    for one in tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))["question"]:
        begun = time.perf_counter()
        await client.call_tool(one["tool"], one["arguments"])
        seconds.append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    """Print the median and the longest."""
    reference, seconds = bare(IN_C, ROUNDS), on_stdio(asked)
    for name, found in (("median", median(seconds)), ("longest", max(seconds))):
        print(f"{name}  {found:.2f} s  {found / reference:.0f} × python -c pass")


if __name__ == "__main__":
    main()

"""The 25 questions of the skill page: the answer of a tool alone has the facts."""

from __future__ import annotations

import json
import tomllib
from statistics import median
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp.client import Client

from tests.conftest import ROOT

from .sessions import on_stdio, text, tokens

FILE = ROOT / "skills" / "gpu-mem-calculator" / "questions.toml"
QUESTIONS: list[dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["question"]
MOST_LIST_TOKENS, MOST_ANSWER_TOKENS = 2000, 400
IDS = [f"{number}-{one['tool']}" for number, one in enumerate(QUESTIONS, 1)]


class Asked:
    """What the server says to all questions, one after the other."""

    def __init__(self) -> None:
        self.tools: Any = None
        self.answers: list[Any] = []

    async def ask(self, client: Client) -> None:
        """List the tools, and ask every question."""
        self.tools = (await client.list_tools()).tools
        await client.call_tool("estimate", {"model": "gpt2"})  # its process has started
        for one in QUESTIONS:
            self.answers.append(await client.call_tool(one["tool"], one["arguments"]))


@pytest.fixture(scope="module")
def asked() -> Asked:
    """All answers of `gpu-mem-calc mcp`."""
    found = Asked()
    on_stdio(found.ask)
    return found


def test_there_are_25_questions() -> None:
    """Each with facts and their source; every tool is asked."""
    assert len(QUESTIONS) == 25
    assert all(one["facts"] and one["source"] and one["asked"] for one in QUESTIONS)
    assert len({one["tool"] for one in QUESTIONS}) == 6


@pytest.mark.parametrize("number", range(len(QUESTIONS)), ids=IDS)
def test_an_answer_has_the_facts(asked: Asked, number: int) -> None:
    """All of them, and nothing that must not be there."""
    question, found = QUESTIONS[number], asked.answers[number]
    said = text(found)
    groups = [[one] if isinstance(one, str) else one for one in question["facts"]]
    assert [one for one in groups if not any(each in said for each in one)] == [], said
    data = json.dumps(found.structured_content)
    assert [one for one in question.get("lacks", []) if one in said + data] == []
    assert found.is_error == question.get("error", False)


def test_the_tools_take_little_of_a_context(asked: Asked) -> None:
    """Names, purposes and schemas of all."""
    data = [one.model_dump(by_alias=True, exclude_none=True) for one in asked.tools]
    size = len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()) / 4
    assert size < MOST_LIST_TOKENS


def test_an_answer_takes_little_of_a_context(asked: Asked) -> None:
    """The median is a few lines; the longest has the run file of a plan."""
    sizes = [tokens(one) for one in asked.answers]
    assert median(sizes) < MOST_ANSWER_TOKENS
    assert max(sizes) < 2 * MOST_ANSWER_TOKENS

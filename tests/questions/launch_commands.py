"""Draws commands behind `check`: those of public repositories, with words changed."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

from tests.questions.command_lines import card, hub_ids, misspelt
from tests.questions.question import COMMAND, Question
from tests.tools.corpora.score import rows

TOOLS = (
    *("axolotl", "deepspeed", "huggingface", "llamacpp", "llamafactory", "manifests", "megatron"),
    *("ollama", "openrlhf", "sglang", "swift", "tensorrt_llm", "tgi", "verl", "vllm"),
)
NUMBERS = ("1", "2", "3", "4", "8", "0", "-1", "4096", "100000", "0.5", "auto", "x", "")
WRAPPERS = (
    ("sudo",),
    ("nohup",),
    ("uv", "run"),
    ("srun", "-N", "1"),
    ("env", "A=B"),
    ("CUDA_VISIBLE_DEVICES=0",),
    ("time",),
)
CHANGED = 0.5  # how often a command is changed


@cache
def corpus(tool: str) -> list[dict[str, Any]]:
    """The commands and files of a tool."""
    return rows(tool)


def check(rng: Random) -> Question:
    """`check` of a public command, script, manifest or file, half of them changed."""
    tool = rng.choice(TOOLS)
    row = rng.choice(corpus(tool))
    before = ["check"]
    if rng.random() < 0.9:
        before += ["--gpu", card(rng)]
    if rng.random() < 0.1:
        before += ["--gpus", rng.choice(("1", "2", "8", "0"))]
    files = {
        path: data if isinstance(data, str) else json.dumps(data)
        for path, data in row.get("files", {}).items()
    }
    words = _launch(rng, row, files)
    return Question(
        kind=COMMAND,
        name=f"check {tool}",
        words=(*before, *words),
        files=files,
        more=rng.random() < 0.2,
    )


def _launch(rng: Random, row: dict[str, Any], files: dict[str, str]) -> list[str]:
    """The words of the command; the file that it names is added."""
    change = rng.random() < CHANGED
    if "words" in row:
        words = [word for word in row["words"] if "\0" not in word]
        return changed_words(rng, words) if change else words
    if "script" in row:
        text = row["script"]
        files["start.sh"] = changed_text(rng, text) if change else text
        return ["bash", "start.sh", *row.get("arguments", ())]
    data = row.get("data") or row.get("documents")
    text = json.dumps(changed_data(rng, data) if change else data)
    if "documents" in row:
        documents = json.loads(text)
        text = "\n---\n".join(map(json.dumps, documents))
    files["config.yaml"] = text
    return ["config.yaml"]


def changed_words(rng: Random, words: list[str]) -> list[str]:
    """A command with one or two words changed."""
    words = list(words)
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(words))
        word = words[place]
        kind = rng.choice(("number", "model", "misspelt", "left out", "doubled", "wrapped", "more"))
        if kind == "number" and (values := [i for i, one in enumerate(words) if one.isdigit()]):
            words[rng.choice(values)] = rng.choice(NUMBERS)
        elif kind == "model" and (values := [i for i, one in enumerate(words) if "/" in one]):
            words[rng.choice(values)] = rng.choice(hub_ids())
        elif kind == "misspelt":
            words[place] = misspelt(rng, word)
        elif kind == "left out" and len(words) > 1:
            del words[place]
        elif kind == "doubled":
            words.insert(place, word)
        elif kind == "wrapped":
            words = [*rng.choice(WRAPPERS), *words]
        else:
            words += [rng.choice(("--foo", "--dtype", "&&", "--tp=2", "'", "$MODEL", "|"))]
    return words


def changed_text(rng: Random, text: str) -> str:
    """A script with a line left out or misspelt."""
    lines = text.split("\n")
    place = rng.randrange(len(lines))
    lines[place] = rng.choice(("", misspelt(rng, lines[place]), lines[place] + " --foo 1"))
    return "\n".join(lines)


def changed_data(rng: Random, data: Any) -> Any:
    """A file with a value, or a key, changed; a list of documents in one of them."""
    if isinstance(data, list):
        return [changed_data(rng, one) if isinstance(one, dict) else one for one in data]
    data = dict(data)
    key = rng.choice(sorted(data, key=str))
    value = data.pop(key)
    kind = rng.choice(("value", "key", "left out"))
    if kind == "value":
        data[key] = rng.choice((0, 1, -1, 4096, True, None, "x", [], {}, 1e30, [value]))
    elif kind == "key":
        data[misspelt(rng, str(key))] = value
    return data

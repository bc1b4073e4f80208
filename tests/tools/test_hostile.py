"""Files and commands that are wrong: one sentence or an answer, never a traceback."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.tools.reading_of import readings_of

from .corpora import ran, score

OTHERS = ("labels", *ran.NAMES)  # no words, scripts or data
CORPORA = sorted(one.stem for one in score.FOLDER.glob("*.jsonl") if one.stem not in OTHERS)
JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        10**30,
        1e308,
        float("nan"),
        "",
        "auto",
        "none",
        "é\x00\u202e",
        "9" * 5000,
    ),
    *("9" * 5000, [], [None], ["a", {}], {}, {"a": {"b": []}}, {"": None}, [[[[1]]]]),
)
FEW = 25  # changed configurations of each corpus in `make test`
MANY = 1500


def _changed(row: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A configuration with one value or word replaced by junk."""
    row = copy.deepcopy(row)
    if "data" in row and isinstance(row["data"], dict) and row["data"]:
        key = chance.choice(sorted(row["data"], key=str))
        inner = row["data"][key]
        if isinstance(inner, dict) and inner and chance.random() < 0.5:
            inner[chance.choice(sorted(inner, key=str))] = chance.choice(JUNK)
        else:
            row["data"][key] = chance.choice(JUNK)
    elif "words" in row:
        place = chance.randrange(1, len(row["words"]) + 1)
        junk = chance.choice([str(one) for one in JUNK if one is not None])
        row["words"][place : place + chance.randrange(2)] = [junk]
    return row


def _check(corpus: str, count: int) -> None:
    chance = random.Random(corpus)
    rows = score.rows(corpus)
    for _ in range(count):
        row = _changed(chance.choice(rows), chance)
        try:
            for reading in score.readings(row):
                resolve(read(reading.run).file, headers=False)
        except InputError as error:
            assert error.problems
            assert all(isinstance(one, str) and one for one in error.problems)


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_few_changed_configurations(corpus: str) -> None:
    """A value of the wrong type, an option without a value, a word too many."""
    _check(corpus, FEW)


@pytest.mark.proof
@pytest.mark.parametrize("corpus", CORPORA)
def test_many_changed_configurations(corpus: str) -> None:
    """The same, for longer."""
    _check(corpus, MANY)


def _bombs() -> Iterator[tuple[str, str]]:
    aliases = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))
    yield "bomb.yaml", f"a0: &a0 [x]\n{aliases}\nbase_model: gpt2\n"
    yield "deep.yaml", "[" * 5000
    yield "deep.json", '{"base_model": ' + "[" * 100_000
    yield "twice.yaml", "base_model: a\nbase_model: b\n"
    yield "tag.yaml", "base_model: !!python/object/apply:os.system ['true']\n"
    yield "double.sh", "A=aaaaaaaaaa\n" + "A=$A$A$A\n" * 60 + "vllm serve $A\n"
    yield "loop.sh", "while true; do A=$A$A; done\nvllm serve gpt2\n"
    yield "nested.sh", "$(" * 3000 + "echo" + ")" * 3000
    yield "long.sh", "vllm serve gpt2 \\\n" + "  --x 1 \\\n" * 200_000
    yield "binary.sh", "\x00\x01\x02vllm serve"
    yield "Modelfile", "FROM x\n" * 50_000


@pytest.mark.parametrize(("name", "text"), list(_bombs()), ids=lambda one: one[:9])
def test_bombs_end_in_a_sentence(name: str, text: str, tmp_path: Path) -> None:
    """Or in an answer; nothing grows without bound, and nothing is run."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    try:
        readings = readings_of([name], tmp_path)
    except InputError as error:
        assert len(error.problems[0]) < 1000
    else:
        assert readings


def test_a_huge_script_is_not_read(tmp_path: Path) -> None:
    """100 MB end before they are parsed."""
    path = tmp_path / "huge.sh"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(InputError, match="larger than"):
        readings_of([path.name], tmp_path)


def test_nothing_is_run(tmp_path: Path) -> None:
    """Substitutions, redirections and commands of a script touch nothing."""
    made = tmp_path / "made"
    script = f"X=$(touch {made})\n`touch {made}`\n: > {made}\ntouch {made}\nvllm serve gpt2 $X\n"
    (tmp_path / "train.sh").write_text(script, encoding="utf-8")
    try:
        readings_of(["bash", "train.sh"], tmp_path)
        readings_of(script)
    except InputError:
        pass
    assert not made.exists()

"""A secret that a user gives appears in no output of any kind."""

from __future__ import annotations

import gc
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mem_calculator import InputError, estimate
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.tools.writing.writers import WRITERS
from gpu_mem_calculator.web.worker import TASKS

from ..corpus import sampled
from .planted_secrets import ADDRESSES, FORM, MARK, NAMED, RUN, Planted, planted

CASES = dict(planted())


def commands(case: Planted) -> Iterator[tuple[str, ...]]:
    """Every command that can be given the case."""
    source = case.words[-1] if case.files else shlex.join(case.words)
    for words in ((), ("--long",), ("-f", "json"), ("--set", f"program.args.hub_token={NAMED}")):
        yield "check", "--gpu", "h100", *words, *case.words
    for words in ((), ("-f", "html", "-o", "report.html"), ("-f", "json"), ("-f", "yaml")):
        yield "calculate", "--config", source, "--gpu", "h100", *words
    yield "calculate", "--config", source, "--long", "--save-run", "saved.json"
    yield "explain", "--config", source
    yield "validate", source
    yield "validate", source, "-f", "json"
    for name in WRITERS:
        yield "convert", source, "--to", name


@pytest.mark.parametrize("case", sampled({name: (case,) for name, case in CASES.items()}, 5))
def test_no_output_has_the_secret(
    case: Planted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On stdout, on stderr, in files that are written, in what the service answers."""
    monkeypatch.chdir(tmp_path)
    for name, text in case.files.items():
        Path(name).write_text(text)
    for words in commands(case):
        code = main(list(words))
        gc.enable()  # a command switches it off
        assert code in (0, 1, 2, 3), words
        shown = "".join(capsys.readouterr())
        assert MARK not in shown, (words, shown[max(0, shown.index(MARK) - 200) :][:400])
    for file in tmp_path.iterdir():
        if file.name not in case.files:
            assert MARK not in file.read_text(), file.name
    text = next(iter(case.files.values()), shlex.join(case.words))
    assert MARK not in imported(text)


def imported(text: str) -> str:
    """What the page's paste box says of a text."""
    try:
        return json.dumps(TASKS["import"]({"text": text}, {}))
    except InputError as error:
        return str(error)


def test_there_are_two_hundred_cases() -> None:
    """Each has the secret, and most are read."""
    assert len(CASES) >= 200
    assert all(MARK in f"{case}" for case in CASES.values())


@pytest.mark.parametrize("address", sampled(ADDRESSES, keep=3))
@pytest.mark.parametrize("verb", ["quick", "infer", "calculate", "plan"])
def test_an_address_is_named_without_its_secret(
    verb: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a model may be an address."""
    rest = ("--gpus", "1", "--gpu", "h100", "--global-batch", "8") if verb == "plan" else ()
    main([verb, *(("--preset",) if verb == "calculate" else ()), address, *rest])
    assert MARK not in "".join(capsys.readouterr())


def test_python_and_the_service_do_not_keep_it() -> None:
    """A dict in Python, and a body of the service."""
    run = json.loads(json.dumps(RUN).replace('"hub_token": ""', f'"hub_token": "{NAMED}"'))
    result = estimate(run)
    assert MARK not in str(result)
    assert "hub_token" not in result.run["program"]["args"]
    for task in ("calculate", "report", "explain", "look"):
        assert MARK not in str(TASKS[task](run, {}))


def test_a_saved_run_leaves_the_key_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The converted file is one that the tool takes."""
    file = tmp_path / "sft.yaml"
    file.write_text(CASES["sft.yaml-name"].files["sft.yaml"])
    assert main(["convert", str(file), "--to", "trl"]) == 0
    assert "hub_token" not in capsys.readouterr().out
    assert main(["check", "--gpu", "h100", "-f", "json", str(file)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["keys"]["hub_token"] == "free"
    assert "hub_token: a secret: not kept" in answer["assumed"]


def test_the_form_is_enough() -> None:
    """Whatever the key is called."""
    with pytest.raises(InputError) as caught:
        estimate({"model": {"name": f"x/{FORM}"}})
    assert MARK not in str(caught.value)

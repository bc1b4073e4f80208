"""Every door reads the same: the command line, Python, the service and the page."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

pytest.importorskip("starlette")

from gpu_mem_calculator import estimate
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.cli.run_source import run_source
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import Asked, Door, read, read_all
from gpu_mem_calculator.tools.reading.reading import DEEPSPEED, RUN_FILE, Reading
from gpu_mem_calculator.web.pasted_text import asked, read_pasted
from gpu_mem_calculator.web.worker import calculate, import_text
from tests.corpus import sampled
from tests.tools.corpora.score import CARD, MODEL, rows

FILES = ("axolotl", "deepspeed", "llamafactory", "megatron", "swift")
COMMANDS = ("huggingface", "llamacpp", "ollama", "sglang", "tensorrt_llm", "tgi", "vllm")
SCRIPTS = ("huggingface", "megatron", "openrlhf", "swift", "verl")
CLOSED = "no files are opened here"  # where a command names a file
FOLDER = Path(__file__).parents[1] / "tools" / "jobs"
JOBS = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("*.sh")])


def of_kind(key: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The rows of corpora that have a key, and nothing that stands in other files."""
    found = {row["source"]: row for name in names for row in rows(name)}
    return {source: row for source, row in found.items() if row.keys() <= {key, "source"}}


def with_files() -> dict[str, Any]:
    """The rows of corpora whose command or script names files."""
    names = {*COMMANDS, *SCRIPTS}
    found = {row["source"]: row for name in sorted(names) for row in rows(name) if "files" in row}
    return {source: row for source, row in found.items() if "environment" not in row}


def said(found: Asked) -> dict[str, Any]:
    """What was read, to be compared."""
    reading = found.reading or Reading(tool=RUN_FILE)
    limits = [str(one) for one in reading.limits]
    told = {"keys": reading.keys, "limits": limits, "problems": reading.problems}
    return {"tool": reading.tool, "run": found.run, **told}


def heard(door: Callable[[], Any]) -> Any:
    """What a door says: a reading, or its problems."""
    try:
        found = door()
    except InputError as error:
        return error.problems
    told = [said(one) for one in found] if isinstance(found, list) else [said(found)]
    return told[0]["problems"] if len(told) == 1 and told[0]["problems"] else told


def of_calculate(source: str) -> Asked:
    """What `gpu-mem-calc calculate SOURCE` reads."""
    return run_source(
        argparse.Namespace(config=source, preset=None, model=None, settings=[]), needs_model=False
    )


def figures(run: Mapping[str, Any], tool: str) -> Any:
    """The bytes of a run on a card; or the sentences that refuse it."""
    data = {**run, "hardware": {**CARD, **(run.get("hardware") or {})}}
    if tool == DEEPSPEED:  # its JSON names none
        data["model"] = {"name": MODEL}
    try:
        result = full_estimate(data, replay=False).result
    except InputError as error:
        return error.problems
    return result.allocated_bytes, result.total_memory_per_gpu_gb, result.serving


def same(*doors: Callable[[], Any]) -> Any:
    """The reading that all doors give."""
    first, *others = map(heard, doors)
    for other in others:
        assert other == first or CLOSED in str(other)
    return first


def page_agrees(found: Any, text: str, files: Mapping[str, str] | None = None) -> None:
    """The page's run has the figures of what was read, though it has the keys that a program means;
    or it is refused for the same reason.
    """
    if len(found) == 1 and isinstance(found[0], dict):
        tool = found[0]["tool"]
        try:
            shown = figures(read_pasted(text, files)["run"], tool)
        except InputError as error:
            shown = error.problems
        assert shown == figures(found[0]["run"], tool)


@pytest.mark.parametrize("row", sampled(of_kind("data", FILES), 8))
def test_a_tools_file(row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path, after `check`, as data, and pasted."""
    monkeypatch.chdir(tmp_path)
    text = json.dumps(row["data"])
    Path("file.json").write_text(text, encoding="utf-8")
    found = same(
        lambda: of_calculate("file.json"),
        lambda: read("file.json"),
        lambda: read_all(["file.json"]),
        lambda: read(row["data"]),
        lambda: asked({"text": text}),
        lambda: asked(row["data"]),
    )
    page_agrees(found, text)


@pytest.mark.parametrize("row", sampled(of_kind("words", COMMANDS), 8))
def test_a_command(row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In quotes, after `check`, as words, and pasted."""
    monkeypatch.chdir(tmp_path)
    text = shlex.join(row["words"])
    found = same(
        lambda: read_all(row["words"]),
        lambda: of_calculate(text),
        lambda: read(text),
        lambda: asked({"text": text}),
    )
    page_agrees(found, text)


@pytest.mark.parametrize("row", sampled(of_kind("script", SCRIPTS), 8))
def test_a_script(row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path, after `check`, and pasted."""
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(row["script"], encoding="utf-8")
    found = same(
        lambda: read_all(["bash", "run.sh"]),
        lambda: read_all("run.sh"),
        lambda: read_all(row["script"], Door(folder=None)),
    )
    page_agrees(found, row["script"])


@pytest.mark.parametrize("row", sampled(with_files(), 8))
def test_a_command_with_files(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they lie in its folder, and where their texts are pasted beside it."""
    texts = {
        name: data if isinstance(data, str) else json.dumps(data)
        for name, data in row["files"].items()
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = row["script"] if "script" in row else shlex.join(row["words"])
    found = heard(lambda: read_all(command))
    assert heard(lambda: read_all(command, Door(folder=None, files=texts))) == found
    page_agrees(found, command, texts)


@pytest.mark.parametrize("row", sampled(of_kind("documents", ("manifests",)), 5))
def test_a_manifest(row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path, after `check`, and pasted."""
    monkeypatch.chdir(tmp_path)
    text = yaml.safe_dump_all(row["documents"])
    Path("file.yaml").write_text(text, encoding="utf-8")
    found = same(
        lambda: read_all(["file.yaml"]),
        lambda: read_all("file.yaml"),
        lambda: read_all(text, Door(folder=None)),
    )
    page_agrees(found, text)


@pytest.mark.parametrize("path", sampled({one.name: one for one in JOBS}, 4))
def test_a_job(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kubernetes job, or a Slurm script."""
    monkeypatch.chdir(path.parent)
    text = path.read_text(encoding="utf-8")
    same(
        lambda: read_all([path.name]),
        lambda: read_all(path.name),
        lambda: read_all(text, Door(folder=None)),
    )


SMALL = {
    "Axolotl": {"base_model": "gpt2", "micro_batch_size": 2, "gradient_accumulation_steps": 2}
    | {"sequence_len": 256, "adapter": "lora", "lora_r": 8, "lora_target_linear": True},
    "LLaMA-Factory": {"model_name_or_path": "gpt2", "stage": "sft", "finetuning_type": "lora"}
    | {
        "do_train": True,
        "cutoff_len": 256,
        "bf16": True,
        "per_device_train_batch_size": 2,
        "template": "default",
    },
    "TRL": "trl sft --model_name_or_path gpt2 --max_length 256 --bf16 true",
    "vLLM": "vllm serve gpt2 --max-model-len 512",
}


@pytest.mark.parametrize("name", SMALL)
def test_the_figures_are_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the replay: of `calculate`, `check`, `estimate`, the service, and the page's own run."""
    monkeypatch.chdir(tmp_path)
    given = SMALL[name]
    text = given if isinstance(given, str) else json.dumps(given)
    source = text if isinstance(given, str) else "file.json"
    Path("file.json").write_text(text, encoding="utf-8")
    words = shlex.split(text) if isinstance(given, str) else [source]
    on_card = ["--set", "hardware.gpu=h100-80gb-sxm"]
    commands = (["calculate", source], ["calculate", source, *on_card], ["check", *on_card, *words])
    printed = []
    for command in commands:
        main([command[0], "--format", "json", *command[1:]])
        data = json.loads(capsys.readouterr().out)
        printed.append(data.get("result") or data)
    page = import_text({"text": text}, {})["run"]
    whole = (estimate(source), estimate(given), calculate({"text": text}, {}), calculate(page, {}))
    same_figures(printed[0], *map(msgspec.to_builtins, whole))
    same_figures(*printed[1:])


def same_figures(*found: Mapping[str, Any]) -> None:
    """The bytes that decide are the same in all."""
    figures = ("allocated_bytes", "needs_bytes", "device_bytes", "total_memory_per_gpu_gb")
    assert len({tuple(one[key] for key in figures) for one in found}) == 1

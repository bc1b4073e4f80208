"""`check --changed`: configurations of a git repository, before and after a change."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from gpu_mem_calculator.catalog.hub.access import Access, access
from tests.conftest import ROOT

from .conftest import Answer, Command

RUN = {
    "model": {"name": "gpt2"},
    "training": {"batch_size": 1, "seq_len": 512},
    "hardware": {"gpu": "rtx-4090", "num_gpus": 1},
}
SCRIPT = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --use_peft --bf16 {}\n"
# What SARIF 2.1.0 asks of the parts that are written here.
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name"],
                                "properties": {
                                    "semanticVersion": {"pattern": r"^\d+\.\d+\.\d+"},
                                    "rules": {
                                        "uniqueItems": True,
                                        "items": {
                                            "required": ["id"],
                                            "properties": {"shortDescription": TEXT},
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "results": {
                        "items": {
                            "required": ["message", "ruleId"],
                            "properties": {
                                "level": LEVEL,
                                "message": TEXT,
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "partialFingerprints": {"additionalProperties": {"type": "string"}},
                            },
                        }
                    },
                },
            }
        },
    },
}

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """git in a new repository, which is the current folder."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*words: str) -> str:
        own = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org", *words)
        return subprocess.run(own, capture_output=True, text=True, check=True).stdout.strip()

    call("init", "-q", "-b", "main")
    return call


def commit(git: Git, files: dict[str, Any]) -> None:
    """Write files, JSON where they are data, and commit them."""
    write(files)
    git("add", "-A")
    git("commit", "-q", "-m", "A change")


def write(files: dict[str, Any]) -> None:
    """Write files, JSON where they are data; None removes one."""
    for name, content in files.items():
        path = Path(name)
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def run_file(**training: Any) -> dict[str, Any]:
    """The run file with other keys of `training`."""
    return {**RUN, "training": {**RUN["training"], **training}}


def changed(command: Command, *words: str) -> Answer:
    """The answer as JSON."""
    return command("check", "--changed", "HEAD", "--format", "json", *words)


def test_a_run_has_its_figures_before_and_after(git: Git, command: Command) -> None:
    """Those that `calculate` gives for each."""
    commit(git, {"runs/a.json": run_file()})
    write({"runs/a.json": run_file(seq_len=1024)})
    answer = changed(command)
    (run,) = answer.data["runs"]
    assert answer.code == 0
    assert (run["path"], run["name"]) == ("runs/a.json", "")
    for side, length in (("before", 512), ("after", 1024)):
        write({"one.json": run_file(seq_len=length)})
        result = command("calculate", "one.json", "--format", "json").data
        torch = result["needs_bytes"] + result["margin_bytes"]
        assert run[side]["takes_bytes"] == torch + result["outside_torch_bytes"]
        assert run[side]["has_bytes"] == result["gpu_memory_bytes"]
        assert run[side]["verdict"] == "fits"


def test_nothing_that_changed_fits(git: Git, command: Command) -> None:
    """It is said, with exit code 0."""
    commit(git, {"a.json": run_file()})
    answer = command("check", "--changed", "HEAD")
    assert answer.code == 0
    assert answer.out.startswith("no training or serving configuration changed; compared with ")


WORST = {
    "fits": ({"a.json": run_file()}, 0),
    "cannot tell": ({"a.json": run_file(), "b.sh": SCRIPT.format("")}, 3),
    "bad input": ({"b.sh": SCRIPT.format(""), "c.json": run_file(no_such_key=1)}, 2),
    "does not fit": ({"c.json": run_file(no_such=1), "d.json": run_file(batch_size=512)}, 1),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_of_several_files_decides(git: Git, command: Command, name: str) -> None:
    """Does not fit before bad input before cannot tell before fits; the script names no card."""
    commit(git, {"README.md": "x"})
    files, code = WORST[name]
    write(files)
    git("add", "-A")
    answer = changed(command)
    assert (answer.code, answer.data["exit_code"]) == (code, code)
    assert len(answer.data["runs"]) == len(files)


def test_files_that_are_no_configuration_are_passed_over(git: Git, command: Command) -> None:
    """Each is named under --long, with the reason; without it they are counted."""
    others = {
        "package.json": {"name": "x", "scripts": {}},
        "hydra.yaml": "model: {width: 3}\ntrainer: {devices: 1}\n",
        "chart.yaml": "a: {{ .Values.b }}\nc: [\n",
        "map.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n",
        "build.sh": "docker build .\npython tool.py\n",
        "broken.sh": "if true; then\n",
        "ds.json": {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1},
        "config.json": {"model_type": "llama"},
        "notes.md": "x",
    }
    commit(git, {"a.json": run_file()})
    write(others)
    git("add", "-A")
    answer = changed(command)
    assert answer.code == 0
    assert answer.data["runs"] == []
    passed = {one["path"]: one["why"] for one in answer.data["passed_over"]}
    assert passed.keys() == others.keys() - {"notes.md"}
    assert all(passed.values())
    assert "9 changed files passed over" in command("check", "--changed", "HEAD").out
    long = " ".join(command("check", "--changed", "HEAD", "--long").out.split())
    assert all(f"{path}: {' '.join(why.split())}" in long for path, why in passed.items())


def test_a_configuration_that_cannot_be_read_any_more_is_bad_input(
    git: Git, command: Command
) -> None:
    """A slip of the pen does not take it out of the check."""
    commit(git, {"a.json": run_file()})
    write({"a.json": '{"model": '})
    answer = changed(command)
    assert answer.code == 2
    assert "it was a configuration, and is none now" in answer.data["runs"][0]["after"]["summary"]


def test_renamed_and_removed_files(git: Git, command: Command) -> None:
    """A renamed one is compared with what it was; one that is gone decides nothing."""
    commit(git, {"a.json": run_file(), "gone.json": run_file(batch_size=512)})
    git("mv", "a.json", "b.json")
    write({"gone.json": None})
    answer = changed(command)
    runs = {one["path"]: one for one in answer.data["runs"]}
    assert answer.code == 0
    assert runs["b.json"]["before"] == runs["b.json"]["after"]
    assert runs["gone.json"]["before"]["verdict"] == "does_not_fit"
    assert runs["gone.json"]["after"] is None


def test_files_that_are_named_are_as_they_were(git: Git, command: Command) -> None:
    """The script before is read with the file beside it before."""
    shorter = "max_length: 512\nper_device_train_batch_size: 1\n"
    words = SCRIPT.format("--config sft.yaml").replace("x --use_peft", "x")
    commit(git, {"train.sh": words, "sft.yaml": shorter})
    write({"train.sh": f"{words}# longer\n", "sft.yaml": shorter.replace("512", "4096")})
    found = {one["path"]: one for one in changed(command, "--gpu", "4090").data["runs"]}
    run = found["train.sh"]
    assert run["before"]["takes_bytes"] < run["after"]["takes_bytes"]


def test_the_card_of_the_options_is_for_files_that_name_none(git: Git, command: Command) -> None:
    """A run file, a job script and a server: each has the card that it names, else the option's."""
    commit(git, {"README.md": "x"})
    job = f"#SBATCH --gres=gpu:h100:1\n{SCRIPT.format('')}"
    write({"named.json": RUN, "job.sh": job, "open.sh": SCRIPT.format("")})
    git("add", "-A")
    found = changed(command, "--gpu", "l4").data["runs"]
    has = {one["path"]: round(one["after"]["has_bytes"] / 2**30) for one in found}
    assert (has["named.json"], has["open.sh"]) == (24, 22)
    assert has["job.sh"] > 70
    assert command("check", "--changed", "HEAD", "--gpu", "no-card").code == 2


def test_several_runs_of_a_file_are_matched_by_name(git: Git, command: Command) -> None:
    """And what those on one GPU take together is a row, too."""
    server = (
        "vllm serve Qwen/Qwen3-{} --max-model-len 4096 --port {} --gpu-memory-utilization 0.4 &"
    )
    both = [server.format("4B", 1), server.format("1.7B", 2)]
    commit(git, {"serve.sh": "\n".join([*both, "wait\n"])})
    write({"serve.sh": "\n".join([*both, "# two servers", "wait\n"]).replace("0.4", "0.6")})
    answer = changed(command, "--gpu", "h100")
    names = [one["name"] for one in answer.data["runs"]]
    assert len(names) == 3
    assert names[-1] == "together (1)"
    assert answer.code == 1


def test_nothing_outside_the_repository_is_opened(
    git: Git, command: Command, tmp_path: Path
) -> None:
    """Neither a model's folder, nor a file that a script names, nor what a link leads to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 64, "n_head": 1, "vocab_size": 777}
    (outside / "config.json").write_text(json.dumps(config))
    (outside / "run.json").write_text(json.dumps({**RUN, "model": {"name": "gpt2-xl"}}))
    (outside / "sft.yaml").write_text("max_length: 77777\n")
    commit(git, {"README.md": "x"})
    inside = {**RUN, "model": {"name": "./model"}}
    files = {
        "folder.json": {**RUN, "model": {"name": str(outside)}},
        "up.json": {**RUN, "model": {"name": "../outside"}},
        "lengths.json": run_file(lengths={"file": str(outside / "run.json")}),
        "train.sh": SCRIPT.format(f"--config {outside}/sft.yaml"),
        "inside.json": inside,
        "model/config.json": config,
    }
    write(files)
    Path("link.json").symlink_to(outside / "run.json")
    git("add", "-A")
    answer = changed(command)
    runs = {one["path"]: one["after"] for one in answer.data["runs"]}
    assert runs["inside.json"]["takes_bytes"]
    for name in ("folder.json", "up.json", "lengths.json", "train.sh"):
        found = runs.get(name, {"takes_bytes": None})
        assert found["takes_bytes"] is None, name
    assert "link.json" not in runs
    assert "lies outside" in next(
        one["why"] for one in answer.data["passed_over"] if one["path"] == "link.json"
    )
    assert not re.search("777|gpt2-xl", answer.out)
    assert access() == Access()


def test_nothing_of_the_repository_is_started(git: Git, command: Command, tmp_path: Path) -> None:
    """No hook, no monitor of files; the repository is as it was."""
    commit(git, {"a.json": run_file()})
    started = tmp_path / "started"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {started}\n")
    hook.chmod(0o755)
    git("config", "core.fsmonitor", str(hook))
    git("config", "diff.external", str(hook))
    write({"a.json": run_file(seq_len=1024)})
    started.unlink(missing_ok=True)
    files = sorted(os.listdir(".git"))
    assert changed(command).code == 0
    assert not started.exists()
    assert sorted(os.listdir(".git")) == files


def test_the_base_is_what_both_have_in_common(git: Git, command: Command) -> None:
    """What the main branch got since then is no change of this one."""
    commit(git, {"a.json": run_file()})
    git("checkout", "-q", "-b", "mine")
    commit(git, {"b.json": run_file()})
    git("checkout", "-q", "main")
    commit(git, {"a.json": run_file(seq_len=128)})
    git("checkout", "-q", "mine")
    answer = command("check", "--changed", "main", "--format", "json")
    assert [one["path"] for one in answer.data["runs"]] == ["b.json"]


def test_the_first_commit_can_be_checked(git: Git, command: Command) -> None:
    """HEAD of a repository without a commit is nothing at all."""
    write({"a.json": run_file()})
    git("add", "-A")
    (run,) = changed(command).data["runs"]
    assert run["before"] is None
    assert command("check", "--changed", "main").code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--changed", "no-such"), "git knows no such commit here"),
        (("--changed", ""), "is not the name of a commit"),
        (("--changed", "HEAD", "vllm", "serve", "x"), "finds the files itself"),
        (("--changed", "HEAD", "--run"), "--run is for one command"),
        (("--sarif", "x.sarif", "vllm", "serve", "x"), "--sarif is for --changed"),
        (("--changed", "HEAD", "--comment", "no/such/folder/x"), "--comment no/such/folder/x"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    git: Git, command: Command, words: tuple[str, ...], said: str
) -> None:
    """Exit code 2."""
    commit(git, {"a.json": run_file()})
    answer = command("check", *words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


SFT = """base_model: Qwen/Qwen2.5-1.5B
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
adapter: lora
sequence_len: 2048
micro_batch_size: 1
bf16: true
lora_r: 16
lora_alpha: 32
lora_target_linear: true
"""


def test_the_example_of_the_page(git: Git, command: Command) -> None:
    """docs/pulls.md shows what is printed."""
    server = "vllm serve Qwen/Qwen3-8B --max-model-len 8192\n"
    commit(git, {"serve.sh": server, "sft.yaml": SFT})
    git("checkout", "-q", "-b", "mine")
    write({"serve.sh": server.replace("8192", "40960"), "sft.yaml": SFT.replace("2048", "4096")})
    page = (ROOT / "docs" / "pulls.md").read_text("utf-8")
    (shown,) = re.findall(
        r"^\$ gpu-mem-calc (check [^\n]*)\n(.*?)\$ echo \$\?\n1\n", page, re.M | re.S
    )
    answer = command(*shown[0].split())
    assert answer.code == 1
    base = git("rev-parse", "main")[:12]
    assert answer.out == re.sub(r"compared with \w{12}", f"compared with {base}", shown[1])


def test_outside_a_repository(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence."""
    monkeypatch.chdir(tmp_path)
    answer = command("check", "--changed", "HEAD")
    assert answer.code == 2
    assert "not a git repository" in answer.err


@pytest.fixture
def files(git: Git, command: Command) -> dict[str, str]:
    """What is written of a run that fits, one that does not, one that is open and one that is bad;
    names and values have what would be markup.
    """
    name = "a|b`<img>@team.json"
    commit(git, {name: run_file(), "ok.json": run_file()})
    write({name: run_file(batch_size=512), "ok.json": run_file(seq_len=128)})
    write({"open.sh": SCRIPT.format(""), "bad.json": run_file(**{"[x](http://y) @all": 1})})
    git("add", "-A")
    options = {one: f"--{one}" for one in ("comment", "sarif", "junit", "code-quality")}
    words = [word for one, option in options.items() for word in (option, f"../{one}")]
    assert command("check", "--changed", "HEAD", *words).code == 1
    return {one: Path(f"../{one}").read_text("utf-8") for one in options}


def test_the_comment(files: dict[str, str]) -> None:
    """A marker, a row for each run, remedies; nothing of a file's content is markup."""
    lines = files["comment"].splitlines()
    assert lines[0] == "<!-- gpu-mem-calculator -->"
    assert lines[1] == "### GPU memory: 4 runs, does not fit 1, bad input 1, cannot tell 1, fits 1"
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == 4
    assert all(line.count(" | ") == 4 for line in rows)
    (large,) = [line for line in rows if "<img>" in line]
    assert re.search(r"\| \d+\.\d \| [\d.]+ \| 23\.5 \| \*\*does not fit\*\*, before: fits", large)
    assert any(line.startswith("- ") and "`--set training." in line for line in lines)
    text = "".join(part for one in lines for part in one.split("`")[::2])
    assert not re.search(r"<img|@(all|team)|(?<!\\)\]\(", text)


def test_sarif(files: dict[str, str]) -> None:
    """Of the form, with a result for each run that does not certainly fit."""
    log = json.loads(files["sarif"])
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    rules = [one["id"] for one in run["tool"]["driver"]["rules"]]
    found = sorted((one["ruleId"], one["level"]) for one in run["results"])
    assert found == [("bad_input", "error"), ("cannot_tell", "warning"), ("does_not_fit", "error")]
    assert all(rules[one["ruleIndex"]] == one["ruleId"] for one in run["results"])
    places = [one["locations"][0]["physicalLocation"]["artifactLocation"] for one in run["results"]]
    assert {one["uri"] for one in places} >= {"open.sh", "a%7Cb%60%3Cimg%3E%40team.json"}
    assert len({one["partialFingerprints"]["run/v1"] for one in run["results"]}) == 3


def test_junit(files: dict[str, str]) -> None:
    """A case for each run, and the counts are of them."""
    suites = ET.fromstring(files["junit"])
    (suite,) = suites
    cases = list(suite)
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors")}
    assert counts == {"tests": 4, "failures": 2, "errors": 1}
    assert sum(case.find("failure") is not None for case in cases) == 2
    assert {case.attrib["file"] for case in cases} >= {"ok.json", "bad.json"}


def test_code_quality(files: dict[str, str]) -> None:
    """What GitLab asks of each entry."""
    entries = json.loads(files["code-quality"])
    assert len(entries) == 3
    for one in entries:
        assert one.keys() == {"description", "check_name", "fingerprint", "severity", "location"}
        assert one["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert one["location"]["lines"]["begin"] == 1
    assert len({one["fingerprint"] for one in entries}) == 3

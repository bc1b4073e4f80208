"""What a command does not use is not imported: a module costs as much as many a calculation."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import find_spec

import pytest

from gpu_mem_calculator.catalog.kept import keep_tables
from gpu_mem_calculator.training import engines

PACKAGE = "gpu_mem_calculator"
LISTS = (("presets", "llama"), ("gpus", "h200"))
# Modules of Python and of others that a short command does without, as they take long to import.
HEAVY = {
    *("asyncio", "copy", "csv", "ctypes", "dataclasses", "difflib", "email", "fractions", "glob"),
    *("http", "importlib.metadata", "inspect", "ipaddress", "json", "locale", "logging", "numpy"),
    *("pathlib", "shlex", "shutil", "socket", "subprocess", "tempfile", "threading", "tomllib"),
    *("traceback", "typing_extensions", "urllib.parse", "yaml"),
}
VALIDATE = "validate configs/llama2_7b_deepspeed.json"
INFER = "infer llama3.1-8b --gpu h100"
CHECK = "check --gpu 4090 trl sft --model_name_or_path Qwen/Qwen2.5-7B --use_peft --load_in_4bit"
# Commands, and how many modules of this package they may import. Budgets only fall.
MOST = {
    **{" ".join(LISTS[0]): 25, " ".join(LISTS[1]): 27},
    **{VALIDATE: 132, INFER: 206, CHECK: 310},
}


@cache
def imported(*words: str) -> frozenset[str]:
    """The modules that a command imports, beside those that Python's start imports, when the
    tables that it reads are kept."""
    keep_tables()
    code = (
        "import sys; before = set(sys.modules); from gpu_mem_calculator.cli.main import main; "
        f"main({list(words)}); print(*set(sys.modules) - before, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return frozenset(run.stderr.split())


def test_the_version_is_printed_without_typing_or_msgspec() -> None:
    """`--version` takes little more than bare Python."""
    assert not imported("--version") & {"typing", "msgspec", "argparse", "json", "re"}


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_a_list_of_the_catalogue_is_shown_without_what_a_run_needs(words: tuple[str, ...]) -> None:
    """Neither msgspec, which takes longer than the rest, nor typing."""
    assert not imported(*words) & {*HEAVY, "msgspec", "typing", "decimal", "datetime"}


def test_a_run_file_is_checked_without_what_computes() -> None:
    """No ledger is made, so that none of what makes one is imported."""
    found = imported(*VALIDATE.split())
    ours = ("estimates", "advice", "report", "serving.vllm", "training.step", "pytorch.replay.plan")
    wrong = [name for name in found if name.startswith(tuple(f"{PACKAGE}.{one}" for one in ours))]
    assert wrong == []
    assert not found & (HEAVY - {"json"})


def test_a_server_is_estimated_without_what_trains() -> None:
    """Neither the stream of a step nor the remedies of a training run."""
    found = imported(*INFER.split())
    unused = {
        "advice.training.remedies",
        "estimates.stage_replay",
        "training.step.stream",
        "cli.explain",
    }
    assert not found & {f"{PACKAGE}.{name}" for name in unused}
    assert not found & {"pathlib", "copy", "shutil", "difflib", "tomllib", "yaml"}


def test_a_command_is_checked_without_other_tools() -> None:
    """Neither DeepSpeed's keys nor the reader of scripts."""
    found = imported(*CHECK.split())
    unused = {"tools.deepspeed.keys", "tools.script.record", "tools.axolotl.read", "cli.function"}
    assert not found & {f"{PACKAGE}.{name}" for name in unused}
    assert not found & {"ast", "difflib", "shutil", "tomllib", "yaml"}


@pytest.mark.parametrize("words", MOST)
def test_a_command_imports_few_modules(words: str) -> None:
    """Who needs more imports it where it is used, or raises the budget and says why."""
    ours = sorted(name for name in imported(*words.split()) if name.startswith(PACKAGE))
    listed = "\n".join(ours)
    assert len(ours) <= MOST[words], f"{len(ours)} of {MOST[words]} modules:\n{listed}"
    assert len(ours) > MOST[words] - 16, f"{len(ours)} modules: lower MOST in this file to that"


def test_a_command_imports_neither_other_engines_nor_what_only_files_need() -> None:
    """What a command does not use costs nothing at its start."""
    found = imported("quick", "350M")
    unused = {"tempfile", "pathlib", "urllib.parse", "tomllib", "threading", "fractions"}
    ours = {"catalog.hub.sources", "catalog.hub.checkpoint", "training.generation.instants"}
    ours |= {"runfile.resolve.resolve_inference"}
    others = [one for one in engines.engine_names() if one != engines.DEFAULT]
    ours |= {f"training.engines.{one}.engine" for one in others}
    assert f"{PACKAGE}.training.engines.pytorch_ddp.engine" in found
    assert all(find_spec(f"{PACKAGE}.{name}") for name in ours)
    assert not found & (unused | {f"{PACKAGE}.{name}" for name in ours})

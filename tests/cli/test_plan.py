"""`plan`: what it asks, and how it shows and writes the plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.advice.planner.answers.plans import Plans
from tests.report.plans_fixture import no_plan_fits, some_plans

from .conftest import Command

QUESTION = ("plan", "llama3.1-70b", "--gpus", "64", "--gpu", "h100", "--seq-len", "8k")


class Asked(list[dict[str, Any]]):
    """The questions that were asked, and the plans to answer them with."""

    answer: Plans = some_plans()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A planner that notes each question."""
    questions = Asked()

    def plan(*words: Any, **options: Any) -> Plans:
        assert options.pop("found", None) is None  # which costs a little: for terminals alone
        assert callable(options.pop("progress", print))
        questions.append({"model": words[0] if words else None, **options})
        return questions.answer

    monkeypatch.setattr("gpu_mem_calculator.cli.plan.plan", plan)
    return questions


def test_options_become_a_question(command: Command, asked: Asked) -> None:
    """Values are converted; --set, --fix and --vary become keys."""
    words = ["--global-batch", "1024", "--engine", "fsdp,megatron", "--price", "2.5"]
    words += ["--tokens", "1T", "--fix", "tp=8", "--set", "training.optimizer=adamw"]
    words += ["--vary", "checkpointing=none,full", "--vary", "zero=[1, 2]", "--nodes", "8"]
    assert command(*QUESTION, *words).code == 0
    assert asked == [
        {
            "model": "llama3.1-70b",
            "gpus": 64,
            "gpu": "h100",
            "seq_len": 8192,
            "global_batch": 1024,
            "engine": "fsdp,megatron",
            "price": 2.5,
            "tokens": 10**12,
            "top": 10,
            "goal": "fastest",
            "fix": {"hardware.num_nodes": 8, "training.optimizer": "adamw", "tp": 8},
            "vary": {"checkpointing": ["none", "full"], "zero": [1, 2]},
        }
    ]


def test_goals_and_targets_of_servers(command: Command, asked: Asked) -> None:
    """A flag is a goal; a time may have its unit; nodes have eight GPUs."""
    command("plan", "gpt2", "--gpu", "h100", "--nodes", "2", "--fewest-gpus")
    command("plan", "gpt2", "--gpu", "h100", "--serve", "any", "--latency", "50ms", "--users", "4")
    assert (asked[0]["goal"], asked[0]["gpus"]) == ("fewest_gpus", 16)
    assert (asked[1]["serve"], asked[1]["latency"], asked[1]["users"]) == ("any", 0.05, 4)


def test_the_table_ends_in_commands_that_work(command: Command, asked: Asked) -> None:
    """Each is a command of this program, and asks the same question."""
    answer = command(*QUESTION, "--fix", "tp=8", "--latency", "0.05")
    lines = answer.out.replace("\\\n", " ").splitlines()
    found = [
        line.partition("gpu-mem-calc ")[2].split() for line in lines if "gpu-mem-calc " in line
    ]
    assert [words[0] for words in found] == ["plan", "calculate"]
    assert found[0][:7] == ["plan", "llama3.1-70b", "--gpus", "64", "--gpu", "h100", "--seq-len"]
    command(*found[0][:-2])
    assert asked[0] == asked[1]


def test_json_has_the_fields_of_the_contract(command: Command, asked: Asked) -> None:
    """By their exact names."""
    data = command(*QUESTION, "--format", "json").data
    assert {"question", "space", "plans", "front", "if_nothing_fits"} <= data.keys()
    assert {"set_ups", "feasible", "seconds"} <= data["space"].keys()
    fields = "rank run needs_bytes allocated_bytes fits_on_gpu step_seconds tokens_per_second mfu"
    assert {*fields.split(), "gpu_hours", "cost", "why"} <= data["plans"][0].keys()
    assert {"estimate", "low", "high", "parts"} <= data["plans"][0]["step_seconds"].keys()
    assert data["front"] == [0, 1, 2, 4]
    assert len(asked) == 1


def test_runs_are_saved_as_run_files(command: Command, asked: Asked, tmp_path: Path) -> None:
    """Other commands take them; the next commands name them."""
    folder = tmp_path / "new" / "plans"
    answer = command(*QUESTION, "--save-runs", str(folder))
    assert "wrote plan-1.json to plan-5.json" in answer.err
    assert f"gpu-mem-calc calculate {folder}/plan-1.json" in " ".join(
        answer.out.replace("\\\n", " ").split()
    )
    for plan in asked.answer.plans:
        assert json.loads((folder / f"plan-{plan.rank}.json").read_text()) == plan.run
    assert command("validate", str(folder / "plan-3.json")).code == 0
    (tmp_path / "file").touch()
    refused = command(*QUESTION, "--save-runs", str(tmp_path / "file"))
    assert (refused.code, len(asked)) == (2, 1)
    assert "cannot be made, File exists" in refused.err


def test_the_best_plan_is_exported(command: Command, asked: Asked) -> None:
    """As `convert` writes it; nothing is written where none fits."""
    answer = command(*QUESTION, "--export", "megatron")
    assert "--tensor-model-parallel-size 4" in answer.out
    asked.answer = no_plan_fits()
    refused = command(*QUESTION, "--export", "megatron")
    assert (refused.code, refused.out) == (2, "")
    assert "no set-up fits" in refused.err


def test_candidates_are_read_as_every_command_reads_them(
    command: Command, asked: Asked, tmp_path: Path
) -> None:
    """Run files and DeepSpeed's JSON; options replace what they say."""
    own, foreign = tmp_path / "run.json", tmp_path / "ds_config.json"
    own.write_text(json.dumps({**some_plans().plans[0].run, "hardware": {"gpu_memory_gb": 80}}))
    foreign.write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}')
    files = ("--candidates", str(own), str(foreign))
    answer = command("plan", "gpt2", "--gpu", "a100-80gb-sxm", "--gpus", "8", *files)
    assert answer.code == 0
    first, second = asked[0]["candidates"]
    assert first["model"] == second["model"] == {"name": "gpt2"}
    assert first["hardware"]["gpu"] == "a100-80gb-sxm"
    assert first["hardware"]["gpu_memory_gb"] is None
    assert first["parallelism"]["data_parallel_size"] is None
    assert second["engine"]["zero_stage"] == 3


def test_a_candidate_without_a_card_is_named(
    command: Command, asked: Asked, tmp_path: Path
) -> None:
    """Memory alone has no speed: the sentence has the file and the option."""
    own = tmp_path / "run.json"
    own.write_text('{"model": {"name": "gpt2"}, "hardware": {"gpu_memory_gb": 24}}')
    answer = command("plan", "--candidates", str(own))
    assert (answer.code, answer.out, asked) == (2, "", [])
    assert f"{own} names no GPU" in answer.err
    assert "add --gpu" in answer.err
    assert command("plan", "--candidates", str(own), "--gpu", "l40s").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fewest-gpus", "--largest-batch"], "--fewest-gpus and --largest-batch cannot be"),
        (["--fix", "tp"], "--fix 'tp' must be KEY=VALUE"),
        (["--vary", "tp="], "--vary 'tp=' must be KEY=VALUE"),
        (["--tokens", "many"], "--tokens='many' must be a count"),
        (["--latency", "soon"], "--latency 'soon' must be a time"),
        (["--candidates", "missing.json"], "missing.json: no such file"),
        (["--candidates", "x.json", "--vary", "tp=1,2"], "--vary is for a search"),
        (["--export", "megatron", "--format", "html"], "leave --format out"),
        (["--export", "nosuch"], "nosuch"),
        (["--globl-batch", "8"], "did you mean '--global-batch'?"),
    ],
)
def test_a_mistake_is_one_sentence(
    command: Command, asked: Asked, words: list[str], said: str
) -> None:
    """Before any search."""
    answer = command("plan", "gpt2", *words)
    assert (answer.code, answer.out, asked) == (2, "", [])
    assert answer.err.count("\n") == 1
    assert said in answer.err


def test_without_a_model_the_sentence_names_one(command: Command) -> None:
    """Nothing is searched."""
    answer = command("plan", "--gpus", "8", "--gpu", "h100")
    assert answer.code == 2
    assert "plan needs a MODEL, such as llama3.1-8b or 7B" in answer.err

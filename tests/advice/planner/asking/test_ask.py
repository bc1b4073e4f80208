"""`plan` of the package: a question in a user's words becomes the planner's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator import InputError, plan
from gpu_mem_calculator.advice.planner.answers.plans import Plans, SearchedSpace
from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.answers.serving_question import ServingQuestion
from gpu_mem_calculator.advice.planner.asking.ask import engine_choice, own_keys

PLANNER = "gpu_mem_calculator.advice.planner"


@pytest.fixture(autouse=True)
def _searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that return their question."""
    for module, name in (("training.best", "plan_training"), ("serving.best", "plan_serving")):
        fake = SimpleNamespace(**{name: lambda question, *_: answered(question)})
        monkeypatch.setitem(sys.modules, f"{PLANNER}.{module}", fake)


def answered(question: PlanQuestion | ServingQuestion) -> Plans:
    """An answer without plans, with the question."""
    space = SearchedSpace(set_ups=0, feasible=0, seconds=0.0)
    return Plans(question={"asked": question}, space=space, plans=[], front=[])


def asked(*words: Any, **options: Any) -> Any:
    """The question that reaches the search."""
    return plan(*words, **options).question["asked"]


def test_a_sequence_that_is_not_given_is_assumed() -> None:
    """4,096 tokens, or what the model can take; the answer says so."""
    found = plan("llama3.1-8b", gpus=8, gpu="h100").question
    assert (found["asked"].seq_len, found["assumed"]) == (4096, {"seq_len": 4096})
    assert asked("gpt2", gpus=8, gpu="h100").seq_len == 1024
    assert asked("gpt2", gpus=8, gpu="h100", goal="longest_context").seq_len is None


def test_a_question_has_every_option() -> None:
    """Names become engines, tokens a number, a size a model."""
    found = asked(
        "70b",
        gpus=64,
        gpu="h100",
        seq_len=8192,
        global_batch=1024,
        engine=["megatron", "fsdp"],
        price=2.5,
        tokens="1T",
        top=3,
        goal="longest_context",
    )
    assert found == PlanQuestion(
        model={"name": "llama3.3-70b"},
        hardware={"gpu": "h100-80gb-sxm", "num_gpus": 64},
        seq_len=8192,
        global_batch=1024,
        engines=("megatron_lm", "fsdp"),
        goal="longest_context",
        price=2.5,
        tokens=10**12,
        top=3,
    )


def test_keys_become_those_of_a_run_file() -> None:
    """Short names, names without a section, other tools' names."""
    keys = {"tp": 8, "zero_stage": 3, "training.seq_len": "8k", "gradient_checkpointing": True}
    assert own_keys(keys) == {
        "parallelism.tensor_parallel_size": 8,
        "engine.zero_stage": 3,
        "training.seq_len": 8192,
        "training.activation_checkpointing": "full",
    }


def test_fixed_keys_of_model_hardware_engine_and_sequence_are_fields() -> None:
    """What every set-up shares is in the question itself."""
    fix = {
        "model.num_layers": 2,
        "hardware.num_nodes": 8,
        "engine": "deepspeed",
        "seq_len": 512,
        "pp": 2,
    }
    found = asked("gpt2", gpus=64, gpu="h100", fix=fix)
    assert found.model == {"name": "gpt2", "num_layers": 2}
    assert found.hardware == {"gpu": "h100-80gb-sxm", "num_gpus": 64, "num_nodes": 8}
    assert (found.engines, found.seq_len) == (("deepspeed",), 512)
    assert found.fix == {"parallelism.pipeline_parallel_size": 2}


def test_varied_keys_have_lists() -> None:
    """Engines that are varied are those to search."""
    vary = {"checkpointing": ["none", "full"], "engine": ["fsdp", "ddp"]}
    found = asked("gpt2", gpu="h100", gpus=8, vary=vary)
    assert found.vary == {"training.activation_checkpointing": ["none", "full"]}
    assert found.engines == ("fsdp", "pytorch_ddp")


def test_a_server_has_its_own_question() -> None:
    """Sizes are keys of `inference`; `any` searches every server."""
    found = asked("gpt2", gpus=2, gpu="h100", serve="any", users=8, latency=0.05, fix={"tp": 2})
    assert isinstance(found, ServingQuestion)
    assert (found.users, found.latency, found.engines) == (8, 0.05, ())
    assert found.fix == {"inference.tensor_parallel_size": 2}
    assert asked("gpt2", gpu="h100", gpus=1, serve="vllm").engines == ("vllm",)


def test_candidates_are_ranked_as_they_are(tmp_path: Path) -> None:
    """Files keep their names, data have none; the price is that of their tokens."""
    run: dict[str, Any] = {
        "model": {"name": "gpt2"},
        "training": {"batch_size": 1, "seq_len": 512},
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }
    larger = {**run, "training": {"batch_size": 8, "seq_len": 512}}
    file = tmp_path / "large.json"
    file.write_text(json.dumps(larger))
    found = plan(candidates=[run, str(file)], price=2.0, tokens="1B")
    named = [(one.file, one.run["training"]["batch_size"]) for one in found.plans]
    assert named == [(str(file), 8), (None, 1)]
    first = found.plans[0]
    assert first.cost == pytest.approx(2 * 1e9 / first.tokens_per_second / 3600)


def test_servers_that_are_ranked_have_their_files_names(tmp_path: Path) -> None:
    """Also where the plan's run has more keys than the file."""
    file = tmp_path / "server.json"
    server = {"model": {"name": "gpt2"}, "inference": {"engine": "vllm", "batch_size": 4}}
    file.write_text(json.dumps({**server, "hardware": {"gpu": "h200", "num_gpus": 1}}))
    found = plan(candidates=[str(file)], top=3)
    assert ([one.file for one in found.plans], found.question["top"]) == ([str(file)], 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": None}, "plan needs a MODEL"),
        ({"engine": "fsdpp"}, "'fsdpp' is not a known training engine; did you mean 'fsdp'?"),
        ({"serve": "vlm"}, "'vlm' is not a known server; did you mean 'vllm'?"),
        ({"goal": "cheapest"}, "goal='cheapest' is not one of fastest, fewest_gpus"),
        ({"goal": "largest_model"}, "largest_model looks for a model, and 'gpt2' names one"),
        ({"tokens": "many"}, "tokens='many' must be a count"),
        ({"fix": {"tp": 0}}, "parallelism.tensor_parallel_size=0 must be"),
        ({"fix": {"tpp": 2}}, "'tpp' is not a known key; did you mean 'tp'?"),
        ({"fix": {"training.bach_size": 1}}, "did you mean 'batch_size'?"),
        ({"vary": {"tp": "8"}}, "vary tp='8' must be a list"),
        ({"vary": {"tp": [1, 2]}, "fix": {"tp": 2}}, "is fixed and varied"),
        ({"gpu": None}, "plan needs the card; add --gpu h100"),
        ({"gpus": None}, "plan needs the number of GPUs; add --gpus 8"),
        ({"users": 3}, "users is for servers; add --serve any"),
        ({"serve": "vllm", "seq_len": 8}, "seq_len is for training"),
        ({"serve": "vllm", "user": 8}, "user is not a target of a server"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict[str, Any], said: str) -> None:
    """The value, the rule, the nearest fix."""
    given: dict[str, Any] = {"model": "gpt2", "gpu": "h100", "gpus": 8, **options}
    with pytest.raises(InputError, match=r"\w") as error:
        asked(given.pop("model"), **given)
    assert len(error.value.problems) == 1
    assert said in error.value.problems[0]


def test_without_numpy_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line to type."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(InputError, match=r'pip install -e "\.\[plan\]"'):
        plan("gpt2", gpu="h100", gpus=8)


def test_engines_are_named_once() -> None:
    """However they are spelled, and with commas."""
    assert engine_choice(["ddp, fsdp", "pytorch"]) == ("pytorch_ddp", "fsdp")

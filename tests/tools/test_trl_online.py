"""TRL's trainers that generate their completions, in the keys of a run file."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.program import Program, Setup, Translation
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.tools.translation.tools import translate
from tests.conftest import SMALL_LLAMA

LOAD = {"dtype": "float32"}


def translated(name: str = "GRPO", gpus: int = 1, **sections: Any) -> Translation:
    """The translation of a small program."""
    data = {"load": LOAD, "data": {"prompt": 100}, **sections}
    return translate(Program(tool=f"trl.{name}Trainer", **data), Setup(num_gpus=gpus))


def training(name: str = "GRPO", **sections: Any) -> dict[str, Any]:
    """The training keys of a program without problems."""
    found = translated(name, **sections)
    assert not found.problems
    return found.training


def test_the_defaults_of_grpo() -> None:
    """Eight sequences, no reference, no old log-probabilities."""
    keys = training()
    assert keys["generation"] == {"prompt": 100, "new_tokens": 512, "sequences": 8}
    assert (keys["loss"], keys["activation_checkpointing"]) == ("chunked", "full")
    assert "reference_model" not in keys


def test_rloo_has_a_reference_and_old_log_probabilities() -> None:
    """Its KL coefficient is not 0."""
    keys = training("RLOO")
    assert keys["reference_model"] is True
    assert keys["generation"]["old_logprobs"] is True
    assert "reference_model" not in training("RLOO", args={"beta": 0.0})


@pytest.mark.parametrize(
    ("args", "sequences", "old"),
    [
        ({"gradient_accumulation_steps": 4}, 32, False),
        ({"gradient_accumulation_steps": 4, "num_iterations": 2}, 32, True),
        ({"steps_per_generation": 2}, 16, True),
        ({"generation_batch_size": 24}, 24, True),
        ({"gradient_accumulation_steps": 2, "generation_batch_size": 16}, 16, False),
    ],
)
def test_sequences_of_a_generation(args: dict[str, Any], sequences: int, old: bool) -> None:
    """Those of all its micro-batches; one that outlives its step needs old log-probabilities."""
    keys = training(args=args)["generation"]
    assert keys["sequences"] == sequences
    assert keys.get("old_logprobs", False) is old


def test_sampling_and_the_cache_are_the_generations() -> None:
    """As far as they differ from the defaults."""
    args = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "cache_implementation": "static"}
    assert args.items() <= training(args=args)["generation"].items()


def test_a_server_generates_elsewhere() -> None:
    """Its log-probabilities are corrected by the policy's own."""
    keys = training(args={"use_vllm": True, "vllm_mode": "server"})["generation"]
    assert (keys["engine"], keys["old_logprobs"]) == ("elsewhere", True)


def test_vllm_on_the_same_card() -> None:
    """With TRL's share of the card; it sleeps at level 2 where it sleeps."""
    args = {"use_vllm": True, "vllm_enable_sleep_mode": True, "vllm_max_model_length": 2048}
    keys = training(args=args)["generation"]
    assert (keys["engine"], keys["gpu_memory_utilization"]) == ("vllm", 0.3)
    assert (keys["sleep_level"], keys["max_model_len"]) == (2, 2048)


def test_padding() -> None:
    """Prompts and completions are padded by themselves."""
    keys = training(args={"pad_to_multiple_of": 64})["generation"]
    assert (keys["prompt"], keys["new_tokens"]) == (128, 512)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"data": {}}, "program.data.prompt is missing"),
    ({"args": {"num_generations": 3}}, "does not divide the 8 sequences"),
    ({"args": {"num_generations": 1}}, "must be at least 2"),
    ({"args": {"generation_batch_size": 12}}, "must be a multiple of the 8"),
    ({"args": {"generation_batch_size": 8, "steps_per_generation": 1}}, "not both"),
    ({"args": {"vllm_mode": "both"}}, "must be 'colocate' or 'server'"),
    ({"args": {"vllm_model_impl": "transformers"}}, "inside vLLM is not modelled"),
    ({"args": {"cache_implementation": "quantized"}}, "is not modelled; leave it out"),
    ({"args": {"sync_ref_model": True}}, "TRL refuses it"),
    ({"args": {"repetition_penalty": 1.1}}, "other processors of scores"),
    ({"args": {"mask_truncated_completions": True}}, "masks of attention"),
    ({"args": {"cast_lm_head_to_fp32": True}}, "output layer in fp32"),
]


@pytest.mark.parametrize(("sections", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(sections: dict[str, Any], words: str) -> None:
    """One sentence for each."""
    (problem,) = translated(**sections).problems
    assert words in problem


@pytest.mark.parametrize("name", ["GRPO", "RLOO"])
@pytest.mark.parametrize(
    "args", [{}, {"use_liger_kernel": True, "bf16": False}, {"use_vllm": True}]
)
def test_a_program_is_a_run(name: str, args: dict[str, Any]) -> None:
    """Its translation resolves."""
    program = {"tool": f"trl.{name}Trainer", "args": args, "load": LOAD, "data": {"prompt": 64}}
    file = {"model": {"config": SMALL_LLAMA}, "program": program, "hardware": {"gpu": "h200"}}
    run = resolve(read(file).file).run
    assert run.rollout is not None
    assert (run.labelled, run.seq) == (512, 576)

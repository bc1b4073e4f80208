"""Releases that a text or the one who asks names: which default changed, and what that makes."""

from typing import Any

import pytest

from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.advice.diagnosis.diagnosis import CERTAIN, LIKELY, Cause, Diagnosis
from gpu_mem_calculator.advice.diagnosis.other_release import newest_of
from gpu_mem_calculator.tools.read import Door, read
from gpu_mem_calculator.tools.releases.in_text import releases_in_text
from gpu_mem_calculator.tools.releases.named import KnownReleases, read_at

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total"
    " capacity of {} GiB of which 5.00 MiB is free. Process 1 has {} GiB memory in use."
)
SERVE = "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 8192"
SFT = "trl sft --model_name_or_path Qwen/Qwen2.5-1.5B --dataset_name x --output_dir o"
FACTORY = (
    "llamafactory-cli train --stage sft --do_train --model_name_or_path Qwen/Qwen2.5-1.5B"
    " --finetuning_type full --template qwen --dataset d --output_dir o --bf16 true"
)
TOO_LITTLE = (
    "ValueError: Free memory on device (72.9/79.25 GiB) on startup is less than desired GPU memory"
    " utilization (0.92, 72.91 GiB). Decrease GPU memory utilization or reduce GPU memory used by"
    " other processes."
)


def trainer(**args: Any) -> dict[str, Any]:
    """A run of transformers' trainer that leaves the dtype and the optimizer open."""
    program = {"tool": "transformers.Trainer", "args": {"bf16": True, **args}}
    return {"model": {"name": "qwen2.5-0.5b"}, "program": {**program, "data": {"seq_len": 128}}}


def died(text: str, card: float) -> str:
    """A text with torch's message on a card of so many GiB."""
    return f"{text}\n{OOM.format(card, card)}"


def of_release(found: Diagnosis) -> Cause | None:
    """The cause that is another release."""
    causes = [one for one in (found.cause, *found.others) if one is not None]
    return next((one for one in causes if one.id == "other_release"), None)


def test_a_share_of_the_card_that_grew_is_certain_where_what_is_free_lies_between() -> None:
    """vLLM 0.20 takes 0.92 of the card, earlier ones 0.9; with the old default it starts."""
    text = f"it worked with vllm 0.19.0, since 0.20.0 not:\n{TOO_LITTLE}"
    found = diagnose(text, SERVE)
    assert found.cause is not None
    assert found.cause.certainty == CERTAIN
    said = "from vLLM 0.19.0 to 0.20.0 the default of gpu_memory_utilization went from 0.9 to 0.92"
    assert said in found.cause.sentence
    assert "73.42 GiB instead of 72.65 GiB" in found.cause.sentence
    first = found.remedies[0]
    assert (first.command, first.fits) == ("--gpu-memory-utilization 0.9", True)
    assert of_release(diagnose(TOO_LITTLE, SERVE)) is None  # no release is named
    chosen = diagnose(text, f"{SERVE} --gpu-memory-utilization 0.92")
    cause = of_release(chosen)  # what is given does not change with the release
    assert cause is None or "gpu_memory_utilization" not in cause.sentence


def test_sequences_of_a_step_that_a_release_lowered_are_set_as_the_newest_has_them() -> None:
    """vLLM 0.8.0 to 0.8.3 profiled 1,024 sequences on every card."""
    log = f"INFO [api_server.py:1] vLLM API server version 0.8.2\n{OOM.format(23.5, 23.5)}"
    (said,) = [one for one in diagnose(log, SERVE).evidence if "by an estimate" in one]
    assert f"from vLLM 0.8.2 to {newest_of('vllm')}" in said
    assert "max_num_seqs went from 1,024 to 256" in said


@pytest.mark.parametrize(
    ("run", "text", "said", "command"),
    [
        pytest.param(
            SFT,
            "worked with trl 0.24.0, fails with trl 0.19.1",
            "from TRL 0.19.1 to 0.24.0 the default of gradient_checkpointing went from False to"
            " True",
            "--gradient_checkpointing true",
            id="TRL recomputes since 0.22",
        ),
        pytest.param(
            SFT,
            "it ran before I upgraded: trl 0.19.1 instead of trl 0.12.2",
            "the default of bf16 went from False to True",
            "--bf16 true",
            id="TRL trains in bf16 since 0.19",
        ),
        pytest.param(
            trainer(gradient_checkpointing=True),
            "worked with transformers 5.1.0 but not with transformers 4.57.1",
            "from transformers 4.57.1 to 5.1.0 the default of dtype at loading went from float32"
            " to bfloat16",
            "--dtype bfloat16",
            id="transformers 5 loads weights as stored",
        ),
        pytest.param(
            trainer(gradient_checkpointing=True),
            "transformers 4.57.1; worked with torch 2.8.0, not with torch 2.7.1",
            "the default of optim went from adamw_torch to adamw_torch_fused",
            "--optim adamw_torch_fused",
            id="the optimizer is fused since torch 2.8",
        ),
        pytest.param(
            FACTORY,
            "after upgrading llamafactory from 0.9.0 to 0.9.5",
            "the default of cutoff_len went from 1,024 to 2,048",
            "--cutoff_len 1024",
            id="LLaMA-Factory cuts at 2,048",
        ),
    ],
)
def test_a_default_that_changed_is_named_with_both_figures(
    run: Any, text: str, said: str, command: str
) -> None:
    """On a card between both needs the release is likely; the argument set explicitly helps."""
    large = diagnose(died(text, 500), run)
    cause = of_release(large)
    assert cause is not None
    assert said in cause.sentence
    low, high = sorted(
        float(word) for word in cause.sentence.split("it needs ")[1].split() if word[0].isdigit()
    )
    assert high > low + 0.06
    between = diagnose(died(text, round((low + high) / 2 + 0.4, 2)), run)
    found = of_release(between)
    assert found is not None
    assert found.certainty == LIKELY
    assert command in between.remedies[0].command
    assert between.remedies[0].fits


def test_releases_that_take_the_same_are_said_to() -> None:
    """So nobody goes back for nothing."""
    found = diagnose(died("works with torch 2.9.0, not with torch 2.10.0", 80), SFT)
    assert "torch 2.9.0 and 2.10.0 take the same by an estimate" in found.notes


def test_a_release_that_the_one_who_asks_names_counts() -> None:
    """As one in the text does: the other is the newest."""
    door = Door(releases=KnownReleases(read_at(["trl=0.19.1"])))
    asked = read(SFT, door).at(read_at(["trl=0.19.1"]))
    found = diagnose(died("", 40), asked)
    cause = of_release(found)
    assert cause is not None
    assert "gradient_checkpointing" in cause.sentence


def test_a_run_that_another_release_refuses_is_not_compared_in_silence() -> None:
    """An argument that one of them does not have."""
    run = "swift sft --model Qwen/Qwen2.5-1.5B --train_type full --dataset d"
    found = diagnose(died("worked with ms-swift 3.1.0, fails with ms-swift 4.5.3", 40), run)
    (said,) = [one for one in found.notes if "not compared with another release" in one]
    assert "--train_type is not a key of ms-swift 4.5.3" in said


def test_releases_of_a_text() -> None:
    """Of the packages that count; a number alone only where the package has had that release."""
    packages = ("vllm", "torch", "transformers")

    def of(text: str) -> list[str]:
        return [f"{one.package} {one.version}" for one in releases_in_text(text, packages)]

    assert of("vLLM 0.10.2 → 0.11.0, CUDA 12.4.1") == ["vllm 0.10.2", "vllm 0.11.0"]
    assert of("torch 2.7.1, transformers 4.57.1") == ["transformers 4.57.1", "torch 2.7.1"]
    assert of("v0.11.2 runs it, v0.14.1 dies") == ["vllm 0.11.2", "vllm 0.14.1"]
    assert of("with 3.10.12 of Python, on driver 550.54.15") == []
    assert of("vllm==0.9.2\ntorch==2.7.0\n") == ["vllm 0.9.2", "torch 2.7.0"]
    assert of("/site-packages/vllm/v1/engine.py:0.11.0") == []
    assert of("Version of vLLM is 0.8.5.post1") == ["vllm 0.8.5.post1"]

"""Why a run died, by what it printed."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.advice.diagnosis.cause_rows import KEYS, rows
from gpu_mem_calculator.advice.diagnosis.crash import STAGES
from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.advice.diagnosis.diagnosis import CERTAIN, LIKELY, POSSIBLE
from gpu_mem_calculator.advice.diagnosis.places import _rows as places
from gpu_mem_calculator.advice.diagnosis.places import said_rows
from gpu_mem_calculator.advice.diagnosis.rules import BY_NAME, BY_PHASE, BY_TENSOR, CAUSE_OF_TENSOR
from gpu_mem_calculator.advice.diagnosis.sizes import LEDGER
from gpu_mem_calculator.tools.logs.read import rows as lines

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total"
    " capacity of {total} of which {free} is free. Including non-PyTorch memory, this process has"
    " {process} memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and"
    " {unallocated} is reserved by PyTorch but unallocated."
)
FULL = {
    "tried": "2.32 GiB",
    "total": "79.15 GiB",
    "free": "1.00 GiB",
    "process": "78.10 GiB",
    "allocated": "76.00 GiB",
    "unallocated": "1.10 GiB",
}
STACK = """Traceback (most recent call last):
  File "/app/train.py", line 9, in <module>
    trainer.train()
  File "/venv/lib/python3.12/site-packages/{file}", line 100, in {name}
    {code}
"""


def _text(file: str = "", name: str = "", code: str = "", **sizes: str) -> str:
    stack = STACK.format(file=file, name=name, code=code) if file else ""
    return stack + OOM.format(**{**FULL, **sizes})


@pytest.mark.parametrize(
    ("file", "name", "code", "cause"),
    [
        ("torch/optim/adamw.py", "_init_group", "state['exp_avg'] = zeros(p)", "optimizer_states"),
        ("torch/optim/adam.py", "_multi_tensor_adamw", "_foreach_sqrt(x)", "optimizer_temporaries"),
        ("transformers/loss/loss_utils.py", "ForCausalLMLoss", "logits.float()", "logits"),
        ("transformers/trainer.py", "evaluation_loop", "self.prediction_step()", "evaluation"),
        ("transformers/modeling_utils.py", "from_pretrained", "load()", "weights"),
        ("transformers/models/llama/m.py", "forward", "self.down_proj(x)", "activations"),
        ("torch/autograd/graph.py", "_engine_run_backward", "run_backward()", "backward"),
    ],
)
def test_the_stack_says_where_it_died(file: str, name: str, code: str, cause: str) -> None:
    """Likely, and never certain without the size."""
    found = diagnose(_text(file, name, code)).cause
    assert found is not None
    assert (found.id, found.certainty) == (cause, LIKELY)


def test_a_size_that_the_run_has_at_that_place_is_certain() -> None:
    """4 x 1,024 tokens x 151,936 logits x 4 bytes are 2.32 GiB."""
    run = {
        "model": {"name": "qwen2.5-1.5b"},
        "training": {"batch_size": 4, "seq_len": 1024},
        "hardware": {"gpu": "h100-80gb-sxm"},
    }
    text = _text("transformers/loss/loss_utils.py", "ForCausalLMLoss", "logits.float()")
    found = diagnose(text, run).cause
    assert found is not None
    assert (found.id, found.certainty, found.tensor) == ("logits", CERTAIN, "logits")
    assert found.formula == "4 × 1,024 tokens × 151,936 logits × 4 bytes"


def test_nothing_samples_in_a_training_step() -> None:
    """So 8 bytes for each logit are no sampler's, which a server has."""
    run = {"model": {"name": "qwen2.5-1.5b"}, "training": {"batch_size": 2, "seq_len": 1024}}
    found = diagnose(OOM.format(**FULL), run)
    assert all(one.id != "sampler" for one in (found.cause, *found.others) if one is not None)


def test_a_first_step_has_no_optimizer_states() -> None:
    """What was held says that it is a later one, where no step is printed."""
    run = {
        "model": {"name": "qwen2.5-1.5b"},
        "training": {"batch_size": 1, "seq_len": 512},
        "hardware": {"gpu": "h100-80gb-sxm"},
    }
    sizes = {"held": ["5.00 GiB", "30.00 GiB"], "phase": ["forward", "forward, step 2"]}
    for held, phase in zip(*sizes.values(), strict=True):
        text = _text("x/modeling.py", "forward", "self.down_proj(x)", allocated=held)
        found = diagnose(text, run).cause
        assert found is not None
        assert found.phase == phase


def test_somebody_else_on_the_card_is_seen() -> None:
    """By what neither this process nor free memory accounts for."""
    found = diagnose(_text(process="40.00 GiB", allocated="38.00 GiB")).cause
    assert found is not None
    assert found.id == "card_taken"
    assert "38.15 GiB of the card was held by others" in found.sentence


def test_memory_lost_to_fragmentation_is_seen() -> None:
    """From a share of the card on."""
    found = diagnose(_text(allocated="60.00 GiB", unallocated="17.00 GiB")).cause
    assert found is not None
    assert found.id == "fragmented"
    sizes = {"tried": "2.32 GiB", "free": "590.00 MiB", "unallocated": "2.10 GiB"}
    found = diagnose(_text(**sizes, total="23.69 GiB", process="23.11 GiB", allocated="20.6 GiB"))
    assert found.cause is not None
    assert "2.10 + 0.58 = 2.68 GiB was there, not in one piece" in found.cause.sentence
    assert "2.32 GiB was asked for" in found.cause.sentence


def test_a_run_on_a_card_of_another_size_is_told() -> None:
    """The estimate is then of that card, not of the one that was full."""
    run = {"model": {"name": "gpt2"}, "hardware": {"gpu": "h100-80gb-sxm"}}
    said = [diagnose(_text(total=size), run).notes for size in ("23.69 GiB", "79.15 GiB")]
    words = "the run's card has 79.18 GiB, the one in the message 23.69 GiB"
    assert [words in one for one in said] == [True, False]
    assert not any("the one in the message" in one for one in said[1])


def test_a_text_without_a_death_has_no_cause() -> None:
    """And says what to send."""
    found = diagnose("step 1 loss 2.0\n")
    assert found.cause is None
    assert "launch command" in found.question


def test_every_cause_has_its_words() -> None:
    """No rule names a row that is not there."""
    named = {*BY_PHASE.values(), *BY_TENSOR.values(), *BY_NAME.values()}
    assert named <= rows().keys()
    for row in rows().values():
        assert row["remedies"], row["sentence"]
        told = " ".join((row["sentence"], *row["remedies"]))
        assert all(f"{{{key}}}" in told for key in row.keys() - KEYS), row
        assert {*row.get("certain", ()), *row.get("likely", ())} <= {one.what for one in lines()}


@pytest.mark.parametrize("row", said_rows(), ids=lambda row: f"{row['cause']}, {row['certainty']}")
def test_what_people_say_is_a_cause_that_is_never_certain(row: dict[str, Any]) -> None:
    """Each row is found in its example, and has a cause with its words."""
    assert row["certainty"] in (LIKELY, POSSIBLE)
    found = diagnose(row["example"])
    causes = [(one.id, one.certainty) for one in (found.cause, *found.others) if one]
    assert (row["cause"], row["certainty"]) in causes, causes
    assert "{" not in " ".join(one.sentence for one in (found.cause, *found.others) if one)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Training works, validation fails with OOM", "evaluation"),
        ("CUDA out of memory when trying to save the model after training has finished", "saving"),
        ("OOM, always when resuming from a checkpoint", "resume"),
        ("RuntimeError: CUDA error: out of memory\nwhile loading the model", "weights"),
        ("training killed: the host memory is exhausted, OOM", "host_ram"),
        ("step 1 alloc=9.0 peak=20 GB\nstep 2 alloc=9.0 peak=31 GB\nstep 3: OOM", "longer_batch"),
        (
            "step 1 alloc=9 peak=20 GB\nstep 2 alloc=11 peak=22 GB\n"
            "step 3 alloc=13 peak=24 GB\nOOM",
            "grows",
        ),
        ("alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624", "weights"),
        (_text(tried="128.00 MiB", free="37.32 GiB", process="6.15 GiB"), "driver_refused"),
        ("vllm serve x --gpu-memory-utilization 0.92\n" + _text(), "server_share"),
    ],
)
def test_prose_and_symptoms_have_a_cause(text: str, cause: str) -> None:
    """Where no stack says more."""
    found = diagnose(text).cause
    assert found is not None
    assert (found.id, found.certainty) == (cause, LIKELY)


def test_each_phase_of_a_stack_or_of_words_is_one_of_the_ledger() -> None:
    """A phase without a row fails here."""
    named = {row["phase"] for kind in ("phase", "inner", "words") for row in places(kind)}
    assert {*named, "", *STAGES.values(), *BY_PHASE} == LEDGER.keys()


def test_every_tensor_of_a_stack_has_a_cause_or_is_known_to_tell_none() -> None:
    """A row of places.toml without one fails here."""
    assert {row["tensor"] for row in places("tensor")} | {""} == CAUSE_OF_TENSOR.keys()


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        (
            "ValueError: Not enough host memory available. Requesting 160.00 GB but only have "
            "98.12 GB free. Please reduce the size of the hierarchical cache.",
            "host_cache_refused",
            "a rank asks for 149.01 GiB",
        ),
        (
            "RuntimeError: cudaHostRegister failed (rc=1, invalid argument) for ptr=0x6f6388400000 "
            "size=531470745600; host buffer is not pinned",
            "host_not_pinned",
            "(494.97 GiB)",
        ),
    ],
)
def test_sglang_says_that_its_cache_does_not_fit_the_host(
    text: str, cause: str, words: str
) -> None:
    """What it refuses itself, and what the driver does not pin (InferenceX#2146)."""
    found = diagnose(text).cause
    assert found is not None
    assert (found.id, found.certainty) == (cause, CERTAIN)
    assert words in found.sentence


def test_an_error_of_another_kind_is_no_memory_error() -> None:
    """Its last line is said, and nothing more is asked for."""
    stack = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n'
    found = diagnose(f"{stack}ModuleNotFoundError: No module named 'foo'\n")
    assert found.error == "ModuleNotFoundError: No module named 'foo'"
    assert (found.cause, found.question) == (None, "")
    assert diagnose(f"{stack}RuntimeError: something went wrong\n").question

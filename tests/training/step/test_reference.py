"""A reference model: its weights and its forward pass."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import STEP
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.pytorch_ddp.options import PRECISIONS
from gpu_mem_calculator.training.step.activations import setting
from gpu_mem_calculator.training.step.layer_groups import layer_groups
from gpu_mem_calculator.training.step.reference import no_grad_forward
from tests.conftest import SMALL_LLAMA, small_run
from tests.streams import highest, rolled_and_written

PAIRS: dict[str, Any] = {"loss": "chunked", "reference_model": True, "labelled_tokens": 384}
CASES: dict[str, dict[str, Any]] = {
    "copy": {},
    "checkpointed": {"activation_checkpointing": "full"},
    "accumulated": {"gradient_accumulation_steps": 3},
    "16 bits": {"precision": "bf16_pure"},
    "adapters": {"lora": {"r": 4}},
    "adapters, checkpointed": {"lora": {"r": 4}, "activation_checkpointing": "full"},
    "4 bits": {"lora": {"r": 4}, "quantization": "nf4", "precision": "bf16_pure"},
    "Liger": {"liger": ["rope", "rms_norm", "swiglu"]},
    "precomputed": {"reference_model": "precomputed"},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 1000},
    "bloom": {
        "model_type": "bloom",
        "hidden_size": 256,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 1000,
    },
    "gemma2": {**SMALL_LLAMA, "model_type": "gemma2", "sliding_window": 64, "head_dim": 32},
}


def found(model: dict[str, Any] = SMALL_LLAMA, gpus: int = 1, **training: Any) -> ResolvedRun:
    """A small run with a reference model."""
    data = small_run("pytorch_ddp", gpus, training={**PAIRS, "optimizer": "sgd", **training})
    return resolve(read({**data, "model": {"config": model}}).file)


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_ledger_and_stream_are_equally_high(name: str, gpus: int) -> None:
    """At the peak, and while the reference runs."""
    run = found(gpus=gpus, **CASES[name])
    ledger, asked = rolled_and_written(run)
    assert highest(asked) == int(ledger.peak(phases=STEP))
    instants = [i.name for i in ledger.instants if i.where == "reference" and not i.micro_batch]
    assert len(instants) == (name != "precomputed")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_alone_can_be_the_peak(family: str) -> None:
    """With checkpoints, and nothing to optimize, its forward is higher than the backward."""
    ledger, asked = rolled_and_written(found(FAMILIES[family], activation_checkpointing="full"))
    assert highest(asked) == int(ledger.heights()["reference"])


@pytest.mark.parametrize("family", [*FAMILIES, "llama"])
def test_a_forward_frees_all_that_it_allocates(family: str) -> None:
    """And nothing twice."""
    run = found(FAMILIES.get(family, SMALL_LLAMA)).run
    groups = layer_groups(run, 0, len(run.arch.layers))
    events = no_grad_forward(run, setting(run, PRECISIONS[run.precision]), groups).forward
    alive: set[int] = set()
    for event in events:
        (alive.add if event >= 0 else alive.remove)(event if event >= 0 else ~event)
    assert not alive


def test_a_copy_takes_its_weights_and_adapters_take_none() -> None:
    """The copy has no gradients and no optimizer states."""
    with_copy, without = (
        run.engine.ledger(run.run).peak(phases=["startup"])
        for run in (found(), found(reference_model=False))
    )
    weights = found().run.arch.num_parameters * 4
    head = SMALL_LLAMA["vocab_size"] * SMALL_LLAMA["hidden_size"] * 4 * found().run.arch.tied
    assert weights - head <= with_copy - without <= weights + 4096
    names = {e.name for e in found(lora={"r": 4}).engine.ledger(found(lora={"r": 4}).run).entries}
    assert "reference model: parameters" not in names
    assert "reference model: forward" in names


def test_checkpoints_do_not_change_the_reference() -> None:
    """It keeps nothing either way."""
    sizes = set()
    for level in ("none", "full"):
        run = found(activation_checkpointing=level)
        entries = run.engine.ledger(replace(run.run)).entries
        sizes.add(next(int(e.bytes) for e in entries if e.name == "reference model: forward"))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("training", "engine", "words"),
    [
        ({"loss": "full", "labelled_tokens": None}, "pytorch_ddp", "needs loss 'chunked'"),
        ({}, "fsdp", "not modelled under"),
        ({}, "deepspeed", "not modelled under"),
        ({"reference_model": "precomputed"}, "fsdp", "reference_model=precomputed is not modelled"),
    ],
)
def test_what_is_refused(training: dict[str, Any], engine: str, words: str) -> None:
    """In one sentence."""
    with pytest.raises(InputError, match=words):
        resolve(read(small_run(engine, training={**PAIRS, **training})).file)


@pytest.mark.parametrize("name", ["copy", "adapters, checkpointed", "precomputed"])
def test_arrays_equal_single_runs(name: str) -> None:
    """Plans compute many batches at once."""
    numpy = pytest.importorskip("numpy")
    found_run = found(**CASES[name])
    batches, lengths = [2, 4, 6], [512, 700, 1024]
    sizes = {"batch": numpy.array(batches), "seq": numpy.array(lengths)}
    together = found_run.engine.ledger(replace(found_run.run, **sizes)).peak()
    single = [
        found_run.engine.ledger(replace(found_run.run, batch=b, seq=s)).peak()
        for b, s in zip(batches, lengths, strict=True)
    ]
    assert list(map(int, together)) == list(map(int, single))  # type: ignore[call-overload]

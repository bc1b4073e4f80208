"""Remedies: every set of changes fits, is as small as it can be, and there always is one."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator.advice.training import last_resorts
from gpu_mem_calculator.advice.training import remedies as remedy_search
from gpu_mem_calculator.advice.training.change_candidates import savings
from gpu_mem_calculator.advice.training.remedies import Remedy, remedies
from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.estimates.verdict_words import total_bytes
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.read import with_settings
from tests.conftest import small_run


def run(model: str, engine: dict[str, Any], gpus: int, gpu: str, **training: Any) -> dict[str, Any]:
    """A run of sequences of 4,096 tokens."""
    return {
        "model": {"name": model},
        "training": {"seq_len": 4096, **training},
        "engine": engine,
        "hardware": {"num_gpus": gpus, "gpu": gpu},
    }


H100 = "h100-80gb-sxm"
DDP, FSDP = {"type": "pytorch_ddp"}, {"type": "fsdp"}
RUNS = {
    "7B": run("llama2-7b", DDP, 1, H100),
    "7B on a small card": run("llama2-7b", DDP, 1, "rtx-4090"),
    "7B on eight": run("llama2-7b", DDP, 8, H100),
    "70B with FSDP": run("llama2-70b", FSDP, 16, H100),
    "13B with FSDP": run("llama2-13b", FSDP, 8, "rtx-4090"),
    "7B with ZeRO-2": run("llama2-7b", {"type": "deepspeed", "zero_stage": 2}, 2, "rtx-4090"),
    "8B QLoRA": run(
        "llama3.1-8b",
        DDP,
        1,
        "rtx-4090",
        lora={"r": 16},
        quantization="nf4",
        precision="bf16_pure",
        autocast=True,
    ),
    "70B on one": run("llama2-70b", DDP, 1, H100),
    "long": run("mistral-7b", FSDP, 8, H100) | {"training": {"seq_len": 2**18}},
    "megatron": run("llama2-13b", {"type": "megatron_lm"}, 1, H100),
    "megatron on laptops": run("llama2-13b", {"type": "megatron_lm"}, 8, "rtx-4060-laptop")
    | {"parallelism": {"tensor_parallel_size": 8}},
    "tiny card": run("llama3.2-1b", DDP, 1, "gtx-1080-ti", activation_checkpointing="full"),
}


# these take the longest, and every change of theirs is one of another run's
LONG = {"7B on eight", "70B with FSDP", "70B on one", "tiny card"}
NAMES = [pytest.param(n, marks=pytest.mark.proof) if n in LONG else n for n in RUNS]


@cache
def found(name: str) -> list[Remedy]:
    """The remedies of a run that does not fit."""
    made = full_estimate(RUNS[name])
    assert made.result.verdict != "fits"
    return remedies(made)


@pytest.mark.parametrize("name", NAMES)
def test_every_remedy_fits_and_saves_what_it_says(name: str) -> None:
    """By the estimate of the run with its settings."""
    assert 1 <= len(found(name)) <= 2
    for remedy in found(name):
        data = with_settings(copy.deepcopy(RUNS[name]), remedy.settings)
        changed = estimate(data)
        assert changed.verdict == "fits"
        assert total_bytes(estimate(RUNS[name])) - total_bytes(changed) == remedy.saves_bytes


def test_where_the_evaluation_decides_its_largest_batch_that_fits_comes_first() -> None:
    """No other change is as cheap."""
    made = run("llama3.1-8b", FSDP, 8, H100, activation_checkpointing="full")
    made["training"]["evaluation"] = {"batch_size": 16}
    first = remedies(full_estimate(made))[0]
    [(key, size)] = [one.split("=") for one in first.settings]
    assert key == "training.evaluation.batch_size"
    for batch, word in ((int(size), "fits"), (int(size) + 1, "does_not_fit")):
        changed = with_settings(copy.deepcopy(made), [f"{key}={batch}"])
        assert (estimate(changed).verdict == "fits") == (word == "fits")


def test_expandable_segments_are_no_remedy_on_windows() -> None:
    """torch has them on Linux alone."""
    adapters = {"r": 16, "target_modules": "all-linear", "adapter_dtype": "fp32"}
    data = run("qwen2.5-7b", DDP, 1, "rtx-4090", lora=adapters, precision="bf16_pure")
    data["training"] |= {"autocast": True, "activation_checkpointing": "full"}
    data["hardware"]["node_memory_gb"] = 64
    texts = []
    for name in ("wsl", "windows"):
        made = full_estimate(with_settings(data, [f"hardware.os={name}"]))
        assert made.result.spills_bytes
        texts.append(str(remedies(made)))
    assert ["expandable" in text for text in texts] == [True, False]


@pytest.mark.parametrize(("layers", "most"), [(126, 264), (512, 16), (1024, 4)])
def test_of_a_deep_model_fewer_changes_are_tried(
    monkeypatch: pytest.MonkeyPatch, layers: int, most: int
) -> None:
    """Its ledgers take long; the search still finds something."""
    tried = []

    def counted(*given: Any) -> Any:
        tried.append(given)
        return last_resorts.changed_estimate(*given)

    monkeypatch.setattr(remedy_search, "changed_estimate", counted)
    model = {"num_layers": layers, "hidden_size": 2048, "num_attention_heads": 16}
    deep = full_estimate({"model": model, "hardware": {"gpu": "t4"}}, replay=False)
    search = remedy_search.RemedySearch(deep, 2, lambda _: None)
    assert search.tries == most
    search.extend(savings(deep))
    assert 0 < len(tried) <= most


def by_ledger(data: dict[str, Any]) -> int:
    """Bytes that the card must have by the ledger alone."""
    return round(estimate(data, replay=False).total_memory_per_gpu_gb * GIB)


@pytest.mark.parametrize("name", NAMES)
def test_no_change_of_a_remedy_is_superfluous(name: str) -> None:
    """Without the settings of one change, the others do not fit or are refused."""
    for remedy in found(name):
        for setting in remedy.settings if len(remedy.changes) > 1 else ():
            rest = [one for one in remedy.settings if one != setting]
            data = with_settings(copy.deepcopy(RUNS[name]), rest)
            if len(rest) == len(remedy.changes) - 1:  # each change is one setting
                assert estimate(data).verdict != "fits"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("7B", ("full recompute", "8-bit AdamW")),
        pytest.param("70B with FSDP", ("fused AdamW", "full recompute"), marks=pytest.mark.proof),
        ("8B QLoRA", ("full recompute",)),
        ("13B with FSDP", ("full recompute", "states to CPU")),
        ("7B on a small card", ("FSDP on 8 GPUs", "full recompute")),
        (
            "long",
            ("Liger kernels", "full recompute, inputs on CPU", "states to CPU", "sequence 129,024"),
        ),
    ],
)
def test_what_an_expert_would_say_is_there(name: str, changes: tuple[str, ...]) -> None:
    """Pairs and triples, more GPUs, and a shorter sequence."""
    assert set(changes) in [set(remedy.changes) for remedy in found(name)]


def test_a_run_that_is_short_by_fragmentation_gets_expandable_segments() -> None:
    """On a card with a little less than it needs with torch's defaults."""
    data = run("llama2-7b", FSDP, 4, H100)
    result = estimate(data)
    has = int(result.total_memory_per_gpu_gb * GIB * 0.99)
    card = {**data["hardware"], "available_memory_bytes": has}
    titles = [one.changes for one in remedies(full_estimate({**data, "hardware": card}))]
    assert titles[0] == ("expandable segments",)


def test_a_run_that_fits_has_none() -> None:
    """Nothing needs to change."""
    assert remedies(full_estimate(run("llama3.2-1b", DDP, 1, H100))) == []


def test_megatron_on_small_cards_gets_another_engine_before_many_gpus() -> None:
    """ZeRO-3 with states in host RAM on the same eight, not a pipeline over 64."""
    first = found("megatron on laptops")[0]
    assert first.changes[0].startswith("DeepSpeed ZeRO-3")
    assert not any("hardware.num_gpus" in setting for setting in first.settings)


def test_more_gpus_are_counted_from_those_of_the_run() -> None:
    """Several doublings are not "twice the GPUs"; more than eight times come last."""
    for name in ("megatron", "70B on one"):
        for remedy in found(name):
            counts = [int(s.partition("=")[2]) for s in remedy.settings if "num_gpus" in s]
            assert max(counts, default=1) <= 8
            assert "twice the GPUs" not in remedy.cost or max(counts) == 2


@pytest.mark.parametrize(
    ("engine", "training", "titles"),
    [
        ("pytorch_ddp", {}, ["Liger kernels"]),
        ("pytorch_ddp", {"loss": "cut"}, []),
        ("pytorch_ddp", {"label_smoothing": 0.1}, []),
        ("pytorch_ddp", {"liger": True}, []),
        ("megatron_lm", {}, []),
    ],
)
def test_a_smaller_loss_is_for_runs_with_transformers_own(
    engine: str, training: dict[str, Any], titles: list[str]
) -> None:
    """A loss that was chosen stays."""
    made = full_estimate(small_run(engine, training=training), replay=False)
    found = [one.title for one in savings(made)]
    assert [one for one in found if one in ("Liger kernels", "cut cross entropy")] == titles

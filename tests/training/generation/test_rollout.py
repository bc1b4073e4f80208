"""A policy that generates the completions on which it is trained."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator import estimate
from gpu_mem_calculator.advice.training.change_candidates import savings
from gpu_mem_calculator.estimates.calculator import STEP, full_estimate
from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.report.html import html_report
from gpu_mem_calculator.run.phases import GENERATION
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.pytorch_ddp.options import PRECISIONS
from gpu_mem_calculator.training.generation.entries import pass_events
from gpu_mem_calculator.training.generation.rollout import rollout_case, rollout_ledger
from gpu_mem_calculator.training.step.activations import setting
from tests.serving.conftest import FAMILIES
from tests.streams import highest, rolled_and_written

LORA = {"lora": {"r": 8, "target_modules": "all-linear"}, "precision": "bf16_pure"}


def policy(
    family: str = "llama", generation: dict[str, Any] | None = None, **training: Any
) -> dict[str, Any]:
    """A run file of a small policy; `generation`: more keys of its generation."""
    tokens = {"prompt": 64, "new_tokens": 32, **(generation or {})}
    return {
        "model": {"config": FAMILIES[family]},
        "training": {"batch_size": 2, "optimizer": "sgd", "generation": tokens, **training},
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }


def ledger(**keys: Any) -> Ledger:
    """The ledger of a small policy."""
    found = resolve(read(policy(**keys)).file)
    return found.engine.ledger(found.run)


def bytes_at(instant: str, **keys: Any) -> int:
    """Bytes alive at an instant."""
    return int(ledger(**keys).heights()[instant])


MANY = {"sequences": 64, "prompt": 300, "new_tokens": 8}
RUNS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "many": {"generation": MANY},
    "pure": {"precision": "bf16_pure", "autocast": True, "generation": MANY},
    "lora": {**LORA, "generation": MANY},
    "fp32 lora": {**LORA, "precision": "bf16_mixed", "generation": MANY},
    "static": {"generation": {**MANY, "cache_implementation": "static"}},
    "warm": {"generation": {**MANY, "temperature": 0.7, "top_k": 20}},
    "accumulated": {"gradient_accumulation_steps": 3},
    "between": {
        "batch_size": 64,
        "activation_checkpointing": "full",
        "gradient_accumulation_steps": 3,
        "generation": {**MANY, "top_p": 0.9},
        **LORA,
    },
    "between, vllm": {
        "gradient_accumulation_steps": 2,
        "generation": {"engine": "vllm", "sleep_level": 2, "sequences": 2},
    },
    "recomputed": {"activation_checkpointing": "full", "generation": MANY},
    "scored": {"reference_model": True, "generation": {"old_logprobs": True}},
    "elsewhere": {"generation": {"engine": "elsewhere", "old_logprobs": True}},
    "vllm": {"generation": {"engine": "vllm"}},
    "vllm, scored": {"generation": {"engine": "vllm", "old_logprobs": True}},
    "vllm asleep": {"generation": {"engine": "vllm", "sleep_level": 2, "old_logprobs": True}},
    "long": {**LORA, "generation": {"sequences": 64, "prompt": 30, "new_tokens": 200}},
    "windows": {"family": "gemma2", "generation": MANY},
    "learnt positions": {"family": "gpt2", "generation": MANY},
}


@pytest.mark.parametrize("keys", RUNS.values(), ids=RUNS)
def test_the_stream_has_the_peak_of_the_ledger(keys: dict[str, Any]) -> None:
    """To the byte, and nothing is freed that is not alive."""
    rolled, stream = rolled_and_written(resolve(read(policy(**keys)).file))
    assert highest(stream) == int(rolled.peak(phases=STEP))


def test_passes_in_the_middle_are_brief() -> None:
    """Small tensors that a block frees itself are left out of them."""
    run = resolve(read(policy(generation={"new_tokens": 100})).file).run
    run = replace(run, unrolled=True)
    assert run.rollout is not None
    case = rollout_case(run, run.rollout, setting(run, PRECISIONS["bf16_mixed"]))
    whole, brief = pass_events(case), rollout_ledger(case).plays
    shorter = {name for name, play in brief.items() if play.script != whole[name].script}
    assert shorter
    assert not any(name.startswith(("prefill", "decode.1.", "decode.99.")) for name in shorter)


def test_a_large_generation_is_the_peak() -> None:
    """And the answer says so."""
    found = estimate(policy(generation={**MANY, "sequences": 512}))
    assert found.peak_phase == GENERATION


def test_reports_show_its_cache_beside_the_states() -> None:
    """In the page and its picture."""
    page = html_report(full_estimate(policy(optimizer="adamw")))
    assert all(words in page for words in ("KV cache", "optimizer states", "generation"))


@pytest.mark.parametrize(
    ("generation", "title"),
    [
        ({"sequences": 4096, "prompt": 600}, "2 completions at a time"),
        ({"engine": "vllm", "gpu_memory_utilization": 0.6}, "vLLM asleep"),
    ],
)
def test_what_saves_memory(generation: dict[str, Any], title: str) -> None:
    """Fewer completions at a time, or an engine that sleeps."""
    found = full_estimate(policy(generation=generation), replay=False)
    assert title in [one.title for one in savings(found)]


def test_a_generation_has_states_but_no_gradients() -> None:
    """Between steps gradients are freed; weights and optimizer states stay."""
    found = ledger(optimizer="adamw")
    alive = [e for e in found.entries if any(name.startswith("prefill") for name in e.live)]
    kinds = {e.kind for e in alive}
    assert {"param", "optim", "cache"} <= kinds
    assert "grad" not in kinds


def test_between_micro_batches_gradients_are_alive() -> None:
    """A generation for each micro-batch; all but the first are beside gradients."""
    keys: dict[str, Any] = {"gradient_accumulation_steps": 2, "generation": {"sequences": 2}}
    first, later = (bytes_at(name, **keys) for name in ("decode.logits", "later.decode.logits"))
    assert later - first == 4 * resolve(read(policy()).file).run.arch.num_parameters


def test_autocast_caches_casts_while_the_policy_generates() -> None:
    """16-bit copies of the layers' weights; adapters are trained without them."""
    names = {True: False, False: True}
    for lora, casts in names.items():
        entries = ledger(**(LORA if lora else {})).entries
        found = any("cached by autocast" in e.name and "decode.logits" in e.live for e in entries)
        assert found is casts


def test_adapters_generate_beside_quantized_weights() -> None:
    """A wider adapter makes a wider tensor."""

    def working(rank: int) -> int:
        lora = {"r": rank, "target_modules": "all-linear"}
        entries = ledger(precision="bf16_pure", quantization="nf4", lora=lora).entries
        at_work = [e for e in entries if e.name.endswith("at work") and "prefill.layer.0" in e.live]
        return sum(int(e.bytes) for e in at_work)

    assert working(8) < working(4096)


def test_keys_are_cached_in_the_dtype_of_the_rotary_tables() -> None:
    """fp32 under autocast, where the embedding's output is; 16 bits in a 16-bit model."""
    cache = {
        precision: max(
            int(e.bytes)
            for e in ledger(precision=precision, autocast=pure).entries
            if e.kind == "cache"
        )
        for precision, pure in (("bf16_mixed", False), ("bf16_pure", True))
    }
    assert cache["bf16_mixed"] == 2 * cache["bf16_pure"]


@pytest.mark.parametrize(
    ("instant", "more"),
    [
        ("prefill.layer.0", {"sequences": 8}),
        ("prefill.layer.0", {"prompt": 128}),
        ("decode.logits", {"new_tokens": 60}),
        ("decode.scores", {"temperature": 0.5}),
        ("decode.scores", {"top_p": 0.9}),
    ],
)
def test_what_makes_a_generation_larger(instant: str, more: dict[str, Any]) -> None:
    """More sequences, longer prompts and completions, more to choose a token."""
    assert bytes_at(instant) < bytes_at(instant, generation=more)


def test_vllm_takes_its_share_of_the_card() -> None:
    """All of it while it generates; asleep, next to nothing while the policy is trained."""
    share = int(0.3 * 150_110_000_000)
    awake = ledger(generation={"engine": "vllm"}).heights()
    asleep = ledger(generation={"engine": "vllm", "sleep_level": 2}).heights()
    assert int(awake["generation"]) == int(asleep["generation"]) > 0.99 * share
    assert int(awake["optimizer"]) > 0.9 * share > 20 * int(asleep["optimizer"])


def test_vllm_is_there_while_completions_are_scored() -> None:
    """An engine that does not sleep frees nothing for the log-probabilities."""
    awake, asleep = (
        bytes_at("scored.policy", generation={"engine": "vllm", "old_logprobs": True, **more})
        for more in ({}, {"sleep_level": 2})
    )
    assert awake > 0.9 * int(0.3 * 150_110_000_000) > 20 * asleep


def test_at_level_1_the_weights_are_on_the_host() -> None:
    """While the policy is trained; at level 2 they are loaded again."""
    host = {
        level: int(ledger(generation={"engine": "vllm", "sleep_level": level}).peak("cpu"))
        for level in (1, 2)
    }
    assert host[1] > 0 == host[2]


def test_a_sleeping_engine_returns_its_memory() -> None:
    """So the policy's training does not reuse it, and less is reserved under a cap."""
    found = resolve(read(policy(generation={"engine": "vllm", "sleep_level": 1})).file)
    _, stream = rolled_and_written(found)
    assert len(stream.empties) >= 2


def test_completions_have_the_labels() -> None:
    """The sequence is prompt and completion."""
    run = resolve(read(policy()).file).run
    assert (run.seq, run.labelled, run.loss) == (96, 32, "chunked")
    assert run.rollout is not None
    assert run.rollout.sequences == 2


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"generation": {"prompt": None}}, "generation.prompt is missing"),
    ({"seq_len": 50}, "is not prompt \\+ new_tokens = 96"),
    ({"loss": "full"}, "training.loss='full' with training.generation is not modelled"),
    ({"labelled_tokens": 5}, "is not new_tokens"),
    ({"generation": {"sequences": 3}}, "does not fill its micro-batches"),
    ({"zero_grad": "before_forward"}, "training.zero_grad with training.generation"),
    ({"reference_model": "precomputed"}, "does not exist; use true"),
    ({"generation": {"engine": "elsewhere", "top_k": 5}}, "top_k has no effect with engine"),
    ({"generation": {"sleep_level": 1}}, "sleep_level has no effect with engine 'transformers'"),
    ({"generation": {"engine": "vllm", "gpu_memory_utilization": 0.001}}, "training.generation: "),
    ({"generation": {"promt": 3}}, "promt is not a known key"),
]


@pytest.mark.parametrize(("keys", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(keys: dict[str, Any], words: str) -> None:
    """One sentence for each."""
    with pytest.raises(InputError, match=words):
        resolve(read(policy(**keys)).file)


def test_other_engines_and_gpus_are_refused() -> None:
    """With the one to use."""
    data = policy(gradient_accumulation_steps=2, generation={"sequences": 2})
    with pytest.raises(InputError, match="use at least 4, those of a step"):
        resolve(read(data | {"hardware": {"gpu": "h200", "num_gpus": 2}}).file)
    data = policy() | {"engine": {"type": "fsdp"}, "hardware": {"gpu": "h200", "num_gpus": 8}}
    with pytest.raises(InputError, match="use engine pytorch_ddp"):
        resolve(read(data).file)

"""What the run's estimate and its card change of a cause that the text says."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.advice.diagnosis.cause_rows import rows
from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.advice.diagnosis.diagnosis import LIKELY, Diagnosis
from gpu_mem_calculator.advice.diagnosis.symptoms import WORDS_OF
from gpu_mem_calculator.runfile.text.errors import InputError

NO_CACHE = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
)
SPARK = "0.70 hangs the whole host on a DGX Spark: memory is gone in the profiling pass"
STRIX = "HIP out of memory on Ryzen AI MAX+ (gfx1151) with unified memory; it hangs"
FREE = (
    "ValueError: Free memory on device ({free}/139.72 GiB) on startup is less than desired GPU"
    " memory utilization (0.9, 125.75 GiB). Decrease GPU memory utilization or reduce GPU memory"
    " used by other processes."
)


def _served(text: str, gpu: str = "a800-80gb-sxm", **options: object) -> Diagnosis:
    server = {"engine": "vllm", "gpu_memory_utilization": 0.4, **options}
    run = {"model": {"name": "qwen3-8b"}, "inference": server, "hardware": {"gpu": gpu}}
    return diagnose(text, run)


def _advice(found: Diagnosis) -> str:
    return " ".join(one.sentence for one in found.remedies)


@pytest.mark.parametrize(
    ("release", "cause", "room"),
    [("0.8.5", "share_with_others", "10.62 GiB"), ("0.10.2", "other_set_up", "15.23 GiB")],
)
def test_a_cause_does_not_contradict_the_estimate(release: str, cause: str, room: str) -> None:
    """0.4 of 80 GB is enough for Qwen3-8B (vllm-project/vllm#17431); V1 counts others to 0.9.0."""
    found = _served(NO_CACHE, engine_version=release)
    assert found.cause is not None
    assert (found.cause.id, found.cause.certainty) == (cause, LIKELY)
    assert room in found.cause.sentence
    assert f"vLLM {release}" in found.cause.sentence
    assert all(one.id != "no_room_for_cache" for one in found.others)


def test_what_is_assumed_of_the_run_is_said() -> None:
    """A release that nobody says (vllm-project/vllm#10439)."""
    server = {"engine": "vllm", "gpu_memory_utilization": 0.4}
    run = {"model": {"name": "qwen2.5-0.5b"}, "inference": server}
    found = diagnose(NO_CACHE, {**run, "hardware": {"gpu": "a100-80gb-sxm"}}).cause
    assert found is not None
    assert "with its release assumed" in found.sentence


def test_nothing_rests_on_a_card_that_is_assumed() -> None:
    """Neither the cause nor a verdict; it is asked for."""
    server = {"engine": "vllm", "gpu_memory_utilization": 0.4}
    found = diagnose(NO_CACHE, {"model": {"name": "qwen2.5-0.5b"}, "inference": server})
    assert found.cause is not None
    assert (found.cause.id, found.verdict) == ("no_room_for_cache", "cannot_tell")
    assert "80 GB" not in str(found.cause) + found.summary
    assert "--gpu" in found.question


SERVES = "llama-server -m Qwen2.5-32B-Instruct-Q4_K_M.gguf -ngl 99 -c 32768\n"
FAILED = "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory\n"


@pytest.mark.parametrize(
    ("says", "title"),
    [
        ("  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes\n", "RTX 3090"),
        ("why does it fail on my RTX 4070 Ti (12GB)?\n", "RTX 4070 Ti"),
        ("显卡是 4060 8G\n", "RTX 4060"),
        ("GPU: RTX 4090 24GB\n", "RTX 4090"),
        ("两张4090部署\n", "RTX 4090"),
        ("on an NVIDIA L4\n", "L4"),
        ("on H100-SXM5-80GB\n", "H100 80GB SXM"),
    ],
)
def test_the_card_of_the_text_is_that_of_the_run(says: str, title: str) -> None:
    """What a device's line says, or people; what is given wins."""
    text = SERVES + says + FAILED
    assert f" {title}" in diagnose(text).summary
    assert ", A40: " in diagnose(text, gpu="a40").summary


def test_a_size_alone_has_no_name() -> None:
    """Neither of another card nor of the one that is assumed."""
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
    )
    text = f"vllm serve Qwen/Qwen3-8B\n{oom} capacity of 22.50 GiB of which 1.00 GiB is free."
    assert ", 22.5 GiB GPU: " in diagnose(text).summary
    assert ", L4: " in diagnose(f"NVIDIA L4\n{text}".replace("22.50", "22.03")).summary


def test_settings_without_a_run_are_named() -> None:
    """They are not ignored in silence."""
    found = diagnose(FAILED, gpu="a40")
    assert any(one.startswith("hardware.gpu=a40: not used") for one in found.notes)


RUNS = [SERVES, {"model": {"name": "qwen2.5-7b"}, "hardware": {"gpu": "h100", "gpu_memory_gb": 1}}]


@pytest.mark.parametrize("run", RUNS)
def test_the_card_that_is_named_is_that_of_a_given_run(run: Any) -> None:
    """Also of one that has a card, or its memory, of its own."""
    assert ", A40: " in diagnose(FAILED, run, gpu="a40").summary


@pytest.mark.parametrize("text", [FAILED, SERVES + FAILED])
def test_a_card_that_is_not_known_is_refused(text: str) -> None:
    """Whether a run is known or not."""
    with pytest.raises(InputError, match="'a999' is not a known card"):
        diagnose(text, gpu="a999")


def test_ollama_has_the_context_of_the_card() -> None:
    """Its default is larger on a larger card."""
    text = f"ollama run llama3.1:8b\n{FAILED}"
    small, large = (diagnose(text, gpu=one).summary for one in ("3090", "h100"))
    assert "tokens" in small
    assert small.rpartition(" at ")[2] != large.rpartition(" at ")[2]


@pytest.mark.parametrize("others", [{}, {"max_model_len": 40960}])
def test_weights_that_leave_nothing_are_the_cause(others: dict[str, object]) -> None:
    """Where the estimate says so, too."""
    found = _served(NO_CACHE, "rtx-4090", engine_version="0.8.5").cause
    assert found is not None
    assert found.id == "no_room_for_cache"


@pytest.mark.parametrize(
    ("text", "own", "not_own"),
    [
        (SPARK, "drop_caches", "gttsize"),
        (STRIX, "gttsize", "drop_caches"),
        ("kIOGPUCommandBufferCallbackErrorOutOfMemory", "iogpu.wired_limit_mb", "gttsize"),
        ("OOM: the unified memory machine hangs, memory is gone", "other programs", "gttsize"),
        (f"{SPARK}; {STRIX}", "other programs", "gttsize"),
    ],
)
def test_unified_memory_is_advised_for_the_vendor_of_the_text(
    text: str, own: str, not_own: str
) -> None:
    """Of a card that is not known, or of two, neither."""
    found = diagnose(text)
    assert found.cause is not None
    assert found.cause.id == "unified_memory"
    assert own in _advice(found)
    assert not_own not in _advice(found)


def test_the_runs_card_says_the_vendor() -> None:
    """Where the text does not."""
    text = "OOM: the unified memory machine hangs, memory is gone"
    assert "drop_caches" in _advice(_served(text, "dgx-spark-128gb"))
    assert "gttsize" in _advice(_served(text, "strix-halo-128gb"))


def test_each_vendor_of_unified_cards_has_its_words_and_advice() -> None:
    """A vendor without them fails here."""
    vendors = {row["vendor"] for row in catalog.rows("gpus") if row["kind"] == "unified"}
    assert WORDS_OF.keys() == rows()["unified_memory"]["of_vendor"].keys() == vendors


@pytest.mark.parametrize(("free", "share"), [("7.34", ""), ("16.50", ""), ("60.00", "0.42")])
def test_a_share_that_does_not_hold_the_server_is_not_advised(free: str, share: str) -> None:
    """Weights of 15.3 GiB need more than a share of 16.5 (as in vllm-project/vllm#23192)."""
    found = _served(FREE.format(free=free), "h200", gpu_memory_utilization=0.9)
    assert "nvidia-smi" in _advice(found)
    assert (f"--gpu-memory-utilization {share}" in _advice(found)) == bool(share)


def test_others_that_the_share_counts_are_no_reason_to_ask_for_less() -> None:
    """As the share has to hold them."""
    profiled = (
        "INFO 12-16 13:05:23 worker.py:241] the current vLLM instance can use total_gpu_memory"
        " (79.15GiB) x gpu_memory_utilization (0.40) = 31.66GiB\n"
        "INFO 12-16 13:05:23 worker.py:241] model weights take 15.27GiB; non_torch_memory takes"
        " 12.90GiB; PyTorch activation peak memory takes 1.23GiB; the rest of the memory reserved"
        " for KV Cache is 2.34GiB."
    )
    found = diagnose(f"{profiled}\n{NO_CACHE}")
    causes = {one.id: one for one in (found.cause, *found.others) if one is not None}
    assert "Ask for less" not in " ".join(causes["card_taken"].advice)

"""Advice is for who can follow it: training or serving, and the tool that printed the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_mem_calculator.advice.diagnosis.cause_rows import rows
from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.advice.diagnosis.diagnosis import CERTAIN, Diagnosis
from gpu_mem_calculator.advice.diagnosis.own_words import _names, _plain, in_own_options
from gpu_mem_calculator.advice.diagnosis.programs import (
    SERVING,
    TRAINING,
    can_have,
    for_programs,
    options_of,
    program_rows,
)

# Words that a server cannot follow, and options of whatever tool.
OF_TRAINING = re.compile(
    r"(?i)micro-batch|accumulat|\bloss\b|gradient|optimizer|FSDP|ZeRO|device_map|examples"
    r"|data-loader|Recompute|adapter|checkpoint(?!s? that is quantized| that is quantized)"
)
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]+|\bOLLAMA_[A-Z_]+|\bnum_[a-z]+")
# Options of programs that start any tool: docker, Slurm, launchers.
OF_ALL = {"ipc", "shm_size", "mem", "at", "nproc_per_node", "num_processes", "num_gpus"}
OF_ALL |= {"ntasks_per_node"}
CAUSES = [
    (name, program)
    for name, row in rows().items()
    for program, its in program_rows().items()
    if can_have(row, (program, its["kind"]))
]


def _advice(name: str, program: str) -> Iterator[str]:
    programs = (program, program_rows()[program]["kind"])
    tools = options_of(programs)
    for one in for_programs(rows()[name], programs):
        yield in_own_options(re.sub(r"\{\w+\}", "0.8", one), tools)


@pytest.mark.parametrize("program", program_rows())
def test_no_tool_is_told_what_it_cannot_do(program: str) -> None:
    """Neither an option that it lacks, nor training in a server's answer."""
    own = set().union(*(_names(one) for one in options_of((program,)))) | OF_ALL
    names = [name for name, one in CAUSES if one == program]
    for sentence in (one for name in names for one in _advice(name, program)):
        lacking = [one for one in OPTION.findall(sentence) if _plain(one) not in own]
        assert not lacking or not own - OF_ALL, (sentence, lacking)
        if program_rows()[program]["kind"] == SERVING:
            assert not OF_TRAINING.search(sentence), sentence


def test_every_kind_and_program_of_a_cause_is_one() -> None:
    """And each cause can be somebody's."""
    known = {*program_rows(), TRAINING, SERVING}
    for name, row in rows().items():
        assert {*row.get("for", ()), *row.get("without", ())} <= known, name
        assert any(one == name for one, _ in CAUSES), name


SGLANG_LOGITS = (
    "[2025-09-02 11:30:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: "
    "3, #new_token_ratio: 0.7 -> 0.9\n"
    "[2025-09-02 11:30:10 TP0] Decode out of memory. Try to lower your batch size.\n"
    "Traceback (most recent call last):\n"
    '  File "/sgl-workspace/sglang/python/sglang/srt/layers/logits_processor.py", line '
    "470, in _get_logits\n"
    "    logits = logits.float()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a "
    "total capacity of 79.11 GiB of which 3.01 GiB is free."
)
SLURM = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=482133.0. Some of the step "
    "tasks have been OOM Killed."
)
POD = """    Last State:     Terminated
      Reason:       OOMKilled
    Limits:
      cpu:             8
      memory:          64Gi
"""
KERNEL = (
    "[1.1] memory: usage 134217728kB, limit 134217728kB, failcnt 9123\n"
    "[1.2] Memory cgroup out of memory: Killed process 40122 (python) "
    "total-vm:312345678kB, anon-rss:133998768kB, file-rss:71234kB"
)
EVICTED = (
    "Warning  Evicted  2m  kubelet  The node was low on resource: memory. Threshold "
    "quantity: 100Mi, available: 80Mi. Container vllm was using 61Gi, request is 8Gi"
)
OLLAMA = (
    'level=INFO msg="Load failed" error="model requires more system memory (9.1 GiB) '
    'than is available (4.2 GiB)"'
)
BARE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 79.11 GiB of which 1.11 GiB is free. Including non-PyTorch "
    "memory, this process has 77.99 GiB memory in use. Of the allocated memory 74.00 GiB "
    "is allocated by PyTorch, and 900.00 MiB is reserved by PyTorch but unallocated."
)
RUN: dict[str, Any] = {
    "model": {"name": "llama3.1-8b"},
    "engine": {"type": "fsdp"},
    "training": {
        "seq_len": 4096,
        "batch_size": 1,
        "activation_checkpointing": "full",
        "precision": "bf16_mixed",
        "saving": "full_state_dict",
        "evaluation": {"batch_size": 16},
    },
    "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8, "node_memory_gb": 1000},
}


def _told(found: Diagnosis) -> str:
    return " ".join(f"{one.sentence} {one.command}" for one in found.remedies)


def test_a_servers_activations_die_beside_its_cache() -> None:
    """A full cache retracts requests, and more of the card would make it worse."""
    found = diagnose(SGLANG_LOGITS)
    assert found.cause is not None
    assert found.cause.id == "logits"
    assert "Lower the server's share (--mem-fraction-static)" in _told(found)
    assert all(one.id != "cache_full" for one in found.others)


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        (OLLAMA, "host_too_small", "9.10 GiB of it where 4.20 GiB"),
        (EVICTED, "host_ram", "61.00 GiB in use, 8.00 GiB requested"),
        (SLURM, "host_ram", "Slurm"),
        (POD, "host_ram", "limit is 64.00 GiB"),
        (KERNEL, "host_ram", "127.79 GiB of 128.00 GiB"),
    ],
)
def test_the_hosts_death_is_certain_with_its_figures(text: str, cause: str, words: str) -> None:
    """Of Ollama, the kubelet, Slurm, a container and the kernel."""
    found = diagnose(text).cause
    assert found is not None
    assert (found.id, found.certainty) == (cause, CERTAIN)
    assert words in found.sentence


def test_a_hosts_death_changes_the_hosts_memory() -> None:
    """Each change is verified by the node's estimate against the limit that the text says."""
    found = diagnose(POD, RUN)
    assert "fits" not in found.summary
    assert "of 64 (the limit of the text)" in found.summary
    assert (found.remedies[0].command, found.remedies[0].fits) == (
        "--set training.saving=sharded",
        True,
    )
    assert "liger" not in _told(found).lower()


def test_what_a_run_has_is_not_advised() -> None:
    """And where its peak is in the evaluation, the cause is the evaluation's."""
    found = diagnose(BARE, RUN)
    assert found.cause is not None
    assert found.cause.id == "evaluation"
    run = {**RUN, "training": {**RUN["training"], "evaluation": None}}
    stack = '  File "/x/modeling_llama.py", line 9, in forward\n    self.down_proj(x)\n'
    alone = diagnose(f"Traceback (most recent call last):\n{stack}{BARE}", run)
    assert alone.cause is not None
    assert alone.cause.id == "activations"
    assert "Recompute" not in _told(alone)
    assert "micro-batch" not in _told(alone)


def test_collected_predictions_are_not_the_evaluations_batch() -> None:
    """The stack joins them."""
    frames = (
        "Traceback (most recent call last):\n"
        '  File "/v/transformers/trainer.py", line 4310, in evaluation_loop\n'
        "    all_preds.add(logits)\n"
        '  File "/v/transformers/trainer_pt_utils.py", line 100, in '
        "torch_pad_and_concatenate\n"
        "    return torch.cat((tensor1, tensor2), dim=0)\n"
    )
    found = diagnose(frames + BARE)
    assert found.cause is not None
    assert (found.cause.id, found.cause.tensor) == ("predictions", "collected predictions")
    for words in ("eval_accumulation_steps", "prediction_loss_only", "preprocess_logits"):
        assert words in _told(found)


def test_the_allocators_variable_is_the_cards() -> None:
    """HIP's, where the log says HIP."""
    text = BARE.replace("CUDA", "HIP").replace("74.00", "60.00").replace("900.00 MiB", "14.00 GiB")
    assert "PYTORCH_HIP_ALLOC_CONF" in _told(diagnose(text))


def test_no_token_is_in_a_model_that_is_loaded() -> None:
    """So a size is not told as that of logits."""
    start = "$ python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8"
    begin = "[2025-09-02 11:00:00 TP3] Load weight begin. avail mem=78.40 GB"
    text = "\n".join((start, begin, BARE.replace("2.00 GiB", "384.00 MiB", 1)))
    found = diagnose(text).cause
    assert found is not None
    assert found.id == "weights"
    assert "logits" not in found.sentence


def test_a_remedy_of_several_keys_is_one_line_in_the_summary() -> None:
    """And a command gets options, a file its keys."""
    command = (
        "llamafactory-cli train --stage sft --do_train true --model_name_or_path "
        "Qwen/Qwen2.5-7B --finetuning_type lora --cutoff_len 8192 "
        "--per_device_train_batch_size 4 --bf16 true --dataset a --output_dir o --template "
        "qwen"
    )
    small = BARE.replace("79.11", "23.64").replace("77.99", "22.40").replace("74.00", "21.00")
    first = diagnose(small, command).remedies[0].command
    assert first.startswith("--enable_liger_kernel true --")
    file = (
        "model_name_or_path: Qwen/Qwen2.5-7B\n"
        "stage: sft\n"
        "do_train: true\n"
        "finetuning_type: lora\n"
        "cutoff_len: 8192\n"
        "per_device_train_batch_size: 4\n"
        "bf16: true\n"
        "dataset: a\n"
        "output_dir: o\n"
        "template: qwen\n"
    )
    found = diagnose(small, file)
    assert "\n" not in found.summary

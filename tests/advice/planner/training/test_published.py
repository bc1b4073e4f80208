"""Set-ups that others published: the search finds them feasible; which it misses is listed.

Llama 3 (arXiv 2407.21783, table 4), GPT-3 and 1T of Narayanan et al. (SC21, table 1), the four of
Korthikanti et al. (arXiv 2205.05198, table 5).
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training.search import Found, search
from gpu_mem_calculator.advice.planner.training.space import structures
from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.step import step_seconds
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled
from tests.ground_truth.timing.translate import every_run
from tests.training.engines.test_megatron import GPT

H100, A100 = "h100-80gb-sxm", "a100-80gb-sxm"
TP, PP = "parallelism.tensor_parallel_size", "parallelism.pipeline_parallel_size"
CP, CHUNKS = "parallelism.context_parallel_size", "parallelism.virtual_pipeline_size"
BATCH = "training.batch_size"
LLAMA = {"name": "llama3.1-405b"}


def gpt(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    """A GPT model of these papers."""
    sizes = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 4 * hidden,
    }
    return {**GPT, **sizes, "tie_word_embeddings": True}


# model, card, GPUs, tokens of a sequence, global batch, the published sizes
SET_UPS: dict[str, tuple[dict[str, Any], str, int, int, int, dict[str, int]]] = {
    "Korthikanti 22B": (gpt(48, 6144, 64), A100, 8, 2048, 4, {TP: 8, PP: 1, BATCH: 4}),
    "Llama 3, 8k": (LLAMA, H100, 16384, 8192, 2048, {TP: 8, PP: 16, CP: 1}),
    "Llama 3, 8k, 8192 GPUs": (LLAMA, H100, 8192, 8192, 2048, {TP: 8, PP: 16, CP: 1}),
    "Llama 3, 128k": (LLAMA, H100, 16384, 131072, 128, {TP: 8, PP: 16, CP: 16}),
    "GPT-3 of SC21": (gpt(96, 12288, 96), A100, 1536, 2048, 1536, {TP: 8, PP: 16}),
    "1T of SC21": (gpt(128, 25600, 160), A100, 3072, 2048, 3072, {TP: 8, PP: 64}),
    "Korthikanti 175B": (
        gpt(96, 12288, 96),
        A100,
        64,
        2048,
        64,
        {TP: 8, PP: 8, CHUNKS: 3, BATCH: 1},
    ),
    "Korthikanti 530B": (
        gpt(105, 20480, 128),
        A100,
        280,
        2048,
        280,
        {TP: 8, PP: 35, CHUNKS: 3, BATCH: 1},
    ),
    "Korthikanti 1T": (gpt(128, 25600, 160), A100, 512, 2048, 512, {TP: 8, PP: 64, BATCH: 1}),
}


def searched(name: str, fix: dict[str, int]) -> Found:
    """The search for one of the set-ups, with some sizes fixed."""
    model, gpu, gpus, seq, batch, _ = SET_UPS[name]
    asked = PlanQuestion(
        model=model,
        hardware={"gpu": gpu, "num_gpus": gpus},
        seq_len=seq,
        global_batch=batch,
        engines=("megatron_lm",),
        fix=fix,
    )
    return search(list(structures(asked)), batch)


@pytest.mark.parametrize("name", sampled(list(SET_UPS), 2))
def test_published_set_ups_are_feasible(name: str) -> None:
    """With their sizes some set-up fits."""
    assert searched(name, SET_UPS[name][-1]).feasible > 0


# Public runs by the id of their row, and why they are predicted faster than our first choice, if
# they are. A row that is no longer missed fails here, so the list gets shorter, never longer.
OVERLAP, TOO_LARGE = "tp_comm_overlap is not searched", "it is predicted not to fit"
RUNS = {
    "llama3-paper/1": "",
    "megatron-sc21/7": "",
    "megatron-sc21/10": "",
    "nvidia-dgxc-benchmarking/13": OVERLAP,
    "nvidia-dgxc-benchmarking/22": OVERLAP,
    "nvidia-dgxc-benchmarking/34": TOO_LARGE,
    "nvidia-dgxc-benchmarking/56": OVERLAP,
    "nvidia-dgxc-benchmarking/66": "",
}
# What a question fixes: the training itself, and the layers that its time had.
FIXED = ("training.precision", "engine.transformer_implementation", "engine.masked_softmax_fusion")


def question_of(file: dict[str, Any]) -> PlanQuestion:
    """The question to which a run file is one answer."""
    training, ranks = file["training"], file["parallelism"]["data_parallel_size"]
    given = {f"{name}.{key}": file[name][key] for name in file for key in file[name]}
    return PlanQuestion(
        model=file["model"],
        hardware=file["hardware"],
        seq_len=training["seq_len"],
        global_batch=training["batch_size"] * training["gradient_accumulation_steps"] * ranks,
        engines=("megatron_lm",),
        fix={key: value for key, value in given.items() if key in FIXED},
    )


@pytest.mark.parametrize("row", sampled(list(RUNS), 2))
def test_the_first_choice_is_not_slower_than_a_published_run(row: str) -> None:
    """Each run as it was published, with every option, against the whole space of its question."""
    (file,) = (run.file for run in every_run()[0] if run.row.id == row)
    theirs = resolve(read(file).file)
    seconds = step_seconds(theirs.run, "megatron_lm", machine_of(theirs.hardware)).estimate
    question = question_of(file)
    found = search(list(structures(question)), question.sequences)
    missed = min(one.seconds for one in found.kept) > seconds
    assert missed == bool(RUNS[row])

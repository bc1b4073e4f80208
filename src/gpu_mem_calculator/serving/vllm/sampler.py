"""Logits of the profile run, and what sampling allocates.

The profile run samples max_num_seqs sequences with top-k and top-p, which is the peak of most
servers. Bytes per logit, all alive at once:

- V1 before 0.8: the model's logits alone.
- before 0.5.5 nothing is cast to fp32: 2 where it says 4.
- sorting (V0; V1 until 0.16): 4 the logits in fp32, 4 + 8 sorted values and their indices, 8 the
  indices before, 12 copies inside the sort. Measured on an H200 with torch 2.11: 9.50 to 9.56 times
  the fp32 logits for 128 to 1,024 rows of 32,064 to 201,088, 12.56 to 12.76 for 2 to 127 rows,
  9.57 for one; the model's logits included (2 bytes).
- masking in place (0.17 to 0.20): 4 fp32 logits, 4 probabilities, 4 noise (measured: 3.50 to 3.58
  times), and a buffer of one row for each multiprocessor.
- FlashInfer (from 0.21): 4 fp32 logits, 4 masked, 4 probabilities.
- the newer worker samples from the logits in their dtype; until 0.25 from a copy in fp32. From 0.33
  its profile run samples once more with every parameter in use: 4 fp32 logits, and FlashInfer's 8.

The newer worker also keeps counts of each sequence's tokens (`state_parts`), used or not.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.formula import Term
from ...ledger.source import code, measured
from ...run.run import Run
from .parts import UNMEASURED, SourcedBytes, of_chip, part, step_sequences, step_tokens
from .speculative import tokens_ahead
from .versions import FIRST_V1, uses_second_runner, v1, version

SORT_SOURCE = measured(
    "NVIDIA H200, torch 2.11: torch.sort of fp32 rows, n = 15 shapes, within 1 % "
    "of 32 bytes a logit for 128 rows and more, 2 % of 44 for 2 to 127"
)
IN_PLACE_SOURCE = code(
    "vllm 0.17.0 vllm/v1/sample/ops/topk_topp_triton.py apply_top_k_top_p_triton, "
    "topk_topp_sampler.py random_sample"
)
MASK_SOURCE = code("flashinfer 0.6.6 flashinfer/sampling.py top_k_top_p_sampling_from_logits")
LOGITS = code("vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py _dummy_sampler_run")
GATHER_SOURCE = code(
    "vllm 0.11.0 vllm/distributed/device_communicators/base_device_communicator.py all_gather"
)
SECOND_RUNNER_SOURCE = code(
    "vllm 0.25.0 vllm/v1/worker/gpu/sample/sampler.py apply_sampling_params"
)
PROCESSED_FROM = (0, 33, 0)
PROCESSED = code("vllm 0.33.0 vllm/v1/worker/gpu/model_runner.py _dummy_sampler_run")
STATES = code(
    "vllm 0.33.0 vllm/v1/worker/gpu/sample/penalties.py PenaltiesState, logit_bias.py, "
    "bad_words.py; vllm/v1/worker/gpu/structured_outputs.py: allocated behind the weights, "
    "from 0.22 on"
)
# Tokens of each sequence that may be allowed, biased (id and bias), stop it, be forbidden (and
# where each word of them begins), or have their probability asked for.
LISTED = 1024 + 2 * 1024 + 128 + 1024 + 129 + 128
FP32_FROM, SORT_UNTIL, MASKS_FROM = (0, 5, 5), (0, 17, 0), (0, 21, 0)  # versions
SORT, ROW_SEARCH, MASK = "sort", "rows", "masks"
MASKED = "masked logits and probabilities"
LEAST_ROWS = 8  # fewer rows are sorted
ONE_PASS = 128  # rows; 2 to 127 rows take 12 bytes a logit more
PROCESSORS = {
    **{"7.5": 40, "8.0": 108, "8.6": 82, "8.9": 128, "9.0": 132, "10.0": 148, "12.0": 170},
    **dict.fromkeys(("7.0", *UNMEASURED), 132),
}


def sampled_rows(run: Run) -> int:
    """Sequences that the profile run samples."""
    return min(step_sequences(run), step_tokens(run))


def sampling_kernel(run: Run) -> str:
    """SORT, ROW_SEARCH or MASK: by `use_flashinfer_sampler`, otherwise by version."""
    vllm_version, flashinfer = version(run), run.options.get("use_flashinfer_sampler")
    if flashinfer or (flashinfer is None and v1(run) and vllm_version >= MASKS_FROM):
        return MASK
    searches = v1(run) and vllm_version >= SORT_UNTIL and sampled_rows(run) >= LEAST_ROWS
    return ROW_SEARCH if searches else SORT


def logit_bytes(run: Run, size: int) -> int:
    """Bytes of a logit that is sampled: fp32, before 0.5.5 the model's own `size`.

    vllm 0.5.4 and 0.5.5 vllm/model_executor/layers/sampler.py forward.
    """
    return 4 if version(run) >= FP32_FROM else size


def sampling_parts(run: Run, size: int) -> Iterator[SourcedBytes]:
    """Logits and their copies at the sampling peak; `size`: bytes of a logit in the model."""
    rows, vocab = sampled_rows(run), run.arch.vocab
    logits = ("sequences", rows), ("logits", vocab)
    if uses_second_runner(run):
        yield from _second_runner_parts(run, size, logits)
        return
    yield part("logits", LOGITS, *logits, ("bytes", size))
    if v1(run) and version(run) < FIRST_V1:  # the profile run ends here
        return
    each = logit_bytes(run, size)
    if version(run) >= FP32_FROM:
        yield part("logits in fp32", LOGITS, *logits, ("bytes", 4))
    kernel = sampling_kernel(run)
    if kernel == SORT:
        copies = each + 16 + (12 if 1 < rows < ONE_PASS else 0)
        yield part("logits sorted, with their places", SORT_SOURCE, *logits, ("bytes", each + 8))
        yield part("torch.sort's own copies", SORT_SOURCE, *logits, ("bytes", copies))
    elif kernel == ROW_SEARCH:
        yield part("probabilities and noise", IN_PLACE_SOURCE, *logits, ("bytes", 8))
        yield _searched_rows(run)
    else:
        yield part(MASKED, MASK_SOURCE, *logits, ("bytes", 8))


def _searched_rows(run: Run) -> SourcedBytes:
    """A row for each multiprocessor, in which top-k and top-p are searched."""
    rows = ("rows", min(of_chip(PROCESSORS, run), sampled_rows(run)))
    logits = ("logits", run.arch.vocab)
    return part("rows that are searched", IN_PLACE_SOURCE, rows, logits, ("bytes", 4))


def _second_runner_parts(run: Run, size: int, logits: tuple[Term, Term]) -> Iterator[SourcedBytes]:
    (_, rows), (_, vocab) = logits
    if version(run) >= PROCESSED_FROM:
        yield part("logits", LOGITS, *logits, ("bytes", size))
        yield part("logits in fp32", PROCESSED, *logits, ("bytes", 4))
        if run.options.get("use_flashinfer_sampler") is False:
            yield _searched_rows(run)
        else:
            yield part(MASKED, MASK_SOURCE, *logits, ("bytes", 8))
        return
    tp, copied, count = int(run.mesh.tp), version(run) < (0, 26, 0), rows * vocab
    gathered = (count // tp + 2 * count) * size if tp > 1 else 0
    if gathered > count * (size + 4 * copied):
        name = "logits of each rank, gathered and put in order"
        text = f"({count // tp:,} logits + 2 × {count:,}) × {size} bytes"
        yield SourcedBytes(name, gathered, GATHER_SOURCE, text)
        return
    yield part("logits", LOGITS, *logits, ("bytes", size))
    if copied:
        yield part("logits in fp32", SECOND_RUNNER_SOURCE, *logits, ("bytes", 4))


def state_parts(run: Run) -> Iterator[SourcedBytes]:
    """What the newer worker keeps for sampling on the last stage: it is allocated at the start, for
    every sequence of a step.
    """
    if not uses_second_runner(run):
        return
    each = ("sequences", step_sequences(run))
    words = ("words of a mask", -(-run.arch.vocab // 32))
    yield part("counts of tokens", STATES, each, ("tokens", run.arch.vocab), ("bytes", 4))
    masks = ("masks", 2 + tokens_ahead(run))  # of the prompt's tokens; of a grammar's
    yield part("masks of tokens", STATES, each, masks, words, ("bytes", 4))
    yield part("lists of tokens", STATES, each, ("tokens", LISTED), ("bytes", 4))

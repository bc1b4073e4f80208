"""Logits of the trial run and what choosing tokens from them makes.

The trial run samples for as many sequences as the server takes at once, with top-k and top-p, which
is the largest moment of most servers. Bytes for each logit, all alive at once:

- V1 before 0.8: the model's own logits alone.
- sorting (V0; V1 until 0.16): 4 the logits in fp32, 4 + 8 sorted values and their places, 8 the
  places before, 12 the sort's own copies. Measured on an H200 with torch 2.11: 9.50 to 9.56 times
  the fp32 logits for 128 to 1,024 rows of 32,064 to 201,088, 12.56 to 12.76 for 2 to 127 rows,
  9.57 for one; the model's own logits included (2 bytes).
- masking in place (0.17 to 0.20): 4 fp32 logits, 4 probabilities, 4 noise (measured: 3.50 to 3.58
  times), and a buffer of one row for each multiprocessor.
- FlashInfer (from 0.21): 4 fp32 logits, 4 masked, 4 probabilities.
- the newer worker samples from the logits as they are; until 0.25 from a copy in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.source import Source, code, measured
from ...run.run import Run
from .versions import FIRST_V1, second_runner, v1, version

SourcedBytes = tuple[str, int, Source]
SORTED = measured("NVIDIA H200, torch 2.11: torch.sort of fp32 rows, n = 15 shapes, within 1 % "
                  "of 32 bytes a logit for 128 rows and more, 2 % of 44 for 2 to 127")  # fmt: skip
IN_PLACE = code("vllm 0.17.0 vllm/v1/sample/ops/topk_topp_triton.py apply_top_k_top_p_triton, "
                "topk_topp_sampler.py random_sample")  # fmt: skip
MASKED = code("flashinfer 0.6.6 flashinfer/sampling.py top_k_top_p_sampling_from_logits")
LOGITS = code("vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py _dummy_sampler_run")
GATHERED = code("vllm 0.11.0 vllm/distributed/device_communicators/base_device_communicator.py "
                "all_gather")  # fmt: skip
NEWER = code("vllm 0.25.0 vllm/v1/worker/gpu/sample/sampler.py apply_sampling_params")
SORT_UNTIL, MASKS_FROM = (0, 17, 0), (0, 21, 0)  # versions
SORTS, IN_ROWS, MASKS = "sort", "rows", "masks"
LEAST_ROWS = 8  # fewer are sorted, still
ONE_PASS = 128  # rows that torch sorts at once, and of what it sorts otherwise
MULTIPROCESSORS = {"7.5": 40, "8.0": 108, "8.6": 82, "8.9": 128, "9.0": 132, "10.0": 148,
                   "12.0": 170}  # fmt: skip


def rows(run: Run) -> int:
    """Sequences of the trial run."""
    options = run.options
    return min(int(options["max_num_seqs"]), int(options["max_num_batched_tokens"]))


def kernel(run: Run) -> str:
    """How tokens are chosen, unless the newer worker does: as told, else as the version does."""
    now, told = version(run), run.options.get("use_flashinfer_sampler")
    if told or (told is None and v1(run) and now >= MASKS_FROM):
        return MASKS
    return IN_ROWS if v1(run) and now >= SORT_UNTIL and rows(run) >= LEAST_ROWS else SORTS


def sampling(run: Run, size: int) -> Iterator[SourcedBytes]:
    """Everything of a logit that is alive at the highest moment; `size` bytes in the model."""
    count = rows(run) * run.arch.vocab
    if second_runner(run):
        yield from _newer(run, size, count)
        return
    yield "logits", count * size, LOGITS
    if v1(run) and version(run) < FIRST_V1:  # the trial run ends here
        return
    yield "logits in fp32", count * 4, LOGITS
    how = kernel(run)
    if how == SORTS:
        twice = 12 if 1 < rows(run) < ONE_PASS else 0
        yield "logits sorted, with their places", count * 12, SORTED
        yield "torch.sort's own copies", count * (20 + twice), SORTED
    elif how == IN_ROWS:
        yield "probabilities and noise", count * 8, IN_PLACE
        width = MULTIPROCESSORS.get(run.compute_capability, MULTIPROCESSORS["9.0"])
        yield "rows that are searched", min(width, rows(run)) * run.arch.vocab * 4, IN_PLACE
    else:
        yield "masked logits and probabilities", count * 8, MASKED


def _newer(run: Run, size: int, count: int) -> Iterator[SourcedBytes]:
    tp, copied = int(run.mesh.tp), version(run) < (0, 26, 0)
    gathered = (count // tp + 2 * count) * size if tp > 1 else 0
    if gathered > count * (size + 4 * copied):
        yield "logits of each rank, gathered and put in order", gathered, GATHERED
        return
    yield "logits", count * size, LOGITS
    if copied:
        yield "logits in fp32", count * 4, NEWER

"""Versions of SGLang at which a rule of its memory changed; citations name the newest one."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.frameworks import SGLANG
from ...run.releases import Version, parse_version, version_text
from ...run.run import Run

OLDEST, NEWEST = SGLANG.oldest_numbers, SGLANG.numbers

GRAPH_TABLES = (0, 4, 8)  # chunk, graphs and share come from tables by the card's memory
ONE_LOGITS_BUFFER = (0, 5, 0)  # all decode graphs share one logits buffer
RESERVED_BY_SUM = (0, 5, 3)  # the free part is a sum over activations and graphs
LATE_EXTRA_LAYERS = (0, 5, 6)  # a remainder of layers is spread over the last stages
PAGED_BLACKWELL = (0, 5, 6)  # TensorRT-LLM's attention, with pages, on Blackwell
SPLIT_WINDOWS = (0, 5, 8)  # layers with a window have a separate pool
PREFILL_GRAPHS = (0, 5, 10)  # prefill is captured as well
HALF_REQUESTS = (0, 5, 10)  # at most half as many requests as tokens
COUNTED_DRAFT = (0, 5, 14)  # a draft's weights and cache are counted when the pool is sized
LARGER_STEPS = (0, 5, 20)  # longer chunks and larger graphs on cards of 20 to 35 GiB
GRAPHS_OF_REQUESTS = (0, 5, 22)  # no decode graph is larger than max_running_requests
LONG_LATENT_GRAPHS = (0, 5, 23)  # prefill graphs of latent attention have more than 2,048 tokens
SPARE_STATE = (0, 5, 16)  # the slot for padding is part of the states' share
# The hierarchical cache in host RAM.
EXACT_HOST = (0, 5, 5)  # registered as large as it is; before, torch pins a power of two
HOST_INDEX = (0, 5, 9)  # an indexer's keys are copied as well
HOST_STATES = (0, 5, 10)  # models with states can have one, and every copy one page more
HOST_SIDECARS = (0, 5, 11)  # copies of an indexer's keys and of a draft's are beside hicache_size
HOST_WINDOWS = (0, 5, 13)  # models with a separate pool for windows can have one
SMALLER_HOST = (0, 5, 15)  # a copy may be smaller than the pool on the GPU
SPLIT_HOST = (0, 5, 17)  # hicache_size is for all pools together; before, for each
PACKED_DRAFT = (0, 5, 18)  # a copy of the model's own draft layers is part of hicache_size


def version(run: Run) -> Version:
    """Major, minor and patch of `engine_version`; a post-release counts as its release."""
    return parse_version(str(run.options["engine_version"])) or NEWEST


def kernels_loaded_first(run: Run) -> bool:
    """Whether torch's kernels are in memory before the weights are loaded.

    NCCL or a check of SGLang runs one first, except on a single GPU until 0.4.6 and from 0.5.0 to
    0.5.7.

    H100, one GPU, 40 public logs from 2024-10 to 2026-06: loading adds 80 to 100 MiB more then.
    """
    now = version(run)
    single = run.mesh.tp * run.mesh.pp == 1
    return not single or now >= (0, 5, 8) or (0, 4, 7) <= now < (0, 5, 0)


def problems(run: Run) -> Iterator[str]:
    """A sentence where `engine_version` is not a version."""
    text = str(run.options["engine_version"])
    if parse_version(text) is None:
        newest = version_text(NEWEST)
        yield f"inference.engine_version={text!r} is not a version; write it like {newest!r}"


def notes(run: Run) -> Iterator[str]:
    """A sentence where the version is outside the range whose source was read."""
    now = version(run)
    text = f"SGLang {version_text(now)} is"
    if now > NEWEST:
        yield f"{text} newer than {version_text(NEWEST)}, whose rules are used"
    elif now < OLDEST:
        yield f"{text} older than {version_text(OLDEST)}, whose rules are used"

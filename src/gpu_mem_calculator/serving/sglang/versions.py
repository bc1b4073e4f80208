"""Which SGLang it is. What changed is told apart by version; source lines name the newest."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...run.run import Run

Version = tuple[int, int, int]
OLDEST, NEWEST = (0, 4, 3), (0, 5, 18)

GRAPH_TABLES = (0, 4, 8)  # chunk, graphs and share follow tables of the card's memory
ONE_LOGITS_BUFFER = (0, 5, 0)  # every decode graph writes its logits to the same place
RESERVED_BY_SUM = (0, 5, 3)  # the share leaves room for a sum of activations and graphs
LATE_EXTRA_LAYERS = (0, 5, 6)  # layers that do not divide go to the last stages
PAGED_BLACKWELL = (0, 5, 6)  # TensorRT-LLM's attention, with pages, on B200 and its kin
SPLIT_WINDOWS = (0, 5, 8)  # layers with a window have a pool of their own
PREFILL_GRAPHS = (0, 5, 10)  # prefill is captured, too
HALF_REQUESTS = (0, 5, 10)  # not more requests than half the tokens
COUNTED_DRAFT = (0, 5, 14)  # a draft's weights and cache are counted before the pool is cut
SPARE_STATE = (0, 5, 16)  # the slot that padding writes to is taken out of the states' share


def version(run: Run) -> Version:
    """Major, minor and patch of `engine_version`; a post-release is its release."""
    found = [int(part) for part in re.findall(r"\d+", str(run.options["engine_version"]))]
    first, second, third = (*found, 0, 0, 0)[:3]
    return first, second, third


def warm(run: Run) -> bool:
    """Whether torch's kernels are loaded before the weights: something else runs one, NCCL or a
    check, but for one GPU until 0.4.6 and from 0.5.0 to 0.5.7.

    H100, one GPU, 40 public logs from 2024-10 to 2026-06: loading adds 80 to 100 MiB more then.
    """
    now = version(run)
    alone = run.mesh.tp * run.mesh.pp == 1
    return not alone or now >= (0, 5, 8) or (0, 4, 7) <= now < (0, 5, 0)


def said(number: Version) -> str:
    """As people write it."""
    return ".".join(map(str, number))


def problems(run: Run) -> Iterator[str]:
    """A version that is none."""
    given = str(run.options["engine_version"])
    if not re.match(r"v?\d+\.\d+", given):
        yield f"inference.engine_version={given!r} is not a version; write it like {said(NEWEST)!r}"


def notes(run: Run) -> Iterator[str]:
    """A version whose source was not read."""
    now = version(run)
    if now > NEWEST:
        yield f"SGLang {said(now)} is newer than {said(NEWEST)}, whose rules are used"
    elif now < OLDEST:
        yield f"SGLang {said(now)} is older than {said(OLDEST)}, whose rules are used"

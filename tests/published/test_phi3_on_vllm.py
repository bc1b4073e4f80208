"""The memory-consumption article: Phi-3-mini-4k on vLLM on an H100 NVL, with shares 0.2 and 0.9.

What the process held differs by 69,927 MB, 0.7 of a card of 99,896 MB (93.04 GiB): an H100 NVL. So
vLLM takes its share of the card, and 1,275 MB outside it in both: CUDA's context and the graphs.
The version is not named; weights of 7.1183 GiB and a separate process date it to mid-2024, V0.
"""

from __future__ import annotations

import pytest

from gpu_mem_calculator.ledger.ledger import GPU
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.served import WEIGHTS, ServerMemory
from gpu_mem_calculator.runfile.resolve.resolve_inference import resolve_inference
from gpu_mem_calculator.serving.vllm.engine import serve
from gpu_mem_calculator.tools.read import read

CARD_BYTES = 99_896_338_021  # (91,182.071808 - 21,254.635520) MB / 0.7
PROCESS_BYTES = {0.2: 21_254_635_520, 0.9: 91_182_071_808}


def served(share: float) -> ServerMemory:
    """The article's server."""
    return serve(
        resolve_inference(
            read(
                {
                    "model": {"name": "phi-3-mini"},
                    "inference": {
                        "engine": "vllm",
                        "engine_version": "0.5.0",
                        "engine_generation": "v0",
                        "gpu_memory_utilization": share,
                    },
                    "hardware": {"gpu": "h100-94gb-nvl", "gpu_memory_bytes": CARD_BYTES},
                }
            ).file
        ).run
    )


def process_bytes(found: ServerMemory) -> int:
    """What nvidia-smi would show: everything on the card, and what is outside the share."""
    return sum(one.bytes for one in found.items if one.place == GPU) + sum(
        size for _, size, _ in found.outside
    )


@pytest.mark.parametrize("share", PROCESS_BYTES)
def test_weights_as_the_log_prints_them(share: float) -> None:
    """7.1183 GiB, which the article calls GB; ours are within 0.05 %."""
    assert served(share).figure(WEIGHTS) / GIB == pytest.approx(7.1183, rel=5e-4)


@pytest.mark.parametrize(("share", "error"), [(0.2, -0.022), (0.9, -0.005)])
def test_memory_of_the_process(share: float, error: float) -> None:
    """The share and what is outside it: 0.44 GiB too little in both, 2.2 and 0.5 %."""
    predicted = process_bytes(served(share))
    assert predicted / PROCESS_BYTES[share] - 1 == pytest.approx(error, abs=2e-3)


def test_the_share_is_all_that_differs() -> None:
    """0.7 of the card more for the cache, to the byte of a rounding."""
    less, more = served(0.2), served(0.9)
    assert more.pool_bytes - less.pool_bytes == pytest.approx(0.7 * CARD_BYTES, abs=1)
    assert process_bytes(more) - process_bytes(less) == pytest.approx(0.7 * CARD_BYTES, abs=1)

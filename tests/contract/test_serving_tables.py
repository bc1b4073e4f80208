"""Tables that servers and their times read have a row for each name that can come; a message says
which row to add, in which file.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

import gpu_mem_calculator
from gpu_mem_calculator.catalog import rows
from gpu_mem_calculator.estimates.serving.roofline_stages import UNITS
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.serving.vllm.activations import L2_MIB
from gpu_mem_calculator.serving.vllm.engine import serve
from gpu_mem_calculator.serving.vllm.non_torch import KERNELS_GIB
from gpu_mem_calculator.serving.vllm.sampler import PROCESSORS
from gpu_mem_calculator.timing.curves.matmul import BYTES
from gpu_mem_calculator.timing.serving.kernels import CURVES, DECODE_ATTENTION
from gpu_mem_calculator.timing.serving.mixing import STATE_PRODUCTS
from gpu_mem_calculator.timing.serving.roofline import QUANTIZED, SHORT_SUM
from gpu_mem_calculator.tools.read import read

RUN = {
    "model": {"name": "llama3.1-8b"},
    "inference": {"engine": "vllm"},
    "hardware": {"gpu": "h100-80gb"},
}
SOURCE = Path(gpu_mem_calculator.__file__).parent
CHIPS = {row["compute_capability"] for row in rows("gpus") if "compute_capability" in row}
KIND = re.compile(r'\bRecurrence\(\s*kind="(\w+)"')
KINDS = {
    kind for path in SOURCE.glob("models/families/*.py") for kind in KIND.findall(path.read_text())
}
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp8_block", "nvfp4")
TABLES: dict[str, tuple[Collection[str], Collection[str]]] = {
    "L2_MIB in serving/vllm/activations.py": (L2_MIB, CHIPS),
    "KERNELS_GIB in serving/vllm/non_torch.py": (KERNELS_GIB, CHIPS),
    "PROCESSORS in serving/vllm/sampler.py": (PROCESSORS, CHIPS),
    "DECODE_ATTENTION in timing/serving/kernels.py": (DECODE_ATTENTION, CHIPS),
    "CURVES in timing/serving/kernels.py": (
        CURVES,
        {"bf16", "fp16", "fp32", QUANTIZED, SHORT_SUM, *UNITS.values()},
    ),
    "BYTES in timing/curves/matmul.py": (BYTES, DTYPES),
    "STATE_PRODUCTS in timing/serving/mixing.py": (STATE_PRODUCTS, KINDS),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_a_row_for_each_name(name: str) -> None:
    """Of the catalogue's chips, of the units that servers multiply in, of recurrences."""
    table, names = TABLES[name]
    missing = sorted(set(names) - set(table))
    assert names
    assert not missing, f"add rows to {name} for {', '.join(missing)}"


def test_a_chip_without_rows_is_said() -> None:
    """A user's own card may have a newer one: the answer says that an H100's sizes are taken."""
    run = resolve(read(RUN).file).run
    note = "vLLM's kernels and caches on compute capability 13.0 are assumed to be an H100's"
    assert note in serve(replace(run, compute_capability="13.0")).notes
    assert note not in serve(run).notes

"""The Helm chart's table: DeepSpeed's ZeRO-2 estimate of Llama-3.1-70B on one node of 8 GPUs."""

import pytest

from gpu_mem_calculator.estimates.published.zero_tables import (
    estimate_zero2_model_states_mem_needs_all_cold,
    zero2_table,
)

LLAMA_70B_WITHOUT_HEAD = 69_503_033_344
"""What ``AutoModel`` builds of Llama-3.1-70B: 70,553,706,496 less the 128256 × 8192 output head."""

PRINTED = """\
Estimated memory needed for params, optim states and gradients for a:
HW: Setup with 1 node, 8 GPUs per node.
SW: Model with 69503M total params.
  per CPU  |  per GPU |   Options
 3107.03GB | 129.46GB | offload_optimizer=cpu
 3107.03GB | 275.10GB | offload_optimizer=none
"""


def _rows(table: str) -> list[str]:
    """The rows of a table, without the padding at their ends."""
    return [line.rstrip() for line in table.splitlines()[4:]]


def test_parameter_count_comes_from_the_architecture() -> None:
    """Llama-3.1-70B without its output head has the 69,503M parameters of the printed table."""
    hidden, ffn, kv, vocab, layers = 8192, 28672, 8 * 128, 128256, 80
    attention = 2 * hidden * hidden + 2 * kv * hidden
    layer = attention + 3 * hidden * ffn + 2 * hidden
    assert vocab * hidden + layers * layer + hidden == LLAMA_70B_WITHOUT_HEAD


def test_printed_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole output is the chart's, line by line, but for DeepSpeed's padding after ``cpu``."""
    estimate_zero2_model_states_mem_needs_all_cold(
        LLAMA_70B_WITHOUT_HEAD, num_gpus_per_node=8, num_nodes=1, additional_buffer_factor=1.5
    )
    assert capsys.readouterr().out == PRINTED.replace("=cpu\n", "=cpu \n")


def test_table_of_a_number_of_parameters() -> None:
    """``numParameters=70e9`` gives the same rows scaled, also from a float."""
    assert _rows(zero2_table(70e9, num_gpus_per_node=8)) == [
        " 3129.24GB | 130.39GB | offload_optimizer=cpu",
        " 3129.24GB | 277.07GB | offload_optimizer=none",
    ]


def test_buffer_factor_scales_the_cpu_column_only() -> None:
    """Without the buffer factor the CPU column is two thirds, the GPU column unchanged."""
    rows = _rows(zero2_table(LLAMA_70B_WITHOUT_HEAD, 8, 1, additional_buffer_factor=1.0))
    assert rows == [
        " 2071.35GB | 129.46GB | offload_optimizer=cpu",
        " 2071.35GB | 275.10GB | offload_optimizer=none",
    ]


def test_no_gpus_is_refused() -> None:
    """A table for zero GPUs is an error in one sentence, not a division by zero."""
    with pytest.raises(ValueError, match="num_gpus_per_node=0 is below 1; try 1"):
        zero2_table(70e9, num_gpus_per_node=0)

"""The examples of DeepSpeed's documentation (docs/code-docs/source/memory.rst at edaa722).

Where the documentation is older than the code (ZeRO-2 without offload: 4P + 16P/N, changed in
0.14.3) the printed figure is held with the older formula and today's beside it.
"""

import pytest

from gpu_mem_calculator.estimates.published.zero_tables import (
    estimate_zero2_model_states_mem_needs,
    estimate_zero2_model_states_mem_needs_all_cold,
    estimate_zero3_model_states_mem_needs,
    estimate_zero3_model_states_mem_needs_all_cold,
    zero2_table,
    zero3_table,
)

ZERO3_T5_3B = """\
Estimated memory needed for params, optim states and gradients for a:
HW: Setup with 1 node, 8 GPUs per node.
SW: Model with 2851M total params, 32M largest layer params.
  per CPU  |  per GPU |   Options
   71.69GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1
  127.45GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0
   63.72GB |   0.78GB | offload_param=none, offload_optimizer=cpu , zero_init=1
  127.45GB |   0.78GB | offload_param=none, offload_optimizer=cpu , zero_init=0
    1.43GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=1
  127.45GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=0
"""


def _t5(heads: int, head_size: int, ffn: int) -> tuple[int, int]:
    """Parameters of a 24-layer T5 of width 1024 without an output head, and of its embedding."""
    width, layers, vocab, buckets = 1024, 24, 32128, 32
    attention, mlp = 4 * width * heads * head_size, 2 * width * ffn
    encoder = attention + mlp + 2 * width
    decoder = 2 * attention + mlp + 3 * width
    positions_and_norms = 2 * buckets * heads + 2 * width
    embedding = vocab * width
    return layers * (encoder + decoder) + embedding + positions_and_norms, embedding


T5_3B = _t5(heads=32, head_size=128, ffn=16384)
T5_LARGE = _t5(heads=16, head_size=64, ffn=4096)


def _figures(table: str) -> list[tuple[str, str]]:
    """The two columns of numbers of a table."""
    rows = (line.split("|") for line in table.splitlines()[4:])
    return [(cpu.strip(), gpu.strip()) for cpu, gpu, _ in rows]


def test_zero3_cold_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The ZeRO-3 table of a 3B model on 8 GPUs, character for character."""
    estimate_zero3_model_states_mem_needs_all_cold(
        total_params=2851e6, largest_layer_params=32e6, num_gpus_per_node=8, num_nodes=1
    )
    assert capsys.readouterr().out == ZERO3_T5_3B


def test_zero2_cold_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The ZeRO-2 table as the code prints it: 11.28GB today where the documentation has 15.93GB."""
    estimate_zero2_model_states_mem_needs_all_cold(2851e6, num_gpus_per_node=8, num_nodes=1)
    assert capsys.readouterr().out.splitlines() == [
        "Estimated memory needed for params, optim states and gradients for a:",
        "HW: Setup with 1 node, 8 GPUs per node.",
        "SW: Model with 2851M total params.",
        "  per CPU  |  per GPU |   Options",
        "  127.45GB |   5.31GB | offload_optimizer=cpu ",
        "  127.45GB |  11.28GB | offload_optimizer=none",
    ]


def test_zero2_documented_rows() -> None:
    """The rows the documentation shows follow from the formula before 0.14.3."""
    assert _figures(zero2_table(2851e6, 8, legacy=True)) == [
        ("127.45GB", "5.31GB"),
        ("127.45GB", "15.93GB"),
    ]


def test_t5_3b_live_zero2_rows() -> None:
    """The live model's rows, from T5-3B's own 2,851,598,336 parameters."""
    assert T5_3B == (2_851_598_336, 32_899_072)
    assert _figures(zero2_table(T5_3B[0], 8, legacy=True)) == [
        ("127.48GB", "5.31GB"),
        ("127.48GB", "15.93GB"),
    ]


def test_t5_3b_live_zero3_rows() -> None:
    """The live model's ZeRO-3 rows differ from the cold ones by the exact counts."""
    assert _figures(zero3_table(*T5_3B, 8)) == [
        ("71.71GB", "0.12GB"),
        ("127.48GB", "0.12GB"),
        ("63.74GB", "0.79GB"),
        ("127.48GB", "0.79GB"),
        ("1.47GB", "6.10GB"),
        ("127.48GB", "6.10GB"),
    ]


@pytest.mark.parametrize(
    ("cpu_offload", "cpu_offload_params", "mebibytes"),
    [(False, False, 3291), (True, True, 125), (True, False, 477)],
)
def test_t5_large_cases(cpu_offload: bool, cpu_offload_params: bool, mebibytes: int) -> None:
    """The three worked cases of T5-large on 4 GPUs, in whole MiB."""
    _, gpu, _ = estimate_zero3_model_states_mem_needs(
        *T5_LARGE, 4, cpu_offload=cpu_offload, cpu_offload_params=cpu_offload_params
    )
    assert gpu >> 20 == mebibytes


def test_t5_large_sizes() -> None:
    """737.67M parameters, 32.90M in the largest layer, 125 MiB when gathered."""
    total, largest = T5_LARGE
    *_, layer_bytes = estimate_zero3_model_states_mem_needs(total, largest)
    assert (f"{total / 1e6:.2f}", f"{largest / 1e6:.2f}") == ("737.67", "32.90")
    assert layer_bytes >> 20 == 125


def test_llama_70b_zero3_rows() -> None:
    """Llama-3.1-70B without its head; the largest layer is its 128256 × 8192 embedding."""
    assert _figures(zero3_table(69_503_033_344, 128256 * 8192, 8)) == [
        ("1747.70GB", "3.91GB"),
        ("3107.03GB", "3.91GB"),
        ("1553.51GB", "20.10GB"),
        ("3107.03GB", "20.10GB"),
        ("46.97GB", "149.56GB"),
        ("3107.03GB", "149.56GB"),
    ]


def test_two_nodes_count_all_gpus_for_zero2() -> None:
    """The code multiplies by all GPUs where the documentation says those of a node: 254.90GB."""
    table = zero2_table(2851e6, num_gpus_per_node=8, num_nodes=2)
    assert table.splitlines()[1] == "HW: Setup with 2 nodes, 8 GPUs per node."
    assert _figures(table)[0] == ("254.90GB", "5.31GB")


def test_one_gpu_is_singular() -> None:
    """The heading of the default setup has one node and one GPU."""
    heading = "HW: Setup with 1 node, 1 GPU per node."
    assert zero3_table(2851e6, 32e6).splitlines()[1] == heading


def test_values_are_whole_bytes() -> None:
    """The estimates are integers, also from float counts."""
    zero2 = estimate_zero2_model_states_mem_needs(2851e6, 8, cpu_offload=False)
    zero3 = estimate_zero3_model_states_mem_needs(2851e6, 32e6, 8)
    assert zero2 == (136_848_000_000, 12_116_750_000)
    assert zero3 == (76_977_000_000, 128_000_000, 128_000_000)
    assert {type(value) for value in (*zero2, *zero3)} == {int}


def test_more_nodes_share_the_offloaded_states() -> None:
    """With zero.Init the offloaded 18P are spread over the nodes."""
    one, *_ = estimate_zero3_model_states_mem_needs(2851e6, 32e6, 8, 1)
    two, *_ = estimate_zero3_model_states_mem_needs(2851e6, 32e6, 8, 2)
    assert one == 2 * two

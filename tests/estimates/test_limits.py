"""Limits of what is read, and the arithmetic of capacity: values on both sides of each limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.advice.serving import changes as serving_changes
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.serving import capacity
from gpu_mem_calculator.estimates.serving import capacity as serving_capacity
from gpu_mem_calculator.estimates.serving.speed import find_card_rates
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.runfile.resolve.hardware import find_hardware
from gpu_mem_calculator.runfile.text.counts import parameter_count
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.runfile.text.files import MOST_BYTES, MOST_RUNS_BYTES, read_text
from gpu_mem_calculator.runfile.text.text_data import parse_text
from gpu_mem_calculator.tools.read import read

TO_A_BILLION = "from 1 to 1,000,000,000"
LORA = {"model": {"name": "gpt2"}, "training": {"lora": {"r": 8}}}


@pytest.mark.parametrize("size", [7, 8])
def test_a_file_may_have_all_the_bytes_that_are_allowed(tmp_path: Path, size: int) -> None:
    """One byte more is refused."""
    path = tmp_path / "run.json"
    path.write_bytes(b"x" * size)
    assert read_text(path, most=8) == "x" * size
    path.write_bytes(b"x" * 9)
    with pytest.raises(InputError, match="it is larger than 8 bytes"):
        read_text(path, most=8)


def test_files_of_runs_may_be_larger() -> None:
    """2 MiB of a configuration, 8 MiB of measured runs."""
    assert (MOST_BYTES, MOST_RUNS_BYTES) == (2_097_152, 8_388_608)


@pytest.mark.parametrize(
    ("text", "count"), [(1, 1), ("1.9", 1), ("1000T", 10**15), ("1e15", 10**15), ("1k", 1000)]
)
def test_a_count_at_its_limits_is_read(text: Any, count: int) -> None:
    """From one parameter to 1000T."""
    assert parameter_count(text) == count


@pytest.mark.parametrize("text", [0, "0.999", 10**15 + 1, "1001T", True, "7 Q"])
def test_a_count_beyond_its_limits_is_refused(text: Any) -> None:
    """With the limits."""
    with pytest.raises(InputError, match="must be a count from 1 to 1000T"):
        parameter_count(text)


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("", "x: not valid JSON"),
        (".toml", "x: not valid TOML"),
        (".yml", "x: not valid YAML"),
        (".json", "x: not valid JSON"),
    ],
)
def test_a_text_that_is_not_valid_names_its_format(ending: str, words: str) -> None:
    """By its ending; without one it is JSON."""
    with pytest.raises(InputError) as error:
        parse_text("{a: [", ending, "x")
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.lora.r=0", "training.lora.r=0 must be a whole number from 1 to 1,000,000,000"),
        ("training.lora.width=8", "training.lora.width is not a known key"),
        ("training.lora=8", "training.lora=8 must be an object"),
        ("training.batch_size=0", "training.batch_size=0 must be a whole number " + TO_A_BILLION),
        (
            "training.batch_size=1.5",
            "training.batch_size=1.5 must be a whole number " + TO_A_BILLION,
        ),
    ],
)
def test_a_wrong_key_is_named_next_to_an_adapter(setting: str, words: str) -> None:
    """Inside the adapter's section and beside it."""
    data = with_settings({**LORA, "training": dict(LORA["training"])}, [setting])
    with pytest.raises(InputError) as error:
        read(data).checked()
    assert [one.partition(";")[0] for one in error.value.problems] == [words]


@pytest.mark.parametrize("length", [60, 61])
def test_a_long_value_is_shortened_to_60_characters(length: int) -> None:
    """Within its quotes."""
    value = "x" * length
    with pytest.raises(InputError) as error:
        read({"model": {"name": "gpt2"}, "training": {"batch_size": value}}).checked()
    shown = f"'{value}'" if length == 60 else f"'{'x' * 57}...'"
    assert error.value.problems[0].startswith(f"training.batch_size={shown} must be ")
    assert len(shown) == 62


def parabola(_: object, context: int) -> capacity.Lines:
    """Bytes of a context: a square and a line, plus a step where a window slides, and two bumps."""
    steps = 100 * (context > 1000) + 10 * (2200 < context < 2300) + 20 * (2700 < context < 2800)
    return ((3 * context**2 + 5, 7 * context), (context, steps))


@pytest.mark.parametrize(
    ("contexts", "ledgers"),
    [
        ([5, 4, 3, 2, 1], 5),  # few: each has its own
        (range(1, 7), 5),
        (range(1, 1001), 5),  # three determine a parabola, two check it
        (range(2100, 2601, 10), 26),  # a bump in the first half, or in the second
        (range(2400, 2901, 10), 25),
        (range(10, 2010, 10), 27),  # a window slides from 1010 on: by halves
    ],
)
def test_a_parabola_stands_for_contexts_between(
    monkeypatch: pytest.MonkeyPatch, contexts: Any, ledgers: int
) -> None:
    """Every context has the bytes of its own ledger, and few ledgers are made."""
    made = []

    def ledger(resolved: object, context: int) -> capacity.Lines:
        made.append(context)
        return parabola(resolved, context)

    monkeypatch.setattr(capacity, "context_lines", ledger)
    resolved: Any = None
    lines = capacity.batch_lines(resolved, contexts)
    assert lines == [parabola(None, context) for context in contexts]
    assert (len(made), len(set(made))) == (ledgers, ledgers)


@pytest.mark.parametrize(
    ("limit", "at_once", "most"), [(99, 9, 4), (100, 9, 5), (100, 3, 3), (19, 9, 0), (500, 9, 9)]
)
def test_the_most_sequences_fill_the_pool(limit: int, at_once: int, most: int) -> None:
    """Each takes 20 bytes; a sequence that takes the last byte fits."""
    assert serving_capacity._most(lambda count: 20 * count, limit, at_once) == most


@pytest.mark.parametrize(
    ("used", "limit", "share"), [(5, 10, 0.5), (0, 0, 0.0), (1, 0, float("inf")), (1, 1, 1.0)]
)
def test_a_share_of_nothing_is_all_or_none(used: int, limit: int, share: float) -> None:
    """A model that caches nothing takes nothing of it."""
    assert serving_capacity._share(used, limit) == share


def test_sequences_under_transformers_are_a_line_for_each_instant() -> None:
    """The highest instant counts: 100 + 9 * 10 and 50 + 9 * 20 bytes, and 7 outside torch."""
    lines = ((100, 10), (50, 20))
    assert [serving_capacity._card_bytes(lines, 7, count) for count in (1, 2, 10)] == [
        107,
        117,
        237,
    ]
    assert serving_capacity._card_bytes((), 7, 3) == 7


def test_the_table_of_contexts_is_powers_of_two() -> None:
    """From 1,024 tokens to 1,048,576, and from one sequence to 1,024."""
    assert (len(serving_capacity.CONTEXTS), serving_capacity.CONTEXTS[0]) == (11, 1024)
    assert serving_capacity.CONTEXTS[-1] == 1_048_576
    assert tuple(2**power for power in range(11)) == serving_capacity.CONCURRENCIES


@pytest.mark.parametrize(
    ("link", "ranks", "per_node", "gb_per_s"),
    [
        (None, 1, 8, 450),  # NVLink 4, one direction
        ("infiniband-ndr", 8, 8, 450),  # within a node
        ("infiniband-ndr", 9, 8, 50),  # 400 Gbit/s
        ("pcie5-x16", 8, 8, 63),
    ],
)
def test_a_network_is_the_link_of_ranks_in_several_nodes(
    link: str | None, ranks: int, per_node: int, gb_per_s: float
) -> None:
    """Ranks of one node use the card's own link."""
    rates = find_card_rates(GPUConfig(gpu="h100-80gb-sxm", interconnect=link), ranks, per_node)
    assert rates is not None
    assert rates.link_bytes_per_second == gb_per_s * 1e9


def test_a_change_that_is_refused_has_no_figures() -> None:
    """It has a sentence instead: five GPUs cannot share the 12 heads of GPT-2."""
    estimate = full_estimate({"model": {"name": "gpt2"}, "inference": {"engine": "vllm"}})
    server = serving_changes.Server.of(estimate)
    change = serving_changes.try_settings(server, "", ("inference.tensor_parallel_size=5",))
    assert change.problem.startswith("inference.tensor_parallel_size=5 does not divide 12 heads")
    assert (change.device_bytes, change.kv_tokens, change.max_concurrency) == (0, 0, 0.0)
    assert not change.fits


@pytest.mark.parametrize(("ranks", "gb_per_s"), [(1, 450), (8, 450), (9, 50)])
def test_a_node_has_eight_gpus_where_it_is_not_said(ranks: int, gb_per_s: float) -> None:
    """A ninth rank is in another node, at the other end of the network."""
    rates = find_card_rates(GPUConfig(gpu="h100-80gb-sxm", interconnect="infiniband-ndr"), ranks)
    assert rates is not None
    assert rates.link_bytes_per_second == gb_per_s * 1e9


@pytest.mark.parametrize(
    ("gpus", "nodes"), [(1, (1, 1)), (8, (8, 1)), (9, (8, 2)), (16, (8, 2)), (17, (8, 3))]
)
def test_gpus_are_in_nodes_of_eight(gpus: int, nodes: tuple[int, int]) -> None:
    """Where the section does not say how many a node has."""
    hardware = find_hardware(GPUConfig(gpu="h100-80gb-sxm", num_gpus=gpus), None)
    assert (hardware.gpus_per_node, hardware.num_nodes) == nodes

"""The orders of examples are those of torch, transformers and Accelerate."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.training.lengths.samplers import TorchGenerator, epochs, rank_batches
from tests.training.lengths.frameworks import EPOCHS, LENGTHS, permutations, shards

# torch 2.13.0, transformers 5.17.0 and accelerate 1.15.0 made them.
ORDERS = json.loads((Path(__file__).parent / "orders.json").read_text())


@pytest.mark.parametrize("row", ORDERS["permutations"], ids=lambda row: str(row["number"]))
def test_permutations_are_those_of_torch(row: dict[str, Any]) -> None:
    """Also the second of one generator."""
    generator = TorchGenerator(row["number"])
    for order in row["orders"]:
        assert generator.permutation(len(order)) == order


@pytest.mark.parametrize(
    "row", ORDERS["trainer"], ids=lambda row: f"{row['strategy']}{row['given']}"
)
def test_epochs_are_those_of_trainer(row: dict[str, Any]) -> None:
    """Its random sampler has a new number in each epoch, its grouped one goes on."""
    given = row["given"]
    number = given.get("data_seed", given.get("seed", 42))
    together = 4 * given.get("gradient_accumulation_steps", 1)
    found = epochs(row["strategy"], LENGTHS, together, number)
    drop = given.get("dataloader_drop_last", False)
    own = [
        [list(one) for one in rank_batches(order, 4, 1, 0, drop_last=drop, distributed=False)]
        for order in islice(found, EPOCHS)
    ]
    assert own == row["epochs"]


@pytest.mark.parametrize("row", ORDERS["shards"], ids=lambda row: f"{row['count']}x{row['rows']}")
def test_ranks_take_turns(row: dict[str, Any]) -> None:
    """At batches with Accelerate, at examples with torch's DistributedSampler."""
    for kind in ("accelerate", "distributed"):
        found = [
            [
                list(one)
                for one in rank_batches(
                    range(row["count"]),
                    row["rows"],
                    len(row[kind]),
                    rank,
                    drop_last=row["drop_last"],
                    distributed=kind == "distributed",
                )
            ]
            for rank in range(len(row[kind]))
        ]
        assert found == row[kind], kind


def test_the_stored_orders_are_made_by_torch() -> None:
    """Where torch and Accelerate are installed."""
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    assert permutations() == ORDERS["permutations"]
    assert shards() == ORDERS["shards"]

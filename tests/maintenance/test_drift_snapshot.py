"""The stored snapshot and the page of frameworks are of the versions in the table."""

from __future__ import annotations

from gpu_mem_calculator.ledger.frameworks import FLASHINFER, PEFT, TORCH, TRANSFORMERS
from maintenance.drift import snapshot
from maintenance.drift.page import TARGET, page


def test_the_snapshot_is_of_the_versions_in_the_table() -> None:
    """It is small, and every framework of it has something that is compared."""
    records = snapshot.load()
    known = {row.names[0]: row.version for row in (PEFT, TORCH, TRANSFORMERS, FLASHINFER)}
    assert {name: records[name]["version"] for name in known} == known
    assert all(r["schemas"] or r["cited"] or r["files"] for r in records.values())
    assert snapshot.TARGET.stat().st_size < 400_000


def test_the_page_of_frameworks_is_up_to_date() -> None:
    """`python -m maintenance.drift.page` would change nothing."""
    assert page() == TARGET.read_text(encoding="utf-8")

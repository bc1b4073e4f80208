"""Machine types, labels and sizes that mean a card."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_mem_calculator.catalog.cards import meant
from gpu_mem_calculator.catalog.machines import (
    label_cards,
    labels,
    machine,
    machines,
    memory_size,
    series_cards,
)

ROWS = [*machines(), *labels().values()]


@pytest.mark.parametrize("row", ROWS, ids=[str(row.get("key", row.get("sizes"))) for row in ROWS])
def test_a_row_names_known_cards_and_its_source(row: dict[str, Any]) -> None:
    """Each card is one of the catalogue, each row has a source and a month."""
    cards = [row["gpu"]] if "gpu" in row else list(row.get("values", {}).values())
    assert all(meant(card) for card in cards)
    assert row["source"]
    assert re.fullmatch(r"20\d\d-\d\d", row["checked"])
    if "sizes" in row:
        assert len(meant(row["gpu"])) == 1
        assert all(1 <= count <= 16 for count in row["sizes"].values())


@pytest.mark.parametrize(
    ("name", "card", "count"),
    [
        ("g5.12xlarge", "a10g", 4),
        ("ml.p4d.24xlarge", "a100-40gb-sxm", 8),
        ("a2-highgpu-1g", "a100-40gb-sxm", 1),
        ("a2-ultragpu-8g", "a100-80gb-sxm", 8),
        ("standard_nc24ads_a100_v4", "a100-80gb-pcie", 1),
        ("Standard_NC40ads_H100_v5", "h100-94gb-nvl", 1),
        ("BM.GPU.H100.8", "h100-80gb-sxm", 8),
    ],
)
def test_a_machine_type_has_a_card(name: str, card: str, count: int) -> None:
    """In any case, also with SageMaker's ml. in front."""
    assert machine(name) == (card, count)


@pytest.mark.parametrize("name", ["m5.large", "g5", "p2.xlarge", "Standard_NV6ads_A10_v5", ""])
def test_a_machine_without_a_row_has_none(name: str) -> None:
    """No GPU, a card that is not in the catalogue, or a part of one."""
    assert machine(name) is None


@pytest.mark.parametrize(
    ("key", "value", "cards"),
    [
        ("cloud.google.com/gke-accelerator", "nvidia-l4", ["l4"]),
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-a100", ["a100-40gb-sxm"]),
        ("cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb", ["h100-80gb-sxm"]),
        ("nvidia.com/gpu.product", "NVIDIA-L40S", ["l40s"]),
        ("nvidia.com/gpu.product", "Tesla-T4-SHARED", ["t4"]),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", ["a100-80gb-mig-3g.40gb"]),
        ("karpenter.k8s.aws/instance-gpu-name", "a10g", ["a10g"]),
        ("karpenter.k8s.aws/instance-family", "g6e", ["l40s"]),
        ("node.kubernetes.io/instance-type", "g5.12xlarge", ["a10g"]),
        ("gpu.nvidia.com/class", "A100_NVLINK_80GB", ["a100-80gb-sxm"]),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", ["mi300x"]),
        ("gpu-type", "l40s", ["l40s"]),
        ("example.com/accelerator", "nvidia-t4", ["t4"]),
    ],
)
def test_a_label_means_cards(key: str, value: str, cards: list[str]) -> None:
    """Labels of clouds, of NVIDIA's and AMD's labellers, and those that a cluster chooses."""
    assert [row["name"] for row in meant(label_cards(key, value) or "")] == cards


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("node.kubernetes.io/instance-type", "m5.large", ""),
        ("nvidia.com/gpu.product", "NVIDIA-X9000", ""),
        ("karpenter.k8s.aws/instance-family", "m5", ""),
        ("kubernetes.io/os", "linux", None),
        ("nvidia.com/gpu.count", "4", None),
        ("nvidia.com/gpu.present", "true", None),
        ("gpu", "4", None),
        ("gpu", "true", None),
        ("disk", "l4", None),
    ],
)
def test_a_label_without_a_card(key: str, value: str, found: str | None) -> None:
    """An unknown value of a label for cards differs from a label that is not about cards."""
    assert label_cards(key, value) == found


@pytest.mark.parametrize(
    ("mebibytes", "size"), [(81920, 80), (81559, 80), (46068, 48), (24576, 24), (15360, 16)]
)
def test_a_size_in_mebibytes(mebibytes: int, size: float) -> None:
    """What nvidia-smi shows, as the size that is marketed."""
    assert memory_size(mebibytes) == size


def test_a_least_size_and_one_that_no_card_has() -> None:
    """The smallest card that has more; None where no card has so much."""
    assert memory_size(40000, more=True) == 40
    assert memory_size(10**6) is None
    assert memory_size(10**6, more=True) is None
    assert series_cards("p5") == "h100-80gb-sxm"

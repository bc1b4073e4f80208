"""Cards by any spelling of their name: a table of what people type."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.catalog.cards import find_card, meant
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.resolve.card_name import named_card
from gpu_mem_calculator.runfile.text.errors import InputError

# What is typed, and the one card that it means.
ONE: dict[str | int, str] = {
    4090: "rtx-4090",
    "4090": "rtx-4090",
    "RTX 4090": "rtx-4090",
    "RTX_4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "rtx-4090-laptop",
    "4090 mobile": "rtx-4090-laptop",
    "3090ti": "rtx-3090-ti",
    "4070tisuper": "rtx-4070-ti-super",
    "RTX 4070": "rtx-4070",
    "A6000": "rtx-a6000",
    "rtx6000ada": "rtx-6000-ada",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-blackwell",
    "RTX PRO 6000 Max-Q": "rtx-pro-6000-blackwell-max-q",
    "Quadro RTX 8000": "quadro-rtx-8000",
    "h200": "h200-141gb-sxm",
    "NVIDIA H200": "h200-141gb-sxm",
    "NVIDIA H200 NVL": "h200-141gb-nvl",
    "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm",
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "NVIDIA H100 80GB HBM3": "h100-80gb-sxm",
    "NVIDIA H100 PCIe": "h100-80gb-pcie",
    "NVIDIA H100 NVL": "h100-94gb-nvl",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA B200": "b200-180gb-sxm",
    "NVIDIA B300 SXM6 AC": "b300-288gb-sxm",
    "Tesla V100-SXM2-32GB": "v100-32gb-sxm",
    "Tesla T4": "t4",
    "NVIDIA A10G": "a10g",
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb": "a100-80gb-mig-3g.40gb",
    "AMD Instinct MI300X": "mi300x",
    "7900 XTX": "rx-7900-xtx",
    "Radeon 8060S Graphics": "strix-halo-128gb",
    "strix halo": "strix-halo-128gb",
    "Intel Arc B580": "arc-b580",
    "b60": "arc-pro-b60",
    "dgx spark": "dgx-spark-128gb",
    "NVIDIA GB10": "dgx-spark-128gb",
    "thor": "jetson-agx-thor-128gb",
    "Apple M3 Max 128GB": "apple-m3-max-128gb",
    "tpu v5e": "tpu-v5e",
}
# What is typed where several cards are meant, and the one with the least memory.
LEAST = {
    "h100": "h100-80gb-pcie",
    "H100": "h100-80gb-pcie",
    "h100 80gb": "h100-80gb-pcie",
    "a100": "a100-40gb-pcie",
    "A100-80GB": "a100-80gb-pcie",
    "a100-80": "a100-80gb-pcie",
    "a100-40gb": "a100-40gb-pcie",
    "A100-SXM": "a100-40gb-sxm",
    "v100": "v100-16gb-sxm",
    "h20": "h20-96gb-sxm",
    "gh200": "gh200-96gb",
    "RTX 3060": "rtx-3060-8gb",
    "RTX 3080 Laptop": "rtx-3080-laptop-8gb",
    "RTX 6000": "quadro-rtx-6000",
    "1g.10gb": "a100-80gb-mig-1g.10gb",
    "m3": "apple-m3-8gb",
    "Apple M4 Max": "apple-m4-max-36gb",
    "mi300": "mi300a",
    "Intel(R) Arc(TM) A770 Graphics": "arc-a770-8gb",
}
# What is typed where no card is meant, and a part of the sentence; each offers --gpu-mem or a card.
NONE = {
    "jetson": "choose one, such as jetson-orin-nano-4gb",
    "mig": "choose one, such as a30-mig-1g.6gb",
    "rtx": "choose one",
    "4090,3090": "use the smallest, 'rtx-4090'",
    "2x4090": "use --gpu rtx-4090 --gpus 2",
    "H100 x8": "use --gpu h100-80gb-pcie --gpus 8",
    "4090 foo": "use 'rtx-4090', or give its memory with --gpu-mem GB",
    "rtx 9999": "see gpu-mem-calc gpus, or give its memory with --gpu-mem GB",
    "h10": "use 'a10', or give its memory",
    "my card": "see gpu-mem-calc gpus",
}


@pytest.mark.parametrize(("typed", "name"), ONE.items())
def test_a_spelling_means_one_card(typed: str | int, name: str) -> None:
    """Nothing is assumed where one card is meant."""
    found = named_card(GPUConfig(gpu=typed))
    assert found is not None
    assert found[0]["name"] == name
    assert found[1] == ()


@pytest.mark.parametrize(("typed", "name"), LEAST.items())
def test_of_several_cards_the_one_with_the_least_memory_is_assumed(typed: str, name: str) -> None:
    """The assumption names the card, and the others."""
    found = named_card(GPUConfig(gpu=typed))
    assert found is not None
    row, assumed = found
    assert row["name"] == name
    assert row["memory_bytes"] == min(one["memory_bytes"] for one in meant(typed))
    others = ", ".join(one["name"] for one in meant(typed)[1:])
    least = f"{typed!r} taken as {name}, which has the least memory"
    assert assumed == (f"{least} (also {others})",)


@pytest.mark.parametrize(("typed", "part"), NONE.items())
def test_a_text_that_means_no_card_gets_a_sentence(typed: str, part: str) -> None:
    """It says what to type instead."""
    with pytest.raises(InputError) as caught:
        named_card(GPUConfig(gpu=typed))
    assert part in str(caught.value)


def test_a_memory_size_beside_a_name_chooses_among_its_cards() -> None:
    """`--gpu a100 --gpu-mem 80` is one with 80 GB."""
    found = named_card(GPUConfig(gpu="a100", gpu_memory_gb=80))
    assert found is not None
    assert found[0]["name"] == "a100-80gb-pcie"


@pytest.mark.parametrize("row", list(catalog.rows("gpus")), ids=lambda row: str(row["name"]))
def test_a_card_is_found_by_its_own_name_title_and_aliases(row: catalog.Row) -> None:
    """Also in another spelling: without signs, in upper case."""
    for name in (row["name"], row["title"], *row.get("aliases", ())):
        assert find_card(name) == row
        assert find_card(name.replace("-", " ").upper()) == row


def test_a_size_alone_means_no_laptop_slice_or_unified_memory() -> None:
    """`--gpu-mem 16` is a card of 16 GB, not a Mac."""
    from gpu_mem_calculator.runfile.resolve.hardware import find_hardware

    assert find_hardware(GPUConfig(gpu_memory_gb=16), None).card_bytes > 15e9


@pytest.mark.parametrize("name", ["apple-m3-max-36gb", "jetson-orin-nx-8gb", "1g.10gb"])
def test_a_gpu_without_a_link_is_alone(name: str) -> None:
    """Macs, Jetsons and slices of a card run no job over several GPUs."""
    from gpu_mem_calculator.runfile.resolve.hardware import find_hardware

    with pytest.raises(InputError, match="a run has one of them; set num_gpus=1"):
        find_hardware(GPUConfig(gpu=name, num_gpus=2), None)


def test_one_card_beside_another_word_is_not_several() -> None:
    """Two are, and the smaller is named."""
    with pytest.raises(InputError) as one:
        named_card(GPUConfig(gpu="h100-80gb-sxm, whatever"))
    assert "several cards" not in str(one.value)
    with pytest.raises(InputError, match=r"several cards.* use the smallest, 'rtx-4090'"):
        named_card(GPUConfig(gpu="h100-80gb-sxm + rtx-4090"))

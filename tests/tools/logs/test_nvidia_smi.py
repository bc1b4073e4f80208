"""The cards that nvidia-smi prints, in each of its forms."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.logs.nvidia_smi import SmiProcess, read_cards, used_cards

TABLE = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   34C    P0             73W /  400W |   38922MiB /  81920MiB |     87%      Default |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:0F:00.0 Off |                    0 |
| N/A   31C    P0             61W /  400W |       4MiB /  81920MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|    0   N/A  N/A     12345      C   /usr/bin/python3                            38000MiB |
+-----------------------------------------------------------------------------------------+
"""
WINDOWS = """
| NVIDIA-SMI 560.94                 Driver Version: 560.94         CUDA Version: 12.6     |
|   0  NVIDIA GeForce RTX 4090      WDDM  |   00000000:01:00.0  On |                  Off |
|  0%   43C    P8             20W /  450W |    2211MiB /  24564MiB |      2%      Default |
| Processes:                                                                              |
|    0   N/A  N/A      1234    C+G   C:\\Windows\\explorer.exe                     N/A      |
"""
SLICES = """
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                   On |
| N/A   34C    P0             73W /  400W |   20000MiB /  81920MiB |     N/A      Default |
| MIG devices:                                                                            |
|  0    1   0   0  |           19968MiB / 40192MiB    | 42      0 |  3   0    2    0    0 |
|  0    2   0   1  |              37MiB / 40192MiB    | 42      0 |  3   0    2    0    0 |
| Processes:                                                                              |
|    0    1    0      77        C   python                                     19900MiB |
"""
QUERY = """
GPU 00000000:07:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Driver Model
        Current                           : N/A
    GPU UUID                              : GPU-aaaa
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
        Used                              : 20000 MiB
        Free                              : 61008 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
        Used                              : 1 MiB
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4711
            Type                          : C
            Name                          : vllm
            Used GPU Memory               : 19900 MiB
"""
XML = """<?xml version="1.0" ?>
<nvidia_smi_log><gpu id="00000000:07:00.0">
<product_name>NVIDIA H100 80GB HBM3</product_name><uuid>GPU-aaaa</uuid>
<fb_memory_usage><total>81559 MiB</total><reserved>551 MiB</reserved><used>20000 MiB</used>
<free>61008 MiB</free></fb_memory_usage>
<processes><process_info><pid>4711</pid><type>C</type><process_name>vllm</process_name>
<used_memory>19900 MiB</used_memory></process_info></processes>
</gpu></nvidia_smi_log>"""
SIZES = ", ".join(f"memory.{name} [MiB]" for name in ("total", "reserved", "used", "free"))
CSV = f"""index, uuid, name, {SIZES}
0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559 MiB, 551 MiB, 20000 MiB, 61008 MiB
gpu_uuid, pid, process_name, used_gpu_memory [MiB]
GPU-aaaa, 4711, vllm, 19900 MiB
GPU-bbbb, 4712, other, 100 MiB
"""


@pytest.mark.parametrize("text", [QUERY, XML, CSV])
def test_all_forms_say_the_same(text: str) -> None:
    """Total without what the driver keeps, what is free, and who holds it."""
    (card,) = read_cards(text)
    assert card.row is not None
    assert card.row["name"] == "h100-80gb-sxm"
    assert card.process_total == 81008 * MIB
    assert card.available == 61008 * MIB
    assert card.held == 20000 * MIB
    assert card.processes == (SmiProcess("4711", "vllm", 19900 * MIB),)


def test_the_table_says_no_free() -> None:
    """It is the total that a process sees, less what is used; names tell two sizes apart."""
    busy, idle = read_cards(TABLE)
    assert busy.row is not None
    assert busy.row["name"] == "a100-80gb-sxm"
    assert busy.held == 38922 * MIB
    assert busy.processes == (SmiProcess("12345", "/usr/bin/python3", 38000 * MIB),)
    assert (idle.held, idle.processes) == (4 * MIB, ())


def test_a_desktop_of_windows_does_not_say_who() -> None:
    """Under WDDM the driver does not know it."""
    (card,) = read_cards(WINDOWS)
    assert card.desktop
    assert card.processes == (SmiProcess("1234", "C:\\Windows\\explorer.exe"),)
    assert card.held == 2211 * MIB


def test_slices_are_cards() -> None:
    """Each with its own memory."""
    first, second = read_cards(SLICES)
    assert (first.index, first.name) == ("0:0", "a100-80gb-mig-3g.40gb")
    assert first.processes == (SmiProcess("77", "python", 19900 * MIB),)
    assert (second.used, second.processes) == (37 * MIB, ())


@pytest.mark.parametrize(
    ("devices", "count", "found"),
    [((), 1, ["0"]), ((), 2, ["0", "1"]), (("1",), 1, ["1"]), (("7",), 1, ["0"])],
)
def test_the_cards_that_are_used(devices: tuple[str, ...], count: int, found: list[str]) -> None:
    """Those that are named, else the first."""
    assert [one.index for one in used_cards(read_cards(TABLE), devices, count)] == found


def test_a_card_is_named_by_its_uuid() -> None:
    """Or by the beginning of it."""
    assert used_cards(read_cards(CSV), ("GPU-aa",), 1)[0].index == "0"


def test_sizes_that_are_not_there() -> None:
    """As on a DGX Spark, whose card has no memory of its own."""
    (card,) = read_cards(
        "index, name, memory.total [MiB], memory.free [MiB]\n0, NVIDIA GB10, [N/A], [N/A]\n"
    )
    assert card.row is not None
    assert (card.row["name"], card.section) == ("dgx-spark-128gb", {"gpu": "dgx-spark-128gb"})
    assert (card.held, card.available) == (0, None)


@pytest.mark.parametrize("text", ["", "no devices were found", "| 0 |", "index, name\n0, x\n"])
def test_what_has_no_card_is_refused(text: str) -> None:
    """In a sentence that says what would be read."""
    with pytest.raises(InputError, match="it has no card; give what nvidia-smi prints"):
        read_cards(text)

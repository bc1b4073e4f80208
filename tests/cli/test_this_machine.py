"""What this machine has: its GPUs and the memory of its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.cli.this_machine import available_section, host_section, system_section
from gpu_mem_calculator.ledger.units import GIB

MEMTOTAL = "MemTotal:       134217728 kB\nMemFree:  1 kB\n"


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in {"proc/meminfo": MEMTOTAL, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "gib", "said"),
    [
        ({}, 128, "MemTotal"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 128, "MemTotal"),
        (
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{32 * GIB}\n"},
            32,
            "memory.max",
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n0::/\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{16 * GIB}\n",
            },
            16,
            "memory.limit_in_bytes",
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/not/mounted/here\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            },
            8,
            "memory.limit_in_bytes",
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            128,
            "MemTotal",
        ),
    ],
)
def test_the_least_of_machine_and_cgroup_counts(
    tmp_path: Path, files: dict[str, str], gib: int, said: str
) -> None:
    """Of both versions, also of a cgroup above; inside a container only the top is there."""
    _write(tmp_path, files)
    found = host_section(tmp_path)
    assert found["node_memory_gb"] == gib
    assert said in found["node_memory_read_from"]


def test_a_machine_without_proc_says_nothing(tmp_path: Path) -> None:
    """Such as Windows."""
    assert host_section(tmp_path) == {}


def test_a_memory_that_is_shared_has_what_the_system_has_available(tmp_path: Path) -> None:
    """With the pages of files."""
    _write(tmp_path, {"proc/meminfo": f"{MEMTOTAL}MemAvailable: 104857600 kB\n"})
    assert available_section(tmp_path) == {"available_memory_bytes": 100 * GIB}
    assert available_section(tmp_path / "nowhere") == {}


def test_wsl_says_so_in_its_kernel(tmp_path: Path) -> None:
    """Other kernels do not."""
    _write(tmp_path, {"proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2\n"})
    assert system_section(tmp_path) == {"os": "wsl"}
    _write(tmp_path, {"proc/version": "Linux version 6.8.0-generic\n"})
    assert system_section(tmp_path) == {}

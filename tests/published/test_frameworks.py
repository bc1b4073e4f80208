"""The table of frameworks: what citations and defaults name is what was read."""

from __future__ import annotations

import re
from datetime import date

import pytest

from gpu_mem_calculator.ledger.frameworks import (
    FRAMEWORKS,
    LLAMA_CPP,
    MEGATRON_DEEPSPEED,
    NCCL,
    SGLANG,
    TENSORRT_LLM,
    TGI,
    TORCH,
    TRANSFORMERS,
    VLLM,
    Framework,
    numbers,
)
from gpu_mem_calculator.serving import servers
from maintenance.drift.citations import files, mentions, unread
from tests.conftest import ROOT

PINS = re.compile(r"^([\w.-]+)==(\S+)$", re.MULTILINE)
LEAST = re.compile(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)')
BY_PACKAGE = {row.package: row for row in FRAMEWORKS if row.package}
SERVERS = {
    "llamacpp": LLAMA_CPP,
    "sglang": SGLANG,
    "tensorrt_llm": TENSORRT_LLM,
    "tgi": TGI,
    "transformers": TRANSFORMERS,
    "vllm": VLLM,
}


def test_a_citation_of_a_version_that_was_not_read_is_noticed() -> None:
    """By its framework's name in any case, with a release, a build or a commit."""
    text = "vLLM 99.0.1 vllm/config.py; torch 2.13; llama.cpp b99999; Megatron-DeepSpeed 0123456"
    assert unread(text) == ["Megatron-DeepSpeed 0123456", "llama.cpp b99999", "vLLM 99.0.1"]


def test_the_source_cites_only_versions_that_were_read() -> None:
    """Every version that a file names is in the table."""
    named = {path.name: unread(path.read_text(encoding="utf-8")) for path in files()}
    assert {name: versions for name, versions in named.items() if versions} == {}


@pytest.mark.parametrize(
    "page",
    ["engines", "inference", "serving", "formats", "formats-deepspeed", "models", "run-file"],
)
def test_pages_on_what_is_modelled_name_only_versions_that_were_read(page: str) -> None:
    """A page that says which version is modelled agrees with the table."""
    assert unread((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")) == []


def test_every_framework_of_the_table_is_cited_at_its_version() -> None:
    """A row that nothing cites is deleted; servers are cited at any version of their range."""
    texts = [p.read_text(encoding="utf-8") for p in files() if p.name != "frameworks.py"]
    named = {(row, version) for text in texts for _, row, version in mentions(text) if version}
    cited = {row for row, version in named if row.oldest or row.is_read(version)}
    assert [row.names[0] for row in FRAMEWORKS if row not in cited] == []


@pytest.mark.parametrize("name", ["constraints.txt", "deploy/torch-constraints.txt"])
def test_installed_versions_are_those_that_were_read(name: str) -> None:
    """What a constraints file pins is in the table; NCCL comes with torch."""
    pins = dict(PINS.findall((ROOT / name).read_text(encoding="utf-8")))
    others = {
        package: pin
        for package, pin in pins.items()
        if (row := BY_PACKAGE.get(package)) not in (None, NCCL) and not row.is_read(pin)
    }
    assert set(pins) & set(BY_PACKAGE)
    assert others == {}


def test_the_extras_ask_for_no_version_that_is_newer_than_what_was_read() -> None:
    """The least versions of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    least = {n: v for n, v in LEAST.findall(text) if n in BY_PACKAGE}
    assert {"torch", "transformers", "deepspeed"} <= set(least)
    assert [n for n, v in least.items() if numbers(v) > BY_PACKAGE[n].numbers] == []


def test_a_server_is_modelled_at_the_version_of_the_table() -> None:
    """The default of engine_version."""
    defaults = {name: server.options["engine_version"] for name, server in servers().items()}
    assert defaults == {name: row.version for name, row in SERVERS.items()}


@pytest.mark.parametrize(
    ("row", "version", "covered"),
    [
        (TORCH, "2.13", True),
        (TORCH, "2.11.0+cu130", True),
        (TORCH, "2.1", False),
        (TORCH, "2.12", False),
        (VLLM, "0.7.3", True),
        (VLLM, "0.3.9", False),
        (VLLM, "0.34.0", False),
        (VLLM, "0123456", False),
        (LLAMA_CPP, "b7468", True),
        (LLAMA_CPP, "b2499", False),
        (MEGATRON_DEEPSPEED, "6acc370", True),
        (MEGATRON_DEEPSPEED, "6acc371", False),
    ],
)
def test_a_row_covers_what_was_read(row: Framework, version: str, covered: bool) -> None:
    """A version in full or shortened, or one in the range that is modelled."""
    assert row.covers(version) is covered


def test_rows_are_dated() -> None:
    """Each with a day that has been."""
    assert all(date.fromisoformat(row.date) <= date.today() for row in FRAMEWORKS)

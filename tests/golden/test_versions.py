"""Figures of a few models at every version at which a server changes a rule.

`python -m tests.golden.test_versions` writes the file anew, with the versions that the source
names then.
"""

from __future__ import annotations

import sys

import pytest

from gpu_mem_calculator.serving import server_names
from tests.corpus import sampled
from tests.golden.drawn_servers import boundaries
from tests.golden.stored_runs import BETWEEN, HERE, digest, figures_or_sentences, stored_lines
from tests.golden.test_servers import figures

PATH = HERE / "versions.txt"
PARTS = 4  # tests for each server
# dense, experts, latent attention, windows, scans, a vision tower, chunks
MODELS = (
    "llama-gqa-bias-tied",
    "qwen2_moe-every-second",
    "deepseek_v3-all-moe-tied",
    "gemma3-head",
    "qwen3_next-small",
    "gpt_oss-no-bias-tied",
    "jamba-periods",
    "qwen2_5_vl",
    "llama4_text-maverick",
    "qwen3-gqa",
)
CARDS = (
    "h100-80gb-sxm",
    "a100-80gb-sxm tensor_parallel_size=2 enforce_eager=true",
    "l40s max_lora_rank=16",
)
LLAMACPP_CARDS = ("l4", "l4 num_gpus=2 cache_type_k=q8_0 flash_attn=true", "l4 kv_unified=false")
TITLE = "digests of the figures of " + ", ".join(MODELS)


def runs(name: str, version: str, model: str) -> list[str]:
    """The settings of a model's runs at one version of a server."""
    start = f"engine={name} model.case={model} engine_version={version} gpu="
    return [start + one for one in (CARDS if name != "llamacpp" else LLAMACPP_CARDS)]


def line(name: str, version: str) -> str:
    """The digests of a version's runs."""
    found = [
        digest([figures_or_sentences(run, figures) for run in runs(name, version, model)])
        for model in MODELS
    ]
    return f"{name} {version}{BETWEEN}{' '.join(found)}"


SERVERS = tuple(name for name in server_names() if name != "transformers")  # which has one version


@pytest.mark.parametrize("part", sampled(range(PARTS), keep=2))
@pytest.mark.parametrize("name", SERVERS)
def test_a_version_is_as_it_was(name: str, part: int) -> None:
    """A rule that starts with another version shows at the version where it started."""
    stored = [one for one in stored_lines(PATH) if one.startswith(f"{name} ")]
    for one in stored[part::PARTS]:
        version = one.partition(BETWEEN)[0].partition(" ")[2]
        assert line(name, version) == one


def test_every_version_of_the_source_is_stored() -> None:
    """A new boundary needs a line: the module, run as a program, writes it."""
    stored = {one.partition(BETWEEN)[0] for one in stored_lines(PATH)}
    assert {f"{name} {one}" for name in SERVERS for one in boundaries(name)} <= stored


if __name__ == "__main__":
    rows = [line(name, one) for name in SERVERS for one in boundaries(name)]
    PATH.write_text("\n".join((f"# server{BETWEEN}{TITLE}", *rows)) + "\n", encoding="utf-8")
    sys.exit(0)

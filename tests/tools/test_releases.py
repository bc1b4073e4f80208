"""Arguments of a tool at any of its releases, from the locks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.ledger.frameworks import FRAMEWORKS
from gpu_mem_calculator.run.releases import package_name
from gpu_mem_calculator.tools.reading.options import option_syntax
from gpu_mem_calculator.tools.translation.arguments import FOLDER, argument_data, argument_table
from gpu_mem_calculator.tools.translation.releases import (
    arguments_at,
    nearest,
    release_of,
    releases,
    span_of,
    stated_at,
)
from maintenance.releases import lock
from maintenance.releases.__main__ import SETTINGS

LOCKS = sorted(
    path.relative_to(FOLDER).as_posix().removesuffix(".lock.json")
    for path in FOLDER.rglob("*.lock.json")
)


# Facts from the tools' own files: release, argument, default.
DEFAULTS = [
    ("vllm/arguments", "0.4.0", "max_num_seqs", 256),
    ("vllm/arguments", "0.19.0", "gpu_memory_utilization", 0.9),
    ("vllm/arguments", "0.20.0", "gpu_memory_utilization", 0.92),
    ("vllm/arguments", "0.4.3", "max_logprobs", 5),
    ("sglang/arguments", "0.4.0", "schedule_policy", "lpm"),
    ("transformers/arguments", "4.53.3", "optim", "adamw_torch"),
    ("transformers/arguments", "4.53.3", "average_tokens_across_devices", False),
    ("trl/sft", "0.12.0", "max_seq_length", None),
    ("trl/sft", "0.21.0", "gradient_checkpointing", False),
    ("trl/sft", "0.22.0", "gradient_checkpointing", True),
    ("trl/sft", "1.16.0", "gradient_checkpointing", True),
    ("trl/grpo", "0.15.0", "vllm_gpu_memory_utilization", 0.9),
    ("trl/grpo", "1.16.0", "vllm_gpu_memory_utilization", 0.3),
]


@pytest.mark.parametrize(("path", "release", "name", "default"), DEFAULTS)
def test_a_default_is_that_of_the_release(
    path: str, release: str, name: str, default: object
) -> None:
    """Some that memory depends on."""
    assert arguments_at(path, release)[name].default == default


def test_a_default_that_only_runs_can_tell_is_no_value() -> None:
    """transformers takes the fused AdamW where torch is 2.8 or newer."""
    optim = arguments_at("transformers/arguments", "4.57.0")["optim"]
    assert optim.default is None
    assert "is_torch_greater_or_equal_than_2_8" in optim.computed


def test_what_is_inherited_is_of_the_other_packages_release() -> None:
    """The one that is named; else the newest on the day of the release."""
    name = "average_tokens_across_devices"
    old = arguments_at("trl/sft", "0.26.0", {"transformers": "4.53"})
    assert old[name].default is False
    assert arguments_at("trl/sft", "0.26.0")[name].default is True
    assert name not in arguments_at("trl/sft", "0.26.0", {"transformers": "4.40.0"})


def test_the_release_of_a_date() -> None:
    """The newest version that was there; of a month, at its end."""
    assert release_of("vllm/arguments", "2025-06") == "0.9.1"
    assert release_of("vllm/arguments", "2025-06-09") == "0.9.0.1"
    assert release_of("vllm/arguments", "2020-01") == "0.4.0"
    assert release_of("transformers/arguments", "2026-01-20") == "4.57.6"


def test_the_nearest_release_of_a_version() -> None:
    """Itself, the newest of a series, or the last one before it."""
    path = "transformers/arguments"
    assert nearest(path, "4.57.1") == "4.57.1"
    assert nearest(path, "4.57") == "4.57.6"
    assert nearest(path, "4.57.1.dev0") == "4.57.1"
    assert nearest(path, "3.0") == "4.38.0"
    assert nearest(path, "99.1") == releases(path)[-1]
    assert nearest("sglang/arguments", "0.4.6") == "0.4.6"


def test_the_span_of_a_name() -> None:
    """Since when, and until when."""
    assert span_of("transformers/arguments", "group_by_length") == ("4.38.0", "5.2.0")
    assert span_of("trl/sft", "group_by_length") == ("4.38.0", "5.2.0")
    assert span_of("trl/sft", "packing") == ("0.9.2", "")
    assert span_of("trl/sft", "nothing") == ("", "")


@pytest.mark.parametrize("path", LOCKS)
def test_the_reader_agrees_with_the_writer(path: str) -> None:
    """At every release, for the arguments of the table's own classes."""
    data = lock.load(path)
    states = lock.states(data)
    for release in list(states)[:: max(1, len(states) // 8)]:
        read = arguments_at(path, release)
        assert states[release].keys() <= read.keys()
        for name, state in states[release].items():
            row = read[name]
            assert {
                "default": row.default,
                "computed": row.computed,
                "required": row.required,
                "type": row.type,
                "choices": list(row.choices),
                "form": row.form,
                "flags": list(row.flags),
                "programs": list(row.programs),
            } == {
                "default": None,
                "computed": "",
                "required": False,
                "type": "",
                "choices": [],
                "form": "",
                "flags": [],
                "programs": [],
                **state,
            }


@pytest.mark.parametrize("path", LOCKS)
def test_a_lock_is_written_as_the_script_writes_it(path: str) -> None:
    """No one edits it: it is made of what was read, and belongs to a table."""
    data = lock.load(path)
    settings = SETTINGS[path]
    held = (lock.states(data), lock.bases_at(data), lock.requires_at(data))
    order = lock.made(settings["package"], data["reads"], data["releases"], *held)
    assert lock.path_of(path).read_text(encoding="utf-8") == lock.text(order)
    assert json.loads(lock.text(order)) == data
    assert Path(f"{FOLDER}/{path}.toml").exists()


# Tables that have names of other releases, beside a table's own and its bases.
OLDER = {
    "transformers/arguments": ("reading/transformers4", "huggingface/older"),
    "trl": ("reading/transformers4", "huggingface/older", "huggingface/others"),
    "huggingface/script": ("huggingface/older", "huggingface/others"),
    "swift/arguments": ("reading/transformers4", "transformers/arguments"),
    "llamafactory/arguments": ("reading/transformers4", "transformers/arguments"),
}


def _known(path: str) -> set[str]:
    """The names of a table that have an effect, and names that are read as one of them."""
    tables = (path, *OLDER.get(path, ()), *OLDER.get(path.partition("/")[0], ()))
    known: set[str] = set()
    for one in tables:
        if path == "deepspeed/keys":
            continue
        syntax = option_syntax(one, FOLDER)
        written = [flag.lstrip("-") for flag in syntax.aliases]
        written += [flag.replace("-", "_") for flag in written]
        known |= {*argument_table(one), *syntax.renamed, *written}
        known |= {f"no-{flag}" for flag in syntax.flags}
    return known


def _elsewhere(spans: list[dict[str, Any]]) -> bool:
    """Whether only programs take an option of which no command is read."""
    return any([span["programs"] for span in spans if "programs" in span][-1:])


def _groups(data: dict[str, Any]) -> list[str]:
    """Every name of a table's groups, as often as it stands there."""
    rows = [data.get("memory", {}), *data.get("free", ()), *data.get("refused", ())]
    return [name for row in rows for name in row.get("names", ())]


@pytest.mark.parametrize("path", [one for one in LOCKS if one != "deepspeed/keys"])
def test_every_name_of_every_release_has_an_effect(path: str) -> None:
    """It is honoured, free or refused; a person says which, and why."""
    known = _known(path)
    arguments = lock.load(path)["arguments"]
    missing = [one for one in arguments if one not in known and not _elsewhere(arguments[one])]
    listed = "; ".join(
        f"{name} ({' to '.join(filter(None, span_of(path, name)))})" for name in missing
    )
    assert not missing, f"{path}.toml has no effect of {listed}"


@pytest.mark.parametrize("path", LOCKS)
def test_a_name_is_in_one_group(path: str) -> None:
    """Else the last group would win."""
    names = _groups(dict(argument_data(path)))
    assert sorted(names) == sorted(set(names))


MODELLED = [one for one in LOCKS if "release" in argument_data(one)]


@pytest.mark.parametrize("path", MODELLED)
def test_the_modelled_release_is_the_one_that_was_read(path: str) -> None:
    """ledger/frameworks.py names it, and the lock has it."""
    package, release = lock.load(path)["package"], argument_data(path)["release"]
    versions = {package_name(name): row.version for row in FRAMEWORKS for name in row.names}
    versions |= {row.package: row.version for row in FRAMEWORKS if row.package}
    assert release in releases(path)
    version = versions.get(package) or versions[package_name(package)]
    if re.fullmatch("[0-9a-f]{7}", version):  # a commit, which is between releases
        return
    assert release.split(".")[:2] == version.split(".")[:2]
    assert package == "Megatron-LM" or release == version  # a repository has less tags


@pytest.mark.parametrize("path", MODELLED)
def test_a_default_is_decided_only_where_the_lock_has_another(path: str) -> None:
    """What a machine knows is not written by hand."""
    data = argument_data(path)
    stated = stated_at(path, data["release"], ())
    same = [
        name
        for name, value in data.get("defaults", {}).items()
        if stated.get(name, (...,))[0] == value
    ]
    assert same == []


def test_a_table_has_the_defaults_of_its_release() -> None:
    """Of a name that is gone, the last one; what it inherits where its own is gone."""
    servers = argument_table("vllm/arguments")
    assert servers["gpu_memory_utilization"].default == 0.92
    assert servers["swap_space"].default == 4
    assert servers["attention_backend"].default == "FLASH_ATTN"
    assert argument_table("trl/grpo")["per_device_train_batch_size"].default == 8
    assert argument_table("trl/sft")["bf16"].default is None


def test_a_star_in_a_table_is_every_name_that_has_no_row_of_its_own() -> None:
    """A name's own row wins."""
    table = argument_table("verl/ppo")
    assert table["critic.fsdp.qat.enable"].effect == "free"
    assert table["critic.enable"].effect == "memory"
    assert table["actor_rollout_ref.actor.qat.enable"].effect == "refused"
    assert not [name for name in table if "*" in name]

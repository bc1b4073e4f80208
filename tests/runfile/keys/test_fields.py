"""The run file's keys as data for a form."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_mem_calculator.runfile.config import INNER
from gpu_mem_calculator.runfile.keys import keys
from gpu_mem_calculator.runfile.keys.allowed_values import accepts
from gpu_mem_calculator.runfile.keys.fields import RunFileField, fields, form
from gpu_mem_calculator.runfile.keys.keys import defaults, rows
from gpu_mem_calculator.runfile.read import SECTIONS, key_types, with_settings
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import servers
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engines
from gpu_mem_calculator.training.optimizers import OPTIMIZERS
from tests.conftest import small_run

FIELDS = {field.path: field for field in fields()}
LARGEST = 110_000  # bytes of the form as JSON
KINDS = {"count", "size", "number", "flag", "choice", "text", "list", "object", "parameters"}
PATHS = [
    *(f"{name}.{key}" for name, struct in SECTIONS.items() for key in key_types(struct)),
    *(f"training.{name}.{key}" for name, struct in INNER.items() for key in key_types(struct)),
]


def test_every_key_has_a_field_and_nothing_else_has() -> None:
    """Every key has a label and a meaning, and every label belongs to a key."""
    assert set(FIELDS) == set(PATHS) == set(rows())


@pytest.mark.parametrize("path", PATHS)
def test_a_field_can_be_shown(path: str) -> None:
    """A short label, a sentence, a kind and a level that a form knows."""
    field = FIELDS[path]
    assert 1 <= len(field.label) <= 34
    assert field.meaning.endswith(".")
    assert field.kind in KINDS
    assert field.level in ("main", "more", "expert")
    assert f"{field.section}.{field.key}" == path
    assert (field.kind == "choice") <= (len(field.choices) > 1)
    assert len({choice.title for choice in field.choices}) == len(field.choices)


@pytest.mark.parametrize("section", ["engine", "inference"])
def test_a_key_is_shown_for_the_engines_that_have_it(section: str) -> None:
    """Defaults are the engines' own; what an engine takes in one value only is not shown."""
    every = engines() if section == "engine" else servers()
    for field in fields():
        if field.section == section and field.defaults is not None:
            for name, default in field.defaults.items():
                assert every[name].options[field.key] == default
            for name in set(every) - set(field.defaults):
                other = 2 if field.kind == "count" else "other" if field.kind == "text" else True
                other = "bf16" if field.kind == "choice" else other
                assert not accepts(name, field.path, other)


def test_axes_and_adapters_belong_to_engines() -> None:
    """Megatron alone cuts tensors, DDP alone has packed weights."""
    assert set(FIELDS["parallelism.tensor_parallel_size"].defaults or ()) == {
        "megatron_lm",
        "megatron_deepspeed",
    }
    assert FIELDS["training.quantization"].defaults == {"pytorch_ddp": "none"}
    assert "megatron_lm" not in (FIELDS["training.lora.r"].defaults or ())
    assert FIELDS["training.batch_size"].defaults is None


def _named(path: str, engine: str) -> set[Any]:
    """What is offered for an engine."""
    return {one.value for one in FIELDS[path].choices if not one.engines or engine in one.engines}


def test_choices_are_those_of_the_tables() -> None:
    """A row that is added to a table is offered."""
    for name, engine in engines().items():
        assert _named("training.optimizer", name) == engine.optimizers & set(OPTIMIZERS)
    assert _named("engine.zero_stage", "deepspeed") == {0, 1, 2, 3}
    assert {"q4_k_m", "none"} <= _named("inference.quantization", "llamacpp")
    assert _named("inference.quantization", "transformers") == {"none", "nf4", "int8"}
    assert _named("inference.split_mode", "llamacpp") == {"none", "layer"}  # rows are refused
    assert _named("inference.kv_cache_dtype", "sglang") == {"auto", "bf16", "fp16", "fp8"}
    assert _named("engine.offload_optimizer", "megatron_deepspeed") == {"none", "cpu"}
    assert "bf16_pure" not in _named("training.precision", "megatron_lm")


def _bad(field: RunFileField) -> list[float]:
    """Values just outside of a field's bounds."""
    found = [field.minimum - 1] if field.minimum is not None else []
    found += [field.maximum + 1] if field.maximum is not None else []
    found += [bound for bound in (field.above, field.below) if bound is not None]
    return found


@pytest.mark.parametrize("path", [p for p in PATHS if _bad(FIELDS[p])])
def test_bounds_are_those_of_the_run_file(path: str) -> None:
    """One beyond a bound is refused, the bound itself is not."""
    field = FIELDS[path]
    data = {"model": {"name": "gpt2"}}
    for value in (field.minimum, field.maximum):
        if value is not None:
            read(
                with_settings(json.loads(json.dumps(data)), [f"{path}={json.dumps(value)}"])
            ).checked()
    for value in _bad(field):
        with pytest.raises(InputError, match=path.rpartition(".")[2]):
            read(
                with_settings(json.loads(json.dumps(data)), [f"{path}={json.dumps(value)}"])
            ).checked()


@pytest.mark.parametrize(
    "path", [p for p in defaults() if p.startswith(("training.", "parallelism.", "engine."))]
)
def test_a_default_says_what_leaving_it_out_does(path: str) -> None:
    """The same run comes of it, where the key may be given at all."""
    run = small_run("pytorch_ddp")
    run["training"].pop("precision")
    beside = {
        "training.double_quant": {"lora": {}, "quantization": "nf4"},
        "training.upcast_unquantized": {"lora": {}, "quantization": "nf4"},
        "training.checkpoint_reentrant": {"activation_checkpointing": "full"},
    }.get(path, {})
    run["training"] = {**run["training"], **beside}
    if path == "training.batch_size":
        run["training"].pop("batch_size")
    if path == "engine.type":
        run["engine"] = {}
    plain = resolve(read(run).file)
    given = resolve(read(with_settings(run, [f"{path}={json.dumps(defaults()[path])}"])).file)
    assert given.engine is plain.engine
    assert msgspec.structs.asdict(given.run) == msgspec.structs.asdict(plain.run)


def test_the_form_is_small_and_plain() -> None:
    """It is made once, and JSON has all of it."""
    made = form()
    text = msgspec.json.encode(made)
    assert len(text) < LARGEST, (
        f"the form has {len(text):,} bytes, which a page loads before it shows anything. If a key "
        "or a row was added, raise LARGEST by a thousand; if not, find what became longer"
    )
    assert json.loads(text) == json.loads(json.dumps(made))
    assert form() is made
    assert [one["name"] for one in made["sections"]] == list(SECTIONS)
    names = {(one["kind"], one["name"]) for one in made["engines"]}
    assert names == {("training", n) for n in engines()} | {("serving", n) for n in servers()}
    axes = {one["name"]: one["axes"] for one in made["engines"]}
    assert axes["megatron_lm"] == ["tp", "pp", "cp", "ep"]
    assert axes["transformers"] == []


def test_a_count_of_parameters_has_a_kind_of_its_own() -> None:
    """The key that takes 7B; no other has it."""
    kinds = [path for path, field in FIELDS.items() if field.kind == "parameters"]
    assert kinds == ["model.num_parameters"]


def test_a_row_parsed_alone_is_that_of_the_whole_file() -> None:
    """Rows are split as text, so that one is read without the others."""
    text = Path(keys.__file__).with_suffix(".toml").read_text(encoding="utf-8")
    whole = {
        f"{section}.{key}": msgspec.convert(row, keys.KeyRow)
        for section, found in tomllib.loads(text).items()
        for key, row in found.items()
    }
    assert keys.rows() == whole

"""Every key of a run file has a type, a default, a row and an effect.

The message of a test says what to add, and where.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from gpu_mem_calculator.estimates.stage_ledgers import ledger_of
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile import sections
from gpu_mem_calculator.runfile.config import INNER, EngineConfig
from gpu_mem_calculator.runfile.field_types import RowName
from gpu_mem_calculator.runfile.inference_config import InferenceConfig
from gpu_mem_calculator.runfile.keys.allowed_values import OF_SERVERS, TABLES, TINY
from gpu_mem_calculator.runfile.keys.fields import fields
from gpu_mem_calculator.runfile.keys.keys import KeyRow, defaults, rows, run_fields
from gpu_mem_calculator.runfile.keys.schema import schema
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.sections import SECTIONS, key_types, parts
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import servers
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import DEFAULT, engine_row, engines
from gpu_mem_calculator.training.life.loading import loading, worker_bytes
from gpu_mem_calculator.training.step.stream import allocation_stream
from tests.conftest import ROOT

TOML = "src/gpu_mem_calculator/runfile/keys/keys.toml"
STRUCTS = "src/gpu_mem_calculator/runfile/config.py"
OPTIONS = ("engine", "inference")  # sections whose defaults are the engines' own
KINDS: dict[str, Any] = {
    **{
        f"{name}.{key}": kind
        for name, one in SECTIONS.items()
        for key, kind in key_types(one).items()
    },
    **{
        f"training.{name}.{key}": kind
        for name, one in INNER.items()
        for key, kind in key_types(one).items()
    },
}
COPIED = [path for path in KINDS if path.count(".") == 1 and path.startswith(("training", "par"))]
PROBED = [path for path, row in rows().items() if path.partition(".")[0] not in OPTIONS]


@pytest.mark.parametrize("path", sorted({*KINDS, *rows()}))
def test_a_key_has_a_type_and_a_row(path: str) -> None:
    """The type is in the section's Struct; the row has the rest."""
    key, struct = path.rpartition(".")[2], path.rpartition(".")[0]
    assert path in rows(), (
        f"{path} has no row: add [{path}] to {TOML} (level, label, meaning, probe)"
    )
    assert path in KINDS, (
        f"{path} has a row and no type: add `{key}: ... | None = None` to the Struct of {struct} "
        f"in {STRUCTS}, or remove its row from {TOML}"
    )


@pytest.mark.parametrize("path", COPIED)
def test_a_key_is_a_field_of_the_run(path: str) -> None:
    """By its own name, with the default; or its row names the fields that it sets."""
    key, row = path.rpartition(".")[2], rows()[path]
    assert key in Run.__struct_fields__ or row.fields is not None, (
        f"{path} reaches no engine: add `{key}` with its default to Run in "
        f"src/gpu_mem_calculator/run/run.py, or name the fields that it sets (`fields`) in {TOML}"
    )
    named = [field for own, field in run_fields(path.partition(".")[0]) if own == path]
    assert set(row.fields or ()) <= set(named), f"`fields` of {path} in {TOML} are not all of Run"


@pytest.mark.parametrize("path", defaults())
def test_a_default_has_the_type_of_its_key(path: str) -> None:
    """The value that Run or the row has is one that a file may give."""
    msgspec.convert(defaults()[path], KINDS[path])
    row, (section, _, key) = rows()[path], path.partition(".")
    own = dict(zip(Run.__struct_fields__[::-1], Run.__struct_defaults__[::-1], strict=False))
    repeated = section in ("training", "parallelism") and row.default == own.get(key, msgspec.UNSET)
    assert not repeated, f"Run has the default of {path}: remove `default` from its row in {TOML}"


@pytest.mark.parametrize(
    ("section", "struct", "every"),
    [("engine", EngineConfig, engines()), ("inference", InferenceConfig, servers())],
)
def test_options_of_engines_have_a_type(section: str, struct: type[Struct], every: Any) -> None:
    """Each option is a key, each key an option of some engine, and each default has its type."""
    kinds = {key: kind for key, kind in key_types(struct).items() if key not in ("type", "engine")}
    known = {key for one in every.values() for key in one.options}
    for key in sorted(known ^ set(kinds)):
        where = f"{struct.__name__}, with its type" if key in known else "options of an engine"
        pytest.fail(f"{section}.{key}: add it to the {where}, with its default, or remove it")
    for name, one in every.items():
        for key, default in one.options.items():
            try:
                msgspec.convert(default, kinds[key])
            except msgspec.ValidationError as error:
                pytest.fail(
                    f"{name} has {key}={default!r}, {struct.__name__} another type: {error}"
                )


@pytest.mark.parametrize("path", rows())
def test_a_set_of_values_is_a_table(path: str) -> None:
    """The table that a row or a type names exists; a type's table is not named twice."""
    metas = [meta for part in parts(KINDS[path]) for meta in getattr(part, "__metadata__", ())]
    named = [meta.table for meta in metas if isinstance(meta, RowName)]
    assert set(named) <= set(sections.TABLES), f"add {named} to TABLES in runfile/sections.py"
    values = rows()[path].values
    if values == OF_SERVERS:
        key = path.removeprefix("inference.")
        assert any(key in one.values for one in servers().values()), f"no server names {key}"
        return
    assert not values or values in TABLES, f"add {values!r} to TABLES in keys/allowed_values.py"
    assert not (values and named), f"the type of {path} names a table: remove `values` from {TOML}"


def test_a_key_is_in_the_form_the_schema_and_the_documents() -> None:
    """All three are made of types and rows."""
    text = (ROOT / "docs" / "run-file.md").read_text("utf-8")
    listed = {name: set(one["properties"]) for name, one in schema()["$defs"].items()}
    shown = {field.path for field in fields()}
    structs = {**SECTIONS, **{f"training.{name}": one for name, one in INNER.items()}}
    for path in KINDS:
        where, _, key = path.rpartition(".")
        assert path in shown, f"{path} is not in the form (keys/fields.py)"
        assert key in listed[structs[where].__name__], (
            f"{path} is not in the schema (keys/schema.py)"
        )
        chosen = path in ("engine.type", "inference.engine")  # in words above the table
        assert chosen or f"| `{key}` |" in text, f"{path}: run python docs/reference.py"


def _settings(row: KeyRow, options: Any) -> list[str]:
    """What is needed for a probe to have an effect, without options that the engine lacks."""
    named = ((one, *one.partition("=")[0].split(".")[:2]) for one in (*row.needs, *row.beside))
    return [one for one, section, key in named if section != "engine" or key in options]


@cache
def _resolved(engine: str, settings: tuple[str, ...]) -> ResolvedRun | None:
    """A small run with the settings; None where it is refused."""
    run: dict[str, Any] = {
        "model": {} if any(one.startswith("model.name") for one in settings) else {**TINY},
        "engine": {"type": engine},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8},
        "training": {"gradient_accumulation_steps": 4},
    }
    try:
        return resolve(read(with_settings(run, settings)).file)
    except InputError:
        return None


def _estimate(found: ResolvedRun) -> Any:
    """The entries of a run's ledger, and what else an answer is made of."""
    ledger = ledger_of(found)(found.run)
    entries = [(e.name, e.place, int(e.bytes), sorted(e.live.items())) for e in ledger.entries]
    drawn = None if found.lengths is None else found.lengths.orders
    row = engine_row(found.engine.name) if found.run.new_tokens is None else None
    loaded = (
        None if row is None or row.megatron else loading(found.run, row, row.precision(found.run))
    )
    return (
        entries,
        loaded,
        worker_bytes(found.run),
        found.hardware,
        found.allocator,
        found.warnings,
        drawn,
    )


def _differ(one: ResolvedRun, two: ResolvedRun) -> bool:
    """Whether two runs have other estimates, or the same by other allocations."""
    if _estimate(one) != _estimate(two):
        return True
    ledgers = [ledger_of(found)(replace(found.run, unrolled=True)) for found in (one, two)]
    runs = zip(ledgers, (one, two), strict=True)
    first, second = (allocation_stream(made, int(run.run.micro_batches)) for made, run in runs)
    return first != second


@pytest.mark.parametrize("path", PROBED)
def test_a_key_changes_an_estimate(path: str) -> None:
    """None is accepted and ignored."""
    row = rows()[path]
    assert (row.probe is None) == bool(row.no_probe), f"{path}: add `probe` or `no_probe` to {TOML}"
    if row.no_probe:
        return
    for name, one in sorted(engines().items(), key=lambda item: item[0] != DEFAULT):
        settings = _settings(row, one.options)
        before = _resolved(name, tuple(settings))
        after = _resolved(name, (*settings, f"{path}={json.dumps(row.probe)}"))
        if before and after and _differ(before, after):
            return
    pytest.fail(
        f"{path}={json.dumps(row.probe)} changes no estimate of any engine: write its formula, or "
        f"another probe, what is `beside` it, or `no_probe` in {TOML}"
    )

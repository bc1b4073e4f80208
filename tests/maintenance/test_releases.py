"""Lock files of arguments: what is read of a release, and the spans of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from maintenance.releases import lock
from maintenance.releases.index import version_key
from maintenance.releases.options import Arguments
from maintenance.releases.others import clap, llama_cpp
from maintenance.releases.read import read
from maintenance.releases.requirements import requirements


class Texts:
    """Files of a release."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self.names = frozenset(texts)

    def text(self, path: str) -> str:
        """The text of a file."""
        return self._texts[path]


CONFIG = """
from enum import Enum
from typing import Literal, Optional, Union
from dataclasses import dataclass, field
from other import TrainingArguments, available
from .names import BLOCK, Kinds

class Level(str, Enum):
    LOW = "low"
    HIGH = "high"

@dataclass
class Base:
    inherited: int = 1
    changed: int = 2

@dataclass
class Config(Base, TrainingArguments):
    changed: float = 2.5
    size: Optional[int] = BLOCK * 2
    level: Union[Level, str] = field(default=Level.HIGH, metadata={"aliases": ["--lv"]})
    kind: Kinds = "a"
    open: Literal["x", "y"] | str = "x"
    names: list[str] = field(default_factory=lambda: ["n"])
    made: Base = field(default_factory=Base)
    called: int = available()
    needed: str
    maybe = 7
    if available():
        best = "fast"
    else:
        best = "slow"
    chosen: str = best
    _hidden: int = 1
    left_out: int = field(default=1, init=False)
"""
NAMES = """
from typing import Literal
BLOCK = 16
Kinds = Literal["a", "b"]
"""
TEXTS = Texts({"pack/config.py": CONFIG, "pack/names.py": NAMES})
SETTINGS: dict[str, Any] = {
    "classes": ["pack/config.py::Config"],
    "command": "HfArgumentParser",
    "bases": {"TrainingArguments": "trainer/arguments"},
}
FIELDS: Arguments = {
    "inherited": {"default": 1, "type": "int"},
    "changed": {"default": 2.5, "type": "float"},
    "size": {"default": 32, "type": "int | None"},
    "level": {"default": "high", "type": "str", "choices": ["low", "high"], "flags": ["--lv"]},
    "kind": {"default": "a", "type": "str", "choices": ["a", "b"]},
    "open": {"default": "x", "type": "str"},
    "names": {"default": ["n"], "type": "list", "form": "list"},
    "made": {"computed": "Base()", "type": "dict"},
    "called": {"computed": "available()", "type": "int"},
    "needed": {"required": True, "type": "str"},
    "chosen": {"computed": "'slow' if not available() else 'fast' if available()", "type": "str"},
}


def test_the_fields_of_a_class() -> None:
    """Inherited fields, names of other files, choices and factories; a base of another package is
    named, and what only runs can tell is code.
    """
    assert read(TEXTS, SETTINGS) == (FIELDS, ["trainer/arguments"])


PARSER = """
import argparse, json
from .config import Config
from .names import Kinds, get_kwargs, nullable_str

class Args:
    tp_size: int = 1
    eager: bool = True

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--tensor-size", "--tp-size", "-tp", type=int, default=Args.tp_size)
        parser.add_argument("--eager", action="store_true")
        parser.add_argument("--no-eager", action="store_false", dest="eager_off")
        parser.add_argument("--kinds", nargs="+", type=str, choices=["a", None])
        parser.add_argument("--extra", type=json.loads, default={})
        parser.add_argument("--name", type=nullable_str, default=None)
        parser.add_argument("--tp-old", dest="tp_size", type=int)
        parser.add_argument("--hidden", default=argparse.SUPPRESS)
        config = get_kwargs(Config)
        config["size"]["type"] = float
        group = parser.add_argument_group("config")
        group.add_argument("--size", **config["size"])
        group.add_argument("--level", **{**config["level"], "default": "low"})
        group.add_argument("--words", **config["names"])
        parser.add_argument("positional", type=str)
"""
OPTIONS: Arguments = {
    "tp_size": {"default": 1, "type": "int", "flags": ["--tensor-size", "-tp", "--tp-old"]},
    "eager": {"default": False, "type": "bool", "form": "flag"},
    "eager_off": {"default": True, "type": "bool", "form": "off", "flags": ["--no-eager"]},
    "kinds": {"default": None, "type": "str", "form": "list", "choices": ["a"]},
    "extra": {"default": {}, "type": "dict"},
    "name": {"default": None, "type": "str | None"},
    "hidden": {"default": None, "type": "str"},
    "size": {"default": 32, "type": "float"},
    "level": {"default": "low", "type": "str", "choices": ["low", "high"], "flags": ["--lv"]},
    "words": {"default": ["n"], "type": "list", "form": "list"},
}


def test_the_options_of_a_parser() -> None:
    """An option is named after the field that one of its names has; keywords of a class's fields
    are taken with what the function changes of them.
    """
    texts = Texts({"pack/args.py": PARSER, "pack/config.py": CONFIG, "pack/names.py": NAMES})
    place = "pack/args.py::Args"
    found, _ = read(texts, {"parsers": [f"{place}.add_cli_args"], "fields": [place]})
    assert found == OPTIONS


def test_what_a_release_does_not_have_is_not_read() -> None:
    """A class, a file or a method of other releases."""
    for one in ("pack/config.py::Other", "gone.py::Config", "pack/config.py::Config.method"):
        assert read(TEXTS, {"classes": [one]}) == ({}, [])


OTHERS = """
from typing import TYPE_CHECKING, Optional
from pydantic import BaseModel

if TYPE_CHECKING:
    PACK_PORT: Optional[int] = None
    PACK_ON: bool = True
    other: int = 1

class Envs:
    PACK_LEVEL = EnvInt(3)
    PACK_NAME = EnvStr(None)
    lower = EnvInt(1)

class Inner(BaseModel):
    size: int = 4
    skip: int = 5

class Outer(BaseModel):
    inner: Inner = Inner()
    name: str = "n"

def function(self, first, second: int = 2, *, third: Optional[str] = None): ...

ZERO_STAGE = "stage"
ZERO_STAGE_DEFAULT = 1
STEPS = "steps"
STEPS_DEFAULT = None

def add_args(parser):
    from .config import Group
    ArgumentGroupFactory(Group, exclude=["left"]).build_group(parser)

if __name__ == "__main__":
    parser.add_argument("--a.b_c", type=int, default=1)
    for name in ("x", "y"):
        parser.add_argument(f"--{name}.lr", type=float, default=1.0 if name == "x" else 2.0)
"""
GROUP = """
from dataclasses import dataclass
@dataclass
class Group:
    use_it: bool = True
    debug: bool = False
    left: int = 1
    many: list[int] | None = None
"""
DATA = """
actor:
  lr: 1.0e-6
  _target_: pack.Actor
  names: [a]
  other: ${actor.lr}
needed: ???
"""
# Settings of a table, and the defaults of what they find.
KINDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"variables": ["pack/o.py"]}, {"PACK_PORT": None, "PACK_ON": True}),
    ({"assigned": ["pack/o.py::Envs"]}, {"PACK_LEVEL": 3, "PACK_NAME": None}),
    (
        {"nested": ["pack/*.py::Outer"], "prefix": {"Outer": "o."}, "without": ["*.skip"]},
        {"o.inner.size": 4, "o.name": "n"},
    ),
    ({"functions": ["pack/o.py::function"]}, {"first": ..., "second": 2, "third": None}),
    (
        {"constants": ["pack/o.py"], "sections": {"ZERO_": "zero."}},
        {"zero.stage": 1, "steps": None},
    ),
    ({"parsers": ["pack/o.py::add_args"]}, {"use_it": True, "debug": False, "many": None}),
    ({"parsers": ["pack/p.py|pack/o.py"]}, {}),
    (
        {"yaml": ["pack/no.yaml|pack/d.yaml"], "without": ["*_target_"]},
        {"actor.lr": 1e-6, "actor.names": ["a"], "actor.other": "${actor.lr}", "needed": ...},
    ),
]


@pytest.mark.parametrize(("settings", "defaults"), KINDS)
def test_other_places_of_arguments(settings: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Variables, nested classes, functions, constants, groups that are made of a class, data."""
    texts = Texts({"pack/o.py": OTHERS, "pack/config.py": GROUP, "pack/d.yaml": DATA})
    found, _ = read(texts, settings)
    stated = {
        name: ... if row.get("required") else row.get("default", row.get("computed"))
        for name, row in found.items()
    }
    assert stated == defaults


def test_options_that_are_added_outside_functions() -> None:
    """A file alone; an option with dots keeps them, and a loop over names is all of them."""
    found, _ = read(Texts({"o.py": OTHERS}), {"parsers": ["o.py"]})
    assert found["a.b_c"] == {"default": 1, "type": "int"}
    assert found["x.lr"] == {"default": 1.0, "type": "float"}
    assert found["y.lr"] == {"default": 2.0, "type": "float"}


def test_a_group_that_is_on_has_the_forms_that_turn_it_off() -> None:
    """As Megatron-LM makes options of its classes."""
    texts = Texts({"pack/o.py": OTHERS, "pack/config.py": GROUP})
    found, _ = read(texts, {"parsers": ["pack/o.py::add_args"]})
    assert found["use_it"]["form"] == "off"
    assert found["use_it"]["flags"] == ["--no-use-it", "--disable-use-it"]
    assert found["debug"]["form"] == "flag"


RUST = """
struct Other { x: u8 }
#[derive(Parser)]
struct Args {
    /// A name.
    #[clap(default_value = "gpt2", long, env)]
    model_id: String,
    #[clap(long, env)]
    num_shard: Option<usize>,
    #[clap(default_value = "0.9", long)]
    fraction: f32,
    #[clap(long, env)]
    trust: bool,
}
"""
BUILD = """
    add_opt(common_arg(
        {"-c", "--ctx-size"}, "N",
        string_format("size (default: %d)", params.n_ctx),
        [](common_params & params, int value) {
            params.n_ctx = value;
        }
    ).set_env("CTX"));
    add_opt(common_arg(
        {"--no-perf"}, "text",
        [](common_params & params) {
            params.no_perf = true;
        }
    ));
"""
OLD_BUILD = """
    if (arg == "-ngl" || arg == "--gpu-layers" || arg == "--n-gpu-layers") {
        CHECK_ARG
        params.n_gpu_layers = std::stoi(argv[i]);
        return true;
    }
    if (arg == "--mlock") {
        params.use_mlock = true;
        return true;
    }
"""
HEADER = "int32_t n_ctx = 4096; int32_t n_gpu_layers = -1;"


def test_options_in_other_languages() -> None:
    """Rust's structs, and llama.cpp's parser before and since September 2024."""
    assert clap(RUST, "Args") == {
        "model-id": {"default": "gpt2", "type": "str"},
        "num-shard": {"default": None, "type": "int | None"},
        "fraction": {"default": 0.9, "type": "float"},
        "trust": {"default": False, "type": "bool", "form": "flag"},
    }
    now, before = llama_cpp(BUILD, HEADER), llama_cpp(OLD_BUILD, HEADER, ["gpu-layers"])
    assert now["ctx-size"] == {"default": 4096, "type": "int", "flags": ["-c"]}
    assert now["no-perf"]["form"] == "flag"
    flags = ["-ngl", "--n-gpu-layers"]
    assert before["gpu-layers"] == {"default": -1, "type": "int", "flags": flags}
    assert before["mlock"]["form"] == "flag"


def test_of_many_releases_those_that_differ_are_kept() -> None:
    """And the newest."""
    one: Arguments = {"a": {"default": 1}}
    two: Arguments = {"a": {"default": 2}}
    found = lock.changes({"b1": one, "b2": one, "b10": two, "b11": two, "b12": two})
    assert list(found) == ["b1", "b10", "b12"]


STATES: dict[str, Arguments] = {
    "0.9": {"a": {"default": 1, "type": "int"}, "old": {"default": None, "type": "str"}},
    "0.9.post1": {"a": {"default": 1, "type": "int"}, "old": {"default": None, "type": "str"}},
    "0.10": {
        "a": {"computed": "f()", "type": "int", "choices": [1, 2, 3], "flags": ["-a"]},
        "b": {"required": True, "type": "str"},
    },
    "1.0": {
        "a": {"default": None, "type": "int", "choices": [4, 3, 2]},
        "b": {"required": True, "type": "str"},
        "old": {"default": 0, "type": "int"},
    },
}
BASES = {"0.10": ["x"], "1.0": ["x"]}
SPANS = {
    "a": [
        {"from": "0.9", "default": 1, "type": "int"},
        {"from": "0.10", "computed": "f()", "choices": [1, 2, 3], "flags": ["-a"]},
        {"from": "1.0", "default": None, "choices": {"added": [4], "removed": [1]}, "flags": []},
    ],
    "b": [{"from": "0.10", "required": True, "type": "str"}],
    "old": [
        {"from": "0.9", "default": None, "type": "str"},
        {"from": "0.10", "gone": True},
        {"from": "1.0", "default": 0, "type": "int"},
    ],
}


def test_a_lock_has_a_span_for_each_change() -> None:
    """What differs from the span before; releases in the order of their versions."""
    dates = dict.fromkeys(STATES, "2026-01-01")
    made = lock.made("pack", ["reads"], dates, STATES, BASES)
    assert list(made["releases"]) == ["0.9", "0.9.post1", "0.10", "1.0"]
    assert made["arguments"] == SPANS
    assert made["bases"] == [{"from": "0.10", "tables": ["x"]}]


def test_a_lock_gives_back_what_was_read() -> None:
    """So that another release can be added without reading those that it has."""
    dates = dict.fromkeys(STATES, "2026-01-01")
    made = lock.made("pack", [], dates, STATES, BASES)
    assert lock.made("pack", [], dates, lock.states(made), lock.bases_at(made)) == made
    for release, found in lock.states(made).items():
        for name, row in found.items():
            choices = set(row.pop("choices", ()))
            assert choices == set(STATES[release][name].get("choices", ()))
            assert row == {k: v for k, v in STATES[release][name].items() if k != "choices"}


@pytest.mark.parametrize(
    ("before", "after"), [("0.9", "0.10"), ("1.0", "1.0.post1"), ("1.0.post1", "1.0.1")]
)
def test_versions_are_ordered_by_their_numbers(before: str, after: str) -> None:
    """And a post-release follows its release."""
    assert version_key(before) < version_key(after)


def test_what_a_release_allows_of_other_packages_is_read() -> None:
    """Without extras before with one; neither for other systems nor for older Pythons."""
    metadata = (
        "Name: pack\nRequires-Dist: trl<=0.9.6,>=0.8.6\n"
        'Requires-Dist: transformers<=4.49.0; python_version < "3.10"\n'
        'Requires-Dist: transformers!=4.46.*,<=4.52.4; sys_platform != "darwin"\n'
        'Requires-Dist: transformers==4.51.1; extra == "sglang"\n'
        'Requires-Dist: vllm<=0.7.3 ; extra == "vllm"\n\nneeds trl and vllm\n'
    )
    packages = ["transformers", "trl", "vllm", "sglang"]
    expected = {"transformers": "!=4.46.*,<=4.52.4", "trl": "<=0.9.6,>=0.8.6", "vllm": "<=0.7.3"}
    assert requirements(Texts({"pack-1.dist-info/METADATA": metadata}), packages) == expected
    archive = {
        "PKG-INFO": "Name: pack\n\ntransformers\n",
        "pack.egg-info/requires.txt": "transformers==4.51.3\n\n[vllm]\nvllm==0.8.5.post1\n",
    }
    expected = {"transformers": "==4.51.3", "vllm": "==0.8.5.post1"}
    assert requirements(Texts(archive), packages) == expected
    assert requirements(Texts({}), packages) == {}


def test_what_is_allowed_is_held_until_it_changes() -> None:
    """An empty range where a release says no more of a package."""
    dates = {"1.0": "2024-01-01", "1.1": "2024-02-01", "1.2": "2024-03-01"}
    arguments: dict[str, Arguments] = {one: {"a": {"default": 1}} for one in dates}
    requires = {"1.0": {"trl": "<1"}, "1.1": {"trl": "<1"}, "1.2": {}}
    made = lock.made("pack", [], dates, arguments, {}, requires)
    spans = [{"from": "1.0", "range": "<1"}, {"from": "1.2", "range": ""}]
    assert made["requires"] == {"trl": spans}
    assert lock.requires_at(made) == requires


def test_files_of_values_have_the_values_that_all_share() -> None:
    """One that differs is each file's own."""
    texts = {
        "recipes/a/one.yaml": "batch_size: 2\noptimizer:\n  lr: 1\n  _component_: x\n",
        "recipes/b/two.yaml": "batch_size: 4\noptimizer:\n  lr: 1\n",
    }
    settings = {"settings": ["recipes/*/*.yaml"], "without": ["*_component_"], "takes": ["t/u"]}
    found, bases = read(Texts(texts), settings)
    assert found == {
        "batch_size": {"computed": "a value of each file"},
        "optimizer.lr": {"default": 1},
    }
    assert bases == ["t/u"]

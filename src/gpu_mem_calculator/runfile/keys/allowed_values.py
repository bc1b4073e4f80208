"""The values that each key of a run file may have, and the engines that accept each of them.

Sets come from types and from the tables that engines themselves use. Whether an engine accepts a
value is tried out on a tiny run, so that a value that is refused is not offered.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ... import catalog
from ...pytorch.replay.settings import READERS, AllocatorSettings, AllocatorSettingsError
from ...run.weights.gguf_types import FILE_TYPES
from ...run.weights.recipes import RECIPES
from ...serving import USUAL, server_names, server_row, servers
from ...training.engines import engine_names, engines
from ...training.optimizers import OPTIMIZERS
from ..config import TrainingConfig
from ..read import key_types, parse, parts, with_settings
from ..resolve.recompute_policies import LEVELS, NAMES
from ..resolve.resolve import resolve
from ..resolve.resolve_inference import PRECISIONS
from ..sections import row_names
from ..text.errors import InputError
from .keys import rows

EnginesOf = dict[Any, tuple[str, ...]]  # values with the engines that have them; () where all have
MOST_LISTED = 5  # a whole number with at most this many values is shown as a choice
SAMPLES = ("True", "0.8", "4", "128")  # for settings of torch's allocator
OF_SERVERS = "names of servers"  # in a key's row: what servers name (`Engine.values`)
QUARTERS = {2: "half of the layers", 3: "three quarters of the layers"}
# Words of values as people write them; other words stay as they are.
WRITTEN = (
    "Adam AdamW SGD Adafactor Lion Muon CPU NVMe SDPA RoPE ALiBi RMSNorm LayerNorm Flash "
    "Transformer Engine EAGLE MTP Medusa NextN"
)
DISPLAY_WORDS = {
    **{word.lower(): word for word in WRITTEN.split()},
    "8bit": "8-bit",
    "eagle3": "EAGLE-3",
}


def display_name(value: Any) -> str:
    """A value in words, as people write it."""
    words = str(value).split("_")
    return " ".join(DISPLAY_WORDS.get(word, word) for word in words)


# The titles of all values of some keys; of others they are the values in words.
ZERO = ("nothing sharded", "optimizer states", "+ gradients", "+ weights")
TITLES: Mapping[str, Mapping[Any, str]] = {
    "engine.zero_stage": {stage: f"{stage}: {what}" for stage, what in enumerate(ZERO)},
    "engine.type": {name: one.title for name, one in engines().items()},
    "inference.engine": {name: one.title for name, one in servers().items()},
    "inference.quantization": {
        **{name.lower(): name for name in FILE_TYPES},
        **{name: one.title for name, one in RECIPES.items()},
        "none": "as in the checkpoint",
    },
    "training.activation_checkpointing": {
        level: f"full, on {QUARTERS[quarters]}" if quarters in QUARTERS else display_name(level)
        for level, (_, quarters) in LEVELS.items()
    },
    "hardware.interconnect": {row["name"]: row["title"] for row in catalog.rows("links")},
}
TINY = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_seq_len": 256,
}


class AllowedValue(Struct, frozen=True, omit_defaults=True):
    """A value and its name; `engines`: those that take it, where not all do that have the key."""

    value: Any
    title: str
    engines: tuple[str, ...] = ()


def accepts(engine: str, path: str, value: Any) -> bool:
    """Whether an engine accepts a value of a key, in a tiny run in which the key has an effect."""
    setting = f"{path}={msgspec.json.encode(value).decode()}"
    if path == "inference.kv_cache_dtype":  # a cache may follow the dtype
        dtypes = [f"inference.dtype={one}" for one in PRECISIONS]
        return any(_resolves(engine, path, (dtype, setting)) for dtype in dtypes)
    return _resolves(engine, path, (setting,))


def _resolves(engine: str, path: str, settings: tuple[str, ...]) -> bool:
    run: dict[str, Any] = {"model": TINY, "hardware": {"gpu": "h100-80gb-sxm"}}
    companions = rows()[path].needs
    if path.startswith("inference."):
        run["inference"] = {"engine": engine}
    else:
        run |= {
            "engine": {"type": engine},
            "hardware": {**run["hardware"], "num_gpus": 8},
            "training": {"gradient_accumulation_steps": 4},
        }
        options = engines()[engine].options
        companions = tuple(one for one in companions if _applies(one, options))
    try:
        resolve(parse(with_settings(run, (*companions, *settings))))
    except InputError:
        return False
    return True


def _applies(setting: str, options: Iterable[str]) -> bool:
    """Whether a setting is of another section than `engine`, or of an option of the engine."""
    section, _, key = setting.partition("=")[0].partition(".")
    return section != "engine" or key in options


def choices(path: str, kind: Any, known: Iterable[str] | None) -> tuple[AllowedValue, ...]:
    """The values to offer for a key.

    kind: the key's type; known: the engines that have the key, None where all have it.
    """
    if table := rows()[path].values:
        found = _of_servers(path) if table == OF_SERVERS else TABLES[table]()
        return tuple(_allowed_value(path, *value) for value in found.items())
    candidates = tuple(known) if known is not None else _engines_to_ask(path)
    values = []
    for value in _typed_values(path, kind):
        names = tuple(name for name in candidates if accepts(name, path, value))
        if names or not candidates:
            values.append(_allowed_value(path, value, () if names == candidates else names))
    return tuple(values)


def _engines_to_ask(path: str) -> tuple[str, ...]:
    """The engines to try the values of a key on that all engines have."""
    inner = path.count(".") > 1  # a key of an object in the section
    return engine_names() if path.startswith("training.") and not inner else ()


def _allowed_value(path: str, value: Any, names: Iterable[str]) -> AllowedValue:
    title = TITLES[path][value] if path in TITLES else display_name(value)
    return AllowedValue(value, title, tuple(names))


def _typed_values(path: str, kind: Any) -> list[Any]:
    """The values that a type lists, and whole numbers between narrow bounds."""
    values: list[Any] = []
    for part in parts(kind):
        if typing.get_origin(part) is typing.Literal:
            values += typing.get_args(part)
        values += row_names(part)
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.le is not None and meta.ge is not None:
                whole = typing.get_args(part)[0] is int
                if whole and meta.le - meta.ge < MOST_LISTED:
                    values += range(int(meta.ge), int(meta.le) + 1)
    if path == "training.activation_checkpointing":  # 0, 1 and 4 are listed as words
        values = [one for one in values if isinstance(one, str) or LEVELS[one][1] in QUARTERS]
    return values


def _by_engine(sets: Mapping[str, Iterable[str]]) -> EnginesOf:
    """Each value with the engines whose set has it; an empty tuple where all have it."""
    values = dict.fromkeys(value for each in sets.values() for value in each)
    engines_of = {value: tuple(name for name in sets if value in sets[name]) for value in values}
    return {value: () if len(names) == len(sets) else names for value, names in engines_of.items()}


def _of_servers(path: str) -> EnginesOf:
    """The names that servers have for an option: the usual server's first, GGUF's last."""
    key = path.partition(".")[2]
    having = {name: one for name, one in servers().items() if key in one.options}
    order = sorted(having, key=lambda name: (name != USUAL, server_row(name).reads_gguf))
    return _by_engine({name: having[name].values.get(key, ()) for name in order})


def _dtypes() -> EnginesOf:
    """The dtypes that the names of precisions begin with."""
    kind = next(iter(parts(key_types(TrainingConfig)["precision"])))
    return {str(one).partition("_")[0]: () for one in typing.get_args(kind)}


def _served_dtypes() -> EnginesOf:
    return _accepted("inference.dtype", PRECISIONS, server_names())


def _optimizers() -> EnginesOf:
    engines_of = _by_engine({name: one.optimizers for name, one in engines().items()})
    return {name: engines_of[name] for name in OPTIMIZERS}


def _policies() -> EnginesOf:
    """The names of recompute policies, each with the engines that have it."""
    return _accepted("training.recompute", NAMES, engine_names())


def _accepted(path: str, values: Iterable[str], names: Iterable[str]) -> EnginesOf:
    """The values of a key that some engines accept when they are tried."""
    return _by_engine({name: [v for v in values if accepts(name, path, v)] for name in names})


def _alloc_confs() -> EnginesOf:
    """One example for each allocator setting that changes memory."""
    return {
        f"{key}:{value}": ()
        for key, (field, _) in READERS.items()
        if field
        for value in [next(one for one in SAMPLES if _parses(f"{key}:{one}"))]
    }


def _parses(text: str) -> bool:
    try:
        AllocatorSettings.parse(text)
    except AllocatorSettingsError:
        return False
    return True


def _for_all_engines(values: Iterable[Any]) -> Callable[[], EnginesOf]:
    return lambda: dict.fromkeys(values, ())


# The tables that `values` of a key's row names: each value, and the engines that have it.
TABLES: Mapping[str, Callable[[], EnginesOf]] = {
    "dtypes": _dtypes,
    "optimizers": _optimizers,
    "policies": _policies,
    "allocator settings": _alloc_confs,
    "engines": _for_all_engines(engine_names()),
    "servers": _for_all_engines(server_names()),
    "served dtypes": _served_dtypes,
    "links": _for_all_engines(catalog.names("links")),
}

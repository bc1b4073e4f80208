"""Where a model comes from: a preset, a config.json wherever it lies, or plain numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .. import catalog
from ..catalog.variants import variant
from ..families import UnknownFamilyError, read_config
from ..families.config import ConfigError
from ..families.plain import read_plain
from ..hub.bounds import HubError
from ..hub.checkpoint import Checkpoint
from ..hub.names import hub_name, is_address, shown
from ..hub.sources import local
from ..model.arch import Arch
from ..run.record import ModuleRecord, RecordError, arch_of, read_record
from ..run.run import StoredTensor
from .checkpoint_match import misfit
from .errors import InputError
from .model_facts import SHAPE_ONLY, check_facts
from .model_name import config_file, fetched, own_code, spelled, unknown
from .models import ModelConfig
from .runfile import load_text, parameter_count

# A run file's plain number, and the config.json keys that mean the same.
SAME_KEYS = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_seq_len": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "tie_word_embeddings": ("tie_word_embeddings",),
}
CORE = ("num_layers", "hidden_size", "num_attention_heads")


class ResolvedModel(Struct, frozen=True, kw_only=True):
    """A model that was found, and what had to be assumed for it."""

    arch: Arch
    title: str
    config: Mapping[str, Any] | None = None  # as a config.json has it; None for plain numbers
    parameters_given: int | None = None
    address: str = "MODEL"  # what servers call it: its name on the hub, or where it lies
    stored: tuple[StoredTensor, ...] = ()  # the checkpoint's tensors
    record: ModuleRecord | None = None  # where it is a module's
    form: str = ""  # of the checkpoint: safetensors or gguf
    source: str = ""  # where it was, in words
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def find_model(model: ModelConfig, headers: bool = False) -> ResolvedModel:
    """The architecture that a model section means.

    `headers` asks for the tensors of its checkpoint, too, as servers load them; without, what is
    read is its config.json alone.
    """
    given = None
    if model.num_parameters is not None:
        given = parameter_count(model.num_parameters)
    numbers = {k: v for k in (*SAME_KEYS, *SHAPE_ONLY) if (v := getattr(model, k)) is not None}
    try:
        found = _found(model, spelled(model), numbers, given, headers)
    except (ConfigError, UnknownFamilyError, HubError, RecordError) as error:
        raise InputError([str(error)]) from None
    own, largest = found.arch.largest_layer_parameters, model.largest_layer_params
    if largest is not None and largest != own:
        warning = f"model.largest_layer_params={largest:,} is not used: the model's own is {own:,}"
        return replace(found, warnings=(*found.warnings, warning))
    return found


def _found(
    model: ModelConfig, name: str, numbers: dict[str, Any], given: int | None, headers: bool
) -> ResolvedModel:
    title = shown(name) or "custom model"
    if model.recorded is not None:
        return _from_record(model.recorded, name, numbers, given)
    if model.config is not None:
        return _from_config(title, model.config, numbers, given, ())
    row = catalog.find("index", name) if name else None
    if row is not None:
        found = _preset(row["name"]) if given is None and not numbers else _from_config(
            row["title"], catalog.row_config(row), numbers, given, ()
        )  # fmt: skip
        address = name if "/" in name else row.get("hub_id")
        return replace(found, address=address or "MODEL", source="a preset")
    file = config_file(name)
    if file is not None:
        found = _from_config(file.parent.name or title, load_text(file), numbers, given, ())
        return replace(found, address=str(file.parent), source="from a file")
    here = local(name, headers=headers) if name else None
    if here is not None:
        return replace(_from_checkpoint(here, numbers, given), address=name)
    if is_address(name) or ("@" in name and hub_name(name) is not None):
        return _from_elsewhere(name, numbers, given, headers)
    return _by_numbers(title, numbers, given) or _by_name(name, numbers, given, headers)


def _from_record(
    data: Mapping[str, Any], name: str, numbers: Mapping[str, Any], given: int | None
) -> ResolvedModel:
    """A module that was seen to run; nothing of it can be changed beside it."""
    beside = [*(["name"] if name else []), *numbers, *(["num_parameters"] if given else [])]
    if beside:
        raise InputError([f"model.{key} says what model.recorded says already; leave it out"
                          for key in beside])  # fmt: skip
    record = read_record(data)
    return ResolvedModel(arch=arch_of(record), title=record.title, record=record, source="a record")


def _by_numbers(title: str, numbers: dict[str, Any], given: int | None) -> ResolvedModel | None:
    """A model of plain numbers, where there are enough."""
    if all(key in numbers for key in CORE):
        assumed = tuple(
            f"model.{key}={value}" for key, value in _plain_assumptions(numbers).items()
        )
        return _checked(title, _plain(json.dumps(numbers)), given, assumed)
    return None if given is None else _by_size(title, numbers, given)


def _by_name(name: str, numbers: dict[str, Any], given: int | None, headers: bool) -> ResolvedModel:
    """A model that is neither here nor made of numbers."""
    if name and hub_name(name) is not None:
        return _from_elsewhere(name, numbers, given, headers)
    if name:
        raise InputError([unknown(name)])
    missing = ", ".join(f"model.{key}" for key in CORE if key not in numbers)
    raise InputError([f"the model has no name, no config and no {missing}; give one of them"])


@lru_cache(maxsize=256)
def _preset(name: str) -> ResolvedModel:
    """A preset as it is published."""
    row = catalog.find("index", name)
    assert row is not None
    return _from_config(row["title"], catalog.row_config(row), {}, None, ())


@lru_cache(maxsize=256)
def _plain(key: str) -> Arch:
    return read_plain(json.loads(key))


def _from_elsewhere(
    name: str, numbers: Mapping[str, Any], given: int | None, headers: bool
) -> ResolvedModel:
    """A model on the hub, in a bucket or at an address; where the hub is out of reach, the preset
    that its name is a copy of.
    """
    place = hub_name(name)
    address = place.model if place else name if name.startswith("s3://") else "MODEL"
    near = variant(name) if place and "@" not in name else None
    try:
        found = _from_checkpoint(fetched(name, headers), numbers, given)
        return replace(found, address=address)
    except InputError:
        if near is None:
            raise
    row, form, words = near
    config = {**catalog.row_config(row), **({"quantization_config": form} if form else {})}
    assumed = f"{name} is {row['title']}{' in ' + words if words else ''}, as its name says"
    model = _from_config(row["title"], config, numbers, given, (assumed,))
    return replace(model, address=address, source="a preset, as its name says")


def _from_checkpoint(
    found: Checkpoint, numbers: Mapping[str, Any], given: int | None
) -> ResolvedModel:
    """The model that a checkpoint holds, with its tensors' bytes as they are stored."""
    model = _from_config(found.title, found.config, numbers, given, ())
    stored = tuple((one.name, one.num_bytes, one.cast_elements) for one in found.tensors)
    form = found.form if stored else ""
    doubt = misfit(found, model.arch)
    warnings = (*model.warnings, *([doubt] if doubt else ()))
    return replace(model, stored=stored, form=form, source=found.source, warnings=warnings)


@lru_cache(maxsize=256)
def _read_cached(key: str) -> Arch:
    return read_config(json.loads(key))


def _from_config(
    title: str,
    config: Any,
    numbers: Mapping[str, Any],
    given: int | None,
    assumed: tuple[str, ...],
) -> ResolvedModel:
    if not isinstance(config, Mapping):
        raise ConfigError("a config.json is an object with a 'model_type'")
    changed = dict(config)
    inner = config.get("text_config")  # where a model that sees has its text model's sizes
    target = changed
    if isinstance(inner, Mapping):
        target = changed["text_config"] = dict(inner)
    for key, value in numbers.items():
        if key in SHAPE_ONLY:
            continue
        names = SAME_KEYS[key]
        target[next((n for n in names if n in target), names[0])] = value
    try:
        text = json.dumps(changed, sort_keys=True)
    except (TypeError, ValueError):
        raise ConfigError("model.config has a value that JSON cannot hold") from None
    try:
        arch = _read_cached(text)
    except UnknownFamilyError as error:
        raise ConfigError(own_code(changed) or str(error)) from None
    check_facts(arch, numbers)
    return replace(_checked(title, arch, given, assumed), config=changed)


def _plain_assumptions(numbers: Mapping[str, Any]) -> dict[str, Any]:
    from ..families.plain import DEFAULTS

    return {key: value for key, value in DEFAULTS.items() if key not in numbers}


def _by_size(title: str, numbers: Mapping[str, Any], given: int) -> ResolvedModel:
    """The nearest well-known architecture stands in where only a size is known."""
    row = nearest_by_size(given)
    config = catalog.preset_config(row["config"])
    assumed = (f"the architecture of {row['title']}, the nearest well-known model",)
    return _from_config(title, config, numbers, given, assumed)


def nearest_by_size(count: int) -> Mapping[str, Any]:
    """The well-known model whose size is nearest in proportion."""
    known = catalog.having("index", "quick", "true")
    return min(known, key=lambda row: abs(math.log(row["num_parameters"] / count)))


def _checked(title: str, arch: Arch, given: int | None, assumed: tuple[str, ...]) -> ResolvedModel:
    own = arch.num_parameters
    if given in (None, own, own + arch.tower_parameters):
        return ResolvedModel(arch=arch, title=title, assumed=assumed, warnings=arch.left_out)
    if not own // 10 <= given <= own * 10:
        raise InputError(
            [f"model.num_parameters={given:,} cannot be this architecture's, which has {own:,}; "
             "leave it out"]
        )  # fmt: skip
    warning = (
        f"model.num_parameters={given:,} differs from the architecture's {arch.num_parameters:,}: "
        "parameter, gradient and optimizer bytes are scaled to it"
    )
    return ResolvedModel(
        arch=arch, title=title, parameters_given=given, assumed=assumed,
        warnings=(warning, *arch.left_out),
    )  # fmt: skip

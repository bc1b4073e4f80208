"""Where a model comes from: a preset, a config.json on disk or elsewhere, or plain numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ... import catalog
from ...catalog.hub.bounds import HubError
from ...catalog.hub.names import hub_name, is_address, printable_name
from ...ledger.remember import remembered
from ...models.arch.arch import Arch
from ...models.families import UnknownFamilyError, read_config
from ...models.families.config import ConfigError
from ...run.run import StoredTensor
from ..config import ModelConfig
from ..text.counts import parameter_count
from ..text.errors import InputError
from .model_facts import SHAPE_ONLY, check_facts
from .model_name import (
    config_file,
    disk_stamp,
    fetch_checkpoint,
    is_here,
    name_with_revision,
    unknown_family_message,
    unknown_name_message,
)
from .named_preset import NamedPreset, exact_preset, meant_preset, path_preset, variant_preset

if TYPE_CHECKING:
    from ...catalog.hub.checkpoint import Checkpoint
    from ...run.record import ModuleRecord

# The model section's plain numbers, and the config.json keys that mean the same.
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
Numbers = Mapping[str, Any]  # the plain numbers of the section
MOST_KEPT_BYTES = 1 << 16  # of the section of a model that is remembered
CORE = ("num_layers", "hidden_size", "num_attention_heads")


class ResolvedModel(Struct, frozen=True, kw_only=True):
    """The model that a model section names, and what was assumed for it."""

    arch: Arch
    title: str
    config: Mapping[str, Any] | None = None  # as a config.json has it; None for plain numbers
    parameters_given: int | None = None
    address: str = "MODEL"  # for the server's command: its name on the hub, or its path
    stored: tuple[StoredTensor, ...] = ()  # the checkpoint's tensors
    record: ModuleRecord | None = None  # of a recorded module
    form: str = ""  # of the checkpoint: safetensors or gguf
    source: str = ""  # where it was read from, in words
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def find_model(model: ModelConfig, headers: bool = False) -> ResolvedModel:
    """The model that a model section names.

    headers: also read the tensors of its checkpoint, as servers load them; else only its
    config.json is read.
    """
    try:
        key = _key(model, headers)
        return _look_up(model, headers) if key is None else _kept(key)
    except (ConfigError, UnknownFamilyError, HubError) as error:
        raise InputError(str(error)) from None


def _key(model: ModelConfig, headers: bool) -> bytes | None:
    """What tells a model from others, and from itself after its files have changed; None for one
    that is looked up elsewhere.
    """
    if model.recorded is not None:
        return None
    name, stamp = name_with_revision(model), None
    if model.config is None and exact_preset(name) is None:
        stamp = disk_stamp(name)
        if stamp is None:
            return None
    try:
        key = msgspec.msgpack.encode((model, headers and stamp is not None, stamp))
        return key if len(key) <= MOST_KEPT_BYTES else None
    except (TypeError, OverflowError):  # of a config that no file has
        return None


@remembered(64, always=True)
def _kept(key: bytes) -> ResolvedModel:
    model, headers, _ = msgspec.msgpack.decode(key, type=tuple[ModelConfig, bool, Any])
    return _look_up(model, headers)


def _look_up(model: ModelConfig, headers: bool) -> ResolvedModel:
    """The same, looked up."""
    parameters = None
    if model.num_parameters is not None:
        parameters = parameter_count(model.num_parameters)
    numbers = {k: v for k in (*SAME_KEYS, *SHAPE_ONLY) if (v := getattr(model, k)) is not None}
    resolved = _find(model, name_with_revision(model), numbers, parameters, headers)
    layer_size, largest = resolved.arch.largest_layer_parameters, model.largest_layer_params
    if largest is not None and largest != layer_size:
        own = f"the model's own is {layer_size:,}"
        warning = f"model.largest_layer_params={largest:,} is not used: {own}"
        return replace(resolved, warnings=(*resolved.warnings, warning))
    return resolved


def _find(
    model: ModelConfig, name: str, numbers: Numbers, parameters: int | None, headers: bool
) -> ResolvedModel:
    title = printable_name(name) or "custom model"
    if model.recorded is not None:
        return _from_record(model.recorded, name, numbers, parameters)
    if model.config is not None:
        return _from_config(title, model.config, numbers, parameters, ())
    exact = exact_preset(name)
    if exact is not None:
        resolved = _from_preset(exact, numbers, parameters)
        return replace(resolved, address=name) if "/" in name else resolved
    file = config_file(name)
    if file is not None:
        from ..text.text_data import load_text

        resolved = _from_config(file.parent.name or title, load_text(file), numbers, parameters, ())
        return replace(resolved, address=str(file.parent), source="from a file")
    from ...catalog.hub.sources import local

    checkpoint = local(name, headers=headers) if name else None
    if checkpoint is not None:
        return replace(_from_checkpoint(checkpoint, numbers, parameters), address=name)
    if is_address(name) or ("@" in name and hub_name(name) is not None):
        return _from_remote(name, numbers, parameters, headers)
    spelled = None if "/" in name else variant_preset(name)
    if spelled is None and name and not numbers and parameters is None:
        spelled = meant_preset(name)
    if spelled is not None:
        return _from_preset(spelled, numbers, parameters)
    return _by_numbers(title, numbers, parameters) or _by_name(name, numbers, parameters, headers)


def _from_preset(found: NamedPreset, numbers: Numbers, parameters: int | None) -> ResolvedModel:
    """The model of a preset, with what its name says beside."""
    row, count = found.row, found.num_parameters or parameters
    if found.form is None and count is None and not numbers and not found.own:
        resolved = _preset(row["name"])
    else:
        config = {**catalog.row_config(row), **found.own}
        config = config | {"quantization_config": found.form} if found.form else config
        resolved = _from_config(row["title"], config, numbers, count, ())
    assumed = (*found.assumed, *resolved.assumed)
    address = row.get("hub_id") or "MODEL"
    return replace(resolved, address=address, source="a preset", assumed=assumed)


def _from_record(
    data: Mapping[str, Any], name: str, numbers: Numbers, parameters: int | None
) -> ResolvedModel:
    """The model of a recorded module; a name, sizes or a parameter count beside it are refused."""
    extra = [*(["name"] if name else []), *numbers, *(["num_parameters"] if parameters else [])]
    if extra:
        why = "says what model.recorded says already; leave it out"
        raise InputError(f"model.{key} {why}" for key in extra)
    from ...run.record import RecordError, read_record, record_arch

    try:
        record = read_record(data)
        arch = record_arch(record)
    except RecordError as error:
        raise InputError(str(error)) from None
    return ResolvedModel(arch=arch, title=record.title, record=record, source="a record")


def _by_numbers(title: str, numbers: Numbers, parameters: int | None) -> ResolvedModel | None:
    """A model of plain numbers, or of a parameter count alone; None where neither is given."""
    if all(key in numbers for key in CORE):
        defaults = _plain_assumptions(numbers).items()
        assumed = tuple(f"model.{key}={value}" for key, value in defaults)
        return _with_parameter_count(title, _plain(json.dumps(numbers)), parameters, assumed)
    return None if parameters is None else _by_size(title, numbers, parameters)


def _by_name(name: str, numbers: Numbers, parameters: int | None, headers: bool) -> ResolvedModel:
    """A model that is only named: read from the hub, else refused."""
    if name and hub_name(name) is not None:
        return _from_remote(name, numbers, parameters, headers)
    if found := path_preset(name) if name and not is_here(name) else None:
        return replace(_from_preset(found, numbers, parameters), address=name)
    if name:
        raise InputError(unknown_name_message(name))
    missing = ", ".join(f"model.{key}" for key in CORE if key not in numbers)
    raise InputError(f"the model has no name, no config and no {missing}; give one of them")


@lru_cache(maxsize=256)
def _preset(name: str) -> ResolvedModel:
    """A preset as it is published."""
    row = catalog.find("index", name)
    assert row is not None
    return _from_config(row["title"], catalog.row_config(row), {}, None, ())


@lru_cache(maxsize=256)
def _plain(key: str) -> Arch:
    from ...models.families.plain import read_plain

    return read_plain(json.loads(key))


def _from_remote(
    name: str, numbers: Numbers, parameters: int | None, headers: bool
) -> ResolvedModel:
    """A model on the hub, in a bucket or at an address. Where the hub cannot be reached, the preset
    whose name it has, or of whose name it is a variant.
    """
    hub = hub_name(name)
    address = hub.model if hub else name if name.startswith("s3://") else "MODEL"
    preset = variant_preset(name) if hub and "@" not in name else None
    try:
        resolved = _from_checkpoint(fetch_checkpoint(name, headers), numbers, parameters)
        return replace(resolved, address=address)
    except InputError:
        if preset is None:
            raise
    model = _from_preset(preset, numbers, parameters)
    return replace(model, address=address, source="a preset, by its name")


def _from_checkpoint(
    checkpoint: Checkpoint, numbers: Numbers, parameters: int | None
) -> ResolvedModel:
    """The model of a checkpoint, with the stored bytes of its tensors."""
    from .checkpoint_match import mismatch_warning

    model = _from_config(checkpoint.title, checkpoint.config, numbers, parameters, ())
    stored = tuple((one.name, one.num_bytes, one.cast_elements) for one in checkpoint.tensors)
    form = checkpoint.form if stored else ""
    mismatch = mismatch_warning(checkpoint, model.arch)
    warnings = (*model.warnings, *([mismatch] if mismatch else ()))
    return replace(model, stored=stored, form=form, source=checkpoint.source, warnings=warnings)


@lru_cache(maxsize=256)
def _read_cached(key: str) -> Arch:
    return read_config(json.loads(key))


def _from_config(
    title: str, config: Any, numbers: Numbers, parameters: int | None, assumed: tuple[str, ...]
) -> ResolvedModel:
    if not isinstance(config, Mapping):
        raise ConfigError("a config.json is an object with a 'model_type'")
    updated = dict(config)
    inner = config.get("text_config")  # a multimodal model has its text model's sizes there
    target = updated
    if isinstance(inner, Mapping):
        target = updated["text_config"] = dict(inner)
    for key, value in numbers.items():
        if key in SHAPE_ONLY:
            continue
        names = SAME_KEYS[key]
        target[next((n for n in names if n in target), names[0])] = value
    try:
        text = json.dumps(updated, sort_keys=True)
    except (TypeError, ValueError):
        raise ConfigError("model.config has a value that JSON cannot hold") from None
    try:
        arch = _read_cached(text)
    except UnknownFamilyError as error:
        raise ConfigError(unknown_family_message(updated, str(error))) from None
    except ConfigError as error:
        raise ConfigError(_in_own_keys(str(error), numbers)) from None
    check_facts(arch, numbers)
    return replace(_with_parameter_count(title, arch, parameters, assumed), config=updated)


def _in_own_keys(sentence: str, numbers: Numbers) -> str:
    """A sentence on a config.json in the keys of the model section that were given beside it."""
    for key in numbers:
        for name in SAME_KEYS.get(key, ()):
            sentence = sentence.replace(f"model.config.{name}=", f"model.{key}=")
    given = ", ".join(f"model.{key}={value}" for key, value in numbers.items())
    _, sign, rest = sentence.partition("model.config: ")
    return f"{given}: {rest}" if given and sign else sentence


def _plain_assumptions(numbers: Numbers) -> dict[str, Any]:
    from ...models.families.plain import DEFAULTS

    return {key: value for key, value in DEFAULTS.items() if key not in numbers}


def _by_size(title: str, numbers: Numbers, parameters: int) -> ResolvedModel:
    """The architecture of the nearest well-known model, where only a parameter count is given."""
    from .model_size import nearest_by_size

    row = nearest_by_size(parameters)
    config = catalog.preset_config(row["config"])
    assumed = (f"the architecture of {row['title']}, the nearest well-known model",)
    return _from_config(title, config, numbers, parameters, assumed)


def _with_parameter_count(
    title: str, arch: Arch, parameters: int | None, assumed: tuple[str, ...]
) -> ResolvedModel:
    """The model of an architecture. A given parameter count that differs adds a warning; one that
    differs by more than a factor of 10 is refused.
    """
    computed = arch.num_parameters
    if parameters in (None, computed, computed + arch.tower_parameters):
        return ResolvedModel(arch=arch, title=title, assumed=assumed, warnings=arch.left_out)
    given = f"model.num_parameters={parameters:,}"
    if not computed // 10 <= parameters <= computed * 10:
        own = f"which has {computed:,}; leave it out"
        raise InputError(f"{given} cannot be this architecture's, {own}")
    scaled = "parameter, gradient and optimizer bytes are scaled to it"
    warning = f"{given} differs from the architecture's {computed:,}: {scaled}"
    return ResolvedModel(
        arch=arch,
        title=title,
        parameters_given=parameters,
        assumed=assumed,
        warnings=(warning, *arch.left_out),
    )

"""The model that a script trains: how it is loaded, adapted, quantized, cast and frozen."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from ..reading.keys import sort_keys
from ..reading.reading import Reading, Section
from ..script.record import ScriptRecord
from ..script.rows import row
from ..script.values import UNKNOWN, Thing, plain, value_of
from ..trainer.loading import PEFT
from ..translation.arguments import argument_table
from .script_rows import computed, freed, honoured, known_row, limited, listed, name

DTYPES = ("dtype", "torch_dtype")
LOADED = (*DTYPES, "attn_implementation", "device_map")
QUANTIZED = ("quantization_config", "load_in_4bit", "load_in_8bit")
CONFIGURED = ("quantization", "config")  # what configures a model
HEADS = re.compile(
    r"\w*For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)"
)
EXTRA_ROWS = 1024  # of an embedding beyond a tokenizer's tokens, or added to it, at most
# Those rows of two tables, 16,384 wide, at 18 bytes in training, and their logits of 32,768 tokens.
EXTRA_BYTES = EXTRA_ROWS * (2 * 16_384 * 18 + 32_768 * 14)
STATES = "gradients+optimizer_states+activations"
PLAIN_NUMBERS = ("vocab_size", "tie_word_embeddings")


class PassedOn(Struct, kw_only=True):
    """What a script hands to its trainer.

    - `values`: arguments by their names in TRL's scripts
    - `loaded`: what the script loads the model with; None where the trainer loads it
    - `training`, `model`, `data`: keys that the script's lines mean
    """

    values: Section = field(default_factory=dict)
    loaded: Section | None = None
    training: Section = field(default_factory=dict)
    model: Section = field(default_factory=dict)
    data: Section = field(default_factory=dict)


def model_sections(
    found: ScriptRecord, trainer: Thing | None, model: Any, reading: Reading
) -> PassedOn:
    """The sections of the model that a trainer or a loop trains."""
    result = PassedOn()
    if isinstance(model, str):
        result.values["model_name_or_path"] = model
    elif isinstance(model, Thing) and model.kind == "model":
        _load(model, result, reading)
        _change(model, result, reading)
        _gradients(model, trainer, reading)
        if trainer is None and not model.values.get("checkpointing"):
            # A step keeps keys and values unless the script turns it off, as Trainer does, and
            # layers under checkpointing do (modeling_layers.py GradientCheckpointingLayer).
            result.training["use_cache"] = model.values.get("use_cache", True) is not False
    elif not isinstance(model, Thing) and (trainer is not None or model is not None):
        line = trainer.line if trainer is not None else 0
        limited(reading, line, "model", "the script makes it where the text cannot be followed")
    peft = value_of(trainer, "peft_config") or value_of(model, "peft")
    adapters = peft_section(peft, trainer, reading)
    if adapters is not None:
        result.values["peft_config"] = adapters
    _others(found, trainer, model, reading)
    _unused(found, trainer, peft, model, reading)
    return result


def _load(model: Thing, result: PassedOn, reading: Reading) -> None:
    """from_pretrained: the name, and every argument."""
    source, config = model.values.get("source", UNKNOWN), model.values.get("config")
    if isinstance(source, str):
        result.values["model_name_or_path"] = source
        for line in {model.line, model.line_of("source")}:
            honoured(reading, line, f"{model.name}({source})")
    elif model.values.get("own"):
        why = "a module of the script's own, whose tensors the text does not show"
        limited(reading, model.line, str(model.values["own"]), why)
    elif not (isinstance(config, Thing) and model.values.get("new")):
        limited(reading, model.line, f"{model.name}(...)", "which model is not shown")
        line = model.line_of("source")
        reading.keys.setdefault(name(reading, line, "the model's name"), "refused")
    if model.values.get("new"):
        honoured(reading, model.line, model.name)
    if isinstance(config, Thing):
        _shape(config, model, result, reading)
    if HEADS.fullmatch(model.name):
        why = "its head and loss are smaller than a language model's, which is estimated"
        limited(reading, model.line, model.name, why, adds=False, saves=f"parameters+{STATES}")
    result.loaded = {"dtype": "float32"} if model.values.get("new") else {}
    for key in model.values.get("load", ()):
        _argument(key, model.values.get(key), model, result, reading)


def _argument(key: str, value: Any, model: Thing, result: PassedOn, reading: Reading) -> None:
    """One argument of from_pretrained."""
    line, what = model.line_of(key), f"{model.name}({key})"
    assert result.loaded is not None
    if key == "config" or value is None or (key in QUANTIZED and value is False):
        honoured(reading, line, what)
        if key in DTYPES:  # None is torch's default, not the checkpoint's
            result.loaded["dtype"] = "float32"
        return
    if key in QUANTIZED:
        if value is UNKNOWN or (isinstance(value, Thing) and value.kind != "quantization"):
            limited(reading, line, what, "a quantization that is not modelled or not shown")
        else:
            honoured(reading, line, what)
    elif key == "use_flash_attention_2" and value is True:
        result.loaded["attn_implementation"] = "flash_attention_2"
        honoured(reading, line, what)
    elif key in LOADED:
        if not plain(value) and key != "device_map":
            computed(reading, line, what)
            return
        # where on the GPUs does not matter for one of them
        result.loaded["dtype" if key in DTYPES else key] = value if plain(value) else "auto"
        honoured(reading, line, what)
    else:
        if value in (None, False):
            freed(reading, line, what)
        elif not known_row(reading, row("load", key), line, what):
            limited(reading, line, what, "not understood")


def _shape(config: Thing, model: Thing, result: PassedOn, reading: Reading) -> None:
    """A configuration: of a model by its name, changed; or of the script's own numbers."""
    for key in config.values:
        honoured(reading, config.line_of(key), f"{config.name}({key})")
    kept = {
        key: value
        for key, value in config.values.items()
        if key not in ("source", "attn_implementation", "_attn_implementation")
        and row("config attribute", key) is None
        and row("load", key) is None
    }
    hidden = [key for key, value in kept.items() if not plain(value)]
    shown = {key: value for key, value in kept.items() if plain(value)}
    if config.values.get("attn_implementation") and result.loaded is not None:
        result.loaded["attn_implementation"] = config.values["attn_implementation"]
    if hidden:
        computed(reading, config.line, f"{config.name}({', '.join(hidden)})")
    if isinstance(config.values.get("source"), str):
        unknown = [key for key in shown if key not in PLAIN_NUMBERS]
        if unknown:
            limited(reading, config.line, f"{config.name}({', '.join(unknown)})", "not understood")
        result.model |= {key: shown[key] for key in shown if key in PLAIN_NUMBERS}
        return
    kind = config.name.removesuffix("Config").lower()
    if model.values.get("new") and kind and kind != "auto":
        result.model["config"] = {"model_type": kind, **shown}
        honoured(reading, config.line, config.name)


def _change(model: Thing, result: PassedOn, reading: Reading) -> None:
    """What later lines do to the model."""
    values = model.values
    quantization = values.get("quantization")
    if isinstance(quantization, Thing):
        result.values["quantization_config"] = quantize(quantization, reading)
        bits = result.values["quantization_config"]
        if bits.get("load_in_4bit") or bits.get("load_in_8bit"):
            result.training["upcast_unquantized"] = bool(values.get("prepared"))
    elif values.get("prepared"):  # all weights become fp32
        result.loaded = {**(result.loaded or {}), "dtype": "float32"}
    if values.get("dtype") is not None:
        result.loaded = {**(result.loaded or {}), "dtype": values["dtype"]}
    config = values.get("(config)")
    if isinstance(config, Thing) and config.values.get("attn_implementation"):
        given = config.values["attn_implementation"]
        result.loaded = {**(result.loaded or {}), "attn_implementation": given}
    if values.get("checkpointing"):
        result.values["gradient_checkpointing"] = True
        if values.get("checkpointing_kwargs"):
            result.values["gradient_checkpointing_kwargs"] = dict(values["checkpointing_kwargs"])
    if values.get("compile"):
        mode = values["compile"]
        result.training["compile"] = mode if isinstance(mode, str) and mode != "default" else True
    if values.get("vocab"):
        result.model["vocab_size"] = values["vocab"]
    elif values.get("resized") is not None:
        where = values["resized"]
        why = f"the tokenizer says how many rows; at most {EXTRA_ROWS} more or fewer"
        limited(reading, where.line, where.text, why, adds=EXTRA_BYTES, saves=EXTRA_BYTES)
    if values.get("copied"):
        why = "a second copy of the weights"
        limited(reading, values["copied"], "deepcopy(model)", why, adds="4*weights", saves=False)


def _gradients(model: Thing, trainer: Thing | None, reading: Reading) -> None:
    """Which weights are trained: freezing can only save; with adapters the base is frozen."""
    later = value_of(trainer, "peft_config")
    adapted = model.values.get("peft") is not None or isinstance(later, Thing)
    frozen = False
    for line, what, value, had_peft in model.values.get("gradients", ()):
        if value is False and adapted and not had_peft:
            freed(reading, line, f"{what}: adapters are trained alone")
        elif value is False:
            frozen = True
            why = "which weights stay trained is not modelled; all of them are estimated"
            limited(reading, line, what, why, adds=False, saves=STATES)
        elif adapted:
            why = "weights beside the adapters may be trained, which is not modelled"
            limited(reading, line, what, why, saves=False)
        elif frozen and value is True:
            freed(reading, line, f"{what}: all weights are estimated as trained")
        elif value is True:
            freed(reading, line, f"{what}: they are trained without it")
        else:
            why = "which weights are trained is not shown"
            limited(reading, line, what, why, adds=False, saves=STATES)


def _unused(
    found: ScriptRecord, trainer: Thing | None, peft: Any, model: Any, reading: Reading
) -> None:
    """Configurations that the script makes, and that this run does not use."""
    used = (peft, value_of(trainer, "args"), *(value_of(model, key) for key in CONFIGURED))
    for one in found.things:
        if one.kind in ("peft", "quantization", "arguments") and one not in used:
            for line in {one.line, *one.lines.values()}:
                freed(reading, line, f"{one.name or one.kind}: this run does not use it")


def _others(found: ScriptRecord, trainer: Thing | None, model: Any, reading: Reading) -> None:
    """Models beside the one that is trained."""
    reference = value_of(trainer, "ref_model")
    place = found.things.index(trainer) if trainer in found.things else len(found.things)
    for index, one in enumerate(found.things):
        if one.kind == "model" and one is reference:
            _load(one, PassedOn(), reading)
        if one.kind != "model" or one is model or one is reference:
            continue
        what = f"{one.name}({one.values.get('source')})" if one.values.get("source") else one.name
        on_gpu = any(one.values.get(key) for key in ("device_map", "moved", "quantization"))
        if index > place and not on_gpu:
            freed(reading, one.line, f"{what}: loaded on the host after training")
        elif one.values.get("own") and not isinstance(model, Thing):
            continue
        else:
            when = "after training" if index > place else "beside the one that is trained"
            source = value_of(model, "source")
            same = isinstance(source, str) and one.values.get("source") == source
            why = f"another model, {when}, is not counted"
            adds = "4*weights" if same else True
            limited(reading, one.line, what, why, adds=adds, saves=False)


def quantize(quantization: Thing, reading: Reading) -> Section:
    """BitsAndBytesConfig: the fields that the text shows."""
    hidden = [key for key, value in quantization.values.items() if not plain(value)]
    shown = {key: value for key, value in quantization.values.items() if plain(value)}
    honoured(reading, quantization.line, "BitsAndBytesConfig")
    for key in shown:
        honoured(reading, quantization.line_of(key), f"BitsAndBytesConfig({key})")
    for key in hidden:
        computed(reading, quantization.line_of(key), f"BitsAndBytesConfig({key})")
    return {key: value for key, value in shown.items() if value is not None}


def peft_section(peft: Any, trainer: Thing | None, reading: Reading) -> Section | None:
    """LoraConfig; other methods are named. None where nothing is adapted, or it is not shown."""
    if peft is None:
        return None
    if not isinstance(peft, Thing) or peft.kind != "peft":
        line = trainer.line if trainer is not None else 0
        limited(reading, line, "peft_config", "the adapter's configuration is not shown")
        return None
    if peft.name != "LoraConfig":
        section: Section = {"r": 8}
        why = f"only LoRA is modelled, and LoRA of rank {section['r']} is estimated"
        limited(reading, peft.line, peft.name, why)
        return section
    honoured(reading, peft.line, "LoraConfig")
    table, kept = argument_table(PEFT), Section()
    for key, value in peft.values.items():
        if key == "target_modules" and isinstance(value, list) and _linear(value):
            value = "all-linear"
        line = peft.line_of(key)
        word = "r" if key == "[0]" else key
        if word not in table:
            limited(reading, line, f"LoraConfig({word})", "not understood")
        elif plain(value):
            prefix = f"{reading.script}:{line} LoraConfig."
            kept |= sort_keys(reading, table, {word: listed(value)}, prefix)
        elif table[word].effect == "free":
            freed(reading, line, f"LoraConfig({word})")
        else:
            computed(reading, line, f"LoraConfig({word})")
    return kept


def _linear(value: list[Any]) -> bool:
    """Whether a list has the names of all linear layers, as a loop over modules gathers them."""
    return bool(value) and all(isinstance(one, Thing) and one.kind == "linear" for one in value)

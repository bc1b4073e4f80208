"""How a script takes options: argparse, HfArgumentParser, TrlParser, fire, click, typer, tyro."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..translation.arguments import tables
from .library import ARGUMENT_CLASS
from .values import UNKNOWN, Arguments, Imported, ScriptClass, Thing, is_thing

TABLES = tables(__file__)
PARSERS = ("ArgumentParser", "HfArgumentParser", "TrlParser", "H4ArgumentParser")
INNER = tuple(TABLES["inner"])  # make a group, or the parser of a subcommand
OFF = {"store_true": False, "store_false": True}
# Fields of TRL's ModelConfig that are not None by default (trl 1.16.0 trainer/model_config.py).
MODEL_CONFIG: dict[str, Any] = TABLES["model_config"] | dict.fromkeys(TABLES["without_default"])
LORA: dict[str, str] = TABLES["lora"]


def make_parser(name: str, arguments: Arguments) -> Thing:
    """A parser; those of transformers and TRL get the classes whose fields are options."""
    classes = arguments.get("dataclass_types", 0, ())
    values = {"classes": list(classes) if isinstance(classes, list | tuple) else [classes]}
    return Thing(kind="parser", name=name, line=arguments.line, values=values)


def call_parser(world: Any, parser: Thing, name: str, arguments: Arguments) -> Any:
    """A method of a parser."""
    if name == "add_argument":
        return _add(world, arguments)
    if name in INNER:
        return parser
    if name == "set_defaults":
        world.found.options |= arguments.named
        return None
    if name in ("parse_args", "parse_known_args"):
        found = world.make(namespace(world))
        return (found, []) if name == "parse_known_args" else found
    if name in ("parse_dict", "parse_yaml_file", "parse_json_file"):
        data = next(iter(arguments.named.values()), arguments.first)
        data = world.data(data) if isinstance(data, str) else data
        given = data if isinstance(data, Mapping) else {}
        return _dataclasses(world, parser, given, arguments)
    if name.startswith(("parse_args_into_dataclasses", "parse_args_and_config", "parse")):
        return _dataclasses(world, parser, world.given, arguments)
    return UNKNOWN


def _add(world: Any, arguments: Arguments) -> Any:
    """An option of argparse, with its default."""
    words = [one for one in arguments.positional if isinstance(one, str)]
    long = [one.lstrip("-").replace("-", "_") for one in words if one.startswith("--")]
    long = long or [one.lstrip("-").replace("-", "_") for one in words]
    destination = arguments.get("dest")
    names = long
    if isinstance(destination, str):
        names = [destination]
        world.found.facts.setdefault("destinations", {}).update(dict.fromkeys(long, destination))
    off = OFF.get(str(arguments.get("action")))
    world.found.options |= dict.fromkeys(names, arguments.get("default", None, off))
    return Thing(kind="data", name="option")


def namespace(world: Any) -> Thing:
    """The options of a script as the command sets them."""
    renamed = world.found.facts.get("destinations", {})
    given = {renamed.get(name, name): value for name, value in world.given.items()}
    values = {**world.found.options, **given}
    return Thing(kind="namespace", name="options", values=values)


def _dataclasses(world: Any, parser: Thing, given: Mapping[str, Any], where: Arguments) -> Any:
    made = [parsed_instance(world, one, given, where.line) for one in parser.values["classes"]]
    if where.get("return_remaining_strings"):
        made.append([])
    alone = len(made) == 1 and parser.name == "TrlParser"
    return made[0] if alone and where.text.find("and_config") > 0 else tuple(made)


def parsed_instance(world: Any, one: Any, given: Mapping[str, Any], line: int) -> Any:
    """An object of a class whose fields are options."""
    roots = one.roots if isinstance(one, ScriptClass) else {getattr(one, "last", "")}
    trainer = next((name for name in roots if ARGUMENT_CLASS.fullmatch(name)), "")
    fields = dict(one.fields) if isinstance(one, ScriptClass) else {}
    world.found.options |= fields
    if trainer:
        thing = Thing(kind="arguments", name=trainer, line=line, values={**fields, **given})
        thing.lines = {key: one.lines[key] for key in fields if key not in given}
        thing.values["(parsed)"] = True
        return world.make(thing)
    if "ModelConfig" in roots:
        fields = {**MODEL_CONFIG, **fields}
    known = isinstance(one, ScriptClass) and not roots
    asked = {key: value for key, value in given.items() if key in fields or not known}
    values = {**fields, **asked}
    return world.make(Thing(kind="namespace", name=getattr(one, "name", "options"), values=values))


def _options(arguments: Arguments) -> Mapping[str, Any]:
    """The values of TRL's ModelConfig that a function gets."""
    return arguments.first.values if isinstance(arguments.first, Thing) else {}


def peft_config(arguments: Arguments) -> Any:
    """trl.get_peft_config(model_args): a LoraConfig, or None (trainer/utils.py)."""
    values = _options(arguments)
    if values.get("use_peft") is False:
        return None
    found = {name: values.get(option) for name, option in LORA.items()}
    found = {name: value for name, value in found.items() if value is not None}
    return Thing(kind="peft", name="LoraConfig", line=arguments.line, values=found)


def quantization_config(arguments: Arguments) -> Any:
    """trl.get_quantization_config(model_args): a BitsAndBytesConfig, or None."""
    values = _options(arguments)
    if values.get("load_in_4bit") is True:
        dtype = values.get("dtype") or "float32"
        found = {
            "load_in_4bit": True,
            "bnb_4bit_compute_dtype": dtype if dtype != "auto" else "float32",
            "bnb_4bit_quant_type": values.get("bnb_4bit_quant_type", "nf4"),
            "bnb_4bit_use_double_quant": values.get("use_bnb_nested_quant", False),
        }
    elif values.get("load_in_8bit") is True:
        found = {"load_in_8bit": True}
    else:
        return None
    return Thing(kind="quantization", name="BitsAndBytesConfig", line=arguments.line, values=found)


def click_option(world: Any, called: Imported, arguments: Arguments) -> None:
    """An option that a decorator of click declares."""
    if called.path in ("click.option", "click.argument"):
        _add(world, arguments)


def declare(world: Any, function: Any) -> dict[str, Any]:
    """The parameters of a function that fire, typer or click calls, as options with the values
    that the command gives.
    """
    node = function.node
    names = [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
    places = reversed([one.arg for one in node.args.args])
    defaults = dict(zip(places, reversed(node.args.defaults), strict=False))
    for name in names:
        value = world.value(defaults.get(name), function.scope)
        if is_thing(value, "option"):
            value = value.values.get("default", UNKNOWN)
        world.found.options.setdefault(name, value)
    values = {name: world.given.get(name, world.found.options[name]) for name in names}
    return {name: value for name, value in values.items() if value is not UNKNOWN}

"""Reads options, fields and variables in Go, by their text."""

from __future__ import annotations

import re

from .options import Arguments

FIELD = re.compile(r'^\s*(\w+)\s+(\S+)\s+`json:"(\w+)', re.MULTILINE)
VALUE = re.compile(r"^\s*(\w+):\s*([^,{}\n]+?),", re.MULTILINE)
FLAG = r'\b{}\.Flags\(\)\.(\w+?)(P?)\("([\w-]+)",\s*(?:"\w",\s*)?([^,]+),'
VARIABLE = re.compile(r'^\s*(?:ret\[)?"((?:OLLAMA|LLAMA_ARG)_\w+)"\]?\s*[:=]\s*(?:EnvVar)?\{', re.M)
TYPES = {"Bool": "bool", "String": "str", "Int": "int"}
ZERO = {"bool": False, "int": 0, "str": ""}
KINDS = {"bool": "bool", "int": "int", "float32": "float", "string": "str", "[]string": "list"}


def fields(text: str, struct: str) -> Arguments:
    """The fields of a struct by their names in JSON, with the defaults of `DefaultOptions`."""
    body = text.partition(f"type {struct} struct {{")[2].partition("\n}")[0]
    values = dict(VALUE.findall(text.partition("func DefaultOptions()")[2].partition("\n}")[0]))
    found: Arguments = {}
    for name, type_, written in FIELD.findall(body):
        kind = KINDS.get(type_.lstrip("*"), "str")
        optional = " | None" if type_.startswith("*") else ""
        zero = None if optional or kind == "list" else ZERO.get(kind, 0.0)
        found[written] = {**_value(values.get(name), zero), "type": kind + optional}
    return found


def flags(text: str, command: str) -> Arguments:
    """The flags of a command of cobra."""
    found: Arguments = {}
    for kind, _, name, default in re.findall(FLAG.format(command), text):
        type_ = TYPES.get(kind, "str")
        form = {"form": "flag"} if type_ == "bool" else {}
        found[name] = {**_value(default.strip('"'), ""), "type": type_, **form}
    return found


def variables(text: str) -> Arguments:
    """The variables of the environment that a map of them has; code reads each of them."""
    return {name: {"computed": "envconfig/config.go"} for name in VARIABLE.findall(text)}


def _value(text: str | None, zero: object) -> dict[str, object]:
    """The default that a text is; code where it is no plain value, `zero` where there is none."""
    if text is None or text == "nil":
        return {"default": zero if text is None else None}
    if text in ("true", "false"):
        return {"default": text == "true"}
    if re.fullmatch(r"-?\d+", text):
        return {"default": int(text)}
    if re.fullmatch(r"-?\d+\.\d+", text):
        return {"default": float(text)}
    return {"default": text} if re.fullmatch(r"\w*", text) else {"computed": text}

"""Options of tools in other languages: Rust's clap, and llama.cpp's own parser, by their text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from .options import Arguments

FIELD = re.compile(r"#\[clap\(([^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*(\w+):\s*([\w<>:]+),", re.S)
DEFAULT = re.compile(r'default_value(?:_t)?\s*=\s*"?([^",)]+)"?')
RUST = {"bool": "bool", "String": "str", "PathBuf": "str", "f32": "float", "f64": "float"}
# An option of llama.cpp since September 2024, and its handler up to the end of its parameters.
OPTION = re.compile(
    r"(?:common_arg|llama_arg)\(\s*\{([^}]*)\}(.*?)\[\]\(\s*\w+params\s*&(?:\s*params)?\s*(,[^)]*)?\)"
    r"(.*?)(?=\n\s*\)|\Z)(?:\s*\)([^\n]*))?",
    re.S,
)
BEFORE = re.compile(r'if \(((?:\s*(?:\|\|)?\s*arg == "-[^"]+")+)\)\s*\{(.*?)\n    \}', re.S)
SETS = re.compile(r"params\.([\w.]+)\s*=\s*(?:value|std::sto\w+\(argv\[i\]\)|argv\[i\])")
WORD = re.compile(r'"(-[^"]+)"')
# The programs that take an option; all of them where it names none. Of those in SERVE, a command is
# read: llama-cli was `main`, and llama-mtmd-cli was `llava`.
PROGRAMS = re.compile(r"set_examples\(\{([^}]*)\}")
SERVE = {"common", "server", "cli", "completion", "mtmd", "main", "llava"}


def clap(text: str, struct: str) -> Arguments:
    """The options of a struct that clap reads, named as they are written."""
    body = text.partition(f"struct {struct} {{")[2].partition("\n}")[0]
    found: Arguments = {}
    for settings, name, type_ in FIELD.findall(body):
        inner = re.sub(r"^(?:Option|Vec)<(.*)>$", r"\1", type_)
        kind = RUST.get(inner, "int" if re.fullmatch(r"[ui](?:8|16|32|64|size)", inner) else "str")
        default = DEFAULT.search(settings)
        row = {"default": _value(default[1]) if default else False if type_ == "bool" else None}
        row |= {"type": kind + (" | None" if type_.startswith("Option") else "")}
        row |= {"form": "flag"} if type_ == "bool" else {}
        found[name.replace("_", "-")] = row
    return found


def llama_cpp(text: str, header: str, known: Collection[str] = ()) -> Arguments:
    """The options of llama.cpp's parser; a default is that of the parameter that it sets.

    - known: names in the table, of which an option gets its own, if one is there
    """
    found: Arguments = {}
    for words, handler, takes, programs in _options(text):
        flags = WORD.findall(words)
        long = [one for one in flags if one.startswith("--")] or flags
        if not long:
            continue
        names = [one.lstrip("-") for one in long]
        name = next((one for one in names if one in known), names[-1])
        sets = SETS.search(handler)
        row = _initial(sets[1], header) if sets else {"computed": "common/common.h"}
        row |= {"type": _type(takes)} if takes else {"type": "bool", "form": "flag"}
        others = [one for one in flags if one != f"--{name}"]
        several = {"flags": others, "programs": programs}
        found[name] = row | {key: value for key, value in several.items() if value}
    return found


def _options(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """The names, the handler and the parameter of each option, none where it is a flag, and the
    programs that take it, where no program that serves does.
    """
    for words, _, takes, handler, after in OPTION.findall(text):
        said = PROGRAMS.search(after)
        programs = re.findall(r"LLAMA_EXAMPLE_(\w+)", said[1]) if said else []
        named = sorted(one.lower() for one in programs)
        yield words, handler, takes, [] if SERVE & {*named} else named
    for words, handler in BEFORE.findall(text):
        number = "int" if "stoi" in handler else "float" if "stof" in handler else "string"
        yield words, handler, number if "argv[" in handler else "", []


def _type(takes: str) -> str:
    return next((one for one in ("bool", "float", "int") if one in takes), "str")


def _initial(name: str, header: str) -> dict[str, object]:
    """What a parameter is before any option, where the header has it as a plain value."""
    field = name.rpartition(".")[2]
    stated = set(re.findall(rf"\b{field}\s*=\s*([^;]+);", header))
    if len(stated) == 1 and re.fullmatch(r'-?[\d.]+f?|true|false|"[^"]*"', text := stated.pop()):
        return {"default": _value(text.strip('"'))}
    return {"computed": f"common/common.h {name}"}


def _value(text: str) -> object:
    """A value as the text of another language has it."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text.rstrip("f")) if re.fullmatch(r"-?\d+\.\d*f?", text) else text

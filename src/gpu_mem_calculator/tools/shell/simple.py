"""Reads one simple command of a shell script: a condition, which is decided where its values are
known; variables; a builtin, such as export, set or shift; a function; or a program.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ...runfile.text.errors import InputError
from ..launchers.launch import read_launch
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from .bounds import checked_value
from .expansion import Expansion
from .nodes import Simple
from .tokens import tokens_of
from .variables import is_known

if TYPE_CHECKING:
    from .script import ShellScript

NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
OPEN_CLOSE = {"[": "]", "[[": "]]", "test": ""}
MOST_WORDS = 200
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*(?:\[[^\]]*\])?)(\+?)=(.*)", re.DOTALL)
DECLARATIONS = frozenset({"export", "declare", "local", "readonly", "typeset"})
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
SBATCH = "sbatch"  # Slurm starts the script that it gets
WRITERS = frozenset({"cat", "tee", "echo", "printf"})
ALWAYS = {":": True, "true": True, "false": False}
LEAVES = frozenset({"exit", "return", "break", "continue"})
QUIET = frozenset({"mkdir", "sleep", "read", "trap", "ulimit", "module", "hash", "alias"})
VARIABLE_ALONE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
SCRIPT_DEPTH = 8  # levels that a script in a script counts as


def decide(words: list[str], expansion: Expansion) -> bool | None:
    """The result of `[ ... ]`, `[[ ... ]]` or `test`; None where it is not known."""
    inner = words[1:-1] if OPEN_CLOSE[words[0]] else words[1:]
    return None if len(inner) > MOST_WORDS else _joined(inner, expansion, decisive=True)


def _joined(words: list[str], expansion: Expansion, *, decisive: bool) -> bool | None:
    """Conditions joined by `||`, of which one decides, and in them by `&&`."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word in (("||", "-o") if decisive else ("&&", "-a")):
            parts.append([])
        else:
            parts[-1].append(word)
    results = [
        _joined(part, expansion, decisive=False) if decisive else _one(part, expansion)
        for part in parts
    ]
    if decisive in results:
        return decisive
    return None if None in results else not decisive


def _one(words: list[str], expansion: Expansion) -> bool | None:
    if words[:1] == ["!"]:
        result = _one(words[1:], expansion)
        return None if result is None else not result
    if "(" in words or ")" in words:
        return None
    if words[:1] == ["-v"] and len(words) == 2:
        return expansion.variables.elements(words[1]) is not None
    texts = [_operand(word, expansion) for word in words]
    if len(texts) == 1:
        return bool(texts[0]) if is_known(texts[0]) else None
    if len(texts) == 2 and words[0] in ("-z", "-n"):
        return (words[0] == "-z") is not bool(texts[1]) if is_known(texts[1]) else None
    return _compare(texts[0], words[1], texts[2]) if len(texts) == 3 else None


def _operand(word: str, expansion: Expansion) -> str:
    expansion.empty_if_unset = True
    try:
        return expansion.text(word)
    finally:
        expansion.empty_if_unset = False


def _compare(left: str, sign: str, right: str) -> bool | None:
    if not is_known(left) or not is_known(right):
        return None
    if sign in NUMBERS:
        numbers = [one.strip() for one in (left, right)]
        if not all(re.fullmatch(r"-?\d{1,18}", one) for one in numbers):
            return None
        return NUMBERS[sign](int(numbers[0]), int(numbers[1]))
    return fnmatchcase(left, right) is (sign != "!=") if sign in ("=", "==", "!=") else None


def assign(raw: str, expansion: Expansion) -> str | None:
    """Set the variable of `NAME=value` or `NAME=(...)`; its name, or None for another word."""
    match = ASSIGNMENT.fullmatch(raw)
    if match is None:
        return None
    name, append, value = match[1], bool(match[2]), match[3]
    if value.startswith("("):
        expansion.variables.set_array(name, array_words(value[1:-1], expansion), append=append)
    else:
        expansion.variables.set(name, expansion.text(value), append=append)
    return name.partition("[")[0]


def array_words(text: str, expansion: Expansion) -> list[str]:
    """The elements of an array in parentheses."""
    words = (token.text for token in tokens_of(text, expansion.work) if token.kind == "word")
    return [one for word in words for one in expansion.words(word)]


def declare(raw_words: list[str], expansion: Expansion) -> None:
    """export, declare, local and the like."""
    options = [word for word in raw_words[1:] if word.startswith("-")]
    exports = raw_words[0] == "export" or any("x" in option for option in options)
    for raw in raw_words[1:]:
        if raw in options:
            continue
        for word in [raw] if ASSIGNMENT.fullmatch(raw) else expansion.words(raw):
            name = assign(word, expansion) or word
            if exports and "-n" not in options:
                expansion.variables.exported.add(name)


def _set(script: ShellScript, words: list[str]) -> None:
    """`set -- a b`, `shift 2`, `unset NAME`."""
    variables = script.expansion.variables
    if words[0] == "set" and "--" in words:
        variables.arguments = words[words.index("--") + 1 :]
        variables.arguments_known = True
    elif words[0] == "shift":
        count = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
        del variables.arguments[: min(count, 10_000)]
    elif words[0] == "unset":
        for name in words[1:]:
            variables.values.pop(name, None)
            variables.exported.discard(name)


class LeaveError(Exception):
    """`exit`, `return`, `break` or `continue`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def run_simple(script: ShellScript, node: Simple) -> bool | None:
    """Read a simple command; whether it succeeds, where that is known."""
    raw = list(node.words)
    if raw and raw[0] in OPEN_CLOSE:
        return decide(raw, script.expansion)
    prefix: list[str] = []
    while raw and ASSIGNMENT.fullmatch(raw[0]):
        prefix.append(raw.pop(0))
    if not raw:
        for one in prefix:
            assign(one, script.expansion)
        return True
    if raw[0] in DECLARATIONS:
        declare(raw, script.expansion)
        return True
    words = _words(script, raw)
    if not words:
        return None
    environment = _environment(script, prefix)
    if words[0] in ALWAYS:
        return ALWAYS[words[0]]
    if words[0] in LEAVES:
        raise LeaveError(words[0])
    builtin, document = BUILTINS.get(words[0]), _document(script, node)
    if builtin:
        builtin(script, words)
    elif words[0] in WRITERS:
        _write(script, node, words, document)
    elif document is not None and words[0] in (*SHELLS, SBATCH):
        script.run_text(document)
    elif document is not None and words[0] == "read":
        script.expansion.variables.set(words[-1], document, append=False)
    elif words[0] in script.functions:
        _call(script, words)
    elif words[0] not in QUIET:
        _program(script, words, environment)
    return None


def _environment(script: ShellScript, prefix: list[str]) -> dict[str, str]:
    """Variables in front of a command: they are set for it alone."""
    pairs = (raw.partition("=") for raw in prefix)
    return {name: script.expansion.text(value) for name, _, value in pairs}


def _words(script: ShellScript, raw_words: list[str]) -> list[str]:
    """The words of a command. One that is only a variable that is not set is left out, unless it
    is the value of an option.
    """
    found: list[str] = []
    for raw in raw_words:
        alone = VARIABLE_ALONE.fullmatch(raw)
        name = (alone[1] or alone[2]) if alone else ""
        unset = bool(alone) and not name.isdigit() and script.expansion.variables.get(name) is None
        is_value = bool(found) and found[-1].startswith("-") and "=" not in found[-1]
        if unset and not is_value:
            script.note(f"${name} is not set in the script; it is taken as empty")
        else:
            found += script.expansion.words(raw)
    return found


def _call(script: ShellScript, words: list[str]) -> None:
    """A function of the script."""
    variables = script.expansion.variables
    before = variables.arguments, variables.arguments_known, variables.asks
    variables.arguments, variables.arguments_known, variables.asks = words[1:], True, False
    try:
        script.run(script.functions[words[0]])
    except LeaveError as leave:
        if leave.kind != "return":
            raise
    finally:
        variables.arguments, variables.arguments_known, variables.asks = before


def _program(script: ShellScript, words: list[str], environment: dict[str, str]) -> None:
    """A program; a shell in front of it is read too, also behind srun or docker run."""
    try:
        command = read_launch(words, NamedFiles(folder=None), environment)
    except InputError:  # it is raised again where no other command can be checked
        command = Command(words=tuple(words))
    if command.program in (*SHELLS, SBATCH) or command.program.endswith(".sh"):
        _shell(script, command)
    else:
        script.start(words, environment)


def _shell(script: ShellScript, command: Command) -> None:
    """`bash -c TEXT`, `bash FILE ARGUMENTS`, `./FILE.sh ARGUMENTS`."""
    starts = command.program in (*SHELLS, SBATCH)
    rest, text = list(command.words[1:] if starts else command.words), None
    while text is None and rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option.endswith("c") and rest:
            text = rest.pop(0)
    if text is None and not rest:
        return
    variables, outer = script.expansion.variables, script.outer
    script.expansion.variables = inner = variables.copy()
    script.outer = command if command.num_gpus is not None or command.card else outer
    for name, value in command.environment.items():
        inner.set(name, value)
        inner.exported.add(name)
    inner.arguments, inner.arguments_known, inner.asks = rest[1:], True, False
    if text is not None:
        script.run_text(text)
    else:
        _read_file(script, rest[0])
    script.expansion.variables, script.outer = variables, outer


def _read_file(script: ShellScript, name: str) -> None:
    """Read another script, where it is there."""
    try:
        text = script.written.get(os.path.normpath(name)) or script.files.text(name, "the script")
    except InputError:
        script.note(f"the script {name} is not read; there is no such file here")
        return
    script.depth += SCRIPT_DEPTH
    script.run_text(text)
    script.depth -= SCRIPT_DEPTH


def _source(script: ShellScript, words: list[str]) -> None:
    if len(words) > 1:
        _read_file(script, words[1])


def _cd(script: ShellScript, words: list[str]) -> None:
    if script.folder is not None and len(words) == 2 and is_known(words[1]):
        there = script.folder / os.path.expanduser(words[1])
        if there.is_dir() or not script.folder.is_dir():
            script.folder = there
        else:  # another machine's
            where = "files are looked for in the folder before"
            script.note(f"cd {words[1]}: it is not on this machine; {where}")


def _eval(script: ShellScript, words: list[str]) -> None:
    script.run_text(" ".join(words[1:]))


def _wait(script: ShellScript, words: list[str]) -> None:
    """`wait` and `kill`: commands in the background have ended. `wait -n` waits for any one of
    them, and `kill -0` only asks.
    """
    if not {"-n", "-0"} & set(words[1:2]):
        script.waits += 1


BUILTINS: Mapping[str, Callable[[ShellScript, list[str]], None]] = {
    **dict.fromkeys(("source", "."), _source),
    **dict.fromkeys(("cd", "pushd"), _cd),
    **dict.fromkeys(("set", "shift", "unset"), _set),
    "eval": _eval,
    **dict.fromkeys(("wait", "kill", "pkill", "killall"), _wait),
}


def _document(script: ShellScript, node: Simple) -> str | None:
    """The text of the command's here-document."""
    found = next((one for one in node.redirects if one.operator == "<<"), None)
    if found is None or found.quoted:
        return found.body if found else None
    return script.expansion.text(found.body, quoted=True)


def _write(script: ShellScript, node: Simple, words: list[str], document: str | None) -> None:
    """Keep the text of a file that the script writes: a later command may name it."""
    targets = [one.target for one in node.redirects if one.operator in (">", ">>", ">|")]
    if words[0] == "tee":
        targets += [word for word in words[1:] if not word.startswith("-")]
    if document is not None:
        text = document
    elif words[0] in ("echo", "printf"):
        text = " ".join(word for word in words[1:] if word not in ("-e", "-n")) + "\n"
    else:
        return
    appends = any(one.operator == ">>" for one in node.redirects)
    for target in targets:
        name = os.path.normpath(script.expansion.text(target))
        whole = script.written.get(name, "") + text if appends else text
        script.written[name] = checked_value(whole)
        script.work.spend(len(whole))

"""What people paste that is neither a file nor a command line: a script in Python or a part of one,
a command as a list of words, a command whose lines a page has broken.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from ...runfile.text.files import MOST_SLOW_BYTES
from ..translation.arguments import tables

SCRIPT = "pasted.py"
# Where the classes and functions are imported from that a part of a script calls.
IMPORTS: dict[str, list[str]] = tables(__file__)["imports"]
MODULES: list[str] = tables(__file__)["modules"]
WRAPPED = re.compile(r"(?<!\\)\n[ \t]+(?=\S)")
CONTINUED = re.compile(r"^[ \t]*-{1,2}[A-Za-z]", re.MULTILINE)


def python_script(text: str) -> str | None:
    """A text as a script in Python, with the imports that a part of one leaves out; None where it
    is something else.
    """
    if len(text) > MOST_SLOW_BYTES or "(" not in text:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    if not any(isinstance(one, ast.Import | ast.ImportFrom) for one in tree.body) and not calls:
        return None
    called = {part.id for one in calls for part in ast.walk(one.func) if isinstance(part, ast.Name)}
    called -= {one.asname or one.name for node in ast.walk(tree) for one in _imported(node)}
    lines = [f"import {name}" for name in MODULES if name in called] + [
        f"from {package} import {name}"
        for package, names in IMPORTS.items()
        for name in names
        if name in called
    ]
    if not lines:
        return text
    first = tree.body[0]  # lines keep their numbers where it can stand behind others
    joined = not hasattr(first, "body") and first.lineno == 1
    return "; ".join(lines) + ("; " if joined else "\n") + text


def _imported(node: ast.AST) -> Sequence[ast.alias]:
    return node.names if isinstance(node, ast.Import | ast.ImportFrom) else ()


def command_words(data: Any) -> list[str] | None:
    """The words of a command that is written as a list, as manifests and JSON have it."""
    if not isinstance(data, list) or not all(isinstance(one, str | int | float) for one in data):
        return None
    return [str(one) for one in data] if data and isinstance(data[0], str) else None


def python_list(text: str) -> Any:
    """The data of a list in Python, with its comments; None where it is none."""
    if text.lstrip()[:1] != "[" or len(text) > MOST_SLOW_BYTES:
        return None
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return None


def unwrapped(text: str) -> str:
    """A command whose lines a page has broken, in one line: those after the first are indented, and
    one of them begins with an option; a shell would start each as a command.
    """
    lines = text.strip("\n").split("\n")
    rest = [line for line in lines[1:] if line.strip()]
    broken = rest and all(line[:1] in (" ", "\t") for line in rest) and "\\\n" not in text
    if broken and any(CONTINUED.match(line) for line in rest):
        return WRAPPED.sub(" ", text.strip("\n"))
    return text

"""What a name in a script can stand for: a plain value, or one of the objects that take memory."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from msgspec import Struct, field

DTYPES = ("bfloat16", "float16", "float32", "half", "float", "uint8", "float64", "double")
# Kinds of things whose every call and assignment is accounted for.
TRACKED = ("model", "part", "trainer", "optimizer", "engine")


class Unknown:
    """A value that only a run of the script would show."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN: Final = Unknown()


class Thing(Struct, eq=False, kw_only=True):
    """An object of a script.

    - `kind`: model, part (of a model), config, arguments, trainer, optimizer, peft, quantization,
      tokenizer, data, loader, accelerator, namespace, parser, instance
    - `name`: its class, or how the script calls it
    - `values`: its arguments and attributes; `lines`: where each of them is written
    - `model`: the model that a part or a configuration belongs to
    """

    kind: str
    name: str = ""
    line: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    model: Thing | None = None

    def line_of(self, key: str) -> int:
        """The line of an argument or attribute; that of the object where it has none."""
        return self.lines.get(key, self.line)

    @property
    def made_of(self) -> ScriptClass | None:
        """The class of the script that an instance is an object of."""
        found = self.values.get("(class)")
        return found if isinstance(found, ScriptClass) else None

    def method(self, name: str) -> ScriptFunction | None:
        """A method that its class in the script has."""
        made = self.made_of
        node = made.method(name) if made else None
        return ScriptFunction(node, made.scope, self) if made and node else None


def value_of(thing: Any, key: str) -> Any:
    """An argument or attribute of an object; None where there is no such object."""
    return thing.values.get(key) if isinstance(thing, Thing) else None


def is_thing(value: Any, *kinds: str) -> TypeGuard[Thing]:
    """Whether a value is an object of one of the kinds."""
    return isinstance(value, Thing) and value.kind in kinds


class Scope(Struct, eq=False):
    """The names of a module or of one call of a function."""

    names: dict[str, Any] = field(default_factory=dict)
    parent: Scope | None = None
    outer: set[str] = field(default_factory=set)  # declared global or nonlocal

    def get(self, name: str) -> Any:
        """The value of a name; UNKNOWN where the text does not show it."""
        if name in self.names or self.parent is None:
            return self.names.get(name, UNKNOWN)
        return self.parent.get(name)

    def put(self, name: str, value: Any) -> None:
        """Bind a name."""
        scope = self
        while name in scope.outer and scope.parent is not None:
            scope = scope.parent
        scope.names[name] = value


class ScriptFunction(Struct, eq=False):
    """A function or method of the script, with the names around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    bound: Any = None  # the object of a method

    @property
    def title(self) -> str:
        """Its name."""
        return getattr(self.node, "name", "lambda")


class ScriptClass(Struct, eq=False):
    """A class of the script: its bases by their last names, its fields with their defaults."""

    name: str
    node: ast.ClassDef
    scope: Scope
    bases: tuple[Any, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    made: bool = False  # whether the script makes an object of it

    def method(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """A method by its name, its own or that of a base in the script."""
        for one in self.node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name:
                return one
        found = (one.method(name) for one in self.bases if isinstance(one, ScriptClass))
        return next((one for one in found if one is not None), None)

    @property
    def roots(self) -> set[str]:
        """Last names of the imported classes that it extends."""
        own = {one.last for one in self.bases if isinstance(one, Imported)}
        return own.union(*(one.roots for one in self.bases if isinstance(one, ScriptClass)))


class Imported(Struct, frozen=True):
    """A name of a library: `transformers.Trainer`."""

    path: str

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.path.rpartition(".")[2]

    @property
    def package(self) -> str:
        """The first part of the name."""
        return self.path.partition(".")[0]


class Arguments(Struct, kw_only=True):
    """The arguments of a call; `is_open` where a `*list` or `**dict` is not known."""

    positional: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)  # lines of the positional ones
    is_open: bool = False
    line: int = 0
    text: str = ""

    def get(self, name: str, place: int | None = None, default: Any = None) -> Any:
        """An argument by its name, or by its place."""
        if name in self.named:
            return self.named[name]
        if place is not None and place < len(self.positional):
            return self.positional[place]
        return default

    @property
    def first(self) -> Any:
        """The first one that has no name."""
        return self.positional[0] if self.positional else UNKNOWN

    def things(self, *kinds: str) -> list[Thing]:
        """The objects of some kinds among all values."""
        return [one for one in self.every() if is_thing(one, *kinds)]

    @property
    def more(self) -> tuple[int, ...]:
        """The lines of its arguments beside the first."""
        return tuple(sorted({*self.lines.values(), *self.places} - {self.line}))

    def every(self) -> list[Any]:
        """All values, those inside of lists and dictionaries, too."""
        found: list[Any] = []
        waiting = [*self.positional, *self.named.values()]
        while waiting:
            one = waiting.pop()
            found.append(one)
            if isinstance(one, list | tuple):
                waiting += one
            elif isinstance(one, Mapping):
                waiting += one.values()
        return found


def plain(value: Any) -> bool:
    """Whether a value is known in full: texts, numbers, lists and dictionaries of them."""
    if isinstance(value, list | tuple):
        return all(plain(one) for one in value)
    if isinstance(value, Mapping):
        return all(plain(one) for one in value.values())
    return value is None or isinstance(value, str | int | float | bool)

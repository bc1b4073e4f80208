"""Defaults and types that a file states: values where they can be computed from the text alone.

What only runs can tell (a call, a check of another package's version) is a `ComputedError`, which
has its code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .source import Binding, Names, Place, Source

LONGEST = 100  # characters of code that a lock keeps
DEEPEST = 25
FACTORIES = {"field", "Field", "interval", "HfArg", "conf_field", "attrib", "ib"}
PLAIN = {"list": list, "dict": dict, "set": list, "tuple": list, "frozenset": list}
CONVERT: Mapping[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
GETTERS = {"get_field"}  # of vLLM: get_field(Class, "name")
OPERATIONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
}
LISTS = {
    *("list", "List", "Sequence", "Iterable", "tuple", "Tuple", "set", "Set", "frozenset"),
    *("Collection", "MutableSequence"),
}
DICTS = {"dict", "Dict", "Mapping", "MutableMapping", "TypedDict", "OrderedDict"}
WRAPPERS = {"SkipValidation", "Final", "Required", "NotRequired", "InitVar", "Deprecated"}
WORDS = {"int", "float", "bool", "str", "None"}
OBJECTS = {"BaseModel", "TypedDict", "StrictBaseModel"}


class ComputedError(Exception):
    """A value that the text alone does not tell; its text is the code."""


class Kind(NamedTuple):
    """What values an annotation allows: words such as int, str and None, and the choices."""

    words: tuple[str, ...]
    choices: tuple[Any, ...] = ()
    closed: bool = False  # an enumeration's: a text that is none of them is refused

    @property
    def text(self) -> str:
        """The words as Python writes a union."""
        return " | ".join(dict.fromkeys(self.words))


def code(node: ast.AST) -> str:
    """A node as text, cut where it is long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


class Values:
    """The values of expressions in the files of one release."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.local: Names = {}  # of the function that is read

    def default(self, node: ast.expr | None, at: Place) -> dict[str, Any]:
        """A field's default: `default`, `computed` with its code, or `required`."""
        if node is None:
            return {"required": True}
        if isinstance(node, ast.Call) and _last(node.func) in FACTORIES:
            given = {word.arg: word.value for word in node.keywords}
            first = node.args[0] if node.args else None
            if factory := given.get("default_factory"):
                return self._made(factory, at)
            inner = given.get("default", first)
            if inner is None or (isinstance(inner, ast.Constant) and inner.value is ...):
                return {"required": True}
            return self.default(inner, at)
        try:
            return {"default": self.value(node, at)}
        except ComputedError as unknown:
            return {"computed": str(unknown)}

    def _made(self, factory: ast.expr, at: Place) -> dict[str, Any]:
        """What a factory of defaults makes, where it is plain."""
        if isinstance(factory, ast.Lambda):
            return self.default(factory.body, at)
        if isinstance(factory, ast.Name) and factory.id in PLAIN:
            return {"default": [] if PLAIN[factory.id] is list else {}}
        return {"computed": f"{code(factory)}()"}

    def value(self, node: ast.expr, at: Place, left: int = DEEPEST) -> Any:
        """The value of an expression; raises ComputedError."""
        if not left:
            raise ComputedError(code(node))
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.Tuple() | ast.List() | ast.Set():
                return self._items(node.elts, at, left)
            case ast.Dict(keys=keys, values=values) if all(keys):
                names = self._items([key for key in keys if key], at, left)
                return dict(zip(map(str, names), self._items(values, at, left), strict=True))
            case ast.UnaryOp(op=ast.USub(), operand=one):
                return -self.value(one, at, left - 1)
            case ast.UnaryOp(op=ast.Not(), operand=one):
                return not self.value(one, at, left - 1)
            case ast.BinOp(left=one, op=sign, right=two) if type(sign) in OPERATIONS:
                first, second = self._items([one, two], at, left)
                try:
                    return OPERATIONS[type(sign)](first, second)
                except TypeError:
                    raise ComputedError(code(node)) from None
            case ast.Name() | ast.Attribute():
                return self._named(node, at, left)
            case ast.Call():
                return self._called(node, at, left)
            case ast.Subscript(value=one, slice=ast.Constant(value=int() | str() as key)):
                held = self.value(one, at, left - 1)
                try:
                    return held[key]
                except (TypeError, LookupError):
                    raise ComputedError(code(node)) from None
            case ast.Compare(left=one, ops=[ast.Eq()], comparators=[two]):
                return self.value(one, at, left - 1) == self.value(two, at, left - 1)
            case ast.IfExp(test=ast.Compare() as test, body=one, orelse=two):
                return self.value(one if self.value(test, at, left - 1) else two, at, left - 1)
            case ast.ListComp() | ast.GeneratorExp():
                return self._listed(node, at, left)
        raise ComputedError(code(node))

    def _items(self, nodes: list[ast.expr], at: Place, left: int) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += self._members(node.value, at, left - 1)
            else:
                items.append(self.value(node, at, left - 1))
        return items

    def _named(self, node: ast.Name | ast.Attribute, at: Place, left: int) -> Any:
        """What a name holds: of the class around it, the file, a class or another module."""
        if isinstance(node, ast.Attribute) and node.attr == "value":  # of an enumeration's member
            return self.value(node.value, at, left - 1)
        if isinstance(node, ast.Name) and node.id in self.local:
            inside = Place(at.path, tuple(self.local[node.id]), at.owner)
            if isinstance(inside.node, ast.Assign) and inside.node is not at.node:
                return self._of(inside, node, left)
        if isinstance(node, ast.Name) and at.owner:
            own = Place(at.path, (Binding(at.owner),))
            if (found := self.source.attribute(own, node.id)) and found.node is not at.node:
                return self._of(found, node, left)
        found = self.source.dotted(at.path, node, at.owner)
        if found is None:
            raise ComputedError(code(node))
        return self._of(found, node, left)

    def _of(self, place: Place, node: ast.expr, left: int) -> Any:
        """The value that a place binds; of several under conditions, all with their conditions."""
        results = []
        for binding in place.bindings:
            value = getattr(binding.node, "value", None)
            if value is None:
                raise ComputedError(code(node))
            state = self.default(value, Place(place.path, (binding,), place.owner))
            if "default" not in state:
                raise ComputedError(state.get("computed", code(node)))
            results.append((state["default"], " and ".join(binding.tests)))
        if any(value != results[0][0] for value, _ in results):
            texts = [f"{value!r} if {test}" if test else repr(value) for value, test in results]
            raise ComputedError(" else ".join(texts[::-1]))
        if not results:
            raise ComputedError(code(node))
        return results[-1][0]

    def _called(self, node: ast.Call, at: Place, left: int) -> Any:
        """The value of a call of a plain type, or of one that gives a class's field."""
        name = _last(node.func)
        if name in GETTERS and len(node.args) == 2:
            place, field = self.source.dotted(at.path, node.args[0]), node.args[1]
            named = str(field.value) if isinstance(field, ast.Constant) else ""
            if place and (found := self.source.attribute(place, named)):
                return self._of(found, node, left - 1)
            raise ComputedError(code(node))
        if name in FACTORIES:
            state = self.default(node, at)
            if "default" in state:
                return state["default"]
            raise ComputedError(state.get("computed", code(node)))
        if isinstance(node.func, ast.Attribute) and name == "keys":
            return self._members(node, at, left - 1)
        if name == "cast" and len(node.args) == 2:
            return self.value(node.args[1], at, left - 1)
        if isinstance(node.func, ast.Name) and len(node.args) <= 1 and not node.keywords:
            if name in PLAIN or name == "sorted":
                if not node.args:
                    return [] if PLAIN[name] is list else {}
                members = self._members(node.args[0], at, left - 1)
                return sorted(members, key=str) if name == "sorted" else members
            if name in CONVERT and node.args:
                value = self.value(node.args[0], at, left - 1)
                if not str(value).strip("+-").startswith(("inf", "nan")):
                    return CONVERT[name](value)
            place = self.source.dotted(at.path, node.func)
            if place and node.args and enumeration(place.node):
                return self.value(node.args[0], at, left - 1)
            if name == "get_args" and node.args:
                return list(self.kind(node.args[0], at).choices)
        raise ComputedError(code(node))

    def _members(self, node: ast.expr, at: Place, left: int) -> list[Any]:
        """The values of an enumeration, or of a list."""
        place = self.source.dotted(at.path, node)
        if place and enumeration(place.node):
            return self.members(place)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "keys":
            node = node.func.value  # type: ignore[attr-defined]
            place = self.source.dotted(at.path, node)
        held = getattr(place.node, "value", None) if place else node
        if place and isinstance(held, ast.Dict) and all(held.keys):
            return self._items([key for key in held.keys if key], place, left)
        value = self.value(node, at, left)
        if isinstance(value, list | dict):
            return list(value)
        raise ComputedError(code(node))

    def members(self, place: Place) -> list[Any]:
        """The values of an enumeration's members; their names, where the values are paths."""
        assert isinstance(place.node, ast.ClassDef)
        found: dict[str, Any] = {}
        for one in place.node.body:
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                name = one.targets[0].id
                inside = Place(place.path, (Binding(one),), place.node)
                if not name.startswith("_"):
                    found[name] = self.default(one.value, inside).get("default", name)
        paths = any("." in one for one in found.values() if isinstance(one, str))
        return (
            list(found) if paths else [v for v in found.values() if not isinstance(v, list | dict)]
        )

    def _listed(self, node: ast.ListComp | ast.GeneratorExp, at: Place, left: int) -> list[Any]:
        """`[x.value for x in Enumeration]` and its like."""
        first = node.generators[0]
        if len(node.generators) > 1 or first.ifs or not isinstance(first.target, ast.Name):
            raise ComputedError(code(node))
        items, name = self._members(first.iter, at, left - 1), first.target.id
        if code(node.elt) in (name, f"{name}.value", f"str({name})"):
            return items
        raise ComputedError(code(node))

    def kind(self, node: ast.expr | None, at: Place, left: int = DEEPEST) -> Kind:
        """What an annotation allows."""
        if node is None or not left:
            return Kind(())
        match node:
            case ast.Constant(value=None):
                return Kind(("None",))
            case ast.Constant(value=str() as text):
                return self.kind(_parsed(text), at, left - 1)
            case ast.BinOp(left=one, op=ast.BitOr(), right=two):
                return _union([self.kind(one, at, left - 1), self.kind(two, at, left - 1)])
            case ast.Subscript(value=outer, slice=inner):
                return self._subscript(_last(outer), inner, at, left)
            case ast.Name() | ast.Attribute():
                return self._type(node, at, left)
        return Kind((code(node),))

    def _subscript(self, name: str, inner: ast.expr, at: Place, left: int) -> Kind:
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if name in ("Annotated", "A"):
            return self.kind(parts[0], at, left - 1)
        if name == "Optional":
            return _union([self.kind(parts[0], at, left - 1), Kind(("None",))])
        if name == "Union":
            return _union([self.kind(part, at, left - 1) for part in parts])
        if name == "Literal":
            try:
                choices = self._items(parts, at, left - 1)
            except ComputedError:
                return Kind(("str",))
            choices = [one for one in choices if not isinstance(one, list | dict)]
            words = dict.fromkeys("None" if c is None else type(c).__name__ for c in choices)
            return Kind(tuple(words), tuple(one for one in choices if one is not None))
        if name in LISTS:
            return Kind(("list",), self.kind(parts[0], at, left - 1).choices)
        if name in DICTS:
            return Kind(("dict",))
        if name in WRAPPERS:
            return self.kind(parts[0], at, left - 1)
        return Kind((name,))

    def _type(self, node: ast.Name | ast.Attribute, at: Place, left: int) -> Kind:
        """A type by its name: a plain one, an alias, an enumeration, a class of fields."""
        name = _last(node)
        if name in WORDS:
            return Kind((name,))
        if name in LISTS:
            return Kind(("list",))
        if name in DICTS:
            return Kind(("dict",))
        if name in ("Any", "object"):
            return Kind(("any",))
        place = self.source.dotted(at.path, node)
        if place is None or place.node is None:
            return Kind((name,))
        if enumeration(place.node):
            choices = tuple(self.members(place))
            return Kind(tuple(dict.fromkeys(type(c).__name__ for c in choices)), choices, True)
        if isinstance(place.node, ast.Assign | ast.AnnAssign):
            return self.kind(place.node.value, place, left - 1)
        if isinstance(place.node, ast.ClassDef):
            names = {
                base for one in self.source.lineage(place) for base, _ in self.source.bases(one)
            }
            marks = (
                one.func if isinstance(one, ast.Call) else one for one in place.node.decorator_list
            )
            if names & (DICTS | OBJECTS) or {*map(_last, marks)} & {"dataclass", "config"}:
                return Kind(("dict",))
        return Kind((name,))


def enumeration(node: ast.stmt | None) -> bool:
    """Whether a definition is an enumeration."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return any(_last(base).endswith("Enum") or _last(base) == "EnumMeta" for base in bases)


def _union(kinds: list[Kind]) -> Kind:
    """Several kinds as one; where any text is allowed beside choices, they are no choices."""
    words = tuple(dict.fromkeys(word for one in kinds for word in one.words))
    free = any(one.words == ("str",) and not one.choices for one in kinds)
    open_choices = any(one.choices and not one.closed for one in kinds)
    choices = tuple(dict.fromkeys(c for one in kinds for c in one.choices))
    return Kind(words, () if free and open_choices else choices, any(one.closed for one in kinds))


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _last(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")

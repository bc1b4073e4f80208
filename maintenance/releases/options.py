"""What a release says of each argument: classes of fields, parsers and functions, read from text.

An argument is a mapping of `default` (or `computed`, or `required`), `type`, `choices`, `form` (how
it is written in a command: flag, switch, list, repeated; else with one value) and `flags` (other
names of the option, as they are written).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from .source import Binding, Place, Source, bound
from .values import ComputedError, Kind, Values, code

Argument = dict[str, Any]
Arguments = dict[str, Argument]
ADDS = {"add_argument", "option"}  # of argparse, of click
CLASS_KEYWORDS = {"get_kwargs"}  # of vLLM: the keywords of a class's fields, by name
WHOLE_CLASS = {"add_cli_args_from_dataclass"}  # of SGLang
META = {"Arg", "HfArg"}
SUPPRESS = "argparse.SUPPRESS"
# What functions convert to, where they do not say so.
CONVERTERS = {
    "json.loads": ("dict",),
    "nullable_str": ("str", "None"),
    "human_readable_int": ("int",),
    "json_list_type": ("list",),
}
STORES = {"store_true": True, "store_false": False}


class Reader:
    """Reads the arguments of one release."""

    def __init__(self, source: Source, stops: Mapping[str, str]) -> None:
        """`stops`: base classes that have a table of their own."""
        self.source, self.values, self.stops = source, Values(source), stops
        self.bases: list[str] = []  # tables of base classes that were met

    def fields(self, place: Place, every: bool = False) -> Arguments:
        """The fields of a class and of its bases, those of other tables left out.

        - every: also those that are no options
        """
        found: Arguments = {}
        for name, base in self.source.bases(place):
            if name in self.stops:
                self.bases.append(self.stops[name])
            elif base and isinstance(base.node, ast.ClassDef) and base.node is not place.node:
                found |= self.fields(base, every)
        assert isinstance(place.node, ast.ClassDef)
        for node in _statements(place.node.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                at = Place(place.path, (Binding(node),), place.node)
                if field := self._field(node, at, every):
                    found[node.target.id] = field
        return found

    def _field(self, node: ast.AnnAssign, at: Place, every: bool) -> Argument | None:
        """A field; None where it is no argument."""
        assert isinstance(node.target, ast.Name)
        if node.target.id.startswith("_") or "ClassVar" in ast.unparse(node.annotation):
            return None
        given = _keywords(node.value)
        meta = self._meta(node.annotation)
        if _is(given.get("init"), False) or (_is(meta.get("no_cli"), True) and not every):
            return None
        kind = self.values.kind(node.annotation, at)
        state = self.values.default(node.value, at)
        argument = _argument(state, kind)
        if "choices" in meta or "choices" in _metadata(given):
            argument |= self._choices(meta.get("choices") or _metadata(given)["choices"], at)
        aliases = meta.get("aliases") or given.get("aliases") or _metadata(given).get("aliases")
        if flags := [*self._texts(meta.get("cli_name"), at), *self._texts(aliases, at)]:
            argument["flags"] = [one for one in flags if one != _flag(node.target.id)]
        if "nargs" in meta:
            argument |= _form_of_count(self._plain(meta["nargs"], at))
        return argument

    def _meta(self, annotation: ast.expr) -> dict[str, ast.expr]:
        """The keywords of Arg(...) in an annotation."""
        for call in ast.walk(annotation):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in META:
                return _keywords(call)
        return {}

    def _texts(self, node: ast.expr | None, at: Place) -> list[str]:
        value = self._plain(node, at) if node else None
        return [value] if isinstance(value, str) else value if isinstance(value, list) else []

    def _plain(self, node: ast.expr, at: Place) -> Any:
        try:
            return self.values.value(node, at)
        except ComputedError:
            return None

    def _choices(self, node: ast.expr, at: Place) -> Argument:
        """The choices, where they can be computed: lists of plain values."""
        value = self._plain(node, at)
        choices = [one for one in value if one is not None] if isinstance(value, list) else []
        return {"choices": choices} if choices else {}

    def parameters(self, place: Place) -> Arguments:
        """The parameters of a function, without self."""
        node = place.node
        if isinstance(node, ast.ClassDef):
            init = self.source.attribute(place, "__init__")
            return self.parameters(init) if init else {}
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        plain = [*node.args.posonlyargs, *node.args.args]
        missing: list[ast.expr | None] = [None] * (len(plain) - len(node.args.defaults))
        given = [*zip(plain, [*missing, *node.args.defaults], strict=True)]
        given += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        at = Place(place.path)
        return {
            one.arg: _argument(self.values.default(value, at), self.values.kind(one.annotation, at))
            for one, value in given
            if one.arg not in ("self", "cls")
        }

    def constants(self, path: str, ending: str = "_DEFAULT") -> Arguments:
        """Constants of a file that are names of keys, each with the default of that name."""
        found: Arguments = {}
        for name in self.source.names(path):
            at = self.source.find(path, name)
            if at is None or not name.isupper() or name.endswith(ending):
                continue
            key = self._plain(ast.Name(name), Place(path))
            if isinstance(key, str) and key.replace("_", "").isalnum():
                default = self.source.find(path, name + ending)
                if default:
                    state = self.values.default(ast.Name(name + ending), Place(path))
                    found[key] = _argument(state, Kind(()))
        return found

    def parser(self, place: Place, known: Arguments, fields: Arguments) -> Arguments:
        """The options that a function adds to a parser.

        - known: those that were found before
        - fields: of the class whose arguments they are
        """
        assert isinstance(place.node, ast.FunctionDef | ast.AsyncFunctionDef)
        self.values.local = bound(place.node.body)
        classes = self._keyword_classes(place)
        changes = self._changes(place, classes)
        found: Arguments = dict(known)
        for call in _calls(place.node):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name in ADDS and isinstance(call.func, ast.Attribute):
                self._add(found, call, place, classes, changes, fields)
            elif name in WHOLE_CLASS and len(call.args) > 1:
                one = self.source.dotted(place.path, call.args[1], place.owner)
                if one and isinstance(one.node, ast.ClassDef):
                    found |= {k: written(v) for k, v in self.fields(one).items()}
        for loop in ast.walk(place.node):
            if isinstance(loop, ast.For) and (whole := _items_of(loop.iter)) in classes:
                kept = self._customized(classes[whole], place)
                rows = self.fields(classes[whole])
                changed = {**changes.get(whole, {}), **kept}
                found |= {k: _changed(written(v), changed.get(k, {})) for k, v in rows.items()}
        return found

    def _keyword_classes(self, place: Place) -> dict[str, Place]:
        """The classes whose keywords a function's variables hold."""
        classes = {}
        for node in ast.walk(place.node or ast.Pass()):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                call, target = node.value, node.targets[0]
                if getattr(call.func, "id", "") in CLASS_KEYWORDS and isinstance(target, ast.Name):
                    one = self.source.dotted(place.path, call.args[0], place.owner)
                    if one and isinstance(one.node, ast.ClassDef):
                        classes[target.id] = one
        return classes

    def _customized(self, of: Place, place: Place) -> dict[str, Argument]:
        """What the class's own methods change of its keywords."""
        changed: dict[str, Argument] = {}
        for one in list(self.source.lineage(of))[::-1]:
            assert isinstance(one.node, ast.ClassDef)
            for node in one.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == "_customize_cli_kwargs":
                    name = node.args.args[-1].arg
                    method = Place(one.path, (Binding(node),), one.node)
                    changed |= self._changes(method, {name: of}).get(name, {})
        return changed

    def _changes(
        self, place: Place, classes: Mapping[str, Place]
    ) -> dict[str, dict[str, Argument]]:
        """What a function sets or deletes in the keywords of a class, by variable and field."""
        changes: dict[str, dict[str, Argument]] = {}
        for node in ast.walk(place.node or ast.Pass()):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
            for target in targets:
                match target:
                    case ast.Subscript(
                        value=ast.Subscript(
                            value=ast.Name(id=name), slice=ast.Constant(value=str() as field)
                        ),
                        slice=ast.Constant(value=str() as key),
                    ) if name in classes:
                        value = node.value if isinstance(node, ast.Assign) else None
                        own = changes.setdefault(name, {}).setdefault(field, {})
                        own[key] = self._keyword(key, value, place)
        return changes

    def _keyword(self, key: str, value: ast.expr | None, place: Place) -> Argument | None:
        """What a keyword of add_argument says of an argument; None where it is deleted."""
        if value is None:
            return None
        if key == "default":
            if code(value) == SUPPRESS:
                return {"default": None}
            return self.values.default(value, Place(place.path, (), place.owner))
        if key == "type":
            return {"type": self._converter(value, place).text}
        if key == "choices":
            return self._choices(value, Place(place.path, (), place.owner))
        if key == "nargs":
            return _form_of_count(self._plain(value, place))
        if key == "action":
            return self._action(value)
        return {}

    def _action(self, value: ast.expr) -> Argument:
        """What an action says: a flag takes no value, append takes several times one."""
        name = str(getattr(value, "value", "")) if isinstance(value, ast.Constant) else code(value)
        last = name.rpartition(".")[2]
        if last in STORES or last == "BooleanOptionalAction" or "StoreTrue" in last:
            form = "off" if last == "store_false" else "flag"
            return {"form": form, "type": "bool"} | (
                {"default": last == "store_false"} if last in STORES else {}
            )
        if last == "StoreBoolean":
            return {"type": "bool"}
        if last in ("append", "extend"):
            return {"form": "repeated"}
        if last == "store_const" or "Const" in last:
            return {"form": "flag"}
        return {}

    def _converter(self, value: ast.expr, place: Place) -> Kind:
        """What values a `type=` takes."""
        name = code(value)
        if name in CONVERTERS:
            return Kind(CONVERTERS[name])
        if isinstance(value, ast.Call):
            inner = [self._converter(one, place) for one in value.args[:1]]
            optional = ("None",) if "optional" in name else ()
            return Kind((*(inner[0].words if inner else ("any",)), *optional))
        if isinstance(value, ast.Name) and value.id in ("int", "float", "str", "bool"):
            return Kind((value.id,))
        found = self.source.dotted(place.path, value, place.owner)
        if found and isinstance(found.node, ast.FunctionDef) and found.node.returns:
            return self.values.kind(found.node.returns, found)
        return Kind((name.rpartition(".")[2],)) if "lambda" not in name else Kind(("any",))

    def _add(
        self,
        found: Arguments,
        call: ast.Call,
        place: Place,
        classes: Mapping[str, Place],
        changes: Mapping[str, dict[str, Argument]],
        fields: Arguments,
    ) -> None:
        """Add the option of one call to those that were found."""
        at = Place(place.path, (), place.owner)
        flags = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
        given = {word.arg: word.value for word in call.keywords if word.arg}
        if not flags or not flags[0].startswith("-"):
            return
        flags = [part for flag in flags for part in flag.split("/")]  # click: --on/--off
        long = [one for one in flags if one.startswith("--")] or flags
        named = self._plain(given["dest"], at) if "dest" in given else None
        names = [_name(flag) for flag in flags]
        own = next((one for one in names if one in fields), _name(long[0]))
        dest = str(named or own)
        name = own if "const" in given and named else dest
        argument: Argument = {}
        for word in call.keywords:
            if word.arg is None:
                argument = self._spread(word.value, classes, changes, at)
        if not argument:
            own_field = fields.get(name, {})
            argument = {k: v for k, v in own_field.items() if k in DEFAULTS} or {"default": None}
            argument = {**argument, "type": "str"}
        match given.get("default"):
            case ast.Subscript(
                value=one, slice=ast.Constant(value="default")
            ):  # of another keyword
                state = self._spread(one, classes, changes, at)
                argument |= {k: v for k, v in state.items() if k in DEFAULTS}
                del given["default"]
        for key in ("action", "type", "default", "choices", "nargs"):
            if key in given and (said := self._keyword(key, given[key], at)) is not None:
                if key == "default":
                    argument = {k: v for k, v in argument.items() if k not in DEFAULTS}
                argument |= said
        if argument.get("form") == "switch" and "const" not in given and "**" not in code(call):
            del argument["form"]
        others = [one for one in flags if one != _flag(name)]
        if name in found and dest == name and name != own:  # another way to write it
            row = found[name]
            row["flags"] = list(dict.fromkeys([*row.get("flags", ()), *flags]))
            return
        field = found.get(name) or fields.get(name, {})
        if "computed" in argument and "default" in field:  # computed of the field
            del argument["computed"]
            argument["default"] = field["default"]
        found[name] = argument | ({"flags": others} if others else {})

    def _spread(
        self,
        node: ast.expr,
        classes: Mapping[str, Place],
        changes: Mapping[str, dict[str, Argument]],
        at: Place,
    ) -> Argument:
        """The argument of `**kwargs["name"]` or `**{**kwargs["name"], "default": None}`."""
        match node:
            case ast.Dict(keys=[None, *keys], values=[first, *values]):
                row = self._spread(first, classes, changes, at)
                for key, value in zip(keys, values, strict=True):
                    name = str(getattr(key, "value", ""))
                    row = _changed(row, {name: self._keyword(name, value, at)})
                return row
            case ast.Subscript(value=ast.Name(id=held), slice=ast.Constant(value=str() as field)):
                if held in classes:
                    row = self.fields(classes[held]).get(field, {})
                    return _changed(written(row), changes.get(held, {}).get(field, {}))
        return {}


DEFAULTS = ("default", "computed", "required")


def _argument(state: Mapping[str, Any], kind: Kind) -> Argument:
    """An argument of a default and what its annotation allows."""
    argument = {**state, "type": kind.text}
    if kind.choices:
        argument["choices"] = list(kind.choices)
    return argument


def written(row: Argument) -> Argument:
    """A field as the option of a parser that is made of a class."""
    words = set(str(row.get("type", "")).split(" | "))
    if "form" in row:
        return dict(row)
    if words == {"bool", "str", "None"}:
        return {**row, "form": "switch"}
    if "bool" in words:
        return {**row, "form": "flag"}
    return {**row, "form": "list"} if "list" in words else dict(row)


def switches(row: Argument) -> Argument:
    """A field as HfArgumentParser reads it: a bool may stand alone, a list has several words."""
    words = set(str(row.get("type", "")).split(" | "))
    if words - {"None"} == {"bool"}:
        return {**row, "form": "switch"}
    return {**row, "form": "list"} if "list" in words and "form" not in row else row


def _changed(row: Argument, changes: Mapping[str, Argument | None]) -> Argument:
    """An argument after its keywords were changed."""
    for key, said in changes.items():
        if said is None:
            row = {k: v for k, v in row.items() if k != ("form" if key == "nargs" else key)}
        else:
            row = {k: v for k, v in row.items() if key != "default" or k not in DEFAULTS} | said
    return row


def _form_of_count(count: Any) -> Argument:
    """How an option with `nargs` is written."""
    if count == "?":
        return {"form": "switch"}
    return {"form": "list"} if count in ("+", "*") or isinstance(count, int) else {}


def _name(flag: str) -> str:
    """The argument of an option."""
    return flag.lstrip("-").replace("-", "_")


def _flag(name: str) -> str:
    """The option of an argument."""
    return f"--{name.replace('_', '-')}"


def _keywords(node: ast.expr | None) -> dict[str, ast.expr]:
    calls = node.keywords if isinstance(node, ast.Call) else []
    return {word.arg: word.value for word in calls if word.arg}


def _metadata(given: Mapping[str, ast.expr]) -> dict[str, ast.expr]:
    """The entries of a field's metadata."""
    node = given.get("metadata")
    if not isinstance(node, ast.Dict):
        return {}
    pairs = zip(node.keys, node.values, strict=True)
    return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a class, also under `if`."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements([*node.body, *node.orelse])
        else:
            yield node


def _calls(node: ast.AST) -> list[ast.Call]:
    """The calls of a function in the order of the text."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return sorted(calls, key=lambda one: (one.lineno, one.col_offset))


def _items_of(node: ast.expr) -> str:
    """The variable in `variable.items()`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="items")):
            return name
    return ""

"""The options that functions add to parsers: argparse's, click's, and those made of classes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from copy import deepcopy

from .options import DEFAULTS, DEST, Argument, Arguments, Reader, flag_of, form_of_count, written
from .source import Binding, Place, bound
from .values import Kind, code

ADDS = {"add_argument", "option"}  # of argparse, of click
CLASS_KEYWORDS = {"get_kwargs"}  # of vLLM: the keywords of a class's fields, by name
WHOLE_CLASS = {"add_cli_args_from_dataclass"}  # of SGLang
GROUPS = {"ArgumentGroupFactory"}  # of Megatron-LM
SUPPRESS = "argparse.SUPPRESS"
# What functions convert to, where they do not say so.
CONVERTERS = {
    "json.loads": ("dict",),
    "nullable_str": ("str", "None"),
    "human_readable_int": ("int",),
    "json_list_type": ("list",),
}
STORES = {"store_true": True, "store_false": False}


class ParserReader:
    """Reads parsers of one release."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.source, self.values = reader, reader.source, reader.values

    def parser(self, place: Place, known: Arguments, fields: Arguments) -> Arguments:
        """The options that a function adds to a parser.

        - known: those that were found before
        - fields: of the class whose arguments they are
        """
        assert isinstance(place.node, ast.FunctionDef | ast.AsyncFunctionDef)
        place = place._replace(bindings=(Binding(unrolled(place.node)),))
        assert isinstance(place.node, ast.FunctionDef | ast.AsyncFunctionDef)
        self.values.local = bound(place.node.body)
        classes = self._keyword_classes(place)
        changes = self._changes(place, classes)
        found: Arguments = dict(known)
        for call in _calls(place.node):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name in ADDS and isinstance(call.func, ast.Attribute):
                self._add(found, call, place, classes, changes, fields)
            elif name in GROUPS and call.args:
                found |= self._group(call, place)
            elif name in WHOLE_CLASS and len(call.args) > 1:
                one = self.source.dotted(place.path, call.args[1], place.owner)
                if one and isinstance(one.node, ast.ClassDef):
                    found |= {k: written(v) for k, v in self.reader.fields(one).items()}
        for loop in ast.walk(place.node):
            if isinstance(loop, ast.For) and (whole := _items_of(loop.iter)) in classes:
                kept = self._customized(classes[whole], place)
                rows = self.reader.fields(classes[whole])
                changed = {**changes.get(whole, {}), **kept}
                found |= {k: _changed(written(v), changed.get(k, {})) for k, v in rows.items()}
        return found

    def _group(self, call: ast.Call, place: Place) -> Arguments:
        """The options of a class's fields: one that is on gets the forms that turn it off."""
        one = self.source.dotted(place.path, call.args[0]) or self._imported(call.args[0], place)
        if one is None or not isinstance(one.node, ast.ClassDef):
            return {}
        given = {word.arg: word.value for word in call.keywords}
        left_out = self.reader.plain(given["exclude"], place) if "exclude" in given else ()
        found: Arguments = {}
        for name, row in self.reader.fields(one).items():
            if name in (left_out or ()):
                continue
            dest, option = str(row.pop(DEST, name)), written(row)
            if option.get("form") == "flag" and row.get("default") is True:
                plain = name.replace("_", "-")
                flags = row.get("flags") or [f"--no-{plain}", f"--disable-{plain}"]
                option |= {"form": "off", "flags": flags}
            found[dest] = option
        return found

    def _imported(self, node: ast.expr, place: Place) -> Place | None:
        """Where a name is defined that the function itself imports."""
        name = getattr(node, "id", "")
        for binding in self.values.local.get(name, ()):
            if found := self.source.through(binding, name, place.path):
                return found
        return None

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
            return self.reader.choices(value, Place(place.path, (), place.owner))
        if key == "nargs":
            return form_of_count(self.reader.plain(value, place))
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
        named = self.reader.plain(given["dest"], at) if "dest" in given else None
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
                if not said.keys().isdisjoint(DEFAULTS):
                    argument = {k: v for k, v in argument.items() if k not in DEFAULTS}
                argument |= said
        if argument.get("form") == "switch" and "const" not in given and "**" not in code(call):
            del argument["form"]
        others = [one for one in flags if one not in (flag_of(name), f"--{name}")]
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
                    row = self.reader.fields(classes[held]).get(field, {})
                    return _changed(written(row), changes.get(held, {}).get(field, {}))
        return {}


class Unrolled(ast.NodeTransformer):
    """Loops over texts as their bodies, with the text in the place of the variable."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = texts or {}

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.AST]:
        """The bodies of a loop over texts; other loops stay."""
        match node:
            case ast.For(
                target=ast.Name(id=name), iter=ast.Tuple(elts=items) | ast.List(elts=items)
            ):
                texts = [one.value for one in items if isinstance(one, ast.Constant)]
                if len(texts) == len(items) and all(isinstance(one, str) for one in texts):
                    copies = (
                        Unrolled({**self._texts, name: str(text)}).visit(deepcopy(one))
                        for text in texts
                        for one in node.body
                    )
                    return [
                        one
                        for copy in copies
                        for one in (copy if isinstance(copy, list) else [copy])
                    ]
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The text of a loop's variable."""
        return ast.Constant(self._texts[node.id]) if node.id in self._texts else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """A text of parts that are known."""
        parts: list[str] = []
        for one in node.values:
            inner = self.visit(one.value) if isinstance(one, ast.FormattedValue) else one
            if not isinstance(inner, ast.Constant):
                return node
            parts.append(str(inner.value))
        return ast.Constant("".join(parts))


def unrolled(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    """A function without loops over texts."""
    found: ast.stmt = ast.fix_missing_locations(Unrolled().visit(deepcopy(node)))
    return found


def _changed(row: Argument, changes: Mapping[str, Argument | None]) -> Argument:
    """An argument after its keywords were changed."""
    for key, said in changes.items():
        if said is None:
            row = {k: v for k, v in row.items() if k != ("form" if key == "nargs" else key)}
        else:
            row = {k: v for k, v in row.items() if key != "default" or k not in DEFAULTS} | said
    return row


def _name(flag: str) -> str:
    """The argument of an option."""
    return flag.lstrip("-").replace("-", "_")


def _calls(node: ast.AST) -> list[ast.Call]:
    """The calls of a function in the order of the text."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return sorted(calls, key=lambda one: one.lineno)


def _items_of(node: ast.expr) -> str:
    """The variable in `variable.items()`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="items")):
            return name
    return ""

"""YAML as Helm reads and writes it: what is a number, what is text, no key twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

# What Go's library takes for a bool, an integer and a float (it has no dates and no base 60).
BOOLS = {
    **dict.fromkeys(("y", "yes", "on", "true"), True),
    **dict.fromkeys(("n", "no", "off", "false"), False),
}
BOOL = re.compile("(" + "|".join(f"{w}|{w.title()}|{w.upper()}" for w in BOOLS) + r")\Z")
INT = re.compile(r"[-+]?(0|0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*)\Z")
FLOAT = re.compile(
    r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
)
RESOLVED = {"bool": BOOL, "int": INT, "float": FLOAT}


def scalar_tags(base: type[Any]) -> dict[Any, list[tuple[str, Any]]]:
    """The implicit tags of PyYAML, with Go's bools, integers and floats in place of its own."""
    ours = [(f"tag:yaml.org,2002:{kind}", pattern) for kind, pattern in RESOLVED.items()]
    gone = {tag for tag, _ in ours} | {"tag:yaml.org,2002:timestamp"}
    kept = {
        first: [pair for pair in pairs if pair[0] not in gone]
        for first, pairs in base.yaml_implicit_resolvers.items()
    }
    return {**kept, None: [*kept.get(None, []), *ours]}


# The quick one where PyYAML was built with it.
_Base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(_Base):
    """Reads what Go reads, and refuses a key that is there twice."""

    yaml_implicit_resolvers = scalar_tags(_Base)


def _mapping(loader: Loader, node: yaml.MappingNode) -> Iterator[dict[Any, Any]]:
    made: dict[Any, Any] = {}
    yield made
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in made:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is there twice", key_node.start_mark
            )
        made[key] = loader.construct_object(value_node, deep=True)


def _int(loader: Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    octal = re.fullmatch(r"([-+]?)0([0-7]+)", text)
    return int(f"{octal[1]}0o{octal[2]}" if octal else text, 0)


def _bool(loader: Loader, node: yaml.ScalarNode) -> bool:
    return BOOLS[str(loader.construct_scalar(node)).lower()]


Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
Loader.add_constructor("tag:yaml.org,2002:int", _int)
Loader.add_constructor("tag:yaml.org,2002:bool", _bool)


class Dumper(yaml.SafeDumper):
    """Writes text in quotes wherever it would be read as something else."""

    yaml_implicit_resolvers = scalar_tags(yaml.SafeDumper)

    def ignore_aliases(self, data: object) -> bool:
        """No anchors: JSON, which Go goes through, has none."""
        return True


def plain_numbers(value: object) -> object:
    """Whole floats as integers, which is what JSON makes of them on the way to YAML."""
    if isinstance(value, dict):
        return {str(key): plain_numbers(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value


def to_yaml(value: object) -> str:
    """Helm's toYaml: keys in order, no line break at the end."""
    return (
        yaml.dump(
            plain_numbers(value),
            Dumper=Dumper,
            default_flow_style=False,
            allow_unicode=True,
            sort_keys=True,
            width=1_000_000,
        )
        .removesuffix("\n")
        .removesuffix("\n...")
    )


def load(text: str) -> Any:
    """One document."""
    return yaml.load(text, Loader=Loader)


def load_all(text: str) -> list[Any]:
    """Every document that is not empty."""
    return [one for one in yaml.load_all(text, Loader=Loader) if one is not None]


def as_values(value: Any) -> Any:
    """A file's values as a template sees them: every number is a float."""
    if isinstance(value, dict):
        return {str(key): as_values(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_values(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

"""Parses YAML with bounds on the number of values (aliases expanded) and on the depth."""

from __future__ import annotations

from typing import Any

MOST_VALUES = 50_000  # aliases count as what they stand for
DEEPEST = 100  # PyYAML recurses, and in C without a check


def parse_yaml(text: str) -> Any:
    """The data of a YAML text; raises ValueError where it exceeds a bound."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, about ten times as fast
    _check(yaml.parse(text, Loader=loader))
    return yaml.load(text, Loader=loader)


def _check(events: Any) -> None:
    """Count the values of a stream of parser events; raises ValueError at the first bound."""
    import yaml

    open_: list[tuple[str | None, int]] = []  # each open list or object: its anchor, and the total
    sizes: dict[str | None, int] = {}  # values that an anchor stands for
    total = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_):
                raise ValueError(f"*{event.anchor} is part of what it stands for; write it out")
            total += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.NodeEvent):
            total += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((event.anchor, total - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        if len(open_) > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        if total > MOST_VALUES:
            raise ValueError(
                f"it has more than {MOST_VALUES:,} values, aliases written out; "
                "give a smaller file, or JSON"
            )

"""How a call is written down: honoured, free, a limit, or not understood."""

from __future__ import annotations

from .record import HONOURED, LIMIT, UNCLEAR
from .rows import Row
from .values import Arguments, ScriptWorld

NOT_UNDERSTOOD = "not understood"


def account(world: ScriptWorld, arguments: Arguments, found: Row | None, what: str = "") -> None:
    """Write down a call by its row; without a row it is not understood."""
    text = what or arguments.text
    if found is None:
        world.seen(arguments.line, text, UNCLEAR, NOT_UNDERSTOOD, more=arguments.more)
    else:
        bounds = {"adds": found.adds, "saves": found.saves, "more": arguments.more}
        world.seen(arguments.line, text, found.effect, found.why, **bounds)


def honour(world: ScriptWorld, arguments: Arguments, why: str = "") -> None:
    """Write down a call that changes the run that is estimated."""
    world.seen(arguments.line, arguments.text, HONOURED, why, more=arguments.more)


def limit(
    world: ScriptWorld,
    arguments: Arguments,
    why: str,
    *,
    adds: bool | str = True,
    saves: bool | str = True,
) -> None:
    """Write down a call that is known and not modelled."""
    more = arguments.more
    world.seen(arguments.line, arguments.text, LIMIT, why, adds=adds, saves=saves, more=more)

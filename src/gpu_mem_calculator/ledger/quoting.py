"""Values in sentences, in the words of a run file instead of Python's."""

from __future__ import annotations

from .secrets import hidden, hide_command

MOST_QUOTED = 60  # characters of a value in a sentence


def quoted(value: object, most: int = MOST_QUOTED) -> str:
    """A value for a sentence, shortened, without secrets: a string in quotes, another value as in
    JSON.
    """
    if isinstance(value, str):
        value = hide_command(value)
        return repr(value if len(value) <= most else value[: most - 3] + "...")
    import json

    text = ""
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(hidden(value)):
            text += piece
            if len(text) > most:
                return text[: most - 3] + "..."
    except (TypeError, ValueError, RecursionError):  # a key or a depth that JSON does not have
        return text[: most - 3] + "..."
    return text

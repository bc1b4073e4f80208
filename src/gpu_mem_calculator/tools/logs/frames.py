"""Tracebacks: the frames of a Python stack, and what was raised below it."""

from __future__ import annotations

import re

from msgspec import Struct

from ...ledger.secrets import hide_forms, hide_long

MOST_FRAMES = 2_000  # of a text, the last ones: where it died is at the end
LONGEST = 1_000  # characters of a line of code
FRAME = re.compile(
    r'^.{0,500}?File "(?P<file>[^"\n]{1,500})", line (?P<number>\d+), in ?'
    r"(?P<name>[^\n]{0,300}?)[ \t]*\n"
    r"(?:(?P<code>(?!.{0,500}?File \")[^\n]*)\n)?",
    re.MULTILINE,
)
BOXED = re.compile(
    r"^[^\n/]{0,500}?(?P<file>/[^\s:]{1,500}\.py):(?P<number>\d+) in (?P<name>\w+)", re.MULTILINE
)
# A notebook's: a file (Colab's is a link) and a function, and below it the lines around the one of
# the arrow.
NOTEBOOK = re.compile(
    r"^(?:File )?\[?(?P<file>[~/<][^\n]{0,500}?\.py>?|<ipython[^>\n]*>|Cell[^\n]{0,300}?)"
    r"(?:\]\([^)\n]*\))?"
    r"(?::(?P<number>\d+),)? in "
    r"(?:\w+\.)*(?P<name>[\w<>]+)\([^\n]*\)\n"
    r"(?:(?!-+> ?\d)[^\n]*\n){0,8}?-+> ?(?P<arrow>\d+)(?P<code>[^\n]*)",
    re.MULTILINE,
)
ARROW = re.compile(r"^-+> ?\d", re.MULTILINE)
APART = 400  # characters between two frames of the same stack
PREFIX = re.compile(r"^(?:\[rank\d+\]:|\[default\d+\]:|\([^)]*pid=[^)]*\))\s*")


class Frame(Struct, frozen=True):
    """A frame of a stack: a file, a line, a function, and the code of that line where printed."""

    file: str
    number: int
    name: str
    code: str = ""

    @property
    def package(self) -> str:
        """The package's name for an installed file, such as `transformers`; else empty."""
        for folder in ("site-packages/", "dist-packages/"):
            _, found, rest = self.file.rpartition(folder)
            if found:
                return rest.partition("/")[0]
        return ""


class Traceback(Struct, frozen=True):
    """A stack, the outermost frame first, and the place in the text where it ends."""

    frames: tuple[Frame, ...]
    end: int


def tracebacks(text: str) -> tuple[Traceback, ...]:
    """The stacks of a text, in their order."""
    if not any(one in text for one in ('File "', ".py:", ".py in ", ".py](")):
        return ()
    form = FRAME if 'File "' in text else NOTEBOOK if ARROW.search(text) else BOXED
    stacks: list[Traceback] = []
    frames: list[Frame] = []
    end = 0
    for found in list(form.finditer(text))[-MOST_FRAMES:]:
        if frames and found.start() - end > APART:
            stacks.append(Traceback(tuple(frames), end))
            frames = []
        given = found.groupdict()
        code, name = given.get("code"), found["name"]
        number = int(given["number"] or given["arrow"])
        code = PREFIX.sub("", hide_long(code or "", LONGEST)).strip()
        frames.append(Frame(hide_forms(found["file"]), number, hide_forms(name), code))
        end = found.end()
    if frames:
        stacks.append(Traceback(tuple(frames), end))
    return tuple(stacks)

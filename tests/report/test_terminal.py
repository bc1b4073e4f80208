"""Colours and the progress bar of a terminal."""

from __future__ import annotations

import io
import re
import time

import pytest

from gpu_mem_calculator.report import parts, steps
from gpu_mem_calculator.report.lines import BAD, BOLD, DIM, GOOD, WARN, colour_text
from gpu_mem_calculator.report.progress_bar import ERASE_LINE, ProgressBar, columns, shorten
from gpu_mem_calculator.report.serving import parts as serving_parts
from gpu_mem_calculator.report.terminal import paint, takes_escapes, wants_colour

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        """Always."""
        return True


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(
    ("variables", "tty", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": ""}, False, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_who_gets_colours(
    variables: dict[str, str], tty: bool, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terminals do; NO_COLOR, then FORCE_COLOR, then TERM=dumb decide otherwise."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wants_colour(Screen() if tty else io.StringIO()) is colour


@pytest.mark.parametrize(("term", "moves"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_gets_no_bar(
    term: str, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would print the codes that move the cursor."""
    monkeypatch.setenv("TERM", term)
    assert takes_escapes(Screen()) is moves
    assert not takes_escapes(io.StringIO())


@pytest.mark.parametrize(
    ("style", "codes"), [("", ""), ("bold", "1"), ("bold green", "1;32"), ("dim", "2")]
)
def test_a_style_is_its_codes(style: str, codes: str) -> None:
    """Styles are SGR codes around the text, and off after it."""
    assert paint("x", style) == (f"\x1b[{codes}mx\x1b[0m" if codes else "x")
    assert paint("", style) == ""


def test_every_style_of_the_reports_has_a_code() -> None:
    """A style without one would end a report with a KeyError."""
    shades, figures = (row[2] for row in steps.SHADES), (row[3] for row in serving_parts.FIGURES)
    styles = {*parts.STYLES.values(), *shades, *figures, "cyan"}
    for style in (*styles, BAD, BOLD, DIM, GOOD, WARN):
        assert paint("x", style) != "x"


def test_markup_of_a_user_is_text() -> None:
    """A name with brackets is printed as it is, and its escape codes are not sent."""
    assert colour_text([[("[red]a[/red] \x1b[2J", "")]]) == "[red]a[/red] \\u001b[2J\n"
    bar = ProgressBar(Screen(), 1)
    bar.show("[bold]run[/bold]")
    assert bar.line().startswith("[bold]run[/bold] ")


@pytest.mark.parametrize(
    ("finished", "bar"),
    [(0, "━" * 40), (1, "━" * 5 + "╺" + "━" * 34), (3, "━" * 15 + "╺" + "━" * 24), (8, "━" * 40)],
)
def test_a_bar_is_as_long_as_its_share(finished: int, bar: str) -> None:
    """40 columns, then the count and the time."""
    line = ProgressBar(Screen(), 8)
    line.show("a steps", finished)
    assert COLOURS.sub("", line.line()) == f"a steps {bar} {finished}/8 0:00:00"


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "0:00:59"), (61, "0:01:01"), (3599, "0:59:59"), (7325, "2:02:05")]
)
def test_the_time_has_hours_minutes_and_seconds(
    monkeypatch: pytest.MonkeyPatch, seconds: int, text: str
) -> None:
    """Since the bar was made."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    line = ProgressBar(Screen(), 8)
    monkeypatch.setattr(time, "monotonic", lambda: float(seconds))
    assert COLOURS.sub("", line.line()).endswith(f" 0/8 {text}")


def test_half_a_column() -> None:
    """An odd number of half columns ends in half a dash."""
    line = ProgressBar(Screen(), 16)
    line.show("", 1)
    assert COLOURS.sub("", line.line()) == " ━━╸" + "━" * 37 + "  1/16 0:00:00"


def test_a_bar_without_colour_shows_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is blank where grey is not to be had."""
    monkeypatch.setenv("NO_COLOR", "1")
    line = ProgressBar(Screen(), 4)
    line.show("a", 1)
    assert line.line() == f"a {'━' * 10}{' ' * 30} 1/4 0:00:00"


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
@pytest.mark.parametrize("name", ["a", "long-name-" * 20, "模型" * 30])
def test_the_line_fits_the_terminal(width: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps could not be erased; wide characters count twice."""
    monkeypatch.setenv("COLUMNS", str(width))
    line = ProgressBar(Screen(), 4)
    line.show(name)
    assert columns(COLOURS.sub("", line.line())) < width


def test_a_text_is_shortened_by_columns() -> None:
    """An ellipsis stands for the end; a wide character is not halved."""
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("模型模型", 4) == "模…"
    assert shorten("abc", 0) == ""


def test_a_stream_without_unicode_gets_an_ascii_bar() -> None:
    """Dashes stand for the line."""
    screen = Screen()
    screen.encoding = "ascii"  # type: ignore[assignment]
    line = ProgressBar(screen, 4)
    line.show("a" * 90, 1)
    assert COLOURS.sub("", line.line()).isascii()


def test_the_bar_is_erased_and_lines_stay() -> None:
    """After the end, the printed lines are there and the cursor is shown."""
    screen = Screen()
    with ProgressBar(screen, 1) as bar:
        bar.show("a runs")
        bar.print_above("a 1 GiB")
    written = screen.getvalue()
    assert f"{ERASE_LINE}a 1 GiB\n{ERASE_LINE}a runs " in written
    assert written.endswith(f"{ERASE_LINE}\x1b[?25h")

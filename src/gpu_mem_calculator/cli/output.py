"""Writes a command's output to a terminal, a pipe or a file."""

from __future__ import annotations

import os
import sys

from ..runfile.text.errors import OutputError, print_to_stderr, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..report.lines import Line

# Replacements for streams whose encoding lacks a character.
ASCII = str.maketrans("█▓▒░│×·►–•", "#%+.|x->-o") | str.maketrans(
    {"✓": "ok:", "²": "^2", "ᵀ": "^T", "…": "..."}
)
NARROWEST = 40  # columns
# Options that name a file to write.
FILE_OPTIONS = (
    *("output", "record", "snapshot", "picture", "save_run", "share"),
    *("comment", "sarif", "junit", "code_quality"),
)


def show(lines: Sequence[Line], output: str | None = None) -> None:
    """Write formatted lines: plain to a file or a pipe, in colour to a terminal."""
    from ..report.lines import colour_text, plain
    from ..report.terminal import wants_colour

    if output is None and wants_colour(sys.stdout):
        write_stdout(colour_text(lines))
    else:
        write(plain(lines), output)


def show_answer(args: argparse.Namespace, data: Callable[[], Any], lines: Iterable[Line]) -> None:
    """Write an answer as --format asks: `lines` as a table, else `data` as JSON or YAML.

    What is not asked for is not made, if `lines` is a generator.
    """
    if args.format == "table":
        show(list(lines), args.output)
    else:
        from ..report.encode import answer, to_json, to_yaml

        write((to_yaml if args.format == "yaml" else to_json)(answer(data())), args.output)


def with_holders(args: argparse.Namespace, lines: Iterable[Line], pasted: str) -> list[Line]:
    """An answer with who holds what of its cards, where nvidia-smi said it, and the line to be
    pasted.
    """
    from ..report.lines import with_pasted, wrap_lines

    held = [part for one in getattr(args, "held", ()) for part in wrap_lines("", one)]
    return with_pasted([*lines, *held], pasted)


def screen_width(output: str | None = None) -> int:
    """Columns of the terminal from 40 to 80; 80 for a file or a pipe."""
    from ..report.lines import WIDTH

    if output is not None or not sys.stdout.isatty():
        return WIDTH
    from shutil import get_terminal_size

    return max(NARROWEST, min(WIDTH, get_terminal_size((WIDTH, 24)).columns))


def check_files(args: argparse.Namespace) -> None:
    """Raise a sentence, before any work, for a file of the options that cannot be written.

    Not under --ray, whose nodes write the files, and only in rank 0 of a launcher.
    """
    if getattr(args, "ray", None) is not None or os.environ.get("RANK", "0") != "0":
        return
    paths = {name: getattr(args, name, None) for name in FILE_OPTIONS}
    if not getattr(args, "function", None):
        paths.pop("record")  # without --function, the record is read
    for name, path in paths.items():
        if path:
            from ..runfile.text.files import check_writable

            check_writable(path, f"--{name.replace('_', '-')}")


def write(text: str, output: str | None = None, option: str = "--output") -> None:
    """Write a text to the file `output`, which `option` named, or to stdout.

    A terminal gets no control characters.
    """
    text = text if text.endswith("\n") else text + "\n"
    if output is not None:
        from ..runfile.text.files import write_file

        write_file(output, text.encode("utf-8"), option)
        print_to_stderr(f"wrote {output}", begins="")
    else:
        write_stdout(printable(text, kept="\n\t") if sys.stdout.isatty() else text)


def write_stdout(text: str) -> None:
    """Write to stdout in its encoding; a closed pipe is no error."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(ASCII).encode("ascii", "replace").decode("ascii")
    try:
        sys.stdout.write(text)
    except OSError as error:
        discard_stdout(error)
    flush_stdout()


def flush_stdout() -> None:
    """Write what stdout still has."""
    try:
        sys.stdout.flush()
    except OSError as error:
        discard_stdout(error)


def discard_stdout(error: OSError) -> None:
    """Send the rest of stdout nowhere, so that Python does not try again at its end.

    A reader that has left, such as `head`, is no error.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        raise OutputError(f"standard output cannot be written: {error.strerror}") from None


def write_problems(problems: Sequence[str], code: int = 2) -> None:
    """Write the sentences of an error to stdout as JSON, with the exit code."""
    from ..report.encode import answer, to_json

    write(to_json(answer({"error": {"exit_code": code, "problems": list(problems)}})))

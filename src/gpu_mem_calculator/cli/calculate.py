"""Estimate the GPU memory of a run: whether it fits, and its parts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..advice.one_change import pasted_line
from ..advice.training.answers import OTHER_TOOLS, TrainingAnswers, training_answers
from ..estimates.calculator import Estimate, full_estimate, with_other_cards
from .drawn_progress import drawn_progress
from .fit_check import check, save_run
from .output import screen_width, with_holders, write
from .screen import Screen

if TYPE_CHECKING:
    from ..advice.training.remedies import Remedy
    from ..estimates.serving.infer_command import InferCommand
    from ..report.lines import Line
    from ..report.remedy_lines import Commands
    from .shell_words import ShellWords


def run(args: argparse.Namespace) -> int:
    """Estimate the run of the options, and report it."""
    from .function import recorded_source, recorded_words
    from .shell_words import ShellWords

    if args.export:
        from .export import check_export

        check_export(args)
    with drawn_progress():
        estimate = with_other_cards(full_estimate(recorded_source(args)))
    name = args.config or args.preset or args.function or args.record
    words = recorded_words(args)
    shell = ShellWords(["calculate", *words], ["explain", *words])
    return show_estimate(args, estimate, shell, name)


def show_estimate(
    args: argparse.Namespace,
    estimate: Estimate,
    shell: ShellWords,
    name: str,
    notes: tuple[str, ...] = (),
) -> int:
    """Show an estimate in the format of the options.

    Returns the exit code: with --check, 1 where the run does not fit, 3 where that cannot be told.
    `name` is what the --check sentence calls the run.
    """
    save_run(args, estimate)
    if args.export:
        from .export import export_estimate

        return export_estimate(args, estimate, _sentence(estimate, name))
    if estimate.served:
        from .serving import serving_answer

        return serving_answer(args, estimate, _infer_command(args))
    if args.quiet:
        return check(args, estimate, _sentence(estimate, name))
    if args.format == "table":
        with Screen(args.output) as screen:
            commands_of = partial(shell.commands, estimate)
            lines, pasted = training_lines(args, estimate, commands_of, screen, notes)
            screen.finish(with_holders(args, lines, pasted))
    else:
        asides, answers = _recipe_notes(args, estimate), training_answers(estimate)
        commands = shell.commands(estimate, answers.remedies)
        write(_render(args.format, estimate, answers, commands, (*notes, *asides[:1])), args.output)
    return check(args, estimate, _sentence(estimate, name)) if args.check else 0


def _sentence(estimate: Estimate, name: str) -> str:
    """The verdict in one sentence."""
    if estimate.served:
        from ..report.serving.words import sentence as serving_sentence

        return serving_sentence(estimate)
    from ..report.headline import sentence

    return sentence(estimate, name)


def _infer_command(args: argparse.Namespace) -> InferCommand | None:
    """The `infer` command for the server of a run file; None where there is no file."""
    if not getattr(args, "config", None):
        return None
    from ..estimates.serving.infer_command import InferCommand

    keys = dict(setting.split("=", 1) for setting in args.settings)
    return InferCommand(["--config", args.config], keys)


def training_lines(
    args: argparse.Namespace,
    estimate: Estimate,
    commands_of: Callable[[Sequence[Remedy]], Commands],
    screen: Screen,
    notes: tuple[str, ...] = (),
) -> tuple[list[Line], str]:
    """The lines of an answer, and the line to be pasted. The screen shows what is known of them,
    until everything is.

    `commands_of` gives the commands of the run, and of the run with some remedies.
    """
    asides: tuple[str, ...] = ()

    def text(answers: TrainingAnswers) -> list[Line]:
        commands = commands_of(answers.remedies)
        return _training_text(args, estimate, answers, commands, notes, asides)

    def sketch(answers: TrainingAnswers) -> None:
        screen.sketch(lambda: text(answers), answers.sought, last=args.long)

    if _names_recipe(args):
        sketch(TrainingAnswers(sought=OTHER_TOOLS))
        asides = _recipe_notes(args, estimate)
    answers = training_answers(estimate, sketch)
    return text(answers), pasted_line(estimate, answers.remedies)


def _training_text(
    args: argparse.Namespace,
    estimate: Estimate,
    answers: TrainingAnswers,
    commands: Commands,
    notes: tuple[str, ...],
    asides: tuple[str, ...],
) -> list[Line]:
    """The short answer, or with --long the whole report; `asides` are shown in any case."""
    if args.long:
        from ..report.text import text_report

        said = estimate.result.warnings
        notes = (*notes, *(text for text in asides if text not in said))
        return list(text_report(estimate, answers, commands, notes))
    from ..report.answer import short_answer

    return short_answer(estimate, answers, commands, notes, screen_width(args.output), asides)


def _names_recipe(args: argparse.Namespace) -> bool:
    """Whether the options name a recipe of adapters."""
    return any(getattr(args, name, None) is not None for name in ("lora", "qlora", "recipe"))


def _recipe_notes(args: argparse.Namespace, estimate: Estimate) -> tuple[str, ...]:
    """Whose recipe the options name, and what other tools need; empty where they name none."""
    if not _names_recipe(args):
        return ()
    from ..report.recipe_words import recipe_notes

    return recipe_notes(estimate)


def _render(
    format_name: str,
    estimate: Estimate,
    answers: TrainingAnswers,
    commands: Commands,
    notes: tuple[str, ...],
) -> str:
    if format_name == "html":
        from ..report.html import html_report, remedies_section

        page: str = html_report(estimate, remedies_section(estimate, answers, commands))
        return page
    from ..report.data import training_data
    from ..report.encode import answer, to_json, to_yaml

    data = answer(training_data(estimate, answers, commands, notes))
    return to_json(data) if format_name == "json" else to_yaml(data)

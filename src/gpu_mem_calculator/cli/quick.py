"""Estimate a training run from a model's name or a size (7, 7B, 350M)."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from ..estimates.calculator import full_estimate, with_other_cards
from ..runfile.text.errors import InputError
from .calculate import show_estimate
from .shell_words import ShellWords
from .sizes import choose_mesh, choose_model
from .training_options import chosen_settings, option_words, settings_words

DEFAULTS = ("engine.type=pytorch", "hardware.num_gpus=1")


def run(args: argparse.Namespace) -> int:
    """Choose a model and, for Megatron, a mesh; estimate, and report the choices."""
    if bool(args.size) == bool(args.model):
        raise InputError(
            "quick needs one MODEL, such as llama3.1-8b or 7B; see gpu-mem-calc presets"
        )
    if args.export:
        from .export import check_export

        check_export(args)
    args.size = args.size or args.model
    choice = choose_model(args.size)
    chosen = chosen_settings(args, choice.data())
    choice = choice.with_settings(*DEFAULTS, *chosen.settings, *args.settings)
    choice = replace(choice, notes=(*choice.notes, *chosen.assumed))
    known = None
    if str(choice.data()["engine"]["type"]).lower().startswith("megatron"):
        choice, known = choose_mesh(choice, tuple(args.settings))
    estimate = with_other_cards(known or full_estimate(choice.data()))
    if args.explain:
        from .explain import show_explanation

        return show_explanation(args, estimate)
    words = ["quick", args.size, *option_words(args), *settings_words(args.settings)]
    shell = ShellWords(words, [*words, "--explain"], chooses=True)
    return show_estimate(args, estimate, shell, args.size, choice.notes)

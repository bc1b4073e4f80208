"""Commands of remedies: they keep every part of the remedy."""

from __future__ import annotations

from gpu_mem_calculator.advice.training.remedies import Remedy
from gpu_mem_calculator.cli.shell_words import ShellWords
from gpu_mem_calculator.estimates.calculator import full_estimate

RUN = {"model": {"name": "gpt2"}, "hardware": {"gpu": "t4"}}
OFFLOADED = ("training.recompute=full_offloaded", "training.activation_checkpointing=null")


def _command(words: tuple[str, ...], *settings: str) -> list[str]:
    remedy = Remedy(changes=(), settings=settings, cost="", saves_bytes=0)
    estimate = full_estimate(RUN, replay=False)
    (changed,) = ShellWords(words, (), chooses=True).commands(estimate, [remedy]).remedies
    return list(changed)


def test_a_policy_of_recompute_is_in_the_command() -> None:
    """By the option, which stands in place of one that is there."""
    words = ("gpt2", "--gpu", "t4", "--checkpointing", "none")
    assert _command(words, *OFFLOADED) == [*words[:-1], "full_offloaded"]
    assert _command(words[:3], *OFFLOADED) == [*words[:-1], "full_offloaded"]


def test_a_key_that_is_removed_removes_no_other() -> None:
    """Rules of recompute that no option takes are set beside the level, which is none."""
    rule = 'training.recompute={"recompute_granularity": "selective"}'
    command = _command(("gpt2",), rule, "training.activation_checkpointing=null")
    assert command == ["gpt2", "--set", rule]

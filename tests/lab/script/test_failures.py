"""A script that cannot be traced says why in one sentence, or shows its own traceback."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from .conftest import EXAMPLES, recorded, refused

SENTENCES = {
    "network": "the script asked for example.org, and a trace refuses the network",
    "no_step": "ended without an optimizer step; does it train with these arguments?",
    "not_installed": "failing.py needs no_such_package, which is not installed here",
    "exit_code": "ended with exit code 3",
    "unknown_model": "there is no config.json of nobody/has-this-model here",
    "unknown_dtype": "the dtype of the weights of openai-community/gpt2 is not known",
    "quantized": "quantized weights are not simulated in a script",
    "two_devices": "device_map over 0, 1 is not simulated",
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_one_sentence(kind: str) -> None:
    """What stood in the way, without a traceback."""
    failure = refused(f"python {{}}/failing.py {kind}")
    assert SENTENCES[kind] in failure.sentence
    assert "\n" not in failure.sentence
    assert failure.traceback == ""


def test_a_scripts_own_error_has_its_traceback() -> None:
    """The traceback begins at the script's first line, not in this package."""
    failure = refused("python {}/failing.py own_error")
    assert failure.sentence.endswith("failing.py failed with its own error")
    first = failure.traceback.splitlines()[1]
    assert str(EXAMPLES / "failing.py") in first
    assert "gpu_mem_calculator/script" not in failure.traceback.partition("own_error")[0]


def test_a_gpu_that_is_not_there() -> None:
    """What needs the driver is named with the script's line."""
    failure = refused("python {}/failing.py driver")
    assert "failing.py:" in failure.sentence
    assert "needs a real GPU" in failure.sentence


def test_a_script_that_ends_early_is_reported_with_a_note() -> None:
    """One step is better than none."""
    made = recorded("python {}/plain.py 1")
    assert made.steps == 1
    assert made.notes[0] == "The script ended after 1 of 2 optimizer steps."

"""The choices of `quick`: sequences and whole numbers."""

from __future__ import annotations

from gpu_mem_calculator.cli.sizes import choose_model, whole_number


def test_a_sequence_that_is_the_models_own_is_not_compared() -> None:
    """Llama 2 has 4,096 positions, which is the longest that is chosen; Llama 3.1 has more."""
    (own,) = (note for note in choose_model("llama2-7b").notes if "Sequence" in note)
    assert own.startswith("Sequence 4,096; ")
    (longer,) = (note for note in choose_model("llama3.1-8b").notes if "Sequence" in note)
    assert longer.startswith("Sequence 4,096, not the model's 131,072; ")


def test_a_whole_number_is_positive() -> None:
    """Anything else is the default."""
    assert [whole_number(value, 8) for value in (1, 0, -1, "4", None)] == [1, 8, 8, 8, 8]

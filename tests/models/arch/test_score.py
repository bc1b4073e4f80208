"""A model with a score in the place of its logits."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.models.arch.variants import SCORED, scored
from gpu_mem_calculator.models.families import FILES, read_config
from tests.conftest import SMALL_LLAMA


def test_the_score_takes_the_place_of_the_output_layer() -> None:
    """Whether that is tied or not."""
    plain, tied = (
        read_config({**SMALL_LLAMA, "tie_word_embeddings": value}) for value in (False, True)
    )
    hidden, vocab = plain.hidden, plain.vocab
    assert scored(plain).num_parameters == plain.num_parameters - hidden * vocab + hidden
    assert scored(plain).num_parameters == scored(tied).num_parameters


def test_the_families_have_a_sequence_classifier() -> None:
    """By transformers' own table; all are read here."""
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    read = {name for names in FILES.values() for name in names.split()} | {"plain"}
    assert read >= SCORED
    assert auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.keys() >= SCORED - {"plain"}

"""Weights as a program loads them."""

from __future__ import annotations

from types import SimpleNamespace

from gpu_mem_calculator.lab.jobs.program import _with_dtypes


def test_names_of_dtypes_become_dtypes() -> None:
    """Two arguments are dtypes; what is not given stays so, and so do the others."""
    given = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": None,
    }
    found = _with_dtypes(given, SimpleNamespace(bfloat16="torch.bfloat16", nf4="no dtype"))
    assert found == {**given, "bnb_4bit_compute_dtype": "torch.bfloat16"}

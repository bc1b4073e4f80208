"""DeepSpeedExamples' configurations: each is read, or every key that is not modelled is named."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.deepspeed.read import read
from tests.corpus import sampled
from tests.tools.corpora.score import rows

# A key that DeepSpeed does not have either.
UNKNOWN = "cuda_visible_devices is not a key"
CASES = sampled({row["source"]: row["data"] for row in rows("deepspeed")}, 10)


@pytest.mark.parametrize("data", CASES)
def test_a_public_configuration_is_read_or_refused_by_name(data: dict[str, Any]) -> None:
    """No key is unknown."""
    try:
        assert read(data, num_gpus=None)["engine"]["type"] == "deepspeed"
    except InputError as error:
        unknown = [one for one in error.problems if "is not a key" in one]
        assert [one for one in unknown if UNKNOWN not in one] == []


@pytest.mark.proof
def test_how_many_are_read() -> None:
    """The others have parts that DeepSpeed no longer has, or that are not modelled."""
    count = 0
    for row in rows("deepspeed"):
        try:
            read(row["data"], num_gpus=None)
        except InputError:
            continue
        count += 1
    assert count >= 15

"""--at: releases by name, a day, the newest ones."""

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.releases.named import Named, read_at
from gpu_mem_calculator.tools.releases.release import Release


def test_several_releases_may_stand_in_one_option_or_in_several() -> None:
    """Names are those of the package index or the framework's own, in any case."""
    expected = (Release("vllm", "0.14.1", "--at"), Release("transformers", "4.57", "--at"))
    assert read_at(["vLLM=v0.14.1, transformers=4.57"]).releases == expected
    assert read_at(["vllm=0.14.1", "Transformers=4.57"]).releases == expected


def test_a_month_means_its_last_day() -> None:
    """A day means that day."""
    assert read_at(["2024-02"]) == Named(day="2024-02-29")
    assert read_at(["2025-06-07"]).day == "2025-06-07"


def test_newest_wins_over_what_is_installed() -> None:
    """Beside the release of one tool."""
    found = read_at(["newest", "trl=0.24.0"])
    assert found.newest
    assert [one.package for one in found.releases] == ["trl"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("vlllm=0.14.1", "did you mean 'vllm'?"),
        ("numpy=2.0", "'numpy' is no tool that is known"),
        ("vllm=latest", "a release is a number such as 0.14.1"),
        ("0.14.1", "is none of TOOL=RELEASE, a month such as 2025-06, or newest"),
        ("2025-13", "there is no such day"),
        ("2025-02-30", "there is no such day"),
        ("vllm=0.14.1,vllm=0.15.0", "names two releases of vllm; give one"),
        ("2025-06,2025-07", "names two days; give one"),
        ("2025-06,newest", "names two days; give one"),
    ],
)
def test_what_is_no_release_is_a_sentence(given: str, sentence: str) -> None:
    """With the value, the rule and the nearest fix."""
    with pytest.raises(InputError) as raised:
        read_at([given])
    assert sentence in str(raised.value)

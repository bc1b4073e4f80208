"""What README and the page on limits call refused or not modelled is what the code does."""

from __future__ import annotations

import shlex

import pytest

from gpu_mem_calculator.cli.main import main
from tests.docs.test_documents import ROOT, script

MODEL = "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x"
ESTIMATED = (
    f"trl dpo {MODEL}",
    f"trl kto {MODEL}",
    f"trl reward {MODEL}",
    f"trl sft {MODEL} --use_peft --load_in_4bit",
)


def test_the_page_on_limits_is_up_to_date() -> None:
    """`python docs/limits.py` would change nothing, in the page and in README."""
    made = script("limits")
    assert made["page"]() == (ROOT / "docs" / "limits.md").read_text("utf-8")
    assert made["readme"]() == (ROOT / "README.md").read_text("utf-8")


def test_every_set_up_of_a_title_is_refused() -> None:
    """Not only the first, whose sentence is shown."""
    made = script("limits")
    for title, runs in made["REFUSED"].items():
        assert all(made["refusal"](title, one) for one in runs)
    with pytest.raises(AssertionError, match="it is estimated; take it out"):
        made["refusal"]("full training", made["run"]())


@pytest.mark.parametrize("command", ESTIMATED)
def test_what_is_estimated_is_not_called_not_modelled(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Preference training and a quantized base have an answer."""
    assert main(["check", "--gpu", "h100-sxm", *shlex.split(command)]) == 0
    capsys.readouterr()
    limitations = (ROOT / "README.md").read_text("utf-8").partition("## Limitations")[2]
    limitations = limitations.partition("## Documents")[0]
    for word in ("DPO", "KTO", "GRPO", "by hand count"):
        assert word not in limitations

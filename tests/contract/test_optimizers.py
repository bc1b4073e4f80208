"""Every optimizer is whole: its row, and what lies outside it. A message says what to add."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine, engine_names
from gpu_mem_calculator.training.optimizers import OPTIMIZERS
from tests.conftest import ROOT, small_run
from tests.contract.measured import measured_runs, values
from tests.docs.test_documents import script

ROWS = "src/gpu_mem_calculator/training/optimizers.py"
# What an optimizer that no measured run has was compared with: a file that names it.
EVIDENCE = {
    "adafactor_transformers": "tests/lab/trace/test_run.py",
    "adagrad": "tests/lab/trace/test_run.py",
    "rmsprop": "tests/lab/trace/test_run.py",
    "paged_adamw": "tests/training/step/test_optimizers.py",
}
# DeepSpeed steps 16-bit weights without ZeRO with its own Adam alone.
SHARDED = {"deepspeed": {"zero_stage": 1}, "megatron_deepspeed": {"zero_stage": 1}}
PAIRS = [(name, one) for name in OPTIMIZERS for one in engine_names()]


def test_titles_are_different() -> None:
    """Answers and plans name an optimizer by its title."""
    titles = [row.title for row in OPTIMIZERS.values()]
    assert "" not in titles
    assert len(set(titles)) == len(titles), f"{ROWS}: give each optimizer its own title"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_source_is_the_code_that_is_made(name: str) -> None:
    """Of the package whose class a job makes; two classes do not share one."""
    row = OPTIMIZERS[name]
    package = row.make.partition(".")[0].partition(":")[0]
    assert row.source.text.startswith(package), f"{ROWS}: cite {package}'s code for {name!r}"
    for other, one in OPTIMIZERS.items():
        shared = one.source == row.source and one.make.casefold() != row.make.casefold()
        like = {name, other} == {"adam", "adamw"}  # AdamW is Adam's code
        assert not shared or like, f"{ROWS}: {name!r} and {other!r} cite the same code"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_is_called_measured_was(name: str) -> None:
    """By a measured run, a program with its `optim`, or a test that steps it."""
    row = OPTIMIZERS[name]
    optims = {(run.get("program") or {}).get("args", {}).get("optim") for run in measured_runs()}
    seen = name in values("training", "optimizer") or bool(optims & set(row.optim))
    if row.measured and not seen:
        assert name in EVIDENCE, (
            f"{name!r} is in no measured run of tests/ground_truth or tests/new_runs: measure one "
            f"(gpu-mem-calc measure), or set measured=False in {ROWS}"
        )
        assert f'"{name}"' in (ROOT / EVIDENCE[name]).read_text(encoding="utf-8")
    assert row.measured or not seen, f"{ROWS}: {name!r} was measured; leave measured=False out"


@pytest.mark.parametrize(("name", "of"), PAIRS)
def test_an_engine_that_lacks_an_optimizer_says_so(name: str, of: str) -> None:
    """By its name; the others resolve it."""
    try:
        resolve(
            read(small_run(of, 1, training={"optimizer": name}, engine=SHARDED.get(of, {}))).file
        )
        sentence = ""
    except InputError as error:
        sentence = str(error)
    assert bool(sentence) != (name in engine(of).optimizers), sentence
    assert not sentence or name in sentence or OPTIMIZERS[name].title in sentence, sentence


def test_every_optimizer_is_documented() -> None:
    """`python docs/optimizers.py` would change nothing."""
    page = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
    assert script("optimizers")["page"]() == page, "run `python docs/optimizers.py`"

"""Every loss is whole: its row, and what lies outside it. A message says what to add."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gpu_mem_calculator
from gpu_mem_calculator import plan
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine, engine_names
from gpu_mem_calculator.training.losses import (
    DEFAULT,
    LOSSES,
    MEGATRON,
    TRANSFORMERS,
    losses_of,
    smaller_losses,
)
from tests.conftest import SMALL_LLAMA, small_run
from tests.contract.measured import values
from tests.corpus import sampled

ROOT, SOURCE = Path(__file__).parents[2], Path(gpu_mem_calculator.__file__).parent
ROWS = "src/gpu_mem_calculator/training/losses.py"
HEAD = "final norm, logits and loss"
# What a loss that was not measured was compared with: a file that names it.
EVIDENCE = {
    "full_upcast": "tests/runfile/resolve/test_loss_choices.py",  # it is full
    "te_fused": "tests/training/engines/test_megatron_options.py",  # published runs
    "flash_fused": "tests/lab/trace/test_losses.py",
    "flash_fused_inplace": "tests/lab/trace/test_losses.py",
    "flash_fused_no_upcast": "tests/lab/trace/test_losses.py",
    "reward": "tests/lab/trace/test_losses.py",  # and TRL's RewardTrainer in programs_drawn.jsonl
}
SEARCHED = {"deepspeed": {"engine.zero_stage": 1, "engine.offload_optimizer": "none"}}  # faster
PAIRS = [(name, one) for name in LOSSES for one in engine_names()]


def has(loss: str, name: str) -> bool:
    """Whether an engine has a loss."""
    return loss in losses_of(engine(name))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_has_a_title(loss: str) -> None:
    """Of its own: answers and plans name it. The framework's own loss is not named."""
    own, titles = LOSSES[loss].title, [row.title for row in LOSSES.values()]
    assert bool(own) != (DEFAULT in (loss, LOSSES[loss].same_as)), f"{ROWS}: title of {loss!r}"
    assert titles.count(own) <= (1 if own else 2), f"{ROWS}: give {loss!r} its own title"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_has_a_kernel_and_its_source(loss: str) -> None:
    """Two losses share a source only where one function computes both."""
    assert LOSSES[loss].kernels, (
        f"{ROWS}: give {loss!r} a kernel; transformers' are functions of "
        "pytorch/modelling/huggingface/losses.py and fused_losses.py, Megatron's of "
        "pytorch/modelling/megatron/losses.py"
    )
    for other, row in LOSSES.items():
        for one in LOSSES[loss].kernels.values():
            for two in row.kernels.values():
                same = _function(one.walk) is _function(two.walk)
                assert same or one.source != two.source, (
                    f"the kernel of {loss!r} has the source of {other!r}; cite its own at @kernel"
                )


def _function(walk: Any) -> Any:
    return walk.func if isinstance(walk, partial) else walk


@pytest.mark.parametrize(("loss", "name"), [one for one in PAIRS if has(*one)])
def test_the_ledger_cites_the_loss(loss: str, name: str) -> None:
    """What the head keeps and needs is explained by the loss's own source."""
    found = resolve(read(small_run(name, training={"loss": loss})).file)
    code = TRANSFORMERS if found.engine.transformers else MEGATRON
    if not found.engine.loss_kernels:
        return  # its own head, which cites itself
    wanted = LOSSES[found.run.loss].kernels[code].source
    cited = {one.source for one in found.engine.ledger(found.run).entries if HEAD in one.name}
    assert cited == {wanted}, f"{name} explains the head of {loss!r} with {cited}, not {wanted}"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_has_a_time(loss: str) -> None:
    """Its matmuls; and of Megatron's, which are not read off a tape, the traffic."""
    row = LOSSES[loss]
    assert row.logit_passes >= 1, f"{ROWS}: logit_passes of {loss!r} counts passes, at least one"
    if MEGATRON in row.kernels:
        assert row.logit_bytes, f"{ROWS}: give {loss!r} logit_bytes, for Megatron's step time"


@pytest.mark.parametrize(("loss", "name"), sampled(PAIRS, keep=30))
def test_estimate_and_plan_agree(loss: str, name: str) -> None:
    """An engine that does not have a loss refuses it by its name, and so does `plan`."""
    asked = dict.fromkeys(("estimate", "plan"), "")
    fix = {"training.loss": loss, "training.batch_size": 2, **SEARCHED.get(name, {})}
    try:
        resolve(read(small_run(name, 1, training={"loss": loss})).file)
    except InputError as error:
        asked["estimate"] = str(error)
    model = {"config": SMALL_LLAMA}
    try:
        plan(model, gpus=1, gpu="h100", seq_len=512, global_batch=2, engine=name, fix=fix, top=1)
    except InputError as error:
        asked["plan"] = str(error)
    assert bool(asked["estimate"]) == bool(asked["plan"]) != has(loss, name), asked
    if not has(loss, name):
        for who, sentence in asked.items():
            assert f"training.loss='{loss}'" in sentence, f"{who}: {sentence}"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_was_compared(loss: str) -> None:
    """With a measurement, a trace, or a published run."""
    if loss in values("training", "loss", DEFAULT):
        return
    assert loss in EVIDENCE, (
        f"{loss!r} is in no measured run of tests/ground_truth or tests/new_runs: measure one "
        "(gpu-mem-calc measure), or trace it in tests/lab/trace/test_losses.py and say so here, in "
        "EVIDENCE"
    )
    text = (ROOT / EVIDENCE[loss]).read_text(encoding="utf-8")
    assert f'"{loss}"' in text, f"{EVIDENCE[loss]} has no case of {loss!r}"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_documented(loss: str) -> None:
    """In the guide to losses."""
    text = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
    assert f"`{loss}`" in text, f"docs/losses.md does not say what {loss!r} is: add a row"


@pytest.mark.parametrize("loss", LOSSES)
def test_the_functions_of_a_loss_exist(loss: str) -> None:
    """Of jobs and of traces, which are named, because importing them may need torch."""
    row = LOSSES[loss]
    for name, file in ((row.job, "lab/jobs/losses.py"), (row.stand_in, "lab/trace/stand_ins.py")):
        missing = f"{file} has no {name!r}, which {loss!r} of {ROWS} names"
        assert not name or name in _names(SOURCE / file), missing
    outside = TRANSFORMERS in row.kernels and not row.needs_kernel
    assert row.job or row.no_job or not outside or DEFAULT in (loss, row.same_as), (
        f"{ROWS}: {loss!r} has no job, so nothing measures it; add a function to "
        "lab/jobs/losses.py, or say why there is none (no_job)"
    )
    assert row.package or loss not in smaller_losses(), f"{ROWS}: which package has {loss!r}?"
    assert not row.package or row.package in (SOURCE / "lab/jobs/tables.toml").read_text(), (
        f"lab/jobs/tables.toml: [losses.packages] has no {row.package!r}, which {loss!r} needs"
    )


def _names(path: Path) -> set[str]:
    """The functions and values at the top of a module."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found

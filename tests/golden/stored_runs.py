"""Many runs in a text file, one a line: its settings, then its figures.

A model is a preset's name, or a case of tests/models/families/cases.json as `model.case=NAME`.
Other
keys are without their section.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_mem_calculator.runfile.config import (
    EngineConfig,
    GPUConfig,
    InferenceConfig,
    LoraConfig,
    ParallelismConfig,
    TrainingConfig,
)
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.models.families.test_shapes import CASES

BETWEEN = " | "
HERE = Path(__file__).parent
SERVING: dict[str, type[Struct]] = {"hardware": GPUConfig, "inference": InferenceConfig}
TRAINING: dict[str, type[Struct]] = {
    "hardware": GPUConfig,
    "training": TrainingConfig,
    "training.lora": LoraConfig,
    "parallelism": ParallelismConfig,
    "engine": EngineConfig,
}
SHOWN = 60  # letters of a refusal; a digest is of all of it
os.environ["HF_HUB_OFFLINE"] = "1"  # as in tests/conftest.py, for the writer
Figures = Callable[[dict[str, Any]], str]


def run_file(settings: str) -> dict[str, Any]:
    """The run file of settings such as `engine=vllm model.name=gpt2 gpu=t4`."""
    sections = SERVING if settings.startswith("engine=") else TRAINING
    run = with_settings({}, (_with_section(one, sections) for one in settings.split(" ")))
    case = run["model"].pop("case", None)
    if case is not None:
        run["model"]["config"] = CASES[case]
    return run


def drawn_runs(number: int) -> list[dict[str, Any]]:
    """Random ones of the stored set-ups, of training and of servers."""
    files = [*sorted(HERE.glob("training/*.txt")), *sorted(HERE.glob("servers/*.txt"))]
    lines = [line for path in files for line in path.read_text("utf-8").splitlines()]
    settings = [line.split(BETWEEN)[0] for line in lines if not line.startswith("#")]
    return [run_file(one) for one in random.Random(3).sample(settings, number)]


def _with_section(setting: str, sections: dict[str, type[Struct]]) -> str:
    key = setting.partition("=")[0]
    if key.startswith("model."):
        return setting
    section = next(name for name, kinds in sections.items() if key in kinds.__struct_fields__)
    return f"{section}.{setting}"


def figures_or_sentences(settings: str, figures: Figures) -> str:
    """The figures of a run, or how the sentences begin that refuse it."""
    try:
        return figures(run_file(settings))
    except InputError as error:
        text = "; ".join(error.problems)
        return f"refused {digest(text)}: {text[:SHOWN].strip()}"
    except Exception as error:
        error.add_note(settings)
        raise


def digest(values: object) -> str:
    """Six letters that differ where any of the values differs."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:6]


def rounded(value: float | None) -> str:
    """A number with six digits: the same on every machine."""
    return "-" if value is None else f"{value:.6g}"


def stored_lines(path: Path) -> list[str]:
    """The lines of a file, without its title."""
    return path.read_text(encoding="utf-8").splitlines()[1:]


def stored_settings(path: Path) -> list[str]:
    """The settings of each run of a file."""
    return [line.partition(BETWEEN)[0] for line in stored_lines(path)]


def check(path: Path, part: int, parts: int, figures: Figures) -> None:
    """Fail at the first run whose figures are not the stored ones, of every `parts`-th run."""
    for line in stored_lines(path)[part::parts]:
        settings, _, stored = line.partition(BETWEEN)
        assert figures_or_sentences(settings, figures) == stored, settings


def write(path: Path, title: str, runs: Iterable[str], figures: Figures) -> None:
    """Write runs with their figures."""
    lines = (f"{run}{BETWEEN}{figures_or_sentences(run, figures)}" for run in runs)
    text = "\n".join((f"# settings{BETWEEN}{title}", *lines))
    path.write_text(text + "\n", encoding="utf-8")

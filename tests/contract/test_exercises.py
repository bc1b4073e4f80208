"""What CONTRIBUTING names is all that a new thing takes, and no part of it is forgotten in silence.

Each exercise adds something to a copy of the repository. Its tests pass; with any one part left out
one of them fails, and its message names the file where the part belongs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import Struct

from tests.conftest import ROOT

REFERENCE = "tests/docs/test_documents.py"
PACKAGE = "src/gpu_mem_calculator"
COPIED = ("src", "tests", "docs", "configs", "README.md", "CONTRIBUTING.md", "pyproject.toml")


class Part(Struct, frozen=True):
    """An edit of one file: `text` before or after the line that begins with `at`, else at the end.

    named: what a failing test says where the part is left out; "" where nothing is left without it.
    """

    file: str
    text: str
    at: str = ""
    named: str = ""


class Exercise(Struct, frozen=True):
    """Something to add: its parts under src, those outside, and the tests that must pass.

    scripts: run after the edits, for documents that are generated; command: an answer with it,
    which `says` something.
    """

    parts: tuple[Part, ...]
    outside: tuple[Part, ...] = ()
    tests: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    says: str = ""

    @property
    def files(self) -> set[str]:
        """The files under src that are touched."""
        return {part.file for part in self.parts}


FAMILY = {"model_type": "kelp", "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96}
FAMILY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300}
WEIGHTS = {
    "model.embed_tokens.weight": [300, 64],
    "model.layers.0.self_attn.q_proj.weight": [64, 64],
    "model.layers.0.self_attn.k_proj.weight": [32, 64],
    "model.layers.0.self_attn.v_proj.weight": [32, 64],
    "model.layers.0.self_attn.o_proj.weight": [64, 64],
    "model.layers.0.mlp.up_proj.weight": [96, 64],
    "model.layers.0.mlp.down_proj.weight": [64, 96],
    "model.layers.0.input_layernorm.weight": [64],
    "model.layers.0.post_attention_layernorm.weight": [64],
    "model.norm.weight": [64],
    "lm_head.weight": [300, 64],
}
BUFFERS = {f"model.rotary_emb.{one}inv_freq": [[8], 32] for one in ("", "original_")}
CARD = """[[gpu]]
name = "kelp-90"
title = "NVIDIA Kelp 90"
vendor = "nvidia"
kind = "datacenter"
architecture = "hopper"
compute_capability = "9.0"
multiprocessors = 132
memory_gb = 90
memory_bytes = 95563022336
memory_bytes_known = true
memory_bytes_reading = "process"
memory_bytes_source = "a log"
bandwidth_gb_per_s = 3938
tflops = { fp32 = 60.0, tf32 = 417.5, bf16 = 835.5, fp16 = 835.5, fp8 = 1670.5, int8 = 1670.5 }
link = "nvlink4-bridge"
source = "a data sheet"
checked = "2026-11"
"""
READER = '''"""Reads Kelp's command: `kelp MODEL`."""

from __future__ import annotations

from ..reading.command import Command
from ..reading.reading import Reading


def read_command(command: Command) -> Reading:
    """The run that a command starts."""
    run = {"model": {"name": command.words[1]}, "training": {"batch_size": 1}}
    return Reading(tool="Kelp", version="1.0", run=run)
'''
RUN = {"model": {"config": FAMILY}, "hardware": {"gpu": "h100"}}
COMMAND = ("-m", "gpu_mem_calculator")
EXERCISES = {
    "gpu": Exercise(
        parts=(Part(f"{PACKAGE}/catalog/gpus.toml", CARD),),
        tests=("tests/catalog/test_cards.py", "tests/catalog/test_catalog.py"),
        command=(*COMMAND, "quick", "1B", "--gpu", "kelp 90"),
        says="Kelp 90",
    ),
    "family": Exercise(
        parts=(
            Part(
                f"{PACKAGE}/models/families/llama.py",
                '        "kelp": LlamaLike(2560, 18432, 32, 32, None, 32000, 4096, **RELU2),\n',
                at='        "arcee":',
            ),
            Part(
                f"{PACKAGE}/models/families/__init__.py",
                '        "kelp "\n',
                at='        "hunyuan_v1_dense',
                named="models/families/__init__.py",
            ),
            Part(
                f"{PACKAGE}/pytorch/modelling/huggingface/quirks.py",
                '    "kelp "\n',
                at='    "apertus arcee',
                named="quirks.py",
            ),
            Part(
                f"{PACKAGE}/models/arch/variants.py",
                '    "kelp "\n',
                at='    "apertus arcee',
                named="variants.py",
            ),
        ),
        outside=(
            Part(
                "tests/models/families/cases.json",
                f'"kelp": {json.dumps(FAMILY)},',
                at="{",
                named="tests/models/families/cases.json",
            ),
            Part(
                "tests/models/families/shapes.json",
                f'"kelp": {json.dumps({"parameters": WEIGHTS, "buffers": BUFFERS})},',
                at="{",
                named="kelp",
            ),
        ),
        tests=(
            "tests/contract/test_families.py",
            "tests/contract/test_family_shapes.py",
            "tests/models/families/test_shapes.py",
            "tests/architecture/test_tables_of_files.py",
        ),
        command=("-c", f"from gpu_mem_calculator import estimate; print(estimate({RUN}))"),
        says="fits",
    ),
    "optimizer": Exercise(
        parts=(
            Part(
                f"{PACKAGE}/training/optimizers.py",
                '    "kelp": Optimizer(\n        title="Kelp",\n'
                '        source=code("torch 2.13 optim/kelp.py:1"),\n'
                '        make="torch.optim:SGD",\n        measured=False,\n        states=1,\n'
                "        implementations=(FORLOOP,),\n        default=FORLOOP,\n    ),\n",
                at='    "muon": Optimizer(',
            ),
            Part(
                f"{PACKAGE}/timing/curves/optimizers.py",
                '    ("kelp", "forloop"): MOMENTUM,\n',
                at='    ("muon",',
                named="timing/curves/optimizers.py",
            ),
        ),
        tests=("tests/contract/test_optimizers.py", "tests/timing/training/test_optimizers.py"),
        scripts=("docs/optimizers.py",),
        command=(*COMMAND, "quick", "1B", "--optimizer", "kelp"),
        says="Kelp",
    ),
    "loss": Exercise(
        parts=(
            Part(
                f"{PACKAGE}/training/losses.py",
                '    "kelp": Loss(\n        title="Kelp\'s loss",\n'
                "        kernels={TRANSFORMERS: losses.kelp},\n        logit_passes=1,\n"
                "        evaluates=False,\n        planned=False,\n"
                '        no_job="its package is not public",\n    ),\n',
                at='    "reward": Loss(',
            ),
            Part(
                f"{PACKAGE}/pytorch/modelling/huggingface/losses.py",
                '@kernel("kelp 1.0 loss.py:1")\n'
                "def kelp(tape: Tape, setting: BlockSetting, logits: Value, out: Value) -> Value:\n"
                '    """One kernel that saves the logits (kelp 1.0 loss.py:1)."""\n'
                '    loss = tape.op("loss", logits, elements=1, bits=32, saves=(logits,))\n'
                "    tape.hold(logits, out)\n    return loss\n\n\n",
                at="def compiled(",
                named="kelp",
            ),
        ),
        outside=(
            Part(
                "docs/losses.md",
                "| `kelp` | 2 | 4 | an exercise |\n",
                "| `cut` |",
                "docs/losses.md",
            ),
            Part(
                "tests/contract/test_losses.py",
                '    "kelp": "tests/contract/test_losses.py",\n',
                at='    "reward":',
                named="EVIDENCE",
            ),
        ),
        tests=("tests/contract/test_losses.py",),
        command=(*COMMAND, "quick", "1B", "--set", "training.loss=kelp"),
        says="Kelp's loss",
    ),
    "key": Exercise(
        parts=(
            Part(
                f"{PACKAGE}/runfile/config.py",
                "    second_copy: Flag | None = None\n",
                at="    zero_grad:",
                named="runfile/config.py",
            ),
            Part(
                f"{PACKAGE}/run/run.py",
                "    second_copy: bool = False\n",
                at="    zero_grad:",
                named="run/run.py",
            ),
            Part(
                f"{PACKAGE}/runfile/keys/keys.toml",
                '[training.second_copy]\nlevel = "expert"\nlabel = "second copy"\n'
                'meaning = "Whether the weights are there twice."\nprobe = true\n\n',
                at="[training.saving]",
                named="keys.toml",
            ),
            Part(
                f"{PACKAGE}/training/engines/pytorch_ddp/states.py",
                "    if run.second_copy:\n        one = _base_entry(run, precision, instants)\n"
                '        yield replace(one, name="second copy")\n',
                at="    if run.arch.tower:",
                named="changes no estimate",
            ),
        ),
        tests=("tests/contract/test_keys.py", f"{REFERENCE}::test_the_key_reference_is_up_to_date"),
        scripts=("docs/reference.py",),
        command=(*COMMAND, "quick", "1B", "--set", "training.second_copy=true"),
    ),
}
EXERCISES["tool"] = Exercise(
    parts=(
        Part(f"{PACKAGE}/tools/kelp/__init__.py", '"""Kelp, an exercise."""\n', named="kelp"),
        Part(
            f"{PACKAGE}/tools/kelp/tool.toml",
            '[read]\ntitle = "Kelp"\nversion = "1.0"\nprograms = ["kelp"]\n',
        ),
        Part(f"{PACKAGE}/tools/kelp/read.py", READER, named="kelp"),
    ),
    tests=("tests/tools/test_rows.py",),
    command=(*COMMAND, "check", "--gpu", "h100", "kelp", "gpt2"),
    says="read as Kelp 1.0",
)
MOST_FILES = {"gpu": 1, "family": 4, "optimizer": 2, "loss": 2, "key": 4}  # under src
FORGOTTEN = [
    (name, index)
    for name, one in EXERCISES.items()
    for index, part in enumerate((*one.parts, *one.outside))
    if part.named
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository without what Git ignores."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def edit(folder: Path, part: Part) -> None:
    """Make a part's change; a file that is not there is new."""
    path = folder / part.file
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(part.text, encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    if not part.at:
        path.write_text(text.rstrip("\n") + "\n\n" + part.text, encoding="utf-8")
        return
    start = 0 if text.startswith(part.at) else text.index("\n" + part.at) + 1
    after = start + len(part.at) if part.at == "{" else start
    path.write_text(text[:after] + part.text + text[after:], encoding="utf-8")


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy's package."""
    env = {key: value for key, value in os.environ.items() if key != "LINES_REACHED"}
    env |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def failures(folder: Path, one: Exercise) -> str:
    """What the tests of an exercise print; "" where they pass."""
    for script in one.scripts:
        python(folder, script)  # a document that cannot be made is not up to date, and a test fails
    whole = "--continue-on-collection-errors"
    chosen = ("-m", "not reference and not proof", "-p", "no:cacheprovider", "-p", "no:xdist")
    ran = python(folder, "-m", "pytest", "-q", whole, *chosen, *one.tests)
    return ran.stdout + ran.stderr if ran.returncode else ""


@pytest.mark.proof
@pytest.mark.parametrize("name", EXERCISES)
def test_what_contributing_names_is_enough(name: str, copy: Path) -> None:
    """With every part the tests pass, and a command answers with it."""
    one = EXERCISES[name]
    for part in (*one.parts, *one.outside):
        edit(copy, part)
    printed = failures(copy, one)
    assert not printed, printed[-3000:]
    answer = python(copy, *one.command)
    assert answer.returncode == 0, answer.stderr
    assert one.says in answer.stdout


@pytest.mark.proof
@pytest.mark.parametrize(("name", "left_out"), FORGOTTEN)
def test_a_part_that_is_forgotten_is_named(name: str, left_out: int, copy: Path) -> None:
    """By the message of a failing test."""
    one = EXERCISES[name]
    every = (*one.parts, *one.outside)
    for index, part in enumerate(every):
        if index != left_out:
            edit(copy, part)
    assert every[left_out].named in failures(copy, one)


def test_a_tool_is_one_folder() -> None:
    """Its parts are in no other."""
    assert {str(Path(one).parent) for one in EXERCISES["tool"].files} == {f"{PACKAGE}/tools/kelp"}


@pytest.mark.parametrize(
    ("name", "most"), [("gpu", 1), ("family", 2), ("optimizer", 2), ("loss", 2), ("key", 4)]
)
def test_contributing_names_every_file(name: str, most: int) -> None:
    """Its row has each file, and there are few."""
    one, text = EXERCISES[name], (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    start = {"gpu": "| a GPU |", "key": "| a key of a run file |"}.get(name, f"| a {name} |")
    row = next(line for line in text.splitlines() if line.startswith((start, f"| an {name} |")))
    assert len(one.files) <= MOST_FILES[name]
    for file in {part.file for part in (*one.parts, *one.outside)} | set(one.scripts):
        assert file.removeprefix(f"{PACKAGE}/") in row, (
            f"CONTRIBUTING.md: {start} does not name {file}"
        )

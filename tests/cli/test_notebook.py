"""%%gpu_mem_check in IPython: a cell is read, not run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.tools.script.cell import cell_text, needed

CARD = "%%gpu_mem_check --gpu h100-80gb-sxm"
SERVE = "!vllm serve Qwen/Qwen2.5-7B --max-model-len 8192"
IMPORTS = "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments"
TRAIN = """
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True, max_steps=2)
trainer = Trainer(model=model, args=args, train_dataset=[])
trainer.train()"""


@pytest.fixture
def shell() -> Iterator[Any]:
    """A notebook's IPython with the extension."""
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(history_load_length=0)
    made.history_manager.enabled = False
    made.run_cell("%load_ext gpu_mem_calculator")
    yield made
    InteractiveShell.clear_instance()


def ran(shell: Any, *lines: str) -> Any:
    """What a cell returns; it raised nothing."""
    done = shell.run_cell("\n".join(lines), store_history=True)
    assert done.success
    return done.result


def test_a_command_is_checked_and_not_started(shell: Any) -> None:
    """With the notebook's values in it; pip beside it is passed over."""
    shell.run_cell("name, length = 'Qwen/Qwen2.5-7B', 8192")
    words = "!vllm serve {name} \\\n    --max-model-len $length"
    found = ran(shell, CARD, "!pip install vllm", words)
    assert found.result.verdict == "fits"
    assert found.result.run["model"]["name"] == "Qwen/Qwen2.5-7B"
    assert found.result.serving.max_seq_len == 8192
    assert repr(found) == verdict_line(found.result)
    assert "fits" in found._repr_html_()
    assert "read as vllm serve" in found._repr_html_()


def test_a_script_is_read_with_what_earlier_cells_make(shell: Any) -> None:
    """The names that it uses, and no more; the cell's variables do not exist afterwards."""
    history = [
        f"{IMPORTS}\nname = 'Qwen/Qwen2.5-0.5B'",
        "model = AutoModelForCausalLM.from_pretrained(name)",
    ]
    shell.user_ns["In"] += [*history, "other = AutoModelForCausalLM.from_pretrained('gpt2')"]
    found = ran(shell, f"{CARD} --set program.data.seq_len=512", TRAIN)
    assert found.result.run["model"]["name"] == "Qwen/Qwen2.5-0.5B"
    assert found.result.verdict == "fits"
    assert any("earlier cells make" in one and "model" in one for one in found.result.assumed)
    assert not any("pasted.py" in one for one in found.result.assumed)
    assert "trainer" not in shell.user_ns


def test_the_cell_runs_where_it_fits_and_is_asked_to(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not where it does not fit, or where nobody knows."""
    cell = f"made = 1\nif not made:\n    {SERVE}"
    ran(shell, f"{CARD} --run", cell)
    assert shell.user_ns["made"] == 1
    ran(shell, "%%gpu_mem_check --gpu-mem 12 --run", cell.replace("made", "other"))
    assert "other" not in shell.user_ns
    assert "not run, because it is not known to fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "cell", "words"),
    [
        (CARD, "x = 1", "the cell trains and serves nothing that is known"),
        (CARD, "print(1)", "estimate_memory(model, batch, optimizer)"),
        (CARD, "!pip install x", "the cell starts no tool that is known"),
        (f"{CARD} --gpuz 2", SERVE, "--gpuz is not an option of %%gpu_mem_check"),
        ("%%gpu_mem_check --gpu nope", SERVE, "'nope' is not a known card"),
        (f"{CARD} 'x", SERVE, "no closing quotation"),
    ],
)
def test_bad_input_is_one_line(
    shell: Any, capsys: pytest.CaptureFixture[str], line: str, cell: str, words: str
) -> None:
    """No traceback."""
    assert not shell.run_cell(f"{line}\n{cell}").success
    printed = capsys.readouterr()
    assert words in printed.err + printed.out
    assert "Traceback" not in printed.err + printed.out


def test_bad_input_to_a_function_is_one_line_too(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook prints the sentence, without the code that it comes from."""
    shell.run_cell("from gpu_mem_calculator import estimate")
    assert not shell.run_cell(
        "estimate({'model': {'name': 'gpt2'}, 'training': {'batch': 0}})"
    ).success
    printed = "".join(capsys.readouterr())
    assert printed.strip().startswith("InputError: training.batch")
    assert printed.count("\n") <= 2


def test_help_is_printed(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With the options of check, and examples."""
    ran(shell, "%%gpu_mem_check --help", "x")
    assert "--node-ram" in (text := capsys.readouterr().out)
    assert "%%gpu_mem_check --gpu 4090 --run" in text


def test_ipython_is_asked_for_by_nobody_else() -> None:
    """Neither the package nor its answers import it."""
    code = (
        "import sys, gpu_mem_calculator as g; "
        "g.estimate({'model': {'name': 'gpt2'}})._repr_html_(); "
        "print({'IPython', 'pandas', 'numpy', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_cell_has_python_commands_and_magics() -> None:
    """Lines of Python keep their numbers; a magic that could matter is named."""
    lines = ["%pip install trl", "%env CUDA_VISIBLE_DEVICES=0", "%cd /data", "x = f()", "if x:"]
    found = cell_text("\n".join([*lines, "    !ls {x} \\", "  -l", "y = 2"]), {"x": "a b"})
    assert found.python.split("\n") == ["pass"] * 3 + ["x = f()", "if x:", "    pass", "", "y = 2"]
    assert found.shell == "export CUDA_VISIBLE_DEVICES=0\nls a b \\\n  -l"
    assert found.unread == ("%cd /data",)
    bash = cell_text("%%bash\nvllm serve x", {})
    assert (bash.python, bash.shell, bash.unread) == ("", "vllm serve x", ())
    timed = cell_text("%%time\nx = 1", {})
    assert (timed.python, timed.unread) == ("\nx = 1", ())
    assert cell_text("%%writefile a.py\nx = 1", {}).unread == ("%%writefile a.py",)


def test_statements_are_taken_by_the_names_that_they_make() -> None:
    """Also what they need themselves, and what is done to an object."""
    earlier = [
        "import torch\nfrom peft import LoraConfig, get_peft_model\nr = 8",
        "print(r)\nmodel = make()\nmodel.config.use_cache = False\nmodel.train()\nunused = 3",
        "model = get_peft_model(model, LoraConfig(r=r))\ntrainer = 1\n!!",
        "broken (",
    ]
    found, used = needed("model.run()", [*earlier[:2], earlier[2][:-3], earlier[3]])
    assert found == [
        "from peft import LoraConfig, get_peft_model",
        "r = 8",
        "model = make()",
        "model.config.use_cache = False",
        "model.train()",
        "model = get_peft_model(model, LoraConfig(r=r))",
    ]
    assert used == ["LoraConfig", "get_peft_model", "model", "r"]
    assert needed("import model\nmodel.run()", earlier) == ([], [])

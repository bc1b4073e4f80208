"""Commands that start a script."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gpu_mem_calculator.lab.script.launch import read_launch
from gpu_mem_calculator.runfile.text.errors import InputError

from .conftest import EXAMPLES

FILE = str(EXAMPLES / "plain.py")


@pytest.mark.parametrize(
    ("words", "target", "arguments", "ranks", "nodes"),
    [
        (f"python {FILE} --lr 1 -- x", FILE, ("--lr", "1", "--", "x"), 1, 1),
        (f"python3.11 -u -X dev {FILE}", FILE, (), 1, 1),
        (f"{FILE} a", FILE, ("a",), 1, 1),
        ("python -m pkg.train --a", "pkg.train", ("--a",), 1, 1),
        (f"torchrun --nproc-per-node=4 {FILE} a", FILE, ("a",), 4, 1),
        (f"torchrun --nnodes 2 --nproc_per_node 8 {FILE}", FILE, (), 16, 2),
        (f"python -m torch.distributed.run --standalone --nproc-per-node 2 {FILE}", FILE, (), 2, 1),
        ("torchrun --nproc-per-node=2 -m pkg.train b", "pkg.train", ("b",), 2, 1),
        (f"accelerate launch --num_processes 2 --multi_gpu {FILE} c", FILE, ("c",), 2, 1),
    ],
)
def test_a_command(
    words: str, target: str, arguments: tuple[str, ...], ranks: int, nodes: int
) -> None:
    """Script, arguments and ranks, by the launcher's own parser."""
    launch = read_launch(words.split())
    assert (launch.target, launch.arguments) == (target, arguments)
    assert (launch.ranks, launch.nodes) == (ranks, nodes)
    assert launch.module == (target == "pkg.train")
    if ranks > 1:
        assert launch.environment["WORLD_SIZE"] == str(ranks)


def test_what_a_launcher_and_the_user_set() -> None:
    """torchrun sets the ranks also where there is one; accelerate its precision; the user wins."""
    assert read_launch(["torchrun", FILE]).environment["LOCAL_RANK"] == "0"
    assert read_launch(["python", FILE]).environment == {}
    words = ["accelerate", "launch", "--mixed_precision", "bf16", FILE]
    assert read_launch(words).environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert read_launch(["A=1", "python", FILE]).environment == {"A": "1"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("A=1", "there is no script after --"),
        ("bash run.sh", "'bash' does not start a script in a way that is known"),
        ("python nothing.py", "nothing.py is no file in"),
        ("python -c print(1)", "python -c has no script"),
        ("python", "python needs a script"),
        (f"torchrun --nproc-per-node=gpu {FILE}", "--nproc-per-node gpu depends on the machine"),
        (f"torchrun --no-such-option {FILE}", "torchrun: "),
        (f"accelerate launch --use_deepspeed {FILE}", "--use_deepspeed is not simulated"),
    ],
)
def test_a_command_that_is_refused(words: str, sentence: str) -> None:
    """One sentence."""
    with pytest.raises(InputError) as error:
        read_launch(words.split())
    assert sentence in str(error.value)

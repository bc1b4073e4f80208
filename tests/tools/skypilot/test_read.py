"""SkyPilot's tasks: the cards of their resources, the commands of their run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.catalog.cards import meant
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.reading.reading import Reading
from tests.tools.reading_of import readings_of

TASK = """
name: serve
resources: {%s}
envs: {MODEL: Qwen/Qwen3-8B, TOKEN: null}
setup: |
  pip install vllm
  cat > run.yaml <<EOF
  max-model-len: 2048
  EOF
run: |
  vllm serve $MODEL --config run.yaml --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE
"""


def readings(resources: str, *options: str, folder: Path | None = None) -> list[Reading]:
    """What a task means, as a file or pasted."""
    text = TASK % resources
    if folder is None:
        return readings_of(text)
    (folder / "task.yaml").write_text(text, encoding="utf-8")
    words = ["sky", "launch", "-c", "x", "task.yaml", *options] if options else ["task.yaml"]
    return readings_of(words, folder)


def found(reading: Reading) -> tuple[list[str], int]:
    """Its cards, and the number of its GPUs."""
    name = reading.run["hardware"].get("gpu")
    return [row["name"] for row in meant(name)] if name else [], reading.run["hardware"]["num_gpus"]


@pytest.mark.parametrize(
    ("resources", "cards", "count"),
    [
        ("accelerators: L4", ["l4"], 1),
        ("accelerators: 'L4:4'", ["l4"], 4),
        ("accelerators: {A100: 8}", ["a100-40gb-pcie", "a100-40gb-sxm"], 8),
        ("accelerators: ['L4:2', 'L40S:2']", ["l4", "l40s"], 2),
        ("accelerators: {'L4:2', 'L40S:2'}", ["l4", "l40s"], 2),
        ("any_of: [{accelerators: 'L4:2'}, {accelerators: 'T4:2'}]", ["t4", "l4"], 2),
        ("instance_type: g5.12xlarge", ["a10g"], 4),
        ("accelerators: 'X9000:2'", [], 2),
        ("cpus: 8, accelerators: 'V100:1'", ["v100-16gb-sxm", "v100-16gb-pcie"], 1),
    ],
)
def test_the_card_and_the_gpus(resources: str, cards: list[str], count: int) -> None:
    """In each form of `accelerators`, or by the machine type."""
    (one,) = readings(resources)
    assert found(one) == (cards, count)
    assert one.run["inference"]["tensor_parallel_size"] == count
    assert one.run["inference"]["max_seq_len"] == 2048
    assert one.run["model"]["name"] == "Qwen/Qwen3-8B"


def test_choices_with_other_numbers_of_gpus_are_answered_one_by_one() -> None:
    """The command of each choice has the GPUs of that choice."""
    several = readings("accelerators: {'L4:4', 'L40S:2', 'A10G:4'}")
    assert [found(one) for one in several] == [(["l4", "a10g"], 4), (["l40s"], 2)]
    assert several[1].name.startswith("accelerators=L40S:2: vllm serve")
    assert not several[0].slots


def test_options_of_sky_launch_win(tmp_path: Path) -> None:
    """GPUs, machine type, variables."""
    (one,) = readings("accelerators: L4", "--gpus", "L40S:2", folder=tmp_path)
    assert found(one) == (["l40s"], 2)
    options = ("-t", "g5.12xlarge", "--env", "MODEL=Qwen/Qwen3-4B")
    (one,) = readings("accelerators: L4", *options, folder=tmp_path)
    assert found(one) == (["a10g"], 4)
    assert one.run["model"]["name"] == "Qwen/Qwen3-4B"
    (one,) = readings("accelerators: L4", folder=tmp_path)
    assert found(one) == (["l4"], 1)


def test_nodes_of_a_training_job() -> None:
    """torchrun's numbers come from the variables that SkyPilot sets."""
    text = """
resources: {accelerators: {H100: 8}}
num_nodes: 2
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc-per-node=$SKYPILOT_NUM_GPUS_PER_NODE \
    pretrain_gpt.py --num-layers 32
"""
    (one,) = readings_of(text)
    assert one.run["hardware"]["num_gpus"] == 16
    assert one.run["hardware"]["gpu"] == "H100"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("resources: [a]\nrun: vllm serve x\nsetup: y", "resources=.* must be an object"),
        ("resources: {}\nnum_nodes: x\nrun: vllm serve x", "num_nodes='x' must be a whole number"),
        ("resources: {accelerators: 'L4:x'}\nrun: vllm serve x", "'x' must be a number of GPUs"),
        ("resources: {accelerators: 4}\nrun: vllm serve x", "must be as in A100:8"),
        ("resources: {}\nenvs: [a]\nrun: vllm serve x", "envs=.* must be names and values"),
    ],
)
def test_a_wrong_value_gets_a_sentence(text: str, sentence: str) -> None:
    """The value and the rule."""
    with pytest.raises(InputError, match=sentence):
        readings_of(text)


def test_sky_without_a_task(tmp_path: Path) -> None:
    """No file, or a file that is no task."""
    (tmp_path / "a.yaml").write_text("a: 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="sky names no file of a task"):
        readings_of(["sky", "launch", "-y"], tmp_path)
    with pytest.raises(InputError, match=r"a\.yaml is no task of SkyPilot"):
        readings_of(["sky", "jobs", "launch", "a.yaml"], tmp_path)

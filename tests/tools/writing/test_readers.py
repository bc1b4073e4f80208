"""What is written is read by the readers of the same tools: the same run, in the tool's own text.

Whatever a file cannot say is in `unsaid`, so the run that is read differs from the run that was
written in exactly these keys.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.writing.unsaid import unsaid_sentences
from gpu_mem_calculator.tools.writing.writers import WRITERS, write_run
from gpu_mem_calculator.tools.writing.written import Written
from tests.tools.reading_of import readings_of

from .runs import Data, resolved, written

MODEL = {"name": "llama3.2-1b"}
TRAINING = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 3),
        "gradient_accumulation_steps": st.integers(1, 3),
        "seq_len": st.sampled_from([256, 1024]),
        "precision": st.sampled_from(["bf16_mixed", "fp32"]),
    },
    optional={
        "activation_checkpointing": st.just("full"),
        "optimizer": st.sampled_from(["adamw", "adamw_8bit", "paged_adamw_8bit"]),
        "optimizer_implementation": st.just("fused"),
        "gradient_clipping": st.sampled_from([0.0, 0.5]),
        "liger": st.just(True),
        "lora": st.fixed_dictionaries({"r": st.integers(1, 8)}, optional={"dropout": st.just(0.1)}),
    },
)
ENGINE = st.sampled_from(
    [
        {"type": "pytorch_ddp"},
        {"type": "fsdp"},
        {"type": "fsdp", "sharding_strategy": "shard_grad_op"},
        {"type": "fsdp", "fsdp_version": 1, "use_orig_params": True},
        {"type": "deepspeed", "zero_stage": 2},
        {"type": "deepspeed", "zero_stage": 2, "reduce_bucket_size": 5_000_000},
        {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"},
    ]
)


def read_text(made: Written, command: str) -> Reading:
    """The reading of a command whose file, and those beside it, were just written."""
    with TemporaryDirectory() as folder:
        for name, text in {made.filename: made.text, **made.beside}.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        (reading,) = readings_of(shlex.split(command), Path(folder))
    assert reading.problems == []
    return reading


# What a tool does besides: Axolotl keeps the embedding in fp32 with torch's attention.
LIMITS = {"axolotl": {"attn_implementation"}}


@pytest.mark.parametrize("name", ["trl", "llamafactory", "axolotl"])
@settings(max_examples=25)
@given(training=TRAINING, engine=ENGINE, gpus=st.sampled_from([1, 8]))
def test_files_that_name_their_model(name: str, training: Data, engine: Data, gpus: int) -> None:
    """The command that is printed, with the file that was written, is the run."""
    data = {"model": MODEL, "training": training, "engine": engine, "hardware": {"num_gpus": gpus}}
    try:
        file, run = resolved(data)
        made = write_run(name, file, run)
    except InputError:
        assume(False)
    reading = read_text(made, made.start)
    limits = {one.key.partition("=")[0] for one in reading.limits}
    assert limits <= LIMITS.get(name, set())
    assert unsaid_sentences(WRITERS[name].title, file, run, reading.run) == made.unsaid


@settings(max_examples=25)
@given(training=TRAINING, engine=ENGINE, gpus=st.sampled_from([1, 8]))
def test_arguments_of_a_script(training: Data, engine: Data, gpus: int) -> None:
    """TrainingArguments read back, beside what the script itself does with the model."""
    data = {"model": MODEL, "training": training, "engine": engine, "hardware": {"num_gpus": gpus}}
    try:
        file, run = resolved(data)
        made = write_run("transformers", file, run)
    except InputError:
        assume(False)
    command = made.start.replace("train.py ", "train.py --config ")
    sections = read_text(made, f"{command} --model_name_or_path {MODEL['name']}").run
    program = sections["program"]
    program |= {"data": {"seq_len": training["seq_len"]}, "load": load(training)}
    if "lora" in training:
        lora = training["lora"]
        program["peft"] = {"r": lora["r"], "lora_dropout": lora.get("dropout", 0.0)}
    said = unsaid_sentences("transformers", file, run, sections)
    assert without_device(said) == without_device(made.unsaid)


def load(training: Data) -> Data:
    """from_pretrained as the comments of the file have it."""
    return {"dtype": "float32", "attn_implementation": training.get("attention", "sdpa")}


def without_device(sentences: tuple[str, ...]) -> list[str]:
    """Without the device on which the script loads the model."""
    keys = ("engine.init_device", "training.from_pretrained")
    return [one for one in sentences if not one.startswith(keys)]


@pytest.mark.parametrize("engine", [{"type": "fsdp"}, {"type": "deepspeed", "zero_stage": 2}])
def test_accelerate_in_front_of_arguments(engine: Data) -> None:
    """Accelerate's file, and the same arguments as options of the script."""
    data: Any = {"model": MODEL, "engine": engine, "hardware": {"num_gpus": 8}}
    data["training"] = {"batch_size": 2, "gradient_accumulation_steps": 4, "seq_len": 1024}
    made = written("accelerate", data)
    options = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 true"
    reading = read_text(made, f"{made.start} {options} --optim adamw_torch --dtype float32")
    file, run = resolved(data)
    assert reading.run["hardware"]["num_gpus"] == 8
    said = unsaid_sentences("Accelerate", file, run, reading.run)
    assert set(made.unsaid) <= set(said)
    assert all(one.startswith(("training.autocast", "engine.")) for one in said), said


@settings(max_examples=20)
@given(
    mesh=st.fixed_dictionaries(
        {
            "tensor_parallel_size": st.sampled_from([1, 2, 4]),
            "pipeline_parallel_size": st.sampled_from([1, 2]),
            "sequence_parallel": st.booleans(),
        }
    ),
    recompute=st.sampled_from(["none", "selective", "full"]),
    distributed=st.booleans(),
)
def test_a_script_of_megatron(mesh: Data, recompute: str, distributed: bool) -> None:
    """The script reads back without a difference, and its batch is that of a whole step."""
    training = {"batch_size": 1, "gradient_accumulation_steps": 8, "seq_len": 512}
    data = {
        "model": MODEL,
        "training": {**training, "activation_checkpointing": recompute},
        "parallelism": mesh,
        "engine": {"type": "megatron_lm", "distributed_optimizer": distributed},
        "hardware": {"num_gpus": 8},
    }
    try:
        file, run = resolved(data)
    except InputError:
        assume(False)
    made = write_run("megatron", file, run)
    assert made.unsaid == ()
    size = 8 * int(run.run.mesh.dp)
    assert f"--global-batch-size {size} " in made.text.replace("\\\n", " ")

"""Run file -> format -> run file is the identity on what the format can say.

Runs are drawn in the words of the format's own tool, so that the format can say all of them; they
become run files without those words, which are written and read again.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.runfile.text.text_data import parse_text
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.tools.writing.unsaid import unsaid_sentences

from .runs import LLAMA, Data, plain, resolved, run_file, written

ARGS = st.fixed_dictionaries(
    {"per_device_train_batch_size": st.integers(1, 4)},
    optional={
        "gradient_accumulation_steps": st.integers(1, 4),
        "optim": st.sampled_from(
            ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adamw_bnb_8bit", "lion_32bit"]
        ),
        "max_grad_norm": st.sampled_from([0.0, 0.5, 1.0]),
        "gradient_checkpointing": st.booleans(),
        "use_liger_kernel": st.booleans(),
        "label_smoothing_factor": st.sampled_from([0.0, 0.1]),
        "torch_compile": st.booleans(),
    },
)
PRECISION = st.sampled_from(
    [
        ("float32", {}),
        ("float32", {"bf16": True}),
        ("float32", {"fp16": True}),
        ("bfloat16", {}),
        ("bfloat16", {"bf16": True}),
    ]
)
PEFT = st.none() | st.fixed_dictionaries(
    {"r": st.integers(1, 8)},
    optional={
        "target_modules": st.sampled_from(["all-linear", ["q_proj", "v_proj"]]),
        "lora_dropout": st.sampled_from([0.0, 0.1]),
        "use_dora": st.booleans(),
    },
)
ZERO = st.fixed_dictionaries(
    {"stage": st.integers(0, 3)},
    optional={
        "overlap_comm": st.booleans(),
        "reduce_bucket_size": st.sampled_from([50_000, 500_000_000]),
        "stage3_prefetch_bucket_size": st.sampled_from([1_000, 50_000_000]),
        "offload_optimizer": st.just({"device": "cpu", "pin_memory": True}),
    },
)
FSDP = st.fixed_dictionaries(
    {"version": st.just(2)},
    optional={"reshard_after_forward": st.booleans(), "cpu_offload": st.booleans()},
)
LAUNCH = st.just({}) | st.fixed_dictionaries(
    {"deepspeed": st.fixed_dictionaries({"zero_optimization": ZERO})}
)
SHARDED = st.fixed_dictionaries({"fsdp_config": FSDP})


def same_run(one: Data, other: Data) -> None:
    """Two run files mean the same run."""
    assert resolve(read(one).file).run == resolve(read(other).file).run


@given(
    args=ARGS,
    precision=PRECISION,
    peft=PEFT,
    launch=LAUNCH | SHARDED,
    attention=st.sampled_from(["eager", "sdpa"]),
    gpus=st.sampled_from([1, 4]),
)
def test_a_program_of_trainer(
    args: Data,
    precision: tuple[str, Data],
    peft: Data | None,
    launch: Data,
    attention: str,
    gpus: int,
) -> None:
    """Whatever TrainingArguments, LoraConfig and the launch say is written without a difference."""
    dtype, mixed = precision
    program: Data = {
        "tool": "transformers.Trainer",
        "args": {**args, **mixed},
        "load": {"dtype": dtype, "attn_implementation": attention},
        "data": {"seq_len": 32},
        **launch,
    } | ({"peft": peft} if peft else {})
    data = {"model": {"config": LLAMA}, "program": program, "hardware": {"num_gpus": gpus}}
    try:
        file, run = resolved(plain(data))
    except InputError:
        assume(False)
    made = written("transformers", plain(data))
    assert made.unsaid == ()
    assert unsaid_sentences("transformers", file, run, {"program": program}) == ()


@given(
    args=ARGS.map(lambda one: {k: v for k, v in one.items() if k != "label_smoothing_factor"}),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    peft=PEFT,
    bits=st.sampled_from([None, "load_in_4bit", "load_in_8bit"]),
    launch=LAUNCH,
    gpus=st.sampled_from([1, 4]),
)
def test_a_program_of_trl(
    args: Data, dtype: str, peft: Data | None, bits: str | None, launch: Data, gpus: int
) -> None:
    """Whatever `trl sft` reads from its file."""
    program: Data = {
        "tool": "trl.SFTTrainer",
        "args": {**args, "max_length": 64, "model_init_kwargs": {"dtype": dtype}},
        **launch,
    }
    if peft and bits:
        nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": dtype}
        program["quantization"] = {bits: True, **(nf4 if bits == "load_in_4bit" else {})}
    if peft:
        program["peft"] = peft
    data = {"model": {"config": LLAMA}, "program": program, "hardware": {"num_gpus": gpus}}
    try:
        resolved(plain(data))
    except InputError:
        assume(False)
    assert written("trl", plain(data)).unsaid == ()


@given(
    training=st.fixed_dictionaries(
        {},
        optional={
            "batch_size": st.integers(1, 4),
            "precision": st.sampled_from(["fp32", "bf16_mixed"]),
            "lora": st.fixed_dictionaries({"r": st.integers(1, 8), "dropout": st.just(0.1)}),
            "optimizer": st.sampled_from(["adamw", "sgd"]),
            "liger": st.just(["rope", "rms_norm"]),
        },
    ),
    gpus=st.sampled_from([1, 8]),
    program=st.booleans(),
)
@pytest.mark.parametrize("ending", ["json", "yaml", "toml"])
def test_a_run_file(ending: str, training: Data, gpus: int, program: bool) -> None:
    """Every kind of run file has every key, also those of a program."""
    data = run_file(gpus=gpus, **training)
    if program:
        args = {"tool": "transformers.Trainer", "args": {"bf16": True, "learning_rate": 1e-4}}
        data = {"model": data["model"], "program": args, "training": training}
    try:
        resolved(data)
    except InputError:
        assume(False)
    back = parse_text(written(ending, data).text, f".{ending}", "the text")
    assert read(back).file == read(data).file
    assert back.keys() <= data.keys()  # what a program means is not repeated


def test_the_values_of_the_chart() -> None:
    """They have the run file inside."""
    data = run_file({"type": "fsdp"}, gpus=8)
    values: Any = parse_text(written("helm", data).text, ".yaml", "the text")
    assert values["mode"] == "estimate"
    same_run(values["run"], data)

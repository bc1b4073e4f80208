"""Run file -> script of Megatron-LM -> run file is the identity on what the script can say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.tools import read_command
from gpu_mem_calculator.tools.shell.read import main_command, read_script
from gpu_mem_calculator.training.optimizers import OPTIMIZERS
from tests.tools.writing.runs import LLAMA, Data, written

PLAIN = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "vocab_size": 256,
    "max_seq_len": 64,
}
ENGINE = st.fixed_dictionaries(
    {"type": st.just("megatron_lm")},
    optional={
        "distributed_optimizer": st.booleans(),
        "transformer_implementation": st.sampled_from(["local", "transformer_engine"]),
        "masked_softmax_fusion": st.booleans(),
        "gradient_accumulation_fusion": st.booleans(),
        "accumulate_allreduce_grads_in_fp32": st.booleans(),
        "make_vocab_size_divisible_by": st.sampled_from([1, 128]),
    },
)
TRAINING = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 4),
        "seq_len": st.just(64),
        "gradient_accumulation_steps": st.sampled_from([2, 4]),
        "precision": st.sampled_from(["bf16_mixed", "fp16_mixed", "fp32"]),
    },
    optional={
        "optimizer": st.sampled_from(["adamw", "sgd", "sgd_momentum", "lion"]),
        "gradient_clipping": st.sampled_from([0.0, 1.0]),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "loss": st.sampled_from(["full", "megatron_fused", "te_fused"]),
    },
)
PARALLELISM = st.fixed_dictionaries(
    {"data_parallel_size": st.just(2)},
    optional={
        "tensor_parallel_size": st.sampled_from([1, 2]),
        "pipeline_parallel_size": st.sampled_from([1, 2]),
        "sequence_parallel": st.booleans(),
    },
)
WIDE = "accumulate_allreduce_grads_in_fp32"
MODEL = st.sampled_from([{"config": LLAMA}, {**PLAIN, "gated_mlp": True, "bias": False}])


def read_back(data: Data) -> Data:
    """The run file that the written script means, with the run's own model."""
    script = written("megatron", data).text
    found = read_command(main_command(read_script(script, NamedFiles(folder=None))))
    assert (found.problems, found.limits) == ([], [])
    return {"model": data["model"], **found.run}


@settings(max_examples=15, deadline=None)
@given(model=MODEL, engine=ENGINE, training=TRAINING, parallelism=PARALLELISM)
def test_round_trip(model: Data, engine: Data, training: Data, parallelism: Data) -> None:
    """The same run."""
    if training["precision"] != "bf16_mixed" or engine.get(WIDE):
        # off is what the script has there, and on is what it has with bf16
        engine = {key: value for key, value in engine.items() if key != WIDE}
    if parallelism.get("tensor_parallel_size", 1) == 1:
        parallelism = {**parallelism, "sequence_parallel": False}
    gpus = 2
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        gpus *= parallelism.get(key, 1)
    data = {"model": model, "engine": engine, "training": training, "parallelism": parallelism}
    data["hardware"] = {"num_gpus": gpus}
    try:
        own = resolve(read(data).file).run
    except InputError:
        assume(False)
    assert written("megatron", data).unsaid == ()
    back = resolve(read(read_back(data)).file).run
    fields = ("mesh", "batch", "seq", "micro_batches", "precision", "optimizer", "recompute")
    fields += ("loss", "clipping", "sequence_parallel", "options")
    for name in fields:
        assert getattr(own, name) == getattr(back, name), name


@pytest.mark.parametrize(
    "name", ["llama3.2-1b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2"]
)
def test_the_script_alone_is_the_same_model(name: str) -> None:
    """Without the model's name, the arguments describe the same number of parameters."""
    data: Data = {
        "model": {"name": name},
        "training": {"batch_size": 1, "seq_len": 512, "precision": "bf16_mixed"},
        "engine": {"type": "megatron_lm", "distributed_optimizer": True},
        "hardware": {"gpu": "h200", "num_gpus": 8},
    }
    back: dict[str, Any] = read_back(data)
    del back["model"]
    own, other = (resolve(read(one).file).run.arch for one in (data, back))
    assert own.num_parameters == other.num_parameters


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lora": {"r": 8}, "precision": "bf16_pure"}, "trains every weight; leave it out"),
        ({"quantization": "nf4", "lora": {"r": 8}, "precision": "bf16_pure"}, "leave it out"),
    ],
)
def test_refused(changes: Data, sentence: str) -> None:
    """What the script does not train."""
    training = {"batch_size": 1, "seq_len": 64, **changes}
    with pytest.raises(InputError) as error:
        written("megatron", {"model": {"config": LLAMA}, "training": training})
    assert sentence in str(error.value)


def test_the_text() -> None:
    """A launcher, and an option on each line."""
    data = {
        "model": {"config": LLAMA},
        "training": {"batch_size": 1, "seq_len": 64},
        "engine": {"type": "megatron_lm"},
        "hardware": {"num_gpus": 4},
    }
    lines = written("megatron", data).text.splitlines()
    assert "torchrun --nproc-per-node 4 pretrain_gpt.py \\" in lines
    assert "  --disable-bias-linear \\" in lines
    assert "  --global-batch-size 4 \\" in lines


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_is_written_or_refused(optimizer: str) -> None:
    """The script's default stands for none: without a row in the engine's table it is refused."""
    data = {
        "model": {"config": LLAMA},
        "training": {"batch_size": 1, "seq_len": 64, "optimizer": optimizer},
        "engine": {"type": "megatron_lm"},
        "hardware": {"num_gpus": 2},
    }
    try:
        assert read_back(data)["program"]["args"].get("optimizer", "adam") in optimizer
    except InputError as error:
        names = f"{optimizer!r} is not one Megatron-LM has"
        add = "add a row to OPTIMIZERS of training/engines/megatron_lm/options.py"
        assert names in str(error), add

"""torchtitan's job configuration as a program."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.program_section import with_program

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
SHARD = "parallelism.data_parallel_shard_degree"
REPLICATE = "parallelism.data_parallel_replicate_degree"


def run(gpus: int = 8, model: Any = None, **args: Any) -> dict[str, Any]:
    """A run file; double underscores in names are dots."""
    named = {name.replace("__", "."): value for name, value in args.items()}
    return {
        "model": {"config": CONFIG} if model is None else model,
        "program": {"tool": "torchtitan", "args": named},
        "hardware": {"gpu": "h200", "num_gpus": gpus},
    }


def keys(**args: Any) -> dict[str, Any]:
    """The sections that a program means."""
    return with_program(run(**args), {})[0]


def test_a_measured_run_in_torchtitans_own_words() -> None:
    """tests/ground_truth/features.jsonl titan-1b-w8-foreach-acc, without recompute."""
    args = {
        "training__local_batch_size": 1,
        "training__seq_len": 512,
        "training__global_batch_size": 24,
        "optimizer__implementation": "foreach",
        "activation_checkpoint__mode": "none",
    }
    assert estimate(run(**args)).allocated_bytes == pytest.approx(5_673_656_832, rel=1e-4)


def test_defaults_are_torchtitans() -> None:
    """FSDP 2 on all GPUs, every second layer recomputed, fused AdamW, fp32 reduction."""
    made = keys()
    assert made["model"]["implementation"] == "torchtitan"
    assert made["engine"] == {
        "type": "fsdp",
        "fsdp_version": 2,
        "sharding_strategy": "full_shard",
        "reduce_dtype": "fp32",
    }
    training = made["training"]
    assert training["recompute"]["selective_ac_option"] == "2"
    assert (training["batch_size"], training["seq_len"]) == (8, 2048)
    assert training["precision"] == "bf16_mixed"
    assert training["optimizer_implementation"] == "fused"


def test_sections_of_a_file_are_the_same_arguments() -> None:
    """[training] of its TOML is an object."""
    assert keys(training={"seq_len": 512}) == keys(training__seq_len=512)


def test_one_gpu_is_autocast_and_copies_are_hybrid() -> None:
    """fully_shard is called for several shards alone."""
    assert keys(gpus=1)["engine"] == {"type": "pytorch_ddp"}
    hybrid = keys(**{REPLICATE: 2})["engine"]
    assert (hybrid["sharding_strategy"], hybrid["hybrid_shard_size"]) == ("hybrid_shard", 4)
    never = keys(parallelism__fsdp_reshard_after_forward="never")["engine"]
    assert never["sharding_strategy"] == "shard_grad_op"


def test_a_flavor_gives_the_model_or_must_agree() -> None:
    """Llama 3 8B has 8,030,261,248 parameters."""
    found = full_estimate(run(model={}, model__flavor="8B", training__local_batch_size=1))
    assert found.resolved.run.arch.num_parameters == 8_030_261_248
    with pytest.raises(InputError, match=r"model\.num_layers=32, and the model section has 16"):
        estimate(run(model__flavor="8B"))


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"compile__enable": True}, "a graph for each layer is not modelled"),
        ({"parallelism__tensor_parallel_degree": 2}, "shards with FSDP alone"),
        ({SHARD: 4}, "are not the 8 GPUs"),
        ({SHARD: 1, REPLICATE: 8}, "is DDP, not modelled"),
        ({"parallelism__fsdp_reshard_after_forward": "always"}, "use 'default' or 'never'"),
        ({"training__dtype": "bfloat16", "training__mixed_precision_param": "float32"}, "use 'flo"),
        ({"optimizer__name": "SGD"}, "must be 'Adam' or 'AdamW'"),
        ({"training__global_batch_size": 65}, "must be a multiple of the 64 sequences"),
        ({"model__flavor": "8B_flex"}, "is not modelled; it can be"),
        ({"activation_checkpoint__mode": "memory_budget"}, "needs torch.compile"),
        ({"training__batch_size": 1}, "did you mean 'training.local_batch_size'"),
    ],
)
def test_what_is_not_modelled_is_refused(args: dict[str, Any], sentence: str) -> None:
    """One sentence, with the way out."""
    with pytest.raises(InputError, match=sentence):
        estimate(run(**args))

"""From a run file to a run: defaults, rules, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.runfile.inference_config import Text
from gpu_mem_calculator.runfile.keys.schema import schema
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA, small_run


def problems(run: dict[str, Any]) -> list[str]:
    """The sentences that a run file is refused with."""
    with pytest.raises(InputError) as caught:
        estimate(run)
    return caught.value.problems


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"engine": {"type": "deepspeeed"}},
            "engine.type='deepspeeed' is not a known engine; did you mean 'deepspeed'?",
        ),
        ({"training": {"dtype": "fp8"}}, "training.dtype='fp8' must be 'fp32', 'fp16' or 'bf16'"),
        (
            {"training": {"dtype": "fp16", "precision": "bf16_mixed"}},
            "training.dtype='fp16' contradicts training.precision='bf16_mixed'; leave dtype out",
        ),
        (
            {"training": {"optimizer": "adamx"}},
            "training.optimizer='adamx' is not a known optimizer; did you mean 'adam'?",
        ),
        (
            {"training": {"quantization": "nf4"}},
            "training.quantization='nf4': quantized weights take no gradient; add training.lora",
        ),
        (
            {"training": {"lora": {"target_modules": ["c_attn"]}}},
            "training.lora.target_modules: llama has no c_attn; it has down_proj, gate_proj, "
            "k_proj, o_proj, q_proj, up_proj, v_proj",
        ),
        (
            {"parallelism": {"tensor_parallel_size": 2}},
            "parallelism.tensor_parallel_size=2: tensor parallelism of PyTorch DDP is not modelled "
            "here; set it to 1 or use engine megatron_deepspeed or megatron_lm",
        ),
        (
            {"parallelism": {"data_parallel_size": 4}},
            "parallelism: dp 4 x tp 1 x pp 1 x cp 1 is 4 ranks, but hardware.num_gpus=8; "
            "set data_parallel_size=8",
        ),
        (
            {"parallelism": {"sequence_parallel": True}},
            "parallelism.sequence_parallel=true: PyTorch DDP does not have it",
        ),
        (
            {"parallelism": {"virtual_pipeline_size": 2}},
            "parallelism.virtual_pipeline_size needs pipeline_parallel_size above 1",
        ),
        (
            {"training": {"double_quant": True}},
            "training.double_quant applies to quantization 'nf4' only; leave it out",
        ),
        (
            {"training": {"optimizer": "adamw_8bit", "optimizer_implementation": "fused"}},
            "training.optimizer_implementation='fused' does not exist for adamw_8bit; "
            "it has none: leave it out",
        ),
        (
            {"hardware": {"gpu": "h100-81gb"}},
            "hardware.gpu='h100-81gb' is not a known card; use 'h100-80gb-sxm', "
            "or give its memory with --gpu-mem GB (hardware.gpu_memory_gb)",
        ),
        (
            {"hardware": {"gpu_memory_gb": 40}},
            "hardware.gpu_memory_gb=40 is not what a NVIDIA H100 80GB SXM5 has, 80; "
            "leave one of the two out",
        ),
        (
            {"hardware": {"num_nodes": 3, "gpus_per_node": 8}},
            "hardware: 3 nodes of 8 GPUs are not num_gpus=8; set num_nodes=1",
        ),
        (
            {"hardware": {"interconnect": "tin-can"}},
            "hardware.interconnect='tin-can' is not a known link",
        ),
        (
            {"model": {"config": {"model_type": "lama"}}},
            "model_type='lama' is not a known family; did you mean 'llama'?",
        ),
        (
            {"model": {"config": {"model_type": "foo"}}},
            "model_type='foo' is not a known family; give its sizes as plain numbers "
            "(model.num_layers, model.hidden_size, ...), or run its own code once with "
            "calculate --function",
        ),
        (
            {"model": {"config": {**SMALL_LLAMA, "num_attention_heads": 12}}},
            "model.config: 12 heads do not divide 256; 8 and 16 would",
        ),
        (
            {"model": {"config": None, "name": "llama2-7bb"}},
            "model.name='llama2-7bb' is neither a preset nor a file; did you mean 'llama2-7b'?",
        ),
        (
            {"model": {"config": None, "name": "ftp://host/model"}},
            "model.name='ftp://host/model' begins with ftp://; "
            "https://, http:// and s3:// are read",
        ),
        (
            {"model": {"config": None, "name": "llama2-7b", "revision": "v1"}},
            "model.revision='v1': it is of a model on the hub; name it: meta-llama/Llama-2-7b-hf",
        ),
        (
            {"model": {"revision": "v1"}},
            "model.revision='v1': it is of a model on the hub, and this is none; leave it out",
        ),
        (
            {"model": {"config": None, "name": "owner/model@v2", "revision": "v1"}},
            "model.revision='v1': model.name='owner/model@v2' has another; leave one out",
        ),
        (
            {"model": {"config": None, "name": "owner/model", "revision": "../v1"}},
            "model.revision='../v1' must be a branch, a tag or a commit",
        ),
        (
            {"model": {"config": None, "num_layers": 4}},
            "the model has no name, no config and no model.hidden_size, model.num_attention_heads; "
            "give one of them",
        ),
        (
            {"model": {"gated_mlp": False}},
            "model.gated_mlp=False contradicts the llama model, which has True; leave it out",
        ),
        ({"model": {"top_k": 2}}, "model.top_k=2: the llama model has no experts; leave it out"),
        (
            {"model": {"expert_intermediate_size": 1024}},
            "model.expert_intermediate_size=1024: the llama model has no experts; leave it out",
        ),
        (
            {"model": {"shared_expert_intermediate_size": 512}},
            "model.shared_expert_intermediate_size=512 contradicts the llama model, which has 0; "
            "leave it out",
        ),
        (
            {"model": {"normalization": "layernorm"}},
            "model.normalization=layernorm contradicts the llama model, which has rmsnorm; "
            "leave it out",
        ),
        (
            {"model": {"position_embedding": "alibi"}},
            "model.position_embedding=alibi contradicts the llama model, which has rope; "
            "leave it out",
        ),
        (
            {"model": {"dropout": 0.1}},
            "model.dropout=0.1 is for a model of plain numbers; llama has its own: leave it out",
        ),
        (
            {"training": {"lora": {"target_modules": []}}},
            "training.lora.target_modules=[] adapts nothing; leave it out for q_proj, v_proj",
        ),
        (
            {"hardware": {"num_gpus": 7, "num_nodes": 2}},
            "hardware: num_gpus=7 does not divide by num_nodes=2; set num_gpus=8, or num_nodes=1",
        ),
        (
            {"model": {"config": None, "name": "gpt2"}, "training": {"seq_len": 2048}},
            "training.seq_len=2048 is longer than the model's 1024 learned positions; "
            "use at most 1024",
        ),
        (
            {"model": {"config": None, "name": "bert-base"}},
            "model: the activations of bert models are not modelled; "
            "gpu-mem-calc trace -- python train.py runs your own script on fake tensors",
        ),
    ],
)
def test_a_rule_that_is_broken_is_one_sentence(sections: dict[str, Any], sentence: str) -> None:
    """The value, the rule, the nearest fix."""
    assert problems(small_run(**sections)) == [sentence]


DENSE = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2}


@pytest.mark.parametrize(
    "key", ["num_experts", "top_k", "expert_intermediate_size", "shared_expert_intermediate_size"]
)
def test_experts_of_a_dense_model_are_refused(key: str) -> None:
    """A number of experts with moe_enabled=false would have no effect, and is refused."""
    model = {"config": None, **DENSE, "moe_enabled": False, key: 8}
    sentence = f"model.{key}=8 needs experts; set model.moe_enabled=true, or leave it out"
    assert problems(small_run(model=model)) == [sentence]


def test_experts_that_a_family_has_may_be_repeated() -> None:
    """What the family says already is no contradiction."""
    numbers = {"moe_enabled": True, "num_experts": 8, "top_k": 2, "normalization": "rmsnorm"}
    model = {"name": "mixtral-8x7b", **numbers, "shared_expert_intermediate_size": 0}
    assert resolve(read({"model": model}).file).run.arch.family == "mixtral"


@pytest.mark.parametrize(
    "training",
    [
        {"lora": {}, "quantization": "int8", "double_quant": False},
        {"upcast_unquantized": False},
        {"checkpoint_reentrant": False},
    ],
)
def test_what_is_set_to_off_asks_for_nothing(training: dict[str, Any]) -> None:
    """An explicit off is what a run without the key has."""
    key = list(training)[-1]
    without = {k: v for k, v in training.items() if k != key}
    found, usual = (estimate(small_run(training=given)) for given in (training, without))
    assert (found.allocated_bytes, found.needs_bytes) == (usual.allocated_bytes, usual.needs_bytes)


def test_autocast_set_to_off_goes_with_every_engine() -> None:
    """Megatron has no autocast, so false is true of it."""
    found = resolve(read(small_run("megatron_lm", training={"autocast": False})).file)
    assert not found.run.autocast


def test_the_schema_allows_as_many_layers_as_the_check() -> None:
    """An editor and the program refuse the same run files."""
    limit = schema()["$defs"]["ModelConfig"]["properties"]["num_layers"]["anyOf"][0]["maximum"]
    model = {"config": None, **DENSE}
    assert resolve(read(small_run(model={**model, "num_layers": limit})).file).run.arch.layers
    assert problems(small_run(model={**model, "num_layers": limit + 1})) == [
        "model.num_layers=1025 must be at most 1,024"
    ]


def test_problems_of_several_sections_come_together() -> None:
    """Everything that can be checked is checked."""
    run = small_run(engine={"type": "x"}, training={"optimizer": "y"}, hardware={"gpu": "z"})
    assert len(problems(run)) == 3


def served(**inference: Any) -> dict[str, Any]:
    """A server of a small preset on one GPU of one node."""
    hardware = {"gpu": "h200", "num_nodes": 1, "gpus_per_node": 1}
    return {"model": {"name": "gpt2"}, "inference": inference, "hardware": hardware}


def test_a_version_that_a_generation_stands_for_is_said() -> None:
    """V0 of vLLM ends with a version; the newest one is not worth a word."""
    assert resolve(read(served(engine="vllm")).file).assumed == ()
    (said,) = resolve(read(served(engine="vllm", engine_generation="v0")).file).assumed
    assert said.startswith("inference.engine_version=0.")


def test_a_wrong_option_of_a_server_says_nothing_of_its_gpus() -> None:
    """One sentence: without options, one rank is assumed."""
    with pytest.raises(InputError) as caught:
        resolve(read(served(engine="vllm", cache_type_k="f16")).file)
    assert len(caught.value.problems) == 1


def test_a_text_has_a_character() -> None:
    """One is enough, none is refused."""
    assert msgspec.convert("x", Text) == "x"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("", Text)


def test_a_balanced_router_is_assumed_aloud() -> None:
    """Ranks that share experts have as many tokens only where the router is even."""
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    run = {
        "model": {"config": {**SMALL_LLAMA, **experts}},
        "engine": {"type": "megatron_lm"},
        "training": {"seq_len": 64},
        "hardware": {"gpu": "h200", "num_gpus": 4},
    }
    sentence = "tokens are taken to be spread evenly over the experts of 4 ranks"
    shared = resolve(read({**run, "parallelism": {"expert_parallel_size": 4}}).file)
    assert any(one.startswith(sentence) for one in shared.warnings)
    assert not any("evenly" in one for one in resolve(read(run).file).warnings)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            {"num_attention_heads": 7},
            "model.num_attention_heads=7: 8 key-value heads do not divide 7; 7 would",
        ),
        (
            {"num_attention_heads": 32, "num_key_value_heads": 7},
            "model.num_attention_heads=32, model.num_key_value_heads=7: "
            "7 key-value heads do not divide 32; 4 and 8 would",
        ),
    ],
)
def test_numbers_beside_a_name_are_named_as_they_were_written(
    model: dict[str, Any], words: str
) -> None:
    """Not by the config.json of the preset, which the user did not write."""
    with pytest.raises(InputError, match=f"^{re.escape(words)}$"):
        resolve(read({"model": {"name": "llama3.1-8b", **model}}).file)


def test_a_sequence_beyond_the_positions_is_noted() -> None:
    """It is allowed, as frameworks allow it. Positions that are assumed are no reason."""
    plain = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    assert resolve(read({"model": plain, "training": {"seq_len": 9_999}}).file).warnings == ()
    run = {"model": {"name": "llama3.2-1b"}, "training": {"seq_len": 131_072}}
    assert not any("positions" in one for one in resolve(read(run).file).warnings)
    run["training"]["seq_len"] += 1
    (note,) = (one for one in resolve(read(run).file).warnings if "positions" in one)
    assert note == (
        "training.seq_len=131,073 is more than the 131,072 positions that the model was trained for"
    )


def test_layers_that_end_in_a_norm_are_refused_under_autocast() -> None:
    """Their hidden states are fp32 from the second layer on, which ledger and replay count
    differently.
    """
    run = {"model": {"name": "opt-350m"}, "training": {"lora": {"r": 16}}}
    with pytest.raises(InputError, match="end in a norm return fp32 under autocast"):
        estimate(run)
    run["training"]["precision"] = "bf16_mixed"
    assert estimate(run, replay=False).allocated_bytes

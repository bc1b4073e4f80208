"""TRL's trainers in the keys of a run file."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.program import ModelFacts, Program, Setup, Translation
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.tools.translation.tools import translate
from tests.conftest import SMALL_LLAMA

LOAD = {"dtype": "float32"}
PAIRS = {"seq_len": 512, "prompt": 128}
QUANTIZED: dict[str, Any] = {"peft": {"r": 8}, "quantization": {"load_in_4bit": True}}
FLASH = {"dtype": "bfloat16", "attn_implementation": "flash_attention_2"}


def translated(name: str, gpus: int = 1, **sections: Any) -> Translation:
    """The translation of a small program."""
    data = {"load": LOAD, "data": {"seq_len": 512}, **sections}
    return translate(Program(tool=f"trl.{name}Trainer", **data), Setup(num_gpus=gpus))


def training(name: str, **sections: Any) -> dict[str, Any]:
    """The training keys of a program without problems."""
    found = translated(name, **sections)
    assert not found.problems
    return found.training


def test_the_defaults_of_trl() -> None:
    """Checkpoints, bf16 and a loss in tiles are on."""
    keys = training("SFT")
    assert keys["activation_checkpointing"] == "full"
    assert (keys["precision"], keys["loss"], keys["seq_len"]) == ("bf16_mixed", "chunked", 512)
    assert not {"reference_model", "labelled_tokens"} & keys.keys()


def test_fp16_takes_the_place_of_bf16() -> None:
    """Unless bf16 is given."""
    assert training("SFT", args={"fp16": True})["precision"] == "fp16_mixed"
    assert training("SFT", args={"bf16": False})["precision"] == "fp32"


@pytest.mark.parametrize(
    ("args", "length"),
    [({"max_length": 256}, 256), ({"max_length": None}, 512), ({"pad_to_multiple_of": 100}, 600)],
)
def test_the_length_of_a_sequence(args: dict[str, Any], length: int) -> None:
    """Truncated, then padded."""
    assert training("SFT", args=args)["seq_len"] == length


def test_without_a_length_it_is_the_longest_allowed() -> None:
    """TRL's default is 1,024."""
    assert training("SFT", data={})["seq_len"] == 1024


@pytest.mark.parametrize(
    ("name", "batch", "reference"), [("DPO", 4, True), ("KTO", 2, True), ("SFT", 2, None)]
)
def test_pairs_and_references(name: str, batch: int, reference: bool | None) -> None:
    """DPO's batch has both answers; only the answers have labels."""
    keys = training(name, args={"per_device_train_batch_size": 2}, data=PAIRS)
    assert (keys["batch_size"], keys["labelled_tokens"]) == (batch, 384)
    assert keys.get("reference_model") == reference


def test_a_reward_model_has_pairs_and_a_score() -> None:
    """And neither labels nor a reference."""
    keys = training("Reward", args={"per_device_train_batch_size": 3}, data=PAIRS)
    assert (keys["batch_size"], keys["loss"]) == (6, "reward")
    assert not {"labelled_tokens", "reference_model"} & keys.keys()


def test_prompts_may_have_labels() -> None:
    """completion_only_loss=False; None depends on the columns of the data."""
    keys = training("SFT", data=PAIRS, args={"completion_only_loss": False})
    assert "labelled_tokens" not in keys
    cut = {"max_length": 200}
    assert training("DPO", data=PAIRS, args=cut)["labelled_tokens"] == 72
    kept = {**cut, "truncation_mode": "keep_end"}
    assert training("DPO", data=PAIRS, args=kept)["labelled_tokens"] == 199


def test_a_reference_may_be_computed_before() -> None:
    """No copy is kept then."""
    keys = training("DPO", args={"precompute_ref_log_probs": True})
    assert keys["reference_model"] == "precomputed"


def test_adapters_of_a_quantized_model_are_cast() -> None:
    """To bf16, after they were made in fp32; nothing else is upcast."""
    keys = training("DPO", load={"dtype": "bfloat16"}, **QUANTIZED)
    assert keys["lora"] == {"r": 8, "adapter_dtype": "bf16", "initial_dtype": "fp32"}
    assert keys["upcast_unquantized"] is False
    plain = training("SFT", load={"dtype": "bfloat16"}, peft={"r": 8})
    assert plain["lora"]["adapter_dtype"] == "fp32"


def test_dropout_is_off_in_preference_trainers() -> None:
    """disable_dropout is on by default; SFTTrainer does not have it."""
    assert training("DPO")["disable_dropout"] is True
    assert "disable_dropout" not in training("DPO", args={"disable_dropout": False})
    assert "disable_dropout" not in training("SFT")


def test_the_trainer_may_load_the_model() -> None:
    """In float32 and onto one GPU; with several, onto the host."""
    found = translated("SFT", load={})
    assert found.engine["init_device"] == "cuda"
    assert found.training["precision"] == "bf16_mixed"
    assert translated("SFT", load={}, gpus=2).engine["init_device"] == "cpu"
    given = {"model_init_kwargs": {"dtype": "bfloat16"}}
    assert translated("SFT", load={}, args=given).training["precision"] == "bf16_pure"


@pytest.mark.parametrize(
    ("length", "expected"),
    [(100, (1, 800, 792, 8)), (256, (1, 1024, 1020, 4)), (9999, (1, 1024, 1020, 4))],
)
def test_rows_without_padding_are_one_sequence(length: int, expected: tuple[int, ...]) -> None:
    """Of whole documents; the first token of each has no label."""
    args = {"packing": True, "per_device_train_batch_size": 4, "max_length": 256}
    keys = training("SFT", args=args, data={"seq_len": length})
    names = ("batch_size", "seq_len", "labelled_tokens", "packed_documents")
    assert tuple(keys[name] for name in names) == expected
    wrapped = training("SFT", args={**args, "packing_strategy": "wrapped"})
    assert (wrapped["batch_size"], wrapped["seq_len"]) == (4, 256)
    assert "packed_documents" not in wrapped


def test_packed_prompts_have_no_labels() -> None:
    """Each document has its own; rows that are cut from one text have their share."""
    data = {"seq_len": 64, "prompt": 16}
    args = {"packing": True, "per_device_train_batch_size": 2, "max_length": 256}
    assert training("SFT", args=args, data=data)["labelled_tokens"] == 2 * 4 * 48
    wrapped = training("SFT", args={**args, "packing_strategy": "wrapped"}, data=data)
    assert wrapped["labelled_tokens"] == 192


def test_a_single_document_needs_no_mask() -> None:
    """Its positions never start again."""
    args = {"padding_free": True, "max_length": None, "per_device_train_batch_size": 1}
    keys = training("SFT", args=args)
    assert (keys["seq_len"], keys["labelled_tokens"]) == (512, 511)
    assert "packed_documents" not in keys


def test_attention_may_be_kept_by_checkpoints() -> None:
    """TRL's own key of gradient_checkpointing_kwargs."""
    keys = training("SFT", args={"gradient_checkpointing_kwargs": {"selective": True}})
    assert keys["recompute"] == "attention_kept"
    assert "activation_checkpointing" not in keys


def test_experts_have_a_loss_that_is_not_counted() -> None:
    """Unless its weight is 0."""
    mixtral = Setup(model=lambda: ModelFacts(family="mixtral"))
    for args, count in (({}, 1), ({"router_aux_loss_coef": 0.0}, 0)):
        program = Program(tool="trl.SFTTrainer", load=LOAD, args=args)
        assert len(translate(program, mixtral).warnings) == count


def test_ligers_loss_is_left_out() -> None:
    """The trainers have their own."""
    run = {
        "model": {"config": SMALL_LLAMA},
        "program": {"tool": "trl.SFTTrainer", "args": {"use_liger_kernel": True}, "load": LOAD},
    }
    found = resolve(read(run).file).run
    assert (found.loss, found.liger) == ("chunked", ("rope", "rms_norm", "swiglu"))
    run["program"]["args"]["liger_kernel_config"] = {"rope": False}  # type: ignore[index]
    assert resolve(read(run).file).run.liger == ("rms_norm", "swiglu")


@pytest.mark.parametrize(
    ("name", "sections", "words"),
    [
        ("SFT", {"args": {"packing": True, "max_length": None}, "load": FLASH}, "needs max_length"),
        ("SFT", {"args": {"padding_free": True}, "load": FLASH}, "without packing"),
        ("SFT", {"args": {"activation_offloading": True}}, "on the host are not modelled"),
        ("SFT", {"args": {"label_smoothing_factor": 0.1}}, "runs the model twice"),
        ("SFT", {"args": {"chat_template_path": "org/name"}}, "may add tokens"),
        ("SFT", {"args": {"model_init_kwargs": {"dtype": "auto"}}}, "leave one out"),
        ("SFT", {"data": {"seq_len": 64, "prompt": 64}}, "leaves no token of a completion"),
        (
            "SFT",
            {"args": {"liger_kernel_config": {"fused_linear_cross_entropy": True}}},
            "its own loss replaces Liger's",
        ),
        ("Reward", {"peft": {"r": 8, "task_type": "CAUSAL_LM"}}, "use 'SEQ_CLS'"),
        (
            "DPO",
            {"args": {"gradient_checkpointing_kwargs": {"selective": True}}},
            "SFTTrainer's own key",
        ),
        ("Reward", {"args": {"use_liger_kernel": True}}, "Liger's loss needs logits"),
        ("Reward", {"data": {"seq_len": 2048}}, "leaves such examples out"),
        ("DPO", {"args": {"rpo_alpha": 1.0}}, "is not an argument of trl.DPOTrainer 1.16.0"),
        ("DPO", {"args": {"sync_ref_model": True}, "peft": {"r": 8}}, "TRL refuses it"),
        (
            "DPO",
            {"args": {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 64}},
            "precompute_ref_batch_size=64 is not modelled",
        ),
        (
            "SFT",
            {"args": {"gradient_checkpointing_kwargs": {"selective": True, "use_reentrant": True}}},
            "does not work with use_reentrant",
        ),
    ],
)
def test_what_is_refused(name: str, sections: dict[str, Any], words: str) -> None:
    """In one sentence."""
    problems = translated(name, **sections).problems
    assert any(words in sentence for sentence in problems), problems

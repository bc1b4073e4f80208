"""Lines on a model: each changes the run, is free, or is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate

from .scripts import ADAPTED, LOADED, QUANTIZED, named, with_model


@pytest.mark.parametrize(
    ("lines", "section", "key", "value"),
    [
        ("model.gradient_checkpointing_enable()", "args", "gradient_checkpointing", True),
        (
            "model.gradient_checkpointing_enable({'use_reentrant': True})",
            "args",
            "gradient_checkpointing_kwargs",
            {"use_reentrant": True},
        ),
        (
            "model.gradient_checkpointing_enable()\nmodel.gradient_checkpointing_disable()",
            "args",
            "gradient_checkpointing",
            None,
        ),
        ("model = model.to(torch.bfloat16)", "load", "dtype", "bfloat16"),
        ("model.half()", "load", "dtype", "float16"),
        ("model = model.bfloat16().cuda()", "load", "dtype", "bfloat16"),
        ("model.config._attn_implementation = 'eager'", "load", "attn_implementation", "eager"),
        (ADAPTED, "peft", "r", 4),
        ("model.add_adapter(LoraConfig(r=2))", "peft", "r", 2),
    ],
)
def test_a_line_changes_the_program(
    tmp_path: Path, lines: str, section: str, key: str, value: object
) -> None:
    """In the words of the tool, as if its arguments said it."""
    reading = with_model(lines, tmp_path)
    assert reading.run["program"].get(section, {}).get(key) == value
    assert not named(reading)


def test_a_resized_embedding_and_a_compiled_model(tmp_path: Path) -> None:
    """Keys of the model and of training, for which a program has no argument."""
    reading = with_model(
        "model.resize_token_embeddings(50300, pad_to_multiple_of=64)\nmodel = torch.compile(model)",
        tmp_path,
    )
    assert reading.run["model"]["vocab_size"] == 50304
    assert reading.run["training"]["compile"] is True


@pytest.mark.parametrize(
    ("line", "prepared", "checkpointing"),
    [
        ("", False, None),
        ("model = prepare_model_for_kbit_training(model)", True, True),
        (
            "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)",
            True,
            None,
        ),
        ("from peft import prepare_model_for_int8_training as p\nmodel = p(model)", True, True),
    ],
)
@pytest.mark.parametrize("trainer", ["Trainer", "SFTTrainer"])
def test_a_quantized_base_is_prepared_where_the_script_does_it(
    tmp_path: Path, line: str, prepared: bool, checkpointing: bool | None, trainer: str
) -> None:
    """Under any trainer: what is not quantized becomes fp32, and checkpointing is on."""
    end = f"{trainer}(model=model, args=TrainingArguments('o')).train()"
    reading = with_model(f"{line}\n{ADAPTED}", tmp_path, model=QUANTIZED, end=end)
    assert reading.run["training"]["upcast_unquantized"] is prepared
    found = reading.run["program"]["args"].get("gradient_checkpointing")
    assert bool(found) is bool(checkpointing)


def test_the_same_bytes_as_the_trainers_own_argument(tmp_path: Path) -> None:
    """Checkpointing on the model is checkpointing in the arguments."""
    end = "Trainer(model=model, args=TrainingArguments('o'{})).train()"
    model = with_model("model.gradient_checkpointing_enable()", tmp_path, end=end.format(""))
    argument = with_model("", tmp_path, end=end.format(", gradient_checkpointing=True"))
    plain = with_model("", tmp_path, end=end.format(""))
    sizes = [
        full_estimate(one.run, replay=False).result.allocated_bytes
        for one in (model, argument, plain)
    ]
    assert sizes[0] == sizes[1] < sizes[2]


@pytest.mark.parametrize(
    ("lines", "could", "bound"),
    [
        (
            "for p in model.parameters():\n    p.requires_grad = False",
            "less",
            "gradients+optimizer_states+activations",
        ),
        (
            "model.transformer.h[0].requires_grad_(False)",
            "less",
            "gradients+optimizer_states+activations",
        ),
        (
            "for n, p in model.named_parameters():\n    p.data = p.data.to(torch.float32)",
            "more",
            "4*weights",
        ),
        ("model.fuse_everything()", "either", None),
        ("model.lm_head = torch.nn.Linear(4, 4)", "either", None),
        ("import helpers\nhelpers.wrap(model)", "either", None),
        ("setattr(model, 'forward', print)", "either", None),
        ("import surgery\nsurgery.replace_attention()", "either", None),
        (
            "import transformers\ntransformers.models.gpt2.GPT2Attention.forward = print",
            "either",
            None,
        ),
        ("exec('model.half()')", "either", None),
    ],
)
def test_a_line_that_is_not_modelled_or_not_understood_is_named(
    tmp_path: Path, lines: str, could: str, bound: str | None
) -> None:
    """With its number; a bound where a part of the estimate bounds it."""
    reading = with_model(lines, tmp_path)
    limits = [one for one in reading.limits if ".py:" in one.key]
    assert len(limits) == 1
    assert limits[0].could == could
    assert full_estimate(reading.run_file, replay=False).result.verdict == "cannot_tell"
    assert bound in (limits[0].adds, limits[0].saves)
    assert limits[0].key.startswith("train.py:")


@pytest.mark.parametrize(
    "lines",
    [
        "model.config.use_cache = False",
        "model.config.pretraining_tp = 1",
        "model.enable_input_require_grads()",
        "model.train()",
        "print(model)",
        "model.is_parallelizable = True\nmodel.model_parallel = True",
        "words = AutoTokenizer.from_pretrained('gpt2')\nwords.pad_token = words.eos_token",
        "import logging\nlogging.info('x')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "import os\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'",
        "total = sum(p.numel() for p in model.parameters())",
        "for p in model.parameters():\n    p.requires_grad = False\n" + ADAPTED,
    ],
)
def test_a_line_without_effect_on_memory_is_free(tmp_path: Path, lines: str) -> None:
    """It is accounted for by its line, and no limit comes of it."""
    reading = with_model(lines, tmp_path)
    assert not named(reading)
    assert [key for key, effect in reading.keys.items() if effect == "free" and ".py:" in key]


def test_a_model_compiled_after_the_trainer_has_it(tmp_path: Path) -> None:
    """torch.compile returns another module, so the trainer's own is as it was."""
    end = "t = Trainer(model=model)\nmodel = torch.compile(model)\nt.train()"
    reading = with_model("", tmp_path, end=end)
    assert "training" not in reading.run
    assert not named(reading)


def test_linear_layers_that_a_loop_gathers(tmp_path: Path) -> None:
    """The usual loop over modules is PEFT's all-linear."""
    lines = """
import bitsandbytes as bnb
def linear_names(model):
    names = set()
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            names.add(name.split('.')[-1])
    if 'lm_head' in names:
        names.remove('lm_head')
    return list(names)
model = get_peft_model(model, LoraConfig(r=4, target_modules=linear_names(model)))
"""
    reading = with_model(lines, tmp_path, model=QUANTIZED)
    assert reading.run["program"]["peft"]["target_modules"] == "all-linear"


def test_another_method_of_peft_is_estimated_as_lora_and_named(tmp_path: Path) -> None:
    """The sentence says the rank, and adapters of this rank are what is estimated."""
    lines = "from peft import IA3Config\nmodel = get_peft_model(model, IA3Config())"
    reading = with_model(lines, tmp_path)
    assert reading.run["program"]["peft"] == {"r": 8}
    assert any("IA3Config" in one for one in named(reading))


def test_a_model_of_a_configuration(tmp_path: Path) -> None:
    """New weights are in float32, and the shape is the script's own."""
    model = """
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_embd=96, n_layer=2, n_head=4)
config.vocab_size = 1000
model = GPT2LMHeadModel(config)
"""
    reading = with_model("", tmp_path, model=model)
    assert reading.run["model"]["config"] == {
        "model_type": "gpt2",
        "n_embd": 96,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 1000,
    }
    assert reading.run["program"]["load"] == {"dtype": "float32"}


def test_a_length_that_the_models_positions_bound(tmp_path: Path) -> None:
    """No sequence is longer than the positions of a model, so it can only save."""
    model = """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_positions=256))
"""
    reading = with_model("", tmp_path, model=model)
    assert reading.run["program"]["data"] == {"seq_len": 256}
    assert [(one.could, one.saves) for one in reading.limits] == [("less", "tokens")]


def test_a_second_model_is_named(tmp_path: Path) -> None:
    """At most the weights of the same model once more."""
    other = LOADED.replace("model =", "teacher =")
    limits = [one for one in with_model(other, tmp_path).limits if ".py:" in one.key]
    assert [(one.could, one.adds) for one in limits] == [("more", "4*weights")]

"""`training.recompute`: what each framework's keys mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.cli.training_options import POLICIES
from gpu_mem_calculator.run.recompute import ATTENTION, EVERY_SECOND_MM, RecomputeRule
from gpu_mem_calculator.runfile.resolve.recompute_policies import NAMES, _choice
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.step.layer_groups import layer_policy
from tests.conftest import small_run

UNIFORM = {"recompute_granularity": "full", "recompute_method": "uniform"}
BLOCK = {**UNIFORM, "recompute_method": "block"}
LOCAL = {"transformer_implementation": "local"}


def resolved(given: Any, engine: str = "fsdp", options: Any = None, **training: Any) -> Any:
    """A small run with this policy."""
    keys = {"recompute": given, **training}
    return resolve(read(small_run(engine, training=keys, engine=options or {})).file)


def problem(*args: Any, **more: Any) -> str:
    """The sentence with which a policy is refused."""
    with pytest.raises(InputError) as error:
        resolved(*args, **more)
    (sentence,) = error.value.problems
    return sentence


@pytest.mark.parametrize(
    ("given", "recompute", "rule"),
    [
        ("none", "none", {}),
        ("full", "full", {}),
        (
            "op",
            "op",
            {"keeps": (ATTENTION, EVERY_SECOND_MM), "early_stop": False, "framework": "torchtitan"},
        ),
        ({"mode": "full"}, "full", {"early_stop": False, "framework": "torchtitan"}),
        (
            {"selective_ac_option": 3, "early_stop": True},
            "full",
            {"every": 3, "first": 2, "framework": "torchtitan"},
        ),
        ({"every_n_layers": 2}, "full", {"every": 2, "framework": "transformers"}),
        ("full_offloaded", "full", {"offload": True, "framework": "transformers"}),
        (
            {"activation_checkpointing_target": "mlp"},
            "selective",
            {"modules": ("mlp",), "framework": "llm-foundry"},
        ),
        (
            {"selective_checkpointing": {"save": ["attention"]}},
            "op",
            {"keeps": (ATTENTION,), "framework": "Axolotl"},
        ),
    ],
)
def test_keys_of_torch_s_frameworks(given: Any, recompute: str, rule: dict[str, Any]) -> None:
    """Names and objects are the same policies."""
    run = resolved(given).run
    assert (run.recompute, run.rule) == (recompute, RecomputeRule(**rule))


@pytest.mark.parametrize(
    ("given", "recompute", "rule"),
    [
        ({**UNIFORM, "recompute_num_layers": 2}, "full", {"layers_together": 2}),
        ({**BLOCK, "recompute_num_layers": 1}, "full", {"first_layers": 1}),
        ({"recompute_modules": ["mlp", "layernorm"]}, "selective", {}),
    ],
)
def test_keys_of_megatron(given: Any, recompute: str, rule: dict[str, Any]) -> None:
    """The names are those of TransformerConfig."""
    run = resolved(given, "megatron_lm", LOCAL).run
    modules = tuple(given.get("recompute_modules", ()))
    assert run.recompute == recompute
    assert run.rule == RecomputeRule(framework="Megatron", modules=modules, **rule)


def test_every_second_layer_is_the_frameworks_own() -> None:
    """torchtitan counts from 1, transformers from 0."""
    titan, transformers = resolved("every_2nd_layer").run, resolved({"every_n_layers": 2}).run
    assert [layer_policy(titan, i) for i in range(4)] == ["none", "full"] * 2
    assert [layer_policy(transformers, i) for i in range(4)] == ["full", "none"] * 2


@pytest.mark.parametrize("level", ["none", "selective", "full", 2])
def test_the_two_keys_must_agree(level: Any) -> None:
    """The same policy twice is accepted; another one is not."""
    if level == "full":
        assert resolved("full", activation_checkpointing="full").run.recompute == "full"
    sentence = problem("op", activation_checkpointing=level)
    assert sentence.endswith("differ; leave training.activation_checkpointing out")


@pytest.mark.parametrize(
    ("given", "engine", "words"),
    [
        ("ops", "fsdp", "is not a known policy"),
        ({}, "fsdp", "has no key"),
        ({"mod": "full"}, "fsdp", "did you mean 'mode'"),
        ({"mode": "full", "every_n_layers": 2}, "fsdp", "keys of torchtitan and transformers"),
        ({"mode": "memory_budget"}, "fsdp", "needs torch.compile"),
        ({"mode": "full", "selective_ac_option": "op"}, "fsdp", "no effect with mode 'full'"),
        ({"selective_ac_option": "0"}, "fsdp", "must be 'op' or a whole number"),
        ({"every_n_layers": 0}, "fsdp", "must be a whole number, 1 or more"),
        ({"offload": "yes"}, "fsdp", "must be one of true, false"),
        ({"offload": True}, "deepspeed", "use engine.cpu_checkpointing=true"),
        ({"selective_checkpointing": {"save": ["aten::mm"]}}, "fsdp", "must be true"),
        ({"activation_checkpointing_target": "norm"}, "fsdp", "must be 'attention' or 'mlp'"),
        ({"activation_checkpointing_target": "mlp"}, "pytorch_ddp", "not modelled under autocast"),
        ("core_attn", "fsdp", "has Megatron's keys"),
        ("op", "megatron_lm", "has keys of torchtitan"),
        (UNIFORM, "megatron_lm", "needs recompute_num_layers"),
        ({"recompute_modules": ["attention"]}, "megatron_lm", "choose from core_attn"),
        ({"recompute_modules": ["moe"]}, "megatron_lm", "'moe' needs experts"),
        ({"recompute_modules": ["layernorm"]}, "megatron_lm", "does not fuse"),
        ({"distribute_saved_activations": True}, "megatron_lm", "is not modelled"),
        ({"activation_offloading": True}, "fsdp", "is not modelled; offload=true"),
    ],
)
def test_what_is_refused(given: Any, engine: str, words: str) -> None:
    """One sentence, with the fix."""
    assert words in problem(given, engine)


def test_by_operation_is_refused_where_it_is_not_modelled() -> None:
    """Adapters change a kept result in place; ZeRO-3 gathers weights for the recomputed forward."""
    assert "not modelled with training.lora" in problem("op", lora={"r": 8})
    assert "not modelled under ZeRO-3" in problem("op", "deepspeed", {"zero_stage": 3})
    stage_3 = problem({"mode": "full"}, "deepspeed", {"zero_stage": 3})
    assert "set early_stop=true, or use every_n_layers" in stage_3
    assert "use attention 'sdpa'" in problem("attention_kept", attention="flash_attention_2")


def test_selective_that_saves_nothing_has_a_note() -> None:
    """With a fused attention kernel; the policy that people mean is named."""
    notes = [
        resolved(None, activation_checkpointing="selective", attention=a).warnings
        for a in ("sdpa", "eager")
    ]
    assert [any("training.recompute='op'" in note for note in one) for one in notes] == [
        True,
        False,
    ]


def test_the_command_line_knows_every_name() -> None:
    """Names of policies that are no level of activation_checkpointing are levels there."""
    assert {*POLICIES, "none", "full"} == {*NAMES}


@pytest.mark.parametrize("option", ["partition_activations", "cpu_checkpointing"])
def test_deepspeeds_checkpoint_does_not_stop_early(option: str) -> None:
    """Its own checkpoint takes the place of the one that the policy sets."""
    options = {"zero_stage": 2, option: True}
    sentence = problem({"mode": "full"}, "deepspeed", options)
    assert sentence.startswith(f"engine.{option}=true replaces torch's checkpoint")


@pytest.mark.parametrize(
    ("value", "allowed", "taken"),
    [
        ("".join(("fu", "ll")), ("full",), True),
        (1, (True, False), False),
        (True, (1, 2), False),
        (None, (None, "full"), True),
        ("part", ("full",), False),
    ],
)
def test_a_value_is_of_its_type(value: Any, allowed: tuple[Any, ...], taken: bool) -> None:
    """1 is not `true`."""
    if taken:
        assert _choice({"key": value}, "key", allowed, None) == value
    else:
        with pytest.raises(InputError, match="must be one of"):
            _choice({"key": value}, "key", allowed, None)

"""verl's commands: the update of the actor, and the phases that are not modelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

ACTOR = "actor_rollout_ref.actor"
GRPO = (
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
    "data.max_prompt_length=512",
    "data.max_response_length=1024",
    f"{ACTOR}.ppo_mini_batch_size=64",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=8",
)

DYNAMIC = (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=6144")
LORA = {"r": 32, "target_modules": "all-linear"}


def _read(*words: str, module: str = "verl.trainer.main_ppo") -> Reading:
    return read_command(read_launch(["python3", "-m", module, *words], NamedFiles(None)))


def test_a_module_that_does_not_train_is_refused() -> None:
    """It is not taken for PPO."""
    with pytest.raises(InputError, match="main_generation does not train"):
        _read(*GRPO, module="verl.trainer.main_generation")


def test_the_update_of_the_actor() -> None:
    """Batch, length, recompute and FSDP of version 1 with gradients reduced in fp32."""
    reading = _read(*GRPO)
    training, engine = reading.run["training"], reading.run["engine"]
    assert (training["batch_size"], training["seq_len"]) == (4, 1536)
    assert training["gradient_accumulation_steps"] == 64 * 8 // 8 // 4
    assert training["activation_checkpointing"] == "full"
    assert training["precision"] == "bf16_mixed"
    assert (engine["fsdp_version"], engine["reduce_dtype"]) == (1, "fp32")
    assert reading.run["hardware"] == {"num_gpus": 8, "num_nodes": 1}
    assert not reading.problems


def test_other_phases_are_limits() -> None:
    """The rollout takes its share; a critic is there with GAE alone."""
    assert not any(limit.key == "critic" for limit in _read(*GRPO).limits)
    with_critic = _read(*GRPO, "algorithm.adv_estimator=gae").limits
    assert {limit.could for limit in with_critic if limit.key == "critic"} == {"more"}


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (
            (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=6144"),
            "batch_size",
            4,
        ),
        (
            ("actor_rollout_ref.model.lora_rank=32",),
            "lora",
            {"r": 32, "target_modules": "all-linear"},
        ),
        ((f"{ACTOR}.grad_clip=0.5",), "gradient_clipping", 0.5),
    ],
)
def test_options(words: tuple[str, ...], key: str, value: object) -> None:
    """Each changes the training section."""
    assert _read(*GRPO, *words).run["training"][key] == value


def test_megatron() -> None:
    """The sizes of its mesh."""
    megatron = f"{ACTOR}.megatron"
    words = (f"{ACTOR}.strategy=megatron", f"{megatron}.tensor_model_parallel_size=4")
    run = _read(*GRPO, *words, f"{megatron}.pipeline_model_parallel_size=2").run
    assert run["engine"]["type"] == "megatron_lm"
    assert run["parallelism"]["tensor_parallel_size"] == 4
    assert run["parallelism"]["pipeline_parallel_size"] == 2


def test_supervised_fine_tuning() -> None:
    """FSDP2 by default; the number of GPUs is the launcher's."""
    words = ["torchrun", "--nproc-per-node", "4", "-m", "verl.trainer.fsdp_sft_trainer"]
    words += ["model.partial_pretrain=gpt2", "data.micro_batch_size_per_gpu=2"]
    run = read_command(read_launch(words, NamedFiles(None))).run
    assert run["engine"]["fsdp_version"] == 2
    assert run["hardware"]["num_gpus"] == 4
    assert run["training"]["gradient_accumulation_steps"] == 256 // 4 // 2


def test_what_is_wrong_is_a_sentence() -> None:
    """A key that nobody has, a number that is none, a word that is no override."""
    assert "is not a key of verl" in _read(*GRPO, "data.max_respons_length=1").problems[0]
    with pytest.raises(InputError, match="must be a whole number"):
        _read(*GRPO, "trainer.nnodes=$NODES")
    with pytest.raises(InputError, match="no override of Hydra"):
        _read("nonsense")


MICRO, SHARE = f"{ACTOR}.ppo_micro_batch_size", "actor_rollout_ref.rollout.gpu_memory_utilization"
TENSOR = f"{ACTOR}.megatron.tensor_model_parallel_size"


@pytest.mark.parametrize(
    "word",
    [
        *(f"{MICRO}{of}={value}" for of in ("", "_per_gpu") for value in ("$ALL", "0", "[1]")),
        *(f"{SHARE}={value}" for value in ("$SHARE", "null", "1e400", "1.5")),
        *(f"trainer.{key}=0" for key in ("nnodes", "n_gpus_per_node")),
        f"{TENSOR}=$TP",
    ],
)
def test_a_number_that_is_none_is_a_sentence(word: str) -> None:
    """What a shell's variable without a value leaves, and zero of what must be there."""
    words = [one for one in GRPO if MICRO not in one]
    if word.startswith(TENSOR):
        words += [f"{ACTOR}.strategy=megatron", f"{MICRO}=8"]
    elif not word.startswith(f"{MICRO}="):
        words.append(f"{MICRO}_per_gpu=4")
    with pytest.raises(InputError, match=f"^{word.partition('=')[0]}=.* must be a .*number"):
        _read(*words, word)


@pytest.mark.parametrize("value", ["$SIZE", "0", "null", "1e400"])
def test_a_micro_batch_of_fine_tuning_that_is_no_number(value: str) -> None:
    """The same of the SFT trainer."""
    words = ("model.partial_pretrain=gpt2", f"data.micro_batch_size_per_gpu={value}")
    with pytest.raises(InputError, match="must be a whole number"):
        _read(*words, module="verl.trainer.fsdp_sft_trainer")


def test_the_file_of_config_name_is_read(tmp_path: Path) -> None:
    """Keys of the command win; what is another key's value, and Hydra's own, are left out."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\n"
        "actor_rollout_ref:\n"
        "  model: {path: Qwen/Qwen2.5-0.5B}\n"
        "  actor: {ppo_micro_batch_size_per_gpu: 2}\n"
        "data: {max_prompt_length: 100, max_response_length: '${data.max_prompt_length}'}\n"
    )
    words = ["--config-path=own", "--config-name", "mine", "data.max_prompt_length=200"]
    line = ["python", "-m", "verl.trainer.main_ppo", *words]
    found = read_command(read_launch(line, NamedFiles(tmp_path)))
    assert found.problems == []
    assert found.run["model"] == {"name": "Qwen/Qwen2.5-0.5B"}
    assert found.run["training"]["batch_size"] == 2
    assert found.run["training"]["seq_len"] == 200 + 512


def test_names_of_other_releases() -> None:
    """0.4's recompute of Megatron, 0.2's gradients on the host, the rewards of 0.9."""
    kwargs = "actor_rollout_ref.model.gradient_checkpointing_kwargs.activations_checkpoint"
    reading = _read(
        *GRPO,
        f"{ACTOR}.strategy=megatron",
        f"{kwargs}_granularity=full",
        f"{kwargs}_method=uniform",
        f"{kwargs}_num_layers=1",
        f"{ACTOR}.fsdp_config.grad_offload=False",
        "reward.reward_model.enable=True",
        "critic.fsdp.turbo_config.distributed.tensor_parallel_size=1",
    )
    assert reading.run["training"]["activation_checkpointing"] == "full"
    assert "reward_model.enable=true" in {limit.key for limit in reading.limits}
    assert not reading.problems


def test_other_engines_and_optimizers_are_limits() -> None:
    """They are estimated as FSDP and AdamW."""
    reading = _read(*GRPO, f"{ACTOR}.strategy=veomni", f"{ACTOR}.optim.optimizer=SGD")
    keys = {limit.key for limit in reading.limits}
    assert {f"{ACTOR}.strategy=veomni", f"{ACTOR}.optim.optimizer=SGD"} <= keys

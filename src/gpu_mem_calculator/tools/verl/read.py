"""verl's commands: `python -m verl.trainer.main_ppo key=value ...` and its SFT trainers.

The update of the actor is estimated: FSDP or Megatron with the model's own layers, flash attention
and full recompute by default (verl b178a3c workers/fsdp_workers.py, trainer/fsdp_sft_trainer.py).
Rollout, reference, critic and reward model are other phases or workers, and are named as limits.
Hydra's command line is `key=value`, `+key=value`, `++key=value`, `~key` (hydra 1.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ...runfile.text.yaml_text import parse_yaml
from ..reading.command import Command
from ..reading.keys import by_new_names, sort_keys
from ..reading.megatron_axes import SIZES
from ..reading.option_values import DTYPES, whole_value
from ..reading.reading import Reading, Section
from ..reading.tools import FORMATS
from ..releases.tool_at import tool_at
from ..translation.arguments import (
    ArgumentTable,
    Values,
    argument_table,
    argument_values,
    filled,
    renamed,
)

OPTIONS = ("--config-path", "--config-name", "--config-dir", "-cp", "-cn", "-cd")
FOLDERS = ("--config-path", "-cp", "--config-dir", "-cd")
HYDRA = ("defaults", "hydra")  # what a file says of other files
FOLDER = Path(__file__).parent
TITLE = "verl"
OLDEST = "0.3.0"  # the first release whose code was read
ACTOR, MODEL, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("actor", "model", "rollout"))
FSDP, MEGATRON = f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron"
LENGTHS = ("data.max_prompt_length", "data.max_response_length")
SFT = "sft"
KINDS = (SFT, "ppo")  # tables of arguments; the name of a module has one of the words
OPTIMIZER, ADAM = f"{ACTOR}.optim.optimizer", ("adam", "adamw")
STRATEGIES = ("fsdp", "fsdp2", "megatron")
EASY_R1 = "verl.trainer.main"
FORK = "it is not read; verl is, with main_ppo and SFT trainers"
GAE = "gae"  # the estimator of advantages that has a critic


def read_command(command: Command) -> Reading:
    """The update of a verl command."""
    kind = next((one for one in KINDS if one in command.words[0]), None)
    if kind is None:
        name = command.words[0]
        if name == EASY_R1:
            raise InputError(f"{name} is EasyR1's, a fork of verl with keys of its own; {FORK}")
        raise InputError(f"{name} does not train; verl is read with main_ppo and SFT trainers")
    given, options = read_overrides(command.words[1:])
    given = {**_config(options, command), **given}
    at = tool_at(f"verl/{kind}", command.files.releases)
    table = at.table(argument_table(kind, FOLDER))
    reading = Reading(tool=TITLE, version=at.version(FORMATS["verl"].version))
    at.begin(reading, OLDEST)
    reading.problems += at.absent(given)
    given = by_new_names(reading, renamed(kind, FOLDER), given)
    kept = sort_keys(reading, table, _within(table, given))
    reading.limits += at.unsaid(table, kept)
    values = argument_values(table, kept)
    if kind == SFT:
        _add_sft(reading, values, command)
    else:
        megatron = "megatron" in str(options.get("--config-name", ""))
        if megatron and f"{ACTOR}.strategy" not in kept:
            values = {**values, f"{ACTOR}.strategy": "megatron"}
        _add_actor(reading, values)
    reading.run |= at.beside(*at.idle(reading))
    return reading


def _config(options: Values, command: Command) -> Section:
    """The keys of the user's own file, which --config-path and --config-name name; none where it
    is verl's. A key that is another's (`${...}`) has verl's own meaning.
    """
    name = options.get("--config-name", options.get("-cn"))
    folder = next((options[one] for one in FOLDERS if one in options), "config")
    path = f"{folder}/{str(name).removesuffix('.yaml')}.yaml"
    if name is None or not command.files.exists(path):
        return {}
    data = command.files.data(path, "--config-name")
    return dict(_flat(data, "")) if isinstance(data, Mapping) else {}


def _flat(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if not prefix and key in HYDRA:
            continue
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif not (isinstance(value, str) and "${" in value):
            yield f"{prefix}{key}", value


def _within(table: ArgumentTable, given: Values) -> dict[str, Any]:
    """The keys, with those that a user adds to an object of the table as that object."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        parent = name
        while parent not in table and "." in parent:
            parent = parent.rpartition(".")[0]
        found[parent if parent in table else name] = value
    return found


def whole(values: Values, key: str, least: int = 1) -> int:
    """The whole number of a key; a shell's variable that is not known is refused."""
    return whole_value(key, values[key], least)


def _add_actor(reading: Reading, values: Values) -> None:
    """The actor's update in PPO, GRPO and their relatives."""
    nodes = whole(values, "trainer.nnodes")
    gpus = nodes * whole(values, "trainer.n_gpus_per_node")
    length = sum(whole(values, key) for key in LENGTHS)
    training: Section = {
        "seq_len": length,
        "gradient_clipping": values[f"{ACTOR}.grad_clip"],
        "attention": "flash_attention_2",
        **_batch(reading, values, gpus, length),
    }
    training |= _savers(values, MODEL)
    training |= _adapters(values[f"{MODEL}.lora_rank"], values[f"{MODEL}.target_modules"])
    reading.run = {"model": {"name": str(values[f"{MODEL}.path"])}, "training": training}
    if values[f"{ACTOR}.strategy"] == "megatron":
        reading.run |= _megatron(values, training)
    else:
        stored = values[f"{FSDP}.model_dtype"]
        training |= _precision(stored, values[f"{FSDP}.dtype"])
        reading.run["engine"] = _fsdp(values, gpus)
    reading.run["hardware"] = {"num_gpus": gpus, "num_nodes": nodes}
    reading.assumed.append(f"{TITLE}'s update of the actor, on sequences of {length:,} tokens")
    _name_other_phases(reading, values)


def _batch(reading: Reading, values: Values, gpus: int, length: int) -> Section:
    """The micro-batch of one GPU, and how many of them a step has.

    - workers/fsdp_workers.py: ppo_mini_batch_size is of all GPUs, in prompts, times rollout.n
    - use_dynamic_bsz: micro-batches of at most ppo_max_token_len_per_gpu tokens
    """
    each, every = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size"
    if values[f"{ACTOR}.use_dynamic_bsz"]:
        size = max(1, whole(values, f"{ACTOR}.ppo_max_token_len_per_gpu") // length)
    elif values[each] is not None:
        size = whole(values, each)
    elif values[every] is not None:
        size = max(1, whole(values, every) // gpus)
    else:
        reading.problems.append(
            f"{ACTOR}.ppo_micro_batch_size_per_gpu is missing; {TITLE} refuses to start without it"
        )
        return {}
    prompts, samples = f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
    rows = whole(values, prompts) * whole(values, samples)
    return {"batch_size": size, "gradient_accumulation_steps": max(1, rows // gpus // size)}


def _adapters(rank: Any, targets: Any) -> Section:
    if not rank:
        return {}
    return {"lora": {"r": rank, "target_modules": targets}}


def _savers(values: Values, model: str) -> Section:
    """Recompute and Liger's kernels, where the model's section has them."""
    recompute = "full" if values[f"{model}.enable_gradient_checkpointing"] else ""
    return filled(activation_checkpointing=recompute, liger=bool(values[f"{model}.use_liger"]))


def _precision(stored: Any, compute: Any) -> Section:
    """Weights in `stored`, computed in `compute` by FSDP's policy, with autocast around it."""
    short = DTYPES.get(str(compute), str(compute))
    if str(stored) in ("fp32", "float32"):
        return {"precision": f"{short}_mixed", "autocast": True}
    return {"precision": f"{short}_pure"}


def _fsdp(values: Values, gpus: int) -> Section:
    """FSDP as fsdp_workers.py _build_model_optimizer wraps the actor."""
    version = 2 if values[f"{ACTOR}.strategy"] == "fsdp2" else 1
    size = whole(values, f"{FSDP}.fsdp_size", -1)
    reshard = values[f"{FSDP}.reshard_after_forward"]
    hybrid = 0 < size < gpus
    names = {True: "hybrid_shard", False: "hybrid_shard_zero2"} if hybrid else {}
    strategy = names.get(bool(reshard)) or ("full_shard" if reshard else "shard_grad_op")
    engine: Section = {"type": "fsdp", "fsdp_version": version, "sharding_strategy": strategy}
    engine["reduce_dtype"] = "fp32"
    engine |= filled(hybrid_shard_size=size if hybrid else 0)
    if version == 1:
        adapters = bool(values[f"{MODEL}.lora_rank"])  # they are units of their own then
        engine["use_orig_params"] = adapters or bool(values[f"{FSDP}.use_orig_params"])
        engine["forward_prefetch"] = bool(values[f"{FSDP}.forward_prefetch"])
    elif values[f"{FSDP}.offload_policy"]:
        engine["cpu_offload"] = True
    return engine


def _megatron(values: Values, training: Section) -> Section:
    """Megatron-Core as workers/megatron_workers.py builds the actor."""
    parallelism = {
        key: whole_value(f"{MEGATRON}.{name}", values[f"{MEGATRON}.{name}"] or 1, 1)
        for key, name in SIZES.items()
    }
    tensor = parallelism["tensor_parallel_size"] > 1
    parallelism["sequence_parallel"] = bool(values[f"{MEGATRON}.sequence_parallel"]) and tensor
    recompute = f"{MEGATRON}.override_transformer_config.recompute"
    granularity = values[f"{recompute}_granularity"]
    training["activation_checkpointing"] = granularity or "none"
    training.pop("attention", None)
    engine: Section = {
        "type": "megatron_lm",
        "distributed_optimizer": bool(values[f"{MEGATRON}.use_distributed_optimizer"]),
    }
    expert = values[f"{MEGATRON}.expert_tensor_parallel_size"]
    engine |= filled(expert_tensor_parallel_size=expert)
    return {"parallelism": parallelism, "engine": engine}


def _name_other_phases(reading: Reading, values: Values) -> None:
    """What a step has besides the actor's update, and what of the update is not modelled."""
    if str(values[OPTIMIZER]).lower() not in ADAM:
        reading.limit(f"{OPTIMIZER}={values[OPTIMIZER]}", "the estimate has AdamW")
    if values[f"{ACTOR}.strategy"] not in STRATEGIES:
        why = "this engine is not modelled; the estimate has FSDP"
        reading.limit(f"{ACTOR}.strategy={values[f'{ACTOR}.strategy']}", why)
    why = "log-probabilities are estimated as the model's own cross-entropy"
    # It adds at most four fp32 copies of the logits beside those of the cross-entropy.
    reading.limit(f"{ACTOR}.policy_loss", why, adds="16*logits", saves="activations")
    if values[f"{MODEL}.lora_rank"] and values[f"{ACTOR}.strategy"] == "fsdp":
        why = "each adapter is an FSDP unit of its own; it is estimated in its layer's unit"
        reading.limit(f"{MODEL}.lora_rank", why)
    share = _share(values)
    name = values[f"{ROLLOUT}.name"] or "the rollout engine"
    sleeps = values[f"{ROLLOUT}.free_cache_engine"]
    why = f"{name} takes {share:g} of the card while it generates, beside the actor's shards"
    rest = "" if sleeps else ", and keeps it during the update"
    key, most = f"{ROLLOUT}.gpu_memory_utilization={share:g}", f"{ceil(share * 100)}*card_percent"
    reading.limit(key, why + rest, "more", adds=most)
    critic = values["critic.enable"]
    if critic or (critic is None and values["algorithm.adv_estimator"] == GAE):
        why = "the critic's shards and update on the same GPUs are not modelled"
        reading.limit("critic", why, "more")
    if values["reward_model.enable"]:
        why = "the reward model on the same GPUs is not modelled"
        reading.limit("reward_model.enable=true", why, "more")


def _share(values: Values) -> float:
    """The part of the card that the rollout takes."""
    key = f"{ROLLOUT}.gpu_memory_utilization"
    share = values[key]
    if isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1:
        return share
    raise InputError(f"{key}={quoted(share)} must be a number from 0 to 1")


def _add_sft(reading: Reading, values: Values, command: Command) -> None:
    """The SFT trainer: FSDP with 16-bit compute, gradients reduced in fp32."""
    per_node = whole(values, "trainer.n_gpus_per_node")
    gpus = command.num_gpus or whole(values, "trainer.nnodes") * per_node
    size = whole(values, "data.micro_batch_size_per_gpu")
    steps = whole(values, "data.train_batch_size") // gpus // size
    training: Section = {
        "batch_size": size,
        "gradient_accumulation_steps": max(1, steps),
        "seq_len": values["data.max_length"],
        "gradient_clipping": values["optim.clip_grad"],
        "attention": "flash_attention_2",
        **_precision(values["model.fsdp_config.model_dtype"], "bfloat16"),
        **_adapters(values["model.lora_rank"], values["model.target_modules"]),
    }
    training |= _savers(values, "model")
    version = 2 if values["model.strategy"] == "fsdp2" else 1
    engine: Section = {"type": "fsdp", "fsdp_version": version, "reduce_dtype": "fp32"}
    engine |= filled(cpu_offload=bool(values["model.fsdp_config.cpu_offload"]))
    reading.run = {
        "model": {"name": str(values["model.partial_pretrain"])},
        "training": training,
        "engine": engine,
        "hardware": {"num_gpus": gpus, "num_nodes": command.num_nodes},
    }
    why = "the loss is computed for each token on shifted copies of the logits"
    reading.limit("loss", why, "more")


def read_overrides(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values by key, and Hydra's own options by name."""
    values: dict[str, Any] = {}
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, sign, text = word.partition("=")
        if name in OPTIONS:
            options[name] = text if sign else (rest.pop(0) if rest else "")
        elif sign and not word.startswith("-"):
            values[name.lstrip("+")] = _value(text)
        elif word.strip() and not word.startswith(("~", "-", "$")):
            raise InputError(f"{word!r} is no override of Hydra; write it as key=value")
    return values, options


def _value(text: str) -> Any:
    """The value of an override; a text that is no YAML is kept as it is."""
    try:
        return parse_yaml(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text

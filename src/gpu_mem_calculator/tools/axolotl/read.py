"""Reads Axolotl's files and commands: settings become a `program` of transformers or TRL, and keys
of the run file where Axolotl adds something of its own.

A file starts transformers' own trainer or one of TRL's, with one of transformers' optimizers or one
of Axolotl's own (Axolotl 067b021 core/builders/rl.py, core/builders/causal.py _get_trainer_cls,
core/builders/base.py _configure_optimizer, core/trainers/grpo/__init__.py,
core/trainers/dpo/__init__.py, utils/schemas/enums.py CustomSupportedOptimizers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...ledger import frameworks
from ...runfile.other_names import OPTIM
from ...runfile.text.errors import InputError, nearest, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles, repeated_note
from ..reading.reading import Could, Reading, Section
from ..releases.tool_at import ToolAt, below, by_names_at, tool_at
from ..trainer.optimizers import REFUSED_OPTIMIZERS
from ..translation.arguments import (
    OFF,
    REFUSED,
    Values,
    argument_table,
    argument_values,
    filled,
    tables,
)
from .adapters import add_adapters
from .batches import add_batch, add_evaluation
from .command import COMMAND, file_and_options, launched
from .draft import Draft, Limits, flag, mapping, whole
from .launch import FOLDER, add_launch
from .loading import (
    add_attention,
    add_compile,
    add_frozen,
    add_placement,
    add_precision,
    add_recompute,
)
from .losses import add_losses

TABLES = tables(__file__)
LIMITS: Limits = TABLES["limits"]
TITLE = "Axolotl"
OLDEST = "0.8.0"  # the first release whose code was read
PINNED = "transformers 5.14.1 and TRL 1.8.0, which Axolotl pins, are treated as the modelled ones"
# Other names of the same key (utils/schemas/deprecated.py RemappedParameters).
SAME: dict[str, str] = TABLES["same"]
# Keys of a model's configuration that change no tensor.
FREE_CONFIG = ("rope_scaling", "rope_theta", "rope_parameters", "max_position_embeddings")
SCORES = ("SequenceClassification", "TokenClassification")
# Optimizers that are not modelled: the one that is estimated, why, and how the run could differ.
OTHERS: Mapping[str, tuple[str, str, Could]] = {
    name: (group["estimated"], group["why"], group["could"])
    for group in TABLES["optimizers"]
    for name in group["names"]
}
NAMES = (*OPTIM, *REFUSED_OPTIMIZERS, *OTHERS)
TRL: dict[str, str] = TABLES["trl"]
PAIRS = ("orpo", "simpo")  # one batch of chosen and rejected answers, with all logits
ONLINE = ("grpo", "gdpo")
EBFT = "ebft"  # estimated with the model's own loss, as PAIRS are
RL = (*TRL, *PAIRS, EBFT)
# Keys of `trl` that are GRPOConfig's own.
COPIED: list[str] = TABLES["copied"]
COMPLETION = 512  # GRPOConfig.max_completion_length


def read_command(command: Command) -> Reading:
    """What `axolotl train FILE ...` means, and `accelerate launch -m axolotl.cli.train FILE`."""
    command, words = launched(command)
    given = file_and_options(words)
    repeated: list[str] = []
    data = mapping(command.files.data(given.file, "axolotl train", repeated), given.file)
    if given.num_processes is not None:
        command = replace(command, num_gpus=given.num_processes)
    reading = read_settings(given.changed(data), command)
    sort_keys(reading, argument_table(COMMAND, FOLDER), given.own(), "--")
    reading.problems += given.problems
    reading.assumed += repeated_note(repeated)
    return reading


def read_data(data: Values, files: NamedFiles) -> Reading:
    """What an Axolotl file means when `axolotl train` starts it."""
    return read_settings(data, Command(words=(), files=files))


def read_settings(data: Values, command: Command) -> Reading:
    """What settings mean with what the command says: its files, GPUs and launcher."""
    at = tool_at("axolotl/keys", command.files.releases)
    reading = Reading(tool=TITLE, version=at.version(frameworks.AXOLOTL.version))
    at.begin(reading, OLDEST)
    settings = _settings(data, reading, at)
    draft = Draft(reading=reading, cfg=settings, at=at, num_gpus=command.num_gpus)
    reading.assumed += [] if at.is_other else [PINNED]
    _add_model(draft)
    add_precision(draft)
    attention = add_attention(draft)
    add_batch(draft, attention)
    _add_optimizer(draft)
    add_recompute(draft)
    add_frozen(draft)
    add_adapters(draft)
    add_losses(draft)
    add_launch(draft, command.files)
    _add_accelerate(draft, command)
    add_placement(draft, attention)
    _choose_trainer(draft)
    add_compile(draft)
    add_evaluation(draft, attention)
    reading.run |= _sections(draft)
    by_names_at(reading, at)
    reading.run |= at.beside(*below(reading.run))
    return reading


def _settings(data: Values, reading: Reading, at: ToolAt) -> dict[str, Any]:
    """Every honoured key with its value, or Axolotl's default."""
    table = at.table(argument_table("keys", FOLDER))
    reading.problems += at.absent(map(str, data))
    given: dict[str, Any] = {}
    for name, value in data.items():
        row = table.get(str(name))
        off = row is not None and row.effect == REFUSED and row.default in OFF and value in OFF
        given[str(name)] = row.default if row is not None and off else value
    kept = sort_keys(reading, table, given)
    for name, meant in SAME.items():
        if name in kept:
            kept[meant] = kept.pop(name)
    return argument_values(table, kept)


def _add_model(draft: Draft) -> None:
    name = draft.get("base_model")
    if not isinstance(name, str) or not name:
        raise InputError(f"base_model={quoted(name)} must be the name of a model")
    draft.reading.run["model"] = {"name": name}
    if draft.get("revision_of_model"):
        draft.reading.run["model"]["revision"] = str(draft.get("revision_of_model"))
    for key, value in mapping(draft.get("overrides_of_model_config"), "model_config").items():
        if key == "output_router_logits" and value:
            draft.limit(f"model_config.{key}", *LIMITS["router"], value=value)
        elif key not in FREE_CONFIG and value:
            draft.limit(f"model_config.{key}", *LIMITS["model_config"], value=value)
    kind = str(draft.get("type_of_model") or "")
    if any(word in kind for word in SCORES) and not draft.flag("reward_model"):
        draft.limit("model_type", *LIMITS["head"], value=kind)
    if draft.get("processor_type"):
        draft.limit("processor_type", *LIMITS["processor"])
    # Mxfp4Config with dequantize loads 16-bit weights; other formats stay as they are stored.
    stored = draft.get("model_quantization_config")
    if stored and not draft.section("model_quantization_config_kwargs").get("dequantize"):
        draft.limit("model_quantization_config", *LIMITS["stored"])


def _add_accelerate(draft: Draft, command: Command) -> None:
    """Accelerate's own FSDP or DeepSpeed, where the file has none."""
    kind = str((command.accelerate or {}).get("distributed_type", "")).upper()
    if kind in ("FSDP", "DEEPSPEED") and not draft.launch:
        draft.launch["accelerate"] = dict(command.accelerate or {})


def _sections(draft: Draft) -> Section:
    """The sections of a run file, without the empty ones."""
    program: Section = {"tool": draft.tool, "args": draft.args, "load": draft.load}
    program |= {"peft": draft.peft} if draft.peft is not None else {}
    program |= {"quantization": draft.quantization} if draft.quantization else {}
    program |= {"data": draft.data, **draft.launch}
    hardware = filled(num_gpus=draft.num_gpus)
    parts = filled(training=draft.training, engine=draft.engine, hardware=hardware)
    return {"program": program, **parts}


def _add_optimizer(draft: Draft) -> None:
    """Add the optimizer and its arguments."""
    given = draft.get("optimizer")
    name = str(given or "adamw_torch_fused")
    if "optimizer" not in draft.reading.keys:
        draft.assume(f"optimizer={name}, Axolotl's default")
    if name not in OPTIM:
        name = _substitute(draft, name)
    draft.args["optim"] = name
    if draft.get("weight_decay"):
        draft.args["weight_decay"] = draft.get("weight_decay")
    if draft.get("max_grad_norm") is not None:
        draft.args["max_grad_norm"] = draft.get("max_grad_norm")
    arguments = draft.get("optim_args")
    if arguments and name == given:
        if isinstance(arguments, Mapping):
            arguments = ",".join(f"{key}={value}" for key, value in arguments.items())
        draft.args["optim_args"] = str(arguments)


def _substitute(draft: Draft, name: str) -> str:
    """The optimizer that is estimated in the place of one that is not modelled."""
    if name in OTHERS:
        instead, why, could = OTHERS[name]
    elif name in REFUSED_OPTIMIZERS:
        why = f"{REFUSED_OPTIMIZERS[name]}; the estimate has AdamW"
        instead, could = "adamw_torch", "either"
    else:
        hint = nearest(name, list(NAMES))
        draft.reading.problems.append(f"optimizer={name!r} is not one of Axolotl's{hint}")
        return "adamw_torch_fused"
    draft.limit("optimizer", why, could)
    return instead


def _choose_trainer(draft: Draft) -> None:
    """Set the program's tool, and the arguments that only this trainer has."""
    method = draft.get("rl")
    sections = {name: _section(draft, name, used=method in ONLINE) for name in ("trl", "vllm")}
    if draft.flag("reward_model"):
        draft.tool = "trl.RewardTrainer"
        draft.args["max_length"] = draft.data["seq_len"]
    if not method:
        return
    if method not in RL:
        hint = nearest(str(method), list(RL)) or f"; it can be {', '.join(RL)}"
        raise InputError(f"rl={quoted(method)} is not a method of Axolotl{hint}")
    if method in PAIRS:
        draft.args["per_device_train_batch_size"] *= 2
        draft.limit("rl", *LIMITS["pairs"])
        return
    if method == EBFT:
        draft.limit("rl", *LIMITS[EBFT])
        return
    draft.tool = TRL[method]
    if method in ONLINE:
        _add_online(draft, sections["trl"], sections["vllm"])
    else:
        _add_preference(draft)


def _add_preference(draft: Draft) -> None:
    """DPO and KTO: a reference model, without a copy where there are adapters."""
    draft.args["max_length"] = draft.data["seq_len"]
    if draft.flag("precompute_ref_log_probs"):
        draft.args["precompute_ref_log_probs"] = True
    if draft.flag("dpo_use_liger_kernel"):
        draft.limit("dpo_use_liger_kernel", *LIMITS["liger of preferences"])


def _section(draft: Draft, name: str, *, used: bool) -> Section:
    """The honoured keys of a section; its limits are none where no trainer reads it."""
    table, before = argument_table(name, FOLDER), list(draft.reading.limits)
    given = mapping(draft.get(name), name)
    draft.reading.problems += draft.at.absent(given, f"axolotl/{name}", f"{name}.")
    kept = sort_keys(draft.reading, table, given, f"{name}.")
    if not used:
        draft.reading.limits[:] = before
    return kept


def _add_online(draft: Draft, given: Section, engine: Section) -> None:
    """GRPO: the section `trl`, and vLLM's share of the card."""
    draft.args |= {key: given[key] for key in COPIED if given.get(key) is not None}
    beta = given.get("beta") if given.get("beta") is not None else draft.get("rl_beta")
    if beta is not None:
        draft.args["beta"] = beta
    if flag(given.get("use_vllm"), "trl.use_vllm"):
        draft.args |= _vllm(given, engine)
    if flag(given.get("use_liger_loss"), "trl.use_liger_loss"):
        draft.limit("trl.use_liger_loss", *LIMITS["liger of GRPO"], value=True)
    _add_prompt(draft, given)


def _vllm(given: Section, engine: Section) -> Section:
    """vLLM as GRPOConfig's arguments; a server elsewhere unless it says colocate."""
    if given.get("vllm_mode") != "colocate":
        return {"use_vllm": True, "vllm_mode": "server"}
    share = engine.get("gpu_memory_utilization") or 0.9
    ranks = whole(engine.get("tensor_parallel_size"), "vllm.tensor_parallel_size") or 1
    sleeps = flag(given.get("vllm_enable_sleep_mode"), "trl.vllm_enable_sleep_mode")
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": share,
        "vllm_tensor_parallel_size": ranks,
        **({"vllm_enable_sleep_mode": True} if sleeps else {}),
    }


def _add_prompt(draft: Draft, given: Section) -> None:
    """The tokens of a prompt, which nothing truncates: what sequence_len leaves."""
    new = whole(given.get("max_completion_length"), "trl.max_completion_length") or COMPLETION
    draft.args["max_completion_length"] = new
    most = draft.whole("max_prompt_len") or max(1, (draft.whole("sequence_len") or 512) - new)
    draft.data = {"prompt": most}
    draft.assume(f"a prompt has {most} tokens: nothing in the file says how many")

"""Hugging Face's names for the keys and values of a run, with ours.

The names are those of transformers' TrainingArguments, TRL's SFTConfig, PEFT's LoraConfig,
BitsAndBytesConfig and accelerate. Some are of Axolotl, LLaMA-Factory, torchtune and the servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..ledger.quoting import quoted
from ..training.engines import shorthands
from ..training.optimizers import OPTIMIZERS
from .trainer_optimizers import OPTIMIZERS as TRAINER_OPTIMIZERS

Settings = dict[str, Any]  # our keys, as `section.key`, with their values

CHECKPOINTING = "training.activation_checkpointing"
OPTIMIZER = "training.optimizer"
KERNELS = "training.optimizer_implementation"
QUANTIZATION = "training.quantization"
RANK = "training.lora.r"
DTYPE = "training.dtype"

# Names of a key, and ours.
RENAMED: Mapping[str, str] = {
    "model_name_or_path": "model.name",
    "pretrained_model_name_or_path": "model.name",
    "base_model": "model.name",
    "model_id": "model.name",
    "num_hidden_layers": "model.num_layers",
    "max_position_embeddings": "model.max_seq_len",
    "per_device_train_batch_size": "training.batch_size",
    "per_gpu_train_batch_size": "training.batch_size",
    "train_micro_batch_size_per_gpu": "training.batch_size",
    "micro_batch_size": "training.batch_size",
    "max_length": "training.seq_len",
    "max_seq_length": "training.seq_len",
    "model_max_length": "training.seq_len",
    "seq_length": "training.seq_len",
    "sequence_length": "training.seq_len",
    "sequence_len": "training.seq_len",
    "cutoff_len": "training.seq_len",
    "grad_accum": "training.gradient_accumulation_steps",
    "gradient_accumulation": "training.gradient_accumulation_steps",
    "max_grad_norm": "training.gradient_clipping",
    "optim": OPTIMIZER,
    "optimizer_type": OPTIMIZER,
    "attn_implementation": "training.attention",
    "_attn_implementation": "training.attention",
    "lora_r": RANK,
    "lora_rank": RANK,
    "lora_dropout": "training.lora.dropout",
    "lora_target_modules": "training.lora.target_modules",
    "target_modules": "training.lora.target_modules",
    "use_dora": "training.lora.dora",
    "bnb_4bit_use_double_quant": "training.double_quant",
    "num_processes": "hardware.num_gpus",
    "nproc_per_node": "hardware.gpus_per_node",
    "num_machines": "hardware.num_nodes",
    "nnodes": "hardware.num_nodes",
    "model": "model.name",
    "engine": "engine.type",
    "label_smoothing_factor": "training.label_smoothing",
    "use_reentrant_gc": "training.checkpoint_reentrant",
}
# The same inside `training.lora`.
LORA_RENAMED: Mapping[str, str] = {"rank": RANK, "lora_r": RANK, "lora_rank": RANK}
# The same in a run with an `inference` section.
SERVING_RENAMED: Mapping[str, str] = {
    "max_model_len": "inference.max_seq_len",
    "context_length": "inference.max_seq_len",
    "ctx_size": "inference.max_seq_len",
    "n_ctx": "inference.max_seq_len",
    "max_total_len": "inference.max_seq_len",
    "max_new_tokens": "inference.new_tokens",
    "tp": "inference.tensor_parallel_size",
    "tp_size": "inference.tensor_parallel_size",
    "pp": "inference.pipeline_parallel_size",
    "pp_size": "inference.pipeline_parallel_size",
    "dp": "inference.data_parallel_size",
    "dp_size": "inference.data_parallel_size",
    "ep_size": "inference.expert_parallel_size",
    "mem_fraction_static": "inference.gpu_memory_utilization",
    "free_gpu_memory_fraction": "inference.gpu_memory_utilization",
    "attn_implementation": "inference.attention",
    "torch_dtype": "inference.dtype",
}
# Names whose values have a meaning of their own.
FLAGS: Mapping[str, Mapping[Any, Settings]] = {
    "gradient_checkpointing": {True: {CHECKPOINTING: "full"}, False: {CHECKPOINTING: "none"}},
    "use_flash_attention_2": {True: {"training.attention": "flash_attention_2"}, False: {}},
    "flash_attention": {True: {"training.attention": "flash_attention_2"}, False: {}},
    "enable_activation_checkpointing": {
        True: {CHECKPOINTING: "full"},
        False: {CHECKPOINTING: "none"},
    },
    "fsdp_activation_checkpointing": {True: {CHECKPOINTING: "full"}, False: {}},
    "disable_gradient_checkpointing": {
        True: {CHECKPOINTING: "none"},
        False: {CHECKPOINTING: "full"},
    },
    "use_liger_kernel": {True: {"training.liger": True}, False: {}},
    "enable_liger_kernel": {True: {"training.liger": True}, False: {}},
    "torch_compile": {True: {"training.compile": True}, False: {}},
    "cut_cross_entropy": {True: {"training.loss": "cut"}, False: {}},
    "flash_attn_cross_entropy": {True: {"training.loss": "flash_fused"}, False: {}},
    "liger_fused_linear_cross_entropy": {True: {"training.loss": "liger_fused"}, False: {}},
    "load_in_4bit": {True: {QUANTIZATION: "nf4"}, False: {}},
    "load_in_8bit": {True: {QUANTIZATION: "int8"}, False: {}},
    "bnb_4bit_quant_type": {"nf4": {QUANTIZATION: "nf4"}, "fp4": {QUANTIZATION: "nf4"}},
    "use_peft": {True: {}, False: {}},
    "bf16": {True: {DTYPE: "bf16"}, False: {}},
    "fp16": {True: {DTYPE: "fp16"}, False: {}},
}
# What a name and its value say where no other key does: the defaults of Hugging Face.
DEFAULTS: Mapping[tuple[str, Any], Settings] = {
    ("load_in_4bit", True): {"training.double_quant": False},
    ("use_peft", True): {RANK: 16},
    ("bf16", False): {DTYPE: "fp32"},
    ("fp16", False): {DTYPE: "fp32"},
}
# Values of `training.optimizer`: bytes are equal where a kernel differs in speed alone.
OPTIMIZER_ALIASES: Mapping[str, Settings] = {
    alias: {OPTIMIZER: name, **({KERNELS: kind} if kind else {})}
    for name, row in OPTIMIZERS.items()
    for alias, kind in {**row.optim, **row.aliases}.items()
    if alias not in OPTIMIZERS
}
# Other names of engines, with what they say about the engine's options.
ENGINES: Mapping[str, Settings] = {
    short: {"engine.type": name, **{f"engine.{key}": value for key, value in options.items()}}
    for short, (name, options) in shorthands().items()
}
VALUES: Mapping[str, Mapping[str, Settings]] = {
    OPTIMIZER: OPTIMIZER_ALIASES,
    "engine.type": ENGINES,
}
# Keys that change no byte of the estimate, and are accepted.
_NO_MEMORY = """
lora_alpha alpha bias task_type use_rslora init_lora_weights inference_mode base_model_name
learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon lr_scheduler_type warmup_ratio
warmup_steps num_train_epochs max_steps num_epochs seed data_seed output_dir run_name report_to
logging_steps logging_strategy save_steps save_strategy save_total_limit eval_steps eval_strategy
evaluation_strategy per_device_eval_batch_size dataloader_num_workers group_by_length
remove_unused_columns ddp_find_unused_parameters tf32 push_to_hub packing dataset_text_field
dataset_name llm_int8_threshold bnb_4bit_compute_dtype bnb_4bit_quant_storage lora_bias
lora_task_type neftune_noise_alpha
"""
NO_MEMORY = frozenset(_NO_MEMORY.split())
# Names that have no key of one's own here: what to write instead.
ANSWERS: Mapping[str, str] = {
    "torch_dtype": "use training.precision=bf16_pure for bf16 weights, bf16_mixed for fp32",
    "deepspeed": "use engine.type=deepspeed and engine.zero_stage=3",
    "fsdp": "use engine.type=fsdp",
    "fsdp_config": "use engine.type=fsdp",
    "train_batch_size": "it counts all GPUs; use training.batch_size, which counts one",
    "global_batch_size": "it counts all GPUs; use training.batch_size, which counts one",
    **dict.fromkeys(
        ("activation_offloading", "enable_activation_offloading"),
        "all activations in host RAM are not modelled; use training.recompute=full_offloaded, "
        "which moves the inputs of layers",
    ),
    "chunked_cross_entropy": "chunks of tokens are not modelled; use training.loss=chunked, TRL's",
    "device_map": "it is not modelled; use engine.type=fsdp to share a model between GPUs",
}


def translated(path: str, value: Any, *, serving: bool = False) -> Settings | str | None:
    """What a key that is not ours means.

    Returns our keys with their values, a sentence on what to write instead, or None where the name
    is unknown. `serving`: the run has an `inference` section.
    """
    name = path.rpartition(".")[2]
    if serving and name in SERVING_RENAMED:
        return {SERVING_RENAMED[name]: value}
    if path.startswith("training.lora.") and name in LORA_RENAMED:
        return {LORA_RENAMED[name]: value}
    if name == "optim" and str(value) in TRAINER_OPTIMIZERS:
        return {f"training.{key}": one for key, one in TRAINER_OPTIMIZERS[str(value)].items()}
    if name in RENAMED:
        return translated_value(RENAMED[name], value)
    if name in FLAGS:
        if not _listed(value, FLAGS[name]):
            return f"{path}={quoted(value)} must be {_or(FLAGS[name])}"
        return dict(FLAGS[name][value])
    if name == "gradient_checkpointing_kwargs" and isinstance(value, Mapping):
        return {"training.checkpoint_reentrant": bool(value.get("use_reentrant", False))}
    if name in NO_MEMORY:
        return {}
    if name in ANSWERS:
        return {} if value in (False, None, "") else f"{path}={quoted(value)}: {ANSWERS[name]}"
    return None


def translated_value(path: str, value: Any) -> Settings:
    """One of our keys with its value; another's word for the value becomes ours."""
    word = value.strip().lower() if isinstance(value, str) else None
    meaning = VALUES.get(path, {}).get(word or "")
    return {path: value} if meaning is None else dict(meaning)


def _listed(value: Any, choices: Iterable[Any]) -> bool:
    """Whether a value is one of the choices, where 1 is not true."""
    return any(type(value) is type(one) and value == one for one in choices)


def _or(choices: Iterable[Any]) -> str:
    return " or ".join(str(one).lower() for one in choices)

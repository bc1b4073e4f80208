"""The sections of a run file that a script's arguments mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.reading import Could, Reading, Section
from ..trainer.loading import PEFT
from ..translation.arguments import argument_table, tables
from ..translation.tools import ONLINE, TRAINER
from .trainers import script_arguments

PROMPT = 512  # tokens to which TRL 0.24.0 cut prompts (trainer/grpo_config.py max_prompt_length)
WHOLE = "whole"  # a sequence as long as the model takes
LENGTH = 1024  # tokens of a sequence where nothing says how long it is
ROWS = tables(__file__)
# Arguments of LoraConfig by those of ModelConfig (trainer/utils.py get_peft_config).
LORA: dict[str, str] = ROWS["lora"]
LORA_USUAL: dict[str, Any] = ROWS["lora_usual"]
# Kernels of the hub that are FlashAttention (transformers 5.17.0 integrations/hub_kernels.py).
KERNELS: dict[str, str] = ROWS["kernels"]
TABLES = ("lm_head", "embed_tokens", "embed_out", "wte")  # the vocabulary's own
SETTLE = "--set program.data.seq_len=TOKENS"  # how a user says the length of a sequence
# Arguments that may name a file.
IN_FILES = ("fsdp_config", "accelerator_config", "liger_kernel_config", "model_init_kwargs")


def program_sections(
    reading: Reading, tool: str, values: Section, files: NamedFiles, *, loaded: Section | None
) -> None:
    """Fill in `model` and `program` from arguments that are honoured or free.

    - loaded: what the script itself gives to from_pretrained; None where the trainer loads the
      model
    """
    arguments = script_arguments(tool)
    values = _with_old_names(values, tool)
    args = {name: value for name, value in values.items() if name in arguments.trainer}
    program: Section = {"tool": tool, "args": args}
    for name in IN_FILES:
        if isinstance(args.get(name), str):
            args[name] = files.data(args[name], f"--{name}")
    _add_model(reading, values, files)
    _add_loading(program, values, tool, loaded)
    _add_peft(reading, program, values)
    _add_quantization(program, values)
    _add_data(reading, program, values, tool)
    reading.run["program"] = {
        key: value for key, value in program.items() if value != {} or key == "args"
    }


def _with_old_names(values: Section, tool: str) -> Section:
    """Arguments of earlier releases as this release writes them."""
    values = dict(values)
    for name in ("eval_strategy", "save_strategy"):
        if values.get(name) is False:  # YAML's no
            values[name] = "no"
    if values.pop("adafactor", False):
        values.setdefault("optim", "adafactor")
    reentrant = values.pop("gradient_checkpointing_use_reentrant", None)
    if reentrant is not None:
        values.setdefault("gradient_checkpointing_kwargs", {"use_reentrant": reentrant})
    if "max_seq_length" in values and "max_length" in script_arguments(tool).trainer:
        values.setdefault("max_length", values.pop("max_seq_length"))
    return values


def _add_model(reading: Reading, values: Section, files: NamedFiles) -> None:
    name = values.get("model_name_or_path") or values.get("config_name")
    if name is None:
        return
    if not isinstance(name, str):
        raise InputError(f"model_name_or_path={quoted(name)} must be a name or a path")
    adapter = f"{name}/adapter_config.json"
    if files.exists(adapter):
        data = files.data(adapter)
        base = data.get("base_model_name_or_path") if isinstance(data, Mapping) else None
        if not isinstance(base, str):
            raise InputError(f"{adapter} does not say base_model_name_or_path; add it")
        values["peft_config"] = data
        reading.assumed.append(f"{name} is an adapter, which is trained on {base}")
        name = base
    if files.exists(f"{name}/config.json"):
        name = str(files.path(name, "--model_name_or_path"))
    reading.run["model"] = {"name": name, **reading.run.get("model", {})}


def _add_loading(program: Section, values: Section, tool: str, loaded: Section | None) -> None:
    """The dtype and the attention: of the trainer that loads the model, or of the script."""
    keys = ("dtype", "attn_implementation")
    given = {key: values[key] for key in keys if values.get(key) is not None}
    attention = str(given.get("attn_implementation"))
    if attention in KERNELS:
        given["attn_implementation"] = KERNELS[attention]
    if tool == TRAINER or loaded is not None:
        load = {**(loaded or {}), **given}
        program["load"] = load
        if tool != TRAINER and not load:
            program["load"] = {"dtype": "auto"}
    elif given:
        init = values.get("model_init_kwargs") or {}
        if isinstance(init, Mapping):
            program["args"]["model_init_kwargs"] = {**given, **init}


def _add_peft(reading: Reading, program: Section, values: Section) -> None:
    """LoraConfig: a file or a call in the script, or the arguments of TRL's scripts."""
    config = values.get("peft_config")
    if isinstance(config, Mapping):
        given = dict(config)
    elif values.get("use_peft"):
        chosen = {**LORA_USUAL, **values}
        given = {n: chosen[one] for one, n in LORA.items() if chosen.get(one) is not None}
        targets = given.get("target_modules")
        if isinstance(targets, list) and len(targets) == 1:
            given["target_modules"] = targets[0]
    else:
        return
    targets = given.get("target_modules")
    if isinstance(targets, list):
        given["target_modules"] = [str(one).strip(", ") for one in targets]
    if isinstance(targets, str) and targets != "all-linear" and targets.isidentifier():
        given["target_modules"] = [targets]
    _leave_out_tables(reading, given)
    if not reading.script:  # the lines of a script are accounted for by their numbers
        given = sort_keys(reading, argument_table(PEFT), given, "peft.")
    program["peft"] = given


def _leave_out_tables(reading: Reading, given: Section) -> None:
    """Adapters of the embedding and the head are not modelled."""
    targets = given.get("target_modules")
    if not isinstance(targets, list):
        return
    tables = [one for one in targets if one in TABLES]
    if tables and len(tables) < len(targets):
        given["target_modules"] = [one for one in targets if one not in tables]
        why = "adapters of the embedding and the head are not modelled, and left out"
        key = f"target_modules {', '.join(tables)}"
        # Whole logits and their gradients in fp32 instead of tiles, the adapter's own output, and
        # the adapter's states: 16 bytes of r (hidden + vocabulary), less than 2 bytes of a weight.
        reading.limit(key, why, "more", adds="24*logits+2*weights")


def _add_quantization(program: Section, values: Section) -> None:
    """BitsAndBytesConfig, as TRL's scripts make it (trainer/utils.py get_quantization_config)."""
    config = values.get("quantization_config")
    if isinstance(config, Mapping):
        own = {k: v for k, v in config.items() if k != "quant_method" and not k.startswith("_")}
        program["quantization"] = own
    elif values.get("load_in_4bit"):
        dtype = values.get("dtype") or "float32"
        quantization = {
            "load_in_4bit": True,
            "bnb_4bit_compute_dtype": None if dtype == "auto" else dtype,
            "bnb_4bit_quant_type": values.get("bnb_4bit_quant_type", "nf4"),
            "bnb_4bit_use_double_quant": bool(values.get("use_bnb_nested_quant", False)),
            "bnb_4bit_quant_storage": values.get("bnb_4bit_quant_storage"),
        }
        program["quantization"] = {k: v for k, v in quantization.items() if v is not None}
    elif values.get("load_in_8bit"):
        program["quantization"] = {"load_in_8bit": True}


def _add_data(reading: Reading, program: Section, values: Section, tool: str) -> None:
    """Tokens of a sequence and of a prompt."""
    if tool in ONLINE:
        prompt = values.get("max_prompt_length")
        if prompt is None:
            prompt = PROMPT
            reading.assumed.append(f"prompts of {PROMPT} tokens; say program.data.prompt otherwise")
        program["data"] = {"prompt": prompt}
    elif tool == TRAINER:
        length = values.get("block_size") or values.get("max_seq_length")
        if length is not None:
            program["data"] = {"seq_len": length} if length != WHOLE else {}
            return
        config = reading.run.get("model", {}).get("config", {})
        most = config.get("max_position_embeddings", config.get("n_positions"))
        length = min(LENGTH, most) if isinstance(most, int) else LENGTH
        program["data"] = {"seq_len": length}
        why = f"the command does not say it; {length} tokens are assumed"
        could: Could = "less" if most == length else "either"  # the model has no more positions
        reading.limit("length of a sequence", why, could, saves="tokens", settle=SETTLE)

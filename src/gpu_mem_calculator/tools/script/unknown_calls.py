"""Calls of functions that no table knows: what they get and what their names say."""

from __future__ import annotations

import re
from typing import Any

from .accounting import account, limit
from .record import FREE, UNCLEAR
from .rows import is_plain_package, row
from .values import TRACKED, UNKNOWN, Arguments, Imported, ScriptFunction, ScriptWorld, Thing

LENGTHS = (
    *("max_length", "max_seq_length", "max_seq_len", "seq_length", "seq_len", "model_max_length"),
    *("block_size", "cutoff_len", "max_len", "max_sequence_length", "sequence_length"),
)
FREE_TORCH = re.compile(
    r"torch\.(manual_seed|device|cuda\.(manual_seed(_all)?|set_device|empty_cache|synchronize"
    r"|is_available|device_count|current_device|get_device_name|get_device_capability|memory\w*"
    r"|max_memory\w*|mem_get_info|reset_\w+|get_device_properties|is_bf16_supported|Event|Stream"
    r"|ipc_collect)|no_grad|inference_mode"
    r"|enable_grad|distributed\.\w+|set_num_threads|utils\.data\.\w+|backends\.\w+(\.\w+)*|save|load"
    r"|tensor|zeros|ones|arange|full|randn|rand|randint|Generator|cat|stack|argmax|long|LongTensor"
    r"|set_float32_matmul_precision|nn\.functional\.\w+|nn\.utils\.rnn\.pad_sequence|sum|mean|exp|where"
    r"|log|sqrt|abs|max|min|topk|softmax|sigmoid|nn\.CrossEntropyLoss|nn\.MSELoss|nn\.BCE\w+|is_tensor"
    r"|profiler\.\w+|set_printoptions|optim\.lr_scheduler\.\w+|get_default_dtype|FloatTensor|eq|ne|all"
    r"|any|numel|multinomial|clamp|masked_select|full_like|zeros_like|ones_like|isnan|sort|einsum|bmm"
    r"|from_numpy|as_tensor|cumsum|nonzero|unique|triu|tril|is_floating_point|nn\.init\.\w+|BoolTensor)"
)


# Functions of files that are not at hand, whose names say that they read and report.
REPORTS = re.compile(
    r"(print|log|show|count|save|plot|dump|report|export|monitor|display|upload|write)_\w+"
    r"|find_all_linear_\w+|get_\w*(state|parameters|params|size|memory|names|count|metrics)\w*"
    r"|\w+_(info|summary|stats|report)|set_seed|seed_everything|setup_logg\w+|init_(wandb|logg\w+)"
    r"|set_random_seed|fix_seed|login|main_process_first|parse_args|get_logger"
)
# Names of code that is not at hand which say that it makes or changes something on the GPU.
MAKES = re.compile(
    r"(?i)model|policy|network|accelerator|optim|trainer|lora|peft|quant|deepspeed|fsdp|parallel"
)
OPTIONS = ("namespace", "arguments")
KNOWN = ("transformers", "peft", "trl", "accelerate", "torch", "builtins", "?")


def note_lengths(world: Any, arguments: Arguments) -> None:
    """Note the tokens to which a call cuts sequences."""
    for name in LENGTHS:
        value = arguments.named.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9:
            world.note_length(arguments.lines.get(name, arguments.line), value)


def look_through(world: ScriptWorld, arguments: Arguments) -> None:
    """Follow functions that are handed to data, such as that of `map`, once each."""
    for one in arguments.every():
        if isinstance(one, ScriptFunction):
            world.follow(one, Arguments(is_open=False))


def other_call(world: Any, called: Any, arguments: Arguments) -> Any:
    """A call of something that is not in a table: it matters where it gets a model or a trainer,
    or where it is called for what it changes elsewhere.
    """
    path = called.path if isinstance(called, Imported) else ""
    name = path.rpartition(".")[2]
    note_lengths(world, arguments)
    touched = [one for one in arguments.every() if isinstance(one, Thing) and one.kind in TRACKED]
    if touched:
        known = row("function", name)
        if known is None and REPORTS.fullmatch(name):
            world.seen(arguments.line, arguments.text, FREE, "its name says that it reports")
            return UNKNOWN
        if known is None and (
            FREE_TORCH.fullmatch(path) or is_plain_package(path.partition(".")[0])
        ):
            world.seen(arguments.line, arguments.text, FREE, "it reads the object")
        else:
            account(world, arguments, known)
        models = [one for one in touched if one.kind in ("model", "part")]
        return models[0] if models and known is None and len(touched) == 1 else UNKNOWN
    outputs = [one for one in arguments.every() if isinstance(one, Thing) and one.kind == "output"]
    if outputs and (called.package not in ("?", "builtins") if path else True):
        why = "a loss of one's own may keep other tensors than the model's"
        # torch's function writes one tensor, and keeps at most one more for backward, in fp32.
        of_torch = path.startswith("torch.")
        limit(world, arguments, why, adds="8*logits" if of_torch else True, saves=not of_torch)
        outputs[0].values["own"] = not of_torch
        return outputs[0]
    elsewhere = path and not is_plain_package(called.package) and called.package not in KNOWN
    options = [one for one in arguments.every() if isinstance(one, Thing) and one.kind in OPTIONS]
    if elsewhere and options:
        world.found.facts["handed on"] = arguments
    look_through(world, arguments)
    if elsewhere:
        if MAKES.search(name):
            why = "not understood: its code is not at hand"
            world.seen(arguments.line, arguments.text, UNCLEAR, why, more=arguments.more)
        else:
            why = "it gets no object that takes memory"
            world.seen(arguments.line, arguments.text, FREE, why, more=arguments.more)
    return UNKNOWN


def changes_elsewhere(called: Any) -> bool:
    """Whether a call without a result could change what libraries do: one of a package that is
    not known, such as a function that replaces a model's attention.
    """
    if not isinstance(called, Imported):
        return False
    package = called.package
    if REPORTS.fullmatch(called.last):
        return False
    if package in ("transformers", "peft", "trl", "accelerate", "builtins", ""):
        return "patch" in called.last or "replace" in called.last
    return not is_plain_package(package) and not FREE_TORCH.fullmatch(called.path)

"""Reads `trl vllm-serve`, the server of completions for TRL's online trainers: vLLM's Python class
with these options (trl 1.10.0 scripts/vllm_serve.py ScriptArguments, llm_worker).
"""

from __future__ import annotations

from typing import Any

from ..reading.command import Command
from ..reading.options import OptionSyntax, parse_options
from ..reading.reading import Reading
from ..reading.server_options import config_words
from ..translation.arguments import Argument
from ..vllm.engine_class import class_tokens
from ..vllm.read import SYNTAX as VLLM_SYNTAX
from ..vllm.read import read_arguments

TITLE = "trl vllm-serve"
# Its options by vLLM's: most have the same name.
SAME = (
    *("model", "revision", "tensor_parallel_size", "data_parallel_size", "host", "port"),
    *("gpu_memory_utilization", "dtype", "max_model_len", "enable_prefix_caching"),
    *("enforce_eager", "kv_cache_dtype", "trust_remote_code", "distributed_executor_backend"),
    "speculative_config",
)
NAMES = {name: name for name in SAME}
NAMES |= {"vllm_model_impl": "model_impl", "log_level": "uvicorn_log_level"}
TABLE = {name: Argument(default=None, effect="memory") for name in NAMES}
SWITCHES = frozenset({"enable_prefix_caching", "enforce_eager", "trust_remote_code"})
UTILIZATION = 0.9  # its own default, whatever vLLM's is


def read_server(command: Command) -> Reading:
    """The server that a command starts."""
    syntax = OptionSyntax(switches=SWITCHES)
    parsed = parse_options(TITLE, command.words[2:], TABLE, syntax)
    given: dict[str, Any] = {NAMES[name]: value for name, value in parsed.values.items()}
    tokens = class_tokens(command.gpu_bytes)
    meant = {"gpu_memory_utilization": UTILIZATION, "max_num_batched_tokens": tokens, **given}
    reading = read_arguments(config_words(meant, VLLM_SYNTAX), command)
    reading.problems += parsed.problems
    own = {f"--{name.replace('_', '-')}" for name in meant.keys() - given.keys()}
    reading.keys = {key: kind for key, kind in reading.keys.items() if key not in own}
    reading.assumed.append(f"{TITLE} starts vLLM's class LLM, with {tokens:,} tokens a step")
    return reading

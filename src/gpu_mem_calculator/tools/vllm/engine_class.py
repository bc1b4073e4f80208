"""Reads vLLM's class LLM: a script's own process serves, with the arguments of `vllm serve`."""

from __future__ import annotations

from ...ledger.units import GIB
from ..reading.command import Command
from ..reading.reading import Reading
from ..reading.server_options import config_words
from ..script.record import ScriptRecord
from ..script.values import UNKNOWN
from .read import SYNTAX, read_arguments

# Tokens of a step of the class, on cards of 70 GiB and on smaller ones
# (vllm 0.33.0 engine/arg_utils.py get_batch_defaults, UsageContext.LLM_CLASS).
TOKENS, LARGE_CARD = (16_384, 8_192), 70 * GIB
MODEL, TENSOR, BATCH = "model", "tensor_parallel_size", "max_num_batched_tokens"
ALL = "tensor_parallel_size is the number of GPUs, which --gpus says"
TWICE = "where it is not given, the class LLM computes twice as many tokens a step as vllm serve"


def class_tokens(gpu_bytes: int | None) -> int:
    """Tokens of a step where the script does not say them."""
    return TOKENS[0 if (gpu_bytes or 0) >= LARGE_CARD else 1]


def read_servers(found: ScriptRecord, command: Command) -> Reading:
    """What the first call of the class in a script means; it may leave the model open."""
    made = found.of_kind("server")
    values = dict(made[0].values)
    every = "counts GPUs" in found.facts and command.num_gpus is None and TENSOR in values
    if every:
        del values[TENSOR]
    if "[0]" in values:
        values[MODEL] = values.pop("[0]")
    unknown = [name for name, value in values.items() if value is UNKNOWN]
    known = {name: one for name, one in values.items() if one is not None and one is not UNKNOWN}
    reading = read_arguments(config_words({MODEL: "?", **known}, SYNTAX), command)
    if MODEL not in known:
        del reading.run[MODEL]
    if every:
        del reading.run["hardware"]["num_gpus"]
        reading.assumed.append(ALL)
    reading.assumed.append(f"{command.program} makes vLLM's class LLM, read as vllm serve")
    if BATCH not in known:
        reading.limit(BATCH, TWICE, "more", adds="activations", saves=0)
    if len(made) > 1:
        reading.limit(f"{len(made) - 1} more LLM", "are not counted", "more", saves=0)
    reading.problems += [
        f"{name} of LLM(...) is not said in {command.program}; write its value there"
        for name in unknown
        if name != MODEL
    ]
    return reading

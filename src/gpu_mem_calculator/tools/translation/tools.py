"""The tools whose programs are modelled, and the translation of a program."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...runfile.program import Program, Setup, Translation
from .arguments import (
    argument_problems,
    argument_table,
    argument_values,
    assumed_defaults,
    flat_arguments,
)
from .kinds import kind_problems


class Tool(Struct, frozen=True, kw_only=True):
    """A tool: its package and the version that was read, its table of arguments, its translation.

    - `arguments`: path of the table, without .toml
    - `module`: the module here whose `translate(program, values, setup)` returns a Translation
    """

    package: str
    version: str
    arguments: str
    module: str


# One row for each tool, by the name in `program.tool`.
TOOLS: Mapping[str, Tool] = {
    "transformers.Trainer": Tool(
        package="transformers",
        version="5.17.0",
        arguments="transformers/arguments",
        module="transformers.translate",
    ),
    **{
        f"trl.{name}Trainer": Tool(
            package="trl",
            version="1.16.0",
            arguments=f"trl/{name.lower()}",
            module=f"trl.{name.lower()}",
        )
        for name in ("SFT", "DPO", "KTO", "Reward", "GRPO", "RLOO")
    },
    "lightning": Tool(
        package="lightning",
        version="2.6.6",
        arguments="lightning/arguments",
        module="lightning.translate",
    ),
    "torchtitan": Tool(
        package="torchtitan",
        version="0.2.2",
        arguments="torchtitan/arguments",
        module="torchtitan.translate",
    ),
    "megatron": Tool(
        package="Megatron-LM",
        version="core_r0.19.0",
        arguments="megatron/arguments",
        module="megatron.translate",
    ),
}
# Tools that were read and cannot be answered: why, and which set-up can.
REFUSED_TOOLS: Mapping[str, str] = {
    **{
        f"megatron.pretrain_{name}": f"{what} is not modelled under Megatron-LM; "
        "its pretrain_gpt.py is"
        for name, what in (
            ("t5", "T5"),
            ("bert", "BERT"),
            ("hybrid", "a model with Mamba layers"),
            ("mamba", "a model with Mamba layers"),
            ("vlm", "a model with images"),
            ("mimo", "a model with images and sound"),
            ("retro", "a model with retrieval"),
        )
    },
    "verl": "its actor is FSDP or Megatron, and generation is modelled beside DDP alone; "
    "use trl.GRPOTrainer, with use_vllm for a rollout on the same GPU",
    "openrlhf": "its actor is DeepSpeed, and generation is modelled beside DDP alone; "
    "use trl.GRPOTrainer, with use_vllm for a rollout on the same GPU",
    "unsloth": "its loss takes chunks by the memory that is free, and its backward of adapters "
    "writes over its inputs; use trl.SFTTrainer for the same run without its kernels",
    "llamafactory.ppo": "a policy with a value head generates beside a reward model, and it is "
    "modelled without them alone; use trl.GRPOTrainer",
    "llamafactory.predict": "nothing is trained: a model generates for each batch; "
    "use an inference section",
    "llamafactory.export": "weights are loaded and written down, on the host by default; "
    "its GPU memory is that of the weights",
    "ktransformers": "its experts are computed on the host, and their buffers on the GPU are its "
    "own; leave use_kt out for a run without it",
    "swift.ppo": "a policy with a value head generates beside a reward model, and it is modelled "
    "without them alone; use rlhf_type grpo",
    "swift.gkd": "a teacher gives logits for the student's own completions, which is not modelled; "
    "use sft for the student alone",
    "swift.megatron_rlhf": "a reference model, a teacher or vLLM beside Megatron-Core is not "
    "modelled; use swift rlhf",
    "fsdpturbo": "its sharding of experts is not modelled; use dist_config.name=fsdp2",
    **dict.fromkeys(
        ("deepspeed-chat step 2, a reward model", "deepspeed-chat step 2, DPO"),
        "its models were not read; use trl.RewardTrainer or trl.DPOTrainer",
    ),
    "deepspeed-chat step 3, RLHF": "it trains an actor and a critic, and generates; "
    "use trl.GRPOTrainer",
    **{
        f"trl.{name}Trainer": "its losses and models were not read; use trl.DPOTrainer for pairs "
        "of answers, or trl.SFTTrainer"
        for name in (
            *("ORPO", "CPO", "PPO", "GKD", "BCO", "XPO", "PRM", "TPO", "SSD", "SDFT", "SDPO"),
            *("OnlineDPO", "NashMD", "Distillation", "GOLD", "AsyncGRPO"),
        )
    },
}
STARTED = ("transformers", "trl", "lightning")  # tools that trace and measure can start
CHECKED = ("transformers", "trl")  # packages whose arguments have one kind of value each
LONGEST_VERSION = 40
Translate = Callable[[Program, Mapping[str, Any], Setup], Translation]


def translate(program: Program, setup: Setup) -> Translation:
    """The keys of a run file that a program means; its problems are in the result."""
    tool = TOOLS.get(program.tool)
    if tool is None:
        if program.tool in REFUSED_TOOLS:
            why = REFUSED_TOOLS[program.tool]
            return Translation(problems=[f"program.tool={program.tool!r} is not modelled: {why}"])
        hint = difflib.get_close_matches(program.tool, TOOLS, n=1, cutoff=0.6)
        near = f"did you mean {hint[0]!r}?" if hint else f"it can be {', '.join(TOOLS)}"
        return Translation(problems=[f"program.tool={program.tool!r} is not modelled; {near}"])
    title, table = f"{program.tool} {tool.version}", argument_table(tool.arguments)
    program = replace(program, args=flat_arguments(table, program.args))
    problems = list(argument_problems(title, table, program.args))
    if tool.package in CHECKED:
        problems += kind_problems(table, program)
    if problems:
        return Translation(problems=problems)
    result = _translate(tool.module)(program, argument_values(table, program.args), setup)
    result.warnings += _version_warning(program, tool)
    assumed = assumed_defaults(title, table, program.args)
    result.assumed += [assumed] if assumed else []
    return result


@cache
def _translate(module: str) -> Translate:
    found: Translate = import_module(f"..{module}", __package__).translate
    return found


def _version_warning(program: Program, tool: Tool) -> Iterator[str]:
    """A sentence where the program's version is not the one that was read."""
    given = program.version
    if given is not None and given[:LONGEST_VERSION] != tool.version:
        read = f"{tool.package} {tool.version}, whose source was read"
        yield f"program.version={given[:LONGEST_VERSION]!r} is treated as {read}"


def start_problems(tool: str) -> Iterator[str]:
    """A sentence where a tool can be estimated, but not started by trace or measure."""
    if tool.partition(".")[0] not in STARTED:
        instead = "write its training and engine keys instead of the program"
        yield f"program.tool={tool!r} cannot be run here, only estimated; {instead}"

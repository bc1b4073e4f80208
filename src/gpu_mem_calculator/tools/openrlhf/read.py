"""OpenRLHF's commands: `deepspeed --module openrlhf.cli.train_sft ...`, train_dpo, train_rm and
`python -m openrlhf.cli.train_ppo_ray ...` (OpenRLHF 3c3be62), and trainers of older
releases: train_ppo (0.6.0), train_kto, train_kd and train_prm (0.9.5).

The update of the trained model is estimated: DeepSpeed with 16-bit weights, its fused or CPU Adam,
flash attention and no recompute by default (utils/deepspeed/deepspeed_utils.py). Other models on
the same GPUs are named as limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.option_values import whole_value
from ..reading.options import option_syntax, parse_options, renamed_note
from ..reading.reading import Reading, Section
from ..reading.tools import FORMATS
from ..releases.tool_at import ToolAt, tool_at
from ..translation.arguments import (
    Values,
    argument_data,
    argument_table,
    argument_values,
    filled,
    tables,
)

FOLDER = Path(__file__).parent
TABLE = "arguments"
MUON = "muon"
OLDEST = "0.5.0"  # the first release whose code was read
GAE = "gae"  # the estimator of advantages that has a critic


class Kind(Struct, frozen=True):
    """A trainer: the section of the trained model's options, that of its optimizer's options, and
    defaults that differ from those of train_sft.py.
    """

    model: str = "model"
    optimizer: str = ""
    defaults: Mapping[str, int] = {}


# Before 0.9.8 a row was as long as both (0.9.1 openrlhf/cli/train_ppo_ray.py:44).
PROMPT, ANSWER, NEW_TOKENS = "prompt_max_len", "generate_max_len", "rollout.max_new_tokens"
LENGTH = 1024
# Its trainers: openrlhf.cli.train_sft and so on.
KINDS = msgspec.convert(tables(__file__)["kinds"], dict[str, Kind])


def read_command(command: Command) -> Reading:
    """The update of an OpenRLHF command."""
    kind = command.words[0].rpartition("train_")[2].removesuffix(".py")
    if kind not in KINDS:
        known = ", ".join(f"train_{one}" for one in KINDS)
        raise InputError(f"{command.words[0]} is not read; OpenRLHF is read with {known}")
    at = tool_at("openrlhf/arguments", command.files.releases)
    table, syntax = at.table(argument_table(TABLE, FOLDER)), option_syntax(TABLE, FOLDER)
    own: Mapping[str, str] = argument_data(TABLE, FOLDER).get(KINDS[kind].model, {})
    syntax = replace(syntax, renamed={**syntax.renamed, **own})
    reading = Reading(tool="OpenRLHF", version=at.version(FORMATS["openrlhf"].version))
    at.begin(reading, OLDEST)
    parsed = parse_options(reading.tool, command.words[1:], table, syntax)
    reading.problems += parsed.problems
    reading.problems += at.absent(parsed.written, prefix="--")
    reading.assumed += renamed_note(parsed)
    kept = sort_keys(reading, table, parsed.values, "--")
    if not {PROMPT, ANSWER}.isdisjoint((*kept, *parsed.renamed)) and "data.max_len" not in kept:
        lengths = (whole_value(f"--{one}", kept.get(one, LENGTH)) for one in (PROMPT, NEW_TOKENS))
        kept["data.max_len"] = sum(lengths)
    older = {"train.micro_batch_size": 4} if kind == "ppo_ray" and at.before("0.10.0") else {}
    values = argument_values(table, {**KINDS[kind].defaults, **older, **kept})
    values |= _older_switches(reading, at, parsed.written)
    _add_update(reading, kind, values, command)
    _name_limits(reading, kind, values)
    reading.run |= at.beside(*at.idle(reading))
    return reading


def _older_switches(reading: Reading, at: ToolAt, written: list[str]) -> Section:
    """Attention is eager without --flash_attn before 0.8.10 (0.8.9 openrlhf/models/actor.py:58),
    and training in fp32 without --bf16 before 0.9.2 (utils/deepspeed/deepspeed_utils.py).
    """
    if at.before("0.9.2") and "bf16" not in written:
        why = "without it DeepSpeed trains in fp32; the estimate has 16 bits"
        reading.limit("--bf16 is not given", why, "more")
    eager = at.before("0.8.10") and "flash_attn" not in written
    return {"ds.attn_implementation": "eager"} if eager else {}


def _whole(values: Values, name: str, least: int = 1) -> int:
    """The whole number of an option."""
    return whole_value(f"--{name}", values[name], least)


def _add_update(reading: Reading, kind: str, values: Values, command: Command) -> None:
    prefix = KINDS[kind].model
    gpus = command.num_gpus
    if kind == "ppo_ray":
        gpus = _whole(values, "actor.num_nodes") * _whole(values, "actor.num_gpus_per_node")
    name = values[f"{prefix}.model_name_or_path"]
    if name is None:
        reading.problems.append(f"--{prefix}.model_name_or_path is missing; name the model")
    reading.run = {
        "model": {"name": name},
        "training": _training(reading, kind, values, gpus),
        "engine": _engine(values),
        **({"hardware": {"num_gpus": gpus, "num_nodes": command.num_nodes}} if gpus else {}),
    }


def _training(reading: Reading, kind: str, values: Values, gpus: int | None) -> Section:
    """Batch, precision, recompute, adapters and loss.

    - trainer/dpo_trainer.py, rm_trainer.py: chosen and rejected are one batch
    - 0.9.5 trainer/kto_trainer.py: as many rows again for the divergence, with their graph
    - packing: a row holds the tokens of the whole micro-batch
    """
    prefix, optimizer = KINDS[kind].model, KINDS[kind].optimizer
    size, length = _whole(values, "train.micro_batch_size"), _whole(values, "data.max_len")
    if values["train.dynamic_batch_enable"]:
        size = max(1, _whole(values, "train.max_tokens_per_gpu") // length)
    steps = max(1, _whole(values, "train.batch_size") // size // (gpus or 1))
    rows = size * (2 if kind in ("dpo", "rm", "kto") else 1)
    training: Section = {
        "batch_size": rows,
        "seq_len": length,
        "gradient_accumulation_steps": steps,
        "precision": f"{values['ds.param_dtype']}_mixed",
        "gradient_clipping": values[f"{optimizer}max_norm"] or 0,
        "attention": values["ds.attn_implementation"],
    }
    if values["ds.packing_samples"]:
        training |= {"batch_size": 1, "seq_len": rows * length}
        if rows > 1:
            training["packed_documents"] = rows
    if values[f"{prefix}.gradient_checkpointing_enable"]:
        training["activation_checkpointing"] = "full"
        if values[f"{prefix}.gradient_checkpointing_reentrant"]:
            training["checkpoint_reentrant"] = True
    own = MUON if values[f"{optimizer}optim"] == MUON else ""
    training |= filled(liger=bool(values["ds.use_liger_kernel"]), optimizer=own)
    if values["ds.lora.rank"]:
        targets = values["ds.lora.target_modules"]
        training["lora"] = {"r": _whole(values, "ds.lora.rank"), "target_modules": targets}
    return training


def _engine(values: Values) -> Section:
    """DeepSpeed's configuration (utils/deepspeed/deepspeed_utils.py get_train_ds_config)."""
    engine: Section = {"type": "deepspeed", "zero_stage": _whole(values, "ds.zero_stage", 0)}
    if values["ds.adam_offload"]:
        engine |= {"offload_optimizer": "cpu", "pin_memory": True}
    if values["ds.overlap_comm"]:
        engine |= {"overlap_comm": True, "contiguous_gradients": True}
    return engine


def _name_limits(reading: Reading, kind: str, values: Values) -> None:
    """What a step has besides the update of the trained model."""
    if kind in ("dpo", "rm", "kto", "prm"):
        why = "its loss is estimated as the model's own cross-entropy"
        reading.limit(f"openrlhf.cli.train_{kind}", why)
    if kind in ("dpo", "kto"):
        why = "the reference model's 16-bit weights on the same GPUs are not modelled"
        reading.limit("--ref.model_name_or_path", why, "more")
    if KINDS[kind].model != "actor":
        return
    why = "log-probabilities are estimated as the model's own cross-entropy"
    reading.limit("--actor.policy_loss_type", why)
    if kind == "ppo":
        why = "the critic, the reference and the reward model on the same GPUs are not modelled"
        reading.limit("openrlhf.cli.train_ppo", why, "more")
        return
    if values["train.colocate_all"]:
        share = values["vllm.gpu_memory_utilization"]
        why = f"vLLM takes {share:g} of the card while it generates, beside the actor"
        if values["vllm.enable_sleep"]:  # trainer/ray/vllm_engine.py: at level 1
            why += "; asleep, each engine pins its weights in host RAM, in up to twice their size"
            why += ", which the node's figure leaves out"
        reading.limit("--train.colocate_all", why, "more")
        if values["algo.advantage.estimator"] == GAE:
            why = "the critic on the same GPUs is not modelled"
            reading.limit("--algo.advantage.estimator=gae", why, "more")
    elif values["train.colocate_actor_ref"]:
        why = "the reference model on the same GPUs is not modelled"
        reading.limit("--train.colocate_actor_ref", why, "more")

"""The trainer that a file starts: transformers' own, or one of TRL's.

Axolotl 067b021 core/builders/rl.py, core/builders/causal.py (_get_trainer_cls),
core/trainers/grpo/__init__.py, core/trainers/dpo/__init__.py.
"""

from __future__ import annotations

from ...runfile.text.errors import InputError, nearest, quoted
from ..reading.keys import sort_keys
from ..reading.reading import Section
from ..translation.arguments import argument_table, tables
from .draft import Draft, flag, mapping, whole
from .launch import FOLDER

TRL: dict[str, str] = tables(__file__)["trl"]
PAIRS = ("orpo", "simpo")  # one batch of chosen and rejected answers, with all logits
ONLINE = ("grpo", "gdpo")
RL = (*TRL, *PAIRS, "ebft")
# Keys of `trl` that are GRPOConfig's own.
COPIED = (
    *("num_generations", "generation_batch_size", "max_completion_length", "temperature", "top_p"),
    *("top_k", "num_iterations", "sync_ref_model", "vllm_importance_sampling_correction"),
)
COMPLETION = 512  # GRPOConfig.max_completion_length


def choose_trainer(draft: Draft) -> None:
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
    draft.tool = TRL.get(method, draft.tool)
    if method in PAIRS:
        draft.args["per_device_train_batch_size"] *= 2
        why = "its loss on all logits of chosen and rejected answers is not modelled; the estimate"
        draft.limit("rl", f"{why} has the model's own loss on both", "more")
    elif method == "ebft":
        draft.limit("rl", "the estimate has the model's own loss", "more")
    elif method in ONLINE:
        _add_online(draft, sections["trl"], sections["vllm"])
    else:
        _add_preference(draft)


def _add_preference(draft: Draft) -> None:
    """DPO and KTO: a reference model, without a copy where there are adapters."""
    draft.args["max_length"] = draft.data["seq_len"]
    if draft.flag("precompute_ref_log_probs"):
        draft.args["precompute_ref_log_probs"] = True
    if draft.flag("dpo_use_liger_kernel"):
        why = "Liger's loss of preferences is not modelled; the estimate has TRL's own"
        draft.limit("dpo_use_liger_kernel", why, "either")


def _section(draft: Draft, name: str, *, used: bool) -> Section:
    """The honoured keys of a section; its limits are none where no trainer reads it."""
    table, before = argument_table(name, FOLDER), list(draft.reading.limits)
    kept = sort_keys(draft.reading, table, mapping(draft.get(name), name), f"{name}.")
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
        draft.limit(
            "trl.use_liger_loss", "Liger's loss of GRPO is not modelled", "less", value=True
        )
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

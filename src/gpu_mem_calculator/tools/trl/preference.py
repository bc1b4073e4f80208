"""DPOConfig, KTOConfig and RewardConfig as keys of a run file: answers that are better or worse.

trl 1.16.0 trainer/dpo_trainer.py, kto_trainer.py, reward_trainer.py.
"""

from __future__ import annotations

from ...runfile.program import Program, Setup, Translation
from ..trainer.evaluation import paired
from ..translation.arguments import Values, filled
from .trainer import (
    LIGER_LOSS,
    older_release,
    sequence_length,
    set_labels,
    set_length,
    trainer_keys,
)

KTO, REWARD = "trl.KTOTrainer", "trl.RewardTrainer"


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of the three trainers.

    - DPO, reward: chosen and rejected answers are one batch of twice the size
      (DataCollatorForPreference)
    - KTO: one answer for each prompt. The model and the reference also run on answers to other
      prompts, one pass at a time and without autograd (_compute_kl_logps), which needs no more
      than their other passes.
    """
    result = trainer_keys(program, values, setup)
    result.limits += older_release(setup)
    length = sequence_length(program, values)
    if program.data.get("lengths") is not None:
        _mixed_lengths(values, result)
        length = None
    set_length(result, length)
    if program.tool != KTO:
        result.training["batch_size"] *= 2
        paired(result.training.get("evaluation", {}))
    if program.tool == REWARD:
        _add_score(program, values, result)
    else:
        set_labels(program, values, length, result)
        _add_reference(program, values, result)
    return result


def _mixed_lengths(values: Values, result: Translation) -> None:
    """Examples that differ in length; which of them are pairs is not modelled, so neither is the
    order.
    """
    set_length(result, values["max_length"])
    multiple = values["pad_to_multiple_of"]
    result.training |= filled(pad_to_multiple_of=multiple if isinstance(multiple, int) else None)
    result.training["sampling"].pop("data_seed", None)
    result.assumed.append("lengths are those of single sequences, drawn without their pairs")


def _add_score(program: Program, values: Values, result: Translation) -> None:
    """The model has a score in the place of logits."""
    result.training["loss"] = "reward"
    config, most = values["liger_kernel_config"] or {}, values["max_length"]
    if values["use_liger_kernel"] and config.get(LIGER_LOSS, True):
        why = f"Liger's loss needs logits, which a reward model has not; set {LIGER_LOSS} to false"
        result.problems.append(f"program.args.liger_kernel_config: {why}")
    if program.peft is not None and program.peft.get("task_type") == "CAUSAL_LM":
        why = "PEFT wants a model that generates, and a reward model does not; use 'SEQ_CLS'"
        result.problems.append(f"program.peft.task_type='CAUSAL_LM': {why}")
    given = program.data.get("seq_len")
    if given and most is not None and given > most:
        rule = f"is longer than max_length={most}, and RewardTrainer leaves such examples out"
        result.problems.append(f"program.data.seq_len={given} {rule}; raise max_length")


def _add_reference(program: Program, values: Values, result: Translation) -> None:
    """The reference model, which runs after the trained one, and the problems of its options."""
    before = values["precompute_ref_log_probs"]
    result.training |= {"loss": "chunked", "reference_model": "precomputed" if before else True}
    size, usual = values["precompute_ref_batch_size"], values["per_device_train_batch_size"]
    if before and size not in (None, usual):
        fix = f"leave it out, or set it to per_device_train_batch_size={usual}"
        what = f"program.args.precompute_ref_batch_size={size} is not modelled"
        result.problems.append(f"{what}; {fix}")
    if values["sync_ref_model"] and (before or program.peft is not None):
        why = "TRL refuses it with adapters and with precompute_ref_log_probs; leave it out"
        result.problems.append(f"program.args.sync_ref_model=true: {why}")

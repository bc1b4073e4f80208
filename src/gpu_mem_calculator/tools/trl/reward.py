"""RewardConfig as keys of a run file (trl 1.16.0 trainer/reward_trainer.py)."""

from __future__ import annotations

from ...runfile.program import Program, Setup, Translation
from .trainer import LIGER_LOSS, Values, sequence_length, set_length, trainer_keys


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of RewardTrainer: chosen and rejected answers are one batch of twice the size
    (DataCollatorForPreference), and the model has a score in the place of logits.
    """
    result = trainer_keys(program, values, setup)
    result.training["batch_size"] *= 2
    result.training["loss"] = "reward"
    length, most = sequence_length(program, values), values["max_length"]
    set_length(result, length)
    config = values["liger_kernel_config"] or {}
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
    return result

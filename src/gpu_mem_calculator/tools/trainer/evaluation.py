"""The evaluation of transformers.Trainer, and of trainers on top of it, as keys of a run file.

transformers 5.17.0 trainer.py evaluate: logits are kept for compute_metrics alone. The section
`data` says what a program's arguments do not: `evaluates` (it calls evaluate itself),
`compute_metrics` (true or false), `preprocess_logits_for_metrics` ("argmax": predicted tokens take
the place of logits), `eval_rows` (of the data set) or `eval_batches`, `eval_seq_len`.
"""

from __future__ import annotations

from ...run.limits import Limit
from ...runfile.program import Program, Section, Setup, Translation
from ..translation.arguments import Values, filled
from ..translation.tools import ONLINE

LOGITS_AGAIN = Limit(
    key="program.data.compute_metrics",
    why="the logits that TRL computes for metrics, in a second forward without a loss, are taken "
    "as those of a loss",
    could="less",
    saves="8*logits",
)


def add_evaluation(program: Program, values: Values, setup: Setup, result: Translation) -> None:
    """Add the evaluation. Where it is not modelled, it is a limit but where it is smaller than a
    step: without kept logits, and with no more sequences in a batch.
    """
    if wanted := program.data.get("generates"):
        _add_generates(program, dict(wanted), result)
    asked = str(values["eval_strategy"]) != "no" or values["eval_on_start"] or values["do_eval"]
    if not asked and not program.data.get("evaluates"):
        return
    metrics = bool(program.data.get("compute_metrics")) and not values["prediction_loss_only"]
    batch, trained = values["per_device_eval_batch_size"], result.training["batch_size"]
    if program.tool not in ONLINE and not result.training.get("compile"):
        result.training["evaluation"] = _keys(program, values, setup, metrics=metrics)
        if not metrics:
            none = "no compute_metrics, so an evaluation keeps no logits"
            result.assumed.append(f"{none}; else set program.data.compute_metrics=true")
        elif program.tool.startswith("trl."):
            result.limits.append(LOGITS_AGAIN)
        if metrics and not values["eval_do_concat_batches"]:
            off = "program.args.eval_do_concat_batches=false is not modelled"
            result.problems.append(f"{off}; leave it out")
    elif metrics or batch > trained or program.data.get("eval_seq_len"):
        result.limits.append(_limit(program, batch, trained, metrics=metrics))
    else:
        result.assumed.append("an evaluation needs less than a step: it saves no activations")


def _add_generates(program: Program, wanted: Section, result: Translation) -> None:
    """Add the program's own generation; under sharding each rank gathers weights, which is not
    modelled.
    """
    if result.engine.get("type") == "pytorch_ddp" and program.tool not in ONLINE:
        result.training["generates"] = wanted
        return
    why = "a generation with sharded weights is not modelled; at most it gathers them all"
    key = "program.data.generates"
    result.limits.append(Limit(key=key, why=why, could="more", adds="2*weights+activations"))


def _limit(program: Program, batch: int, trained: int, *, metrics: bool) -> Limit:
    """That an evaluation may need more than a step.

    A forward pass without gradients holds less of a sequence than a step does, and 12 bytes a
    logit: its own, their fp32 copy, the loss's. Logits that are kept have no bound.
    """
    more = -(-batch // trained) - 1
    known = not metrics and not program.data.get("eval_seq_len")
    return Limit(
        key="program.args.eval_strategy",
        why="an evaluation that may need more than a step is not modelled here",
        could="more",
        adds=f"{more}*activations+{12 * more}*logits" if known else None,
        saves=0,
        settle=f"--set program.args.per_device_eval_batch_size={trained}, without compute_metrics",
    )


def _keys(program: Program, values: Values, setup: Setup, *, metrics: bool) -> Section:
    data, rows = program.data, program.data.get("eval_rows")
    keys: Section = {"batch_size": values["per_device_eval_batch_size"]}
    keys |= filled(seq_len=data.get("eval_seq_len"))
    if rows:
        keys["rows"] = -(-rows // setup.num_gpus)
    if metrics:
        tokens = data.get("preprocess_logits_for_metrics") == "argmax"
        keys |= {"keep_tokens" if tokens else "keep_logits": True}
        keys |= {} if rows else {"batches": data.get("eval_batches", 1)}
        steps = 1 if values["batch_eval_metrics"] else values["eval_accumulation_steps"]
        keys |= {} if steps is None else {"accumulation_steps": steps}
    return keys


def paired(evaluation: Section) -> None:
    """Count a chosen and a rejected answer for each row of an evaluation."""
    for name in ("batch_size", "rows"):
        if name in evaluation:
            evaluation[name] *= 2

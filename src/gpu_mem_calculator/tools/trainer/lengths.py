"""The batches of a data set whose examples differ in length, as Trainer draws and pads them.

transformers 5.17.0 trainer.py _get_train_sampler, set_initial_training_values; accelerate 1.15.0
data_loader.py SeedableRandomSampler.
"""

from __future__ import annotations

from ...ledger.quoting import quoted
from ...run.limits import Limit
from ...runfile.program import Program, Section, Translation
from ...training.lengths.batches import LONGEST, PADDINGS
from ...training.lengths.samplers import GROUPED, RANDOM, SEQUENTIAL
from ..translation.arguments import Values, filled

REBALANCED = "batch_rebalance"
OTHERS = ("padding", "pad_to_multiple_of")


def add_lengths(program: Program, values: Values, result: Translation) -> None:
    """Add the keys of `program.data.lengths`; a problem where what belongs to it stands alone."""
    data = program.data
    if data.get("lengths") is None:
        alone = [f"program.data.{key} needs program.data.lengths" for key in OTHERS if key in data]
        result.problems += alone
        return
    padding = data.get("padding", LONGEST)
    if padding not in PADDINGS:
        given = f"program.data.padding={quoted(padding)}"
        result.problems.append(f"{given} must be one of {', '.join(PADDINGS)}")
        return
    if data.get("sampling") == GROUPED:
        values = {**values, "group_by_length": True}
    result.training |= {"lengths": data["lengths"], "sampling": sampling_keys(values, result)}
    result.training |= filled(pad_to_multiple_of=data.get("pad_to_multiple_of"))
    if padding == LONGEST:
        result.assumed.append("batches are padded to their longest sequence (program.data.padding)")
    elif padding == "padding_free":
        result.training["padding_free"] = True
    else:
        result.training["padding"] = padding


def sampling_keys(values: Values, result: Translation) -> Section:
    """The order of the examples: grouped ones follow torch's own generator, which Trainer sets,
    random ones a generator with data_seed, or else the same number.
    """
    strategy = values.get("train_sampling_strategy") or RANDOM
    if strategy is True or values.get("group_by_length"):  # a switch, in older releases
        strategy = GROUPED
    if strategy == REBALANCED:
        why = "batches with equal work on all ranks are not modelled; examples are drawn at random"
        result.limits.append(Limit(key=f"train_sampling_strategy={strategy!r}", why=why))
        return {"strategy": RANDOM, **_duration(values)}
    own = values.get("data_seed") if strategy == RANDOM else None
    number = values["seed"] if own is None else own
    keys = {"strategy": strategy, **_duration(values)}
    if strategy != SEQUENTIAL:
        keys["data_seed"] = number
    return keys | filled(drop_last=values.get("dataloader_drop_last"))


def _duration(values: Values) -> Section:
    """The steps of the run, or its epochs."""
    if values.get("max_steps", -1) > 0:
        return {"max_steps": values["max_steps"]}
    return {"epochs": values["num_train_epochs"]}

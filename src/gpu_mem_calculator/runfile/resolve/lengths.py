"""The batches of a run whose examples differ in length: `training.lengths` and its other keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...run.limits import Limit
from ...run.run import Run
from ...training.lengths.batches import (
    LONGEST,
    MAX_LENGTH,
    PADDING_FREE,
    Batching,
    Collator,
    DrawnBatches,
    draw_batches,
)
from ...training.lengths.distributions import Draw, histogram, log_normal, uniform
from ...training.lengths.packing import WRAPPED, packed
from ...training.losses import LOSSES
from ..config import SamplingConfig, TrainingConfig
from ..text.data_lengths import MOST_EXAMPLES, WHERE, file_lengths
from ..text.errors import InputError, quoted

if TYPE_CHECKING:
    from ...run.engine import Engine

FORMS = (
    'a list of lengths, {"uniform": [64, 2048]}, {"p50": 400, "p99": 3000},'
    ' {"histogram": [[1, 512, 30], [513, 2048, 70]]}, or a file'
)
MOST_TOKENS = 10**8  # of an example
# Keys that need lengths, with what is usual without them.
OTHERS = {"padding": LONGEST, "pad_to_multiple_of": 1, "padding_free": False, "packing": "none"}


def find_batches(
    config: TrainingConfig, engine: Engine, ranks: int, loss: str
) -> DrawnBatches | None:
    """The batches that a run draws; None where all its sequences are equally long."""
    if config.lengths is None:
        given = [key for key, usual in OTHERS.items() if getattr(config, key) not in (None, usual)]
        if given:
            needs = "needs training.lengths, the tokens of each example"
            raise InputError(f"training.{key} {needs}" for key in given)
        return None
    if config.generation is not None:
        why = "a generation gives the tokens of its completions; leave lengths out"
        raise InputError(f"training.lengths: {why}")
    if config.labelled_tokens is not None:
        why = "examples that differ in length have labels for all tokens but the first"
        raise InputError(f"training.labelled_tokens={config.labelled_tokens}: {why}; leave it out")
    lengths, draw, examples = _read(config.lengths)
    sampling = config.sampling or SamplingConfig()
    rows = config.batch_size or 1
    packing = config.packing if config.packing not in (None, "none") else None
    if packing:
        lengths, draw = _packed(config, lengths, draw, packing), None
    collator = Collator(
        padding=_padding(config, packing),
        multiple=config.pad_to_multiple_of or 1,
        most=config.seq_len,
        prompt=0 if LOSSES[loss].per_token else None,
        masked=engine.transformers,
        always=_keeps_masks(config),
    )
    batching = Batching(
        rows=rows,
        micro_batches=config.gradient_accumulation_steps or 1,
        ranks=ranks,
        collator=collator,
        strategy=sampling.strategy,
        number=sampling.data_seed,
        drop_last=sampling.drop_last,
    )
    if lengths and not batching.epoch_steps(len(lengths)):
        fewer = f"{len(lengths)} examples are no whole batch of {rows} on {ranks} ranks"
        raise InputError(f"training.sampling.drop_last=true: {fewer}; leave it out")
    return draw_batches(batching, lengths, draw, examples, sampling.max_steps, sampling.epochs)


def _keeps_masks(config: TrainingConfig) -> bool:
    """Whether all batches are taken to have a mask: a checkpoint's mask is alive until the next
    micro-batch, and streams with one are not joined with streams without.
    """
    steps = config.gradient_accumulation_steps or 1
    recomputes = config.recompute or config.activation_checkpointing not in (None, "none", 0)
    return steps > 1 and bool(recomputes)


def _padding(config: TrainingConfig, packing: str | None) -> str:
    if config.padding_free or packing not in (None, WRAPPED):
        if config.padding is not None:
            what = "training.packing" if packing else "training.padding_free"
            why = f"{what} pads nothing; leave it out"
            raise InputError(f"training.padding={config.padding!r}: {why}")
        return PADDING_FREE
    if config.padding == MAX_LENGTH and config.seq_len is None:
        raise InputError("training.padding='max_length' needs training.seq_len, the length")
    return config.padding or LONGEST


def _packed(
    config: TrainingConfig, lengths: list[int], draw: Draw | None, packing: str
) -> list[int]:
    """The rows into which the examples are packed."""
    if config.seq_len is None:
        raise InputError(f"training.packing={packing!r} needs training.seq_len, a row's tokens")
    if draw is not None:
        raise InputError(f"training.packing={packing!r} needs the lengths of all examples")
    return packed(lengths, config.seq_len, packing)


def with_batches(run: Run, drawn: DrawnBatches) -> Run:
    """The run with its longest batch."""
    several = drawn.batching.collator.padding == PADDING_FREE and drawn.batching.rows > 1
    most = max(map(len, drawn.main))  # fewer where an epoch has less than a whole step
    run = replace(run, micro_batches=most, documents=max(run.documents, 1 + several))
    return drawn.longest.of(run)


def length_limits(run: Run, drawn: DrawnBatches) -> Iterator[Limit]:
    """What is not modelled of batches that differ."""
    if run.compile:
        why = "the graphs that torch.compile makes for other lengths are not modelled"
        yield Limit(key="training.lengths with training.compile", why=why)
    if int(run.mesh.pp) > 1:
        why = "all micro-batches of a pipeline's step are taken to be as long as its longest"
        yield Limit(key="training.lengths", why=why, could="less", saves="activations")
    padded = any(batch.padded for step in drawn.main for batch in step)
    if padded and run.attention.startswith("flash_attention"):
        yield Limit(
            key=f"training.lengths with training.attention={run.attention!r}",
            why="copies without padding around the kernel are not modelled",
            adds="0.2*activations",
            saves="0.5*activations",
        )


Read = tuple[list[int], Draw | None, int | None]  # lengths, or a distribution and its examples


def _read(given: Any) -> Read:
    """The lengths or the distribution that the key has."""
    if isinstance(given, str):
        return file_lengths(given, None, None), None, None
    if isinstance(given, list):
        return _list(given), None, None
    keys = set(given) - {"examples"}
    examples = _whole(given["examples"], "examples") if "examples" in given else None
    if "file" in keys and keys <= {"file", "column", "characters_per_token"}:
        characters = given.get("characters_per_token")
        if characters is not None and not (_number(characters) and characters > 0):
            raise InputError(f"{WHERE}.characters_per_token={quoted(characters)} must be a number")
        return file_lengths(str(given["file"]), given.get("column"), characters), None, None
    if keys == {"uniform"}:
        low, high = _pair(given["uniform"], "uniform")
        return [], uniform(low, high), examples
    if keys == {"p50", "p99"}:
        median, high = _pair([given["p50"], given["p99"]], "p50 and p99")
        return [], log_normal(median, high), examples
    if keys == {"histogram"}:
        return [], histogram(_bins(given["histogram"])), examples
    raise InputError(f"{WHERE}={quoted(given)} must be {FORMS}")


def _list(given: list[Any]) -> list[int]:
    wrong = [one for one in given if type(one) is not int or not 1 <= one <= MOST_TOKENS]
    if wrong or not given:
        what = f"{quoted(wrong[0])} is none" if wrong else "it is empty"
        raise InputError(f"{WHERE}: a length is a whole number from 1 to {MOST_TOKENS:,}; {what}")
    if len(given) > MOST_EXAMPLES:
        raise InputError(f"{WHERE} has more than {MOST_EXAMPLES:,} lengths; give a sample")
    return given


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        raise InputError(f"{WHERE}.{what}={quoted(value)} must be a whole number, 1 or more")
    return value


def _pair(value: Any, what: str) -> tuple[int, int]:
    """A low and a high length."""
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{WHERE}.{what}={quoted(value)} must be two lengths")
    low, high = (_whole(one, what) for one in value)
    if low > high:
        raise InputError(f"{WHERE}.{what}: {low} is more than {high}; turn them round")
    return low, high


def _bins(value: Any) -> list[tuple[int, int, float]]:
    """The bins of a histogram."""
    if not isinstance(value, list) or not value:
        raise InputError(f"{WHERE}.histogram={quoted(value)} must be a list of bins")
    bins: list[tuple[int, int, float]] = []
    for one in value:
        if not isinstance(one, list) or len(one) != 3 or not (_number(one[2]) and one[2] >= 0):
            raise InputError(f"{WHERE}.histogram: {quoted(one)} must be low, high and weight")
        bins.append((*_pair(one[:2], "histogram"), float(one[2])))
    if not sum(weight for *_, weight in bins):
        raise InputError(f"{WHERE}.histogram: all weights are 0")
    return bins

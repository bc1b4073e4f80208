"""Pipeline stages of unequal length: the layers of every chunk of every stage.

megatron-core 0.19.2 transformer/pipeline_parallel_layer_layout.py (layout strings) and
transformer/transformer_block.py get_num_layers_to_build (the other options).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from ....run.run import Run
from .options import option

Counts = tuple[tuple[int, ...], ...]  # layers of each stage, chunk by chunk
LAYOUT = "pipeline_model_parallel_layout"
FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
WITH_EMBEDDING = "account_for_embedding_in_pipeline_split"
WITH_LOSS = "account_for_loss_in_pipeline_split"
PP, CHUNKS = "parallelism.pipeline_parallel_size", "parallelism.virtual_pipeline_size"
EMBEDDING, LAYER, LOSS = "E", "t", "L"
MOST_STAGES = 100_000  # of a layout string


def layout_stages(text: str) -> list[str]:
    """The stages of a layout string, a letter for each of their parts.

    Commas are ignored; `x*3` and `(xy|)*3` repeat. Empty where it would be too long.
    """
    plain = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        sizes = [len(m[1]) * int(m[2]) for m in re.finditer(pattern, plain) if len(m[2]) < 7]
        if sum(sizes) > MOST_STAGES or len(sizes) < len(re.findall(pattern, plain)):
            return []
        plain = re.sub(pattern, lambda match: match[1] * int(match[2]), plain)
    return plain.split("|")


def with_layout(run: Run) -> Run:
    """The run with the layers of every stage, where its options make them unequal, and with the
    number of chunks that a layout string has.
    """
    text = option(run, LAYOUT)
    if text is not None and run.virtual_stages == 1:
        chunks = len(layout_stages(text)) // int(run.mesh.pp)
        run = replace(run, virtual_stages=max(chunks, 1))
    if next(uneven_problems(run), None) is not None:
        return run
    counted = (int(bool(option(run, WITH_EMBEDDING))), int(bool(option(run, WITH_LOSS))))
    return replace(run, stage_counts=_counts(run), ends_counted=counted)


def is_uneven(run: Run) -> bool:
    """Whether an option asks for stages of unequal length."""
    return any(option(run, key) for key in (LAYOUT, FIRST, LAST, WITH_EMBEDDING, WITH_LOSS))


def _counts(run: Run) -> Counts:
    """The layers of every stage, chunk by chunk; empty where all have as many, or would have if
    embedding and loss were layers (`ends_counted`).
    """
    pp, chunks = int(run.mesh.pp), int(run.virtual_stages)
    text = option(run, LAYOUT)
    if text is not None:
        stages = [stage.count(LAYER) for stage in layout_stages(text)]
        return tuple(tuple(stages[c * pp : (c + 1) * pp]) for c in range(chunks))
    if option(run, FIRST) or option(run, LAST):
        return (tuple(count // chunks for count in _end_counts(run)),) * chunks
    return ()


def _end_counts(run: Run) -> list[int]:
    """The layers of every stage where the first or the last one has its own number."""
    pp, first, last = int(run.mesh.pp), option(run, FIRST), option(run, LAST)
    middle = pp - (first is not None) - (last is not None)
    rest = (len(run.arch.layers) - (first or 0) - (last or 0)) // max(middle, 1)
    return [*([first] if first else []), *[rest] * middle, *([last] if last else [])]


def uneven_problems(run: Run) -> Iterator[str]:
    """One sentence for each contradiction among the options for stages of unequal length."""
    if not is_uneven(run):
        return
    text, ends = option(run, LAYOUT), [key for key in (FIRST, LAST) if option(run, key)]
    counted = [key for key in (WITH_EMBEDDING, WITH_LOSS) if option(run, key)]
    given = [*([] if text is None else [LAYOUT]), *ends, *counted]
    names = " and ".join(f"engine.{key}" for key in given)
    if (text is not None) + bool(ends) + bool(counted) > 1:
        yield f"{names} both set the layers of stages; leave one of them out"
    elif run.mesh.pp == 1:
        yield f"engine.{given[0]} needs {PP} above 1; leave it out"
    elif text is not None:
        yield from _layout_problems(run, text)
    elif ends:
        yield from _end_problems(run)
    else:
        layers, parts = len(run.arch.layers) + len(counted), int(run.mesh.pp * run.virtual_stages)
        if layers % parts:
            why = f"embedding and loss counted, are not a multiple of {parts} stages and chunks"
            yield f"{names}: {layers} layers, {why}; change {PP} or leave them out"


def _layout_problems(run: Run, text: str) -> Iterator[str]:
    """validate_layer_layout; MTP layers are not modelled."""
    key, stages = f"engine.{LAYOUT}={text!r}", layout_stages(text)
    flat, pp, layers = "".join(stages), int(run.mesh.pp), len(run.arch.layers)
    other = sorted(set(flat) - {EMBEDDING, LAYER, LOSS})
    if other == ["m"]:
        yield f"{key} has an MTP layer (m), which is not modelled; leave it out"
    elif not flat or other:
        yield f"{key} has other letters than E, t, L and |; {_example(run)}"
    elif flat != EMBEDDING + LAYER * layers + LOSS:
        why = f"must have E, then {layers} t, then L, and has {flat.count(LAYER)} t"
        yield f"{key} {why}; {_example(run)}"
    elif len(stages) != pp * run.virtual_stages:
        why = f"and {PP}={pp} with {CHUNKS}={run.virtual_stages} needs {pp * run.virtual_stages}"
        yield f"{key} has {len(stages)} stages, {why}; {_example(run)}"


def _end_problems(run: Run) -> Iterator[str]:
    """transformer_config.py:1989-2060."""
    pp, chunks, layers = int(run.mesh.pp), int(run.virtual_stages), len(run.arch.layers)
    ends = {key: option(run, key) for key in (FIRST, LAST) if option(run, key)}
    words = " and ".join(f"engine.{key}={value}" for key, value in ends.items())
    middle, rest = pp - len(ends), layers - sum(ends.values())
    fix = _nearest_end(run, ends)
    if rest < 0:
        yield f"{words}: the model has only {layers} layers; {fix}"
    elif (rest > 0) != (middle > 0):
        yield f"{words}: {rest} layers are left for {middle} other stages; {fix}"
    elif middle and rest % middle:
        yield f"{words}: {rest} layers are left, not a multiple of {middle} other stages; {fix}"
    else:
        for count in sorted({*ends.values(), *([rest // middle] if middle else [])}):
            if count % chunks:
                why = f"a stage of {count} layers has no {chunks} equal chunks ({CHUNKS})"
                yield f"{words}: {why}; {fix}"


def _example(run: Run) -> str:
    """A layout of the run's layers, in stages as equal as they can be."""
    parts, layers = int(run.mesh.pp * run.virtual_stages), len(run.arch.layers)
    size = layers // parts
    middle = f"(t*{size}|)*{parts - 2}" if parts > 2 else ""
    text = f"Et*{layers - size * (parts - 1)}|{middle}t*{size}L"
    return f"write it like {text!r}" if size else f"choose {PP} of at most {layers}"


def _nearest_end(run: Run, ends: dict[str, int]) -> str:
    """The number of layers nearest to the first one given that leaves equal stages and chunks."""
    chunks, middle = int(run.virtual_stages), int(run.mesh.pp) - len(ends)
    key, value = next(iter(ends.items()))
    others = sum(ends.values()) - value
    left = len(run.arch.layers) - others
    rests = [(count, left - count) for count in range(chunks, left + 1, chunks)]
    fits = [
        n for n, rest in rests if (rest > 0) == (middle > 0) and not rest % (middle * chunks or 1)
    ]
    if others % chunks:
        fits = []
    if not fits:
        return f"change {PP}, or leave them out"
    return f"try engine.{key}={min(fits, key=lambda count: abs(count - value))}"

"""The first lines of a report: the run in words, below estimates/verdict_words.py."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..estimates.calculator import Estimate
from ..estimates.fit_verdict import FITS, SHORT, UNSURE, WORDS
from ..estimates.result import MemoryResult
from ..estimates.verdict_words import CardVerdict, result_verdict, undecided, verdict_line
from ..models.arch.arch import TRANSFORMERS
from ..run.recompute import BY_OPERATION, EVERY_SECOND_MM, FULL, NONE
from ..run.run import BASE, COPY, PRECOMPUTED, Run
from ..training.optimizers import OPTIMIZERS
from .lines import BAD, GOOD, WARN, WIDTH, Line, count, gauge, line, wrap_lines

STYLES = {FITS: GOOD, UNSURE: WARN, SHORT: BAD}
MOST_UNDECIDED = 2
AXES = (("tp", "TP"), ("pp", "PP"), ("cp", "CP"), ("ep", "EP"), ("dp", "DP"))
# Of the layers, in quarters.
SHARES = {2: " on half of the layers", 3: " on three quarters of the layers", 4: ""}
REFERENCES = {
    COPY: "a reference model",
    BASE: "the base model as reference",
    PRECOMPUTED: "a reference computed before",
}


def headline(estimate: Estimate) -> Iterator[Line]:
    """The lines that describe the run: model, settings, engine and hardware."""
    title = estimate.resolved.model.title
    yield from wrap_lines(f"{title[:40]}  ", ", ".join(_model_words(estimate)))
    yield from wrap_lines("", ", ".join(setup_words(estimate)))


def asked_words(estimate: Estimate) -> str:
    """What was asked, in one sentence part: model, settings, engine and hardware."""
    model = ", ".join([estimate.resolved.model.title[:40], *_model_words(estimate)])
    return f"{model}; {', '.join(setup_words(estimate))}"


def _model_words(estimate: Estimate) -> Iterator[str]:
    run, result = estimate.resolved.run, estimate.result
    yield f"{count(result.num_parameters)} parameters"
    if run.arch.implementation != TRANSFORMERS:
        yield f"{run.arch.implementation}'s layers"
    if run.new_tokens is not None:
        yield from server_words(estimate) if estimate.served else served_words(run)
        return
    if run.adapter is not None:
        name = "DoRA" if run.adapter.dora else "LoRA"
        name = f"Q{name}" if run.quantization else name
        yield f"{name} rank {run.adapter.rank} ({count(result.trainable_parameters)} trained)"
    if run.quantization:
        yield f"{run.quantization} weights"
    yield precision_words(run)
    yield OPTIMIZERS[run.optimizer].title
    yield f"micro-batch {run.batch} × {run.seq:,}"
    if run.micro_batches > 1:
        yield f"{run.micro_batches} micro-batches a step"
    yield from recompute_words(run)
    yield from loss_words(run)


def precision_words(run: Run) -> str:
    """`bf16 mixed`; of weights in 16 bits, whether autocast is around them."""
    kind, _, how = run.precision.partition("_")
    if how == "pure":
        return f"{kind} with autocast" if run.autocast else f"pure {kind}"
    return f"{kind} {how}".rstrip()


def served_words(run: Run) -> Iterator[str]:
    """Words that describe an inference run with transformers."""
    options = run.options
    yield run.precision.removesuffix("_pure")
    if (options.get("quantization") or "none") != "none":
        yield f"{options['quantization']} weights"
    yield f"batch {run.batch}, prompt {run.seq:,}"
    yield f"{run.new_tokens:,} new tokens" if run.new_tokens else "one forward pass"
    if (options.get("num_beams") or 1) > 1:
        yield f"{options['num_beams']} beams"
    if options.get("do_sample"):
        yield "sampled"
    if run.draft is not None:
        yield "assisted"
    if (options.get("cache_implementation") or "dynamic") != "dynamic":
        yield f"{options['cache_implementation']} cache"
    yield f"{run.attention.replace('_', ' ')} attention"


def server_words(estimate: Estimate) -> Iterator[str]:
    """Words that describe a server: the formats of weights and KV cache."""
    run, options = estimate.resolved.run, estimate.resolved.run.options
    yield run.precision.removesuffix("_pure")
    named = options.get("quantization") or "none"
    own = (run.quantized or {}).get("quant_method")
    weights = named if named != "none" else own
    if own and named in ("bf16", "f16"):  # a GGUF file keeps those that are quantized
        yield f"{own} weights with {named} beside"
    elif weights:
        yield f"{weights} weights"
    if (options.get("kv_cache_dtype") or "auto") != "auto":
        yield f"KV cache in {options['kv_cache_dtype']}"


def setup_words(estimate: Estimate) -> Iterator[str]:
    """Words for the engine and its options, the hardware and the mesh."""
    resolved = estimate.resolved
    run, engine, hardware = resolved.run, resolved.engine, resolved.hardware
    name = (engine.alone_title if hardware.num_gpus == 1 else "") or engine.title
    given = dict(estimate.result.run.get("engine", {}))
    stage = run.options.get("zero_stage")
    if stage is not None:
        name += f" ZeRO-{stage}"
    if "sharding_strategy" in run.options:
        name += f" {run.options['sharding_strategy']}"
    if estimate.served and run.options.get("engine_version"):
        name += f" {run.options['engine_version']}"
    nodes = f" in {hardware.num_nodes} nodes" if hardware.num_nodes > 1 else ""
    yield f"{name} on {hardware.num_gpus:,} × {hardware.title}{nodes}"
    yield from _mesh_words(run)
    for key, value in given.items():
        if key in ("offload_optimizer", "offload_param"):
            what = "optimizer" if key == "offload_optimizer" else "parameters"
            if value != "none":
                yield f"{what} on the {'CPU' if value == 'cpu' else 'NVMe disk'}"
        elif key not in ("type", "zero_stage", "sharding_strategy"):
            yield f"{key}={str(value).lower() if isinstance(value, bool) else value}"


def _mesh_words(run: Run) -> Iterator[str]:
    mesh = run.mesh
    if "n_gpu_layers" in run.options:  # llama.cpp: the number of cards says it
        mesh = replace(mesh, pp=1)
    if mesh.tp * mesh.pp * mesh.cp * mesh.ep == 1:
        return
    yield " ".join(f"{word} {size}" for axis, word in AXES if (size := getattr(mesh, axis)) > 1)
    if run.virtual_stages > 1:
        yield f"{run.virtual_stages} virtual stages"
    if run.sequence_parallel:
        yield "sequence parallel"


def verdict(estimate: Estimate, width: int = WIDTH) -> Iterator[Line]:
    """The lines of the verdict: whether the run fits, free memory, a gauge, and what decides."""
    result = estimate.result
    yield from verdict_lines(result_verdict(result), verdict_line(result), width)
    yield from undecided_lines(result, width)


def undecided_lines(result: MemoryResult, width: int = WIDTH) -> Iterator[Line]:
    """Where the verdict is open, the first things that decide, with the way to settle each."""
    for text in undecided(result)[:MOST_UNDECIDED]:
        yield from wrap_lines("decides: ", text, WARN, width)


def verdict_lines(found: CardVerdict, summary: str, width: int = WIDTH) -> Iterator[Line]:
    """The verdict in one line, as long as the screen is wide enough, and a gauge."""
    style = STYLES[found.word]
    yield from wrap_lines("", summary, style, width)
    share = (found.needs + found.margin) / found.has
    percent = f" {100 * share:,.0f} %" if share < 1000 else " > 99,999 %"
    yield [(gauge(share, width - 11), style.removeprefix("bold ")), (percent, "")]


def sentence(estimate: Estimate, name: str) -> str:
    """The verdict in one sentence."""
    word, _, rest = verdict_line(estimate.result).partition(": ")
    says = f"{name} {word}" if word != WORDS[UNSURE] else f"cannot tell whether {name} fits"
    return f"{says}: it {rest}."


def basis(estimate: Estimate) -> Iterator[Line]:
    """A note where the allocator was not replayed."""
    if estimate.result.needs_bytes is None:
        text = (
            "The verdict counts allocated memory and what is outside torch; torch's allocator was "
            "not replayed, and takes more."
        )
        yield from wrap_lines("", text, "dim")
        yield line()


def remarks(estimate: Estimate) -> Iterator[Line]:
    """The lines of warnings and assumptions."""
    for warning in estimate.result.warnings:
        yield from wrap_lines("note: ", warning, WARN)
    if estimate.result.assumed:
        yield from wrap_lines("assumed: ", "; ".join(estimate.result.assumed))
    if estimate.result.warnings or estimate.result.assumed:
        yield line()


def loss_words(run: Run) -> Iterator[str]:
    """Liger's kernels, the loss and smoothed labels; nothing for the framework's own loss."""
    from ..pytorch.modelling.huggingface.liger import CROSS_ENTROPY, FUSED
    from ..training.losses import LOSSES

    kernels = [name for name in run.liger if name not in (CROSS_ENTROPY, FUSED)]
    if kernels:
        yield f"Liger's {', '.join(kernels)}"
    if LOSSES[run.loss].title:
        yield LOSSES[run.loss].title
    if run.reference:
        yield REFERENCES[run.reference]
    if run.rollout is not None:
        length = f"{run.rollout.prompt} + {run.rollout.new_tokens}"
        yield f"{run.rollout.sequences} completions of {length} tokens"
    if run.label_smoothing:
        yield f"labels smoothed by {run.label_smoothing:g}"


def recompute_words(run: Run) -> Iterator[str]:
    """The run's recompute policy; nothing where there is none."""
    rule = run.rule
    if run.recompute == FULL:
        yield f"full recompute{SHARES[run.recompute_quarters]}{_which(run)}"
        if rule.offload:
            yield "layer inputs in host RAM"
    elif run.recompute == BY_OPERATION:
        kept = "attention and every second matmul" if EVERY_SECOND_MM in rule.keeps else "attention"
        yield f"recompute by operation, {kept} kept"
    elif run.recompute != NONE:
        yield f"recompute of {', '.join(rule.modules)}" if rule.modules else "selective recompute"


def _which(run: Run) -> str:
    """Which layers full recompute applies to, where a rule says it."""
    rule = run.rule
    if rule.every > 1:
        return f" on one of {rule.every} layers"
    if rule.first_layers is not None:
        return f" on the first {rule.first_layers} layers of each stage"
    return f", {rule.layers_together} layers at a time" if rule.layers_together > 1 else ""

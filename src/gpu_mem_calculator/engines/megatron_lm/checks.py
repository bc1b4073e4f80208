"""What Megatron refuses, one sentence each: the value, the rule, the nearest fix."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.arch import Arch, Layer
from ...model.blocks import Attention, LatentAttention, Mlp, Moe
from ...run.run import Run
from .options import ENGINE, LOCAL, fused, option

TP, PP = "parallelism.tensor_parallel_size", "parallelism.pipeline_parallel_size"
CP, EP = "parallelism.context_parallel_size", "parallelism.expert_parallel_size"
MIXED = ("bf16_mixed", "fp16_mixed", "fp32")


def nearest_divisors(whole: int, value: int) -> str:
    """The divisors of `whole` nearest below and above a value, as words. At most 10,000 numbers
    each way are tried.
    """
    reach = 10_000
    down = range(min(value - 1, whole), max(0, value - reach), -1)
    up = range(value + 1, min(whole, value + reach) + 1)
    below = next((n for n in down if whole % n == 0), 1)
    above = next((n for n in up if whole % n == 0), None)
    return str(below) if above is None else f"{below} or {above}"


def divisor_problems(key: str, value: int, whole: int, what: str) -> Iterator[str]:
    """The sentence for a size that does not divide evenly."""
    if whole % value:
        yield f"{key}={value} does not divide {whole} {what}; try {nearest_divisors(whole, value)}"


def option_problems(run: Run, title: str) -> Iterator[str]:
    """Problems with precision, adapters and options."""
    if run.precision not in MIXED:
        kind = run.precision.partition("_")[0]
        yield (
            f"training.precision={run.precision!r}: {title} steps on fp32 main weights; "
            f"use '{kind}_mixed'"
        )
    if run.autocast:
        yield (
            f"training.autocast=true: {title} runs its layers in 16 bits without autocast; "
            "set it to false"
        )
    if run.adapter is not None:
        yield f"training.lora: {title} trains every weight; leave it out or use pytorch_ddp"
    if run.quantization is not None:
        yield (
            f"training.quantization={run.quantization!r}: {title} has no quantized weights; "
            "leave it out or use pytorch_ddp"
        )
    kind = option(run, "transformer_implementation")
    if kind not in (LOCAL, ENGINE):
        yield (
            f"engine.transformer_implementation={kind!r} must be {ENGINE!r} or {LOCAL!r}; "
            f"try {ENGINE!r}"
        )
    multiple = option(run, "make_vocab_size_divisible_by")
    if multiple < 1:
        yield f"engine.make_vocab_size_divisible_by={multiple} must be at least 1; try 128"


def layout_problems(run: Run, title: str) -> Iterator[str]:
    """The model, and how it is sharded."""
    yield from _model_problems(run.arch, title)
    texts = [text for layer, _, _ in run.arch.runs for text in _layer_problems(run, layer)]
    yield from dict.fromkeys(texts)
    yield from _stage_problems(run)
    yield from _sequence_problems(run, title)
    yield from _expert_problems(run, title)


def _model_problems(arch: Arch, title: str) -> Iterator[str]:
    """GPTModel has softmax attention with rotary or learned positions, one branch at a time."""
    layers = [layer for layer, _, _ in arch.runs]
    if any(not isinstance(x.mixer, Attention | LatentAttention) for x in layers):
        yield (
            f"model family {arch.family!r} has layers without softmax attention, which "
            f"{title}'s GPT model does not have; try pytorch_ddp"
        )
    elif any(layer.parallel for layer in layers):
        yield (
            f"model family {arch.family!r} runs attention and MLP side by side, which {title} "
            "does not have; try pytorch_ddp"
        )
    if any(getattr(layer.mixer, "alibi", False) for layer in layers):
        yield (
            f"model family {arch.family!r} has ALiBi positions, which {title} does not have; "
            "try pytorch_ddp"
        )
    if any(not norm.affine for layer in layers for _, norm in layer.norms):
        yield (
            f"model family {arch.family!r} has norms without weights, and those of {title} have "
            "them; try pytorch_ddp"
        )
    if any(dict(weight.dims).get("embed", arch.hidden) != arch.hidden for weight in arch.embedding):
        yield (
            f"model family {arch.family!r} has an embedding of another width than its layers, "
            f"which {title} does not have; try pytorch_ddp"
        )


def _layer_problems(run: Run, layer: Layer) -> Iterator[str]:
    """Heads, key-value heads and widths (transformer_config.py:1324-1343)."""
    tp, mixer, mlp = int(run.mesh.tp), layer.mixer, layer.mlp
    if isinstance(mixer, Attention | LatentAttention) and mixer.heads % tp:
        yield from divisor_problems(TP, tp, mixer.heads, "heads")
        return
    if isinstance(mixer, Attention):
        groups = mixer.kv_heads
        if groups % tp and not fused(run):
            yield (
                f"{TP}={tp} does not divide {groups} key-value heads, as the local spec wants; try "
                f"{nearest_divisors(groups, tp)}, or engine.transformer_implementation={ENGINE!r}"
            )
        elif groups % tp and tp % groups:
            yield (
                f"{TP}={tp} neither divides {groups} key-value heads nor is a multiple of them; "
                f"try {nearest_divisors(groups, tp)}"
            )
    for block in (mlp, getattr(mlp, "shared", None)):
        if isinstance(block, Mlp | Moe):
            yield from divisor_problems(TP, tp, block.ffn, "MLP columns")


def _stage_problems(run: Run) -> Iterator[str]:
    """transformer_config.py:2004-2110, schedules.py:1133-1153."""
    layers, pp, chunks = len(run.arch.layers), int(run.mesh.pp), int(run.virtual_stages)
    yield from divisor_problems(PP, pp, layers, "layers")
    key = "parallelism.virtual_pipeline_size"
    if chunks > 1 and layers % pp == 0:
        yield from divisor_problems(key, chunks, layers // pp, "layers a stage")
    if chunks > 1 and run.micro_batches % pp:
        fit = -(-run.micro_batches // pp) * pp
        yield (
            f"training.gradient_accumulation_steps={run.micro_batches} is not a multiple of "
            f"{PP}={pp}, as interleaving wants; try {fit}"
        )


def _sequence_problems(run: Run, title: str) -> Iterator[str]:
    seq, cp, tp = run.seq, run.mesh.cp, run.mesh.tp
    if cp > 1 and not fused(run):
        yield (
            f"{CP}={cp} needs Transformer Engine's attention; set "
            f"engine.transformer_implementation={ENGINE!r}"
        )
    if cp > 1 and seq % (2 * cp):
        yield (
            f"training.seq_len={seq} is not a multiple of 2 × {CP} ({2 * cp}); try "
            f"{-(-seq // (2 * cp)) * 2 * cp}"
        )
    if run.sequence_parallel and tp == 1:
        yield (f"parallelism.sequence_parallel=true needs {TP} above 1; set it to false")
    if run.sequence_parallel and seq % (cp * tp):
        yield (
            f"training.seq_len={seq} is not a multiple of {cp * tp}, the ranks that split it; "
            f"try {-(-seq // (cp * tp)) * cp * tp}"
        )


def _expert_problems(run: Run, title: str) -> Iterator[str]:
    """moe_layer.py:629 and BaseMoELayer; transformer_config.py:1469, :2282."""
    ep, ranks = int(run.mesh.ep), int(run.mesh.dp * run.mesh.cp)
    blocks = [x.mlp for x, _, _ in run.arch.runs if isinstance(x.mlp, Moe)]
    if ep > 1 and not blocks:
        yield f"{EP}={ep}: the model has no experts; set it to 1"
    elif ep > 1 and ranks % ep:
        yield (
            f"{EP}={ep} does not divide the {ranks} ranks of data and context parallelism; try "
            f"{nearest_divisors(ranks, ep)}"
        )
    for block in blocks:
        yield from divisor_problems(EP, ep, block.num_experts, "experts")
        if run.mesh.tp > 1 and any(w.name.endswith("bias") for w in block.experts):
            yield (
                f"{TP}={run.mesh.tp}: experts with biases cannot be sharded; set it to 1 and "
                f"use {EP}"
            )
    if blocks and run.mesh.tp > 1 and not run.sequence_parallel:
        yield (
            f"{TP}={run.mesh.tp} with experts needs sequence parallelism in {title}; set "
            "parallelism.sequence_parallel=true"
        )

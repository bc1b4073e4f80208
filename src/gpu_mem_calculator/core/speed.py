"""How fast a server could be on its cards: prompts, and one token after another."""

from __future__ import annotations

from .. import catalog
from ..memory.run import Run
from ..memory.serving.served import WEIGHTS
from ..timing.card import Card
from ..timing.serving import Serving, decode, prefill
from .calculator import Estimate
from .inference_config import DecodeSpeed, SpeedResult
from .models import GPUConfig

PROMPT, ANSWER = 1024, 256  # tokens, where a run does not say
FP8 = ("fp8",)  # formats whose products run on the card's 8-bit units


def find_card(config: GPUConfig) -> Card | None:
    """The rates of the card that a hardware section names; None where it names none."""
    row = catalog.find("gpus", config.gpu) if config.gpu else None
    if row is None or "bandwidth_gb_per_s" not in row:
        return None
    link = catalog.find("links", config.interconnect or row.get("link") or "") or {}
    return Card(
        flops={name: 1e12 * rate for name, rate in row["tflops"].items()},
        memory_bytes_per_second=1e9 * row["bandwidth_gb_per_s"],
        link_bytes_per_second=1e9 * link.get("bandwidth_gb_per_s", 16),
        link_seconds=1e-6 * link.get("latency_us", 5),
    )


def speed(estimate: Estimate) -> SpeedResult | None:
    """Upper bounds by roofline; None where the card's rates are not known."""
    run, config = estimate.resolved.run, GPUConfig(**estimate.result.run.get("hardware", {}))
    card = find_card(config)
    if card is None or not card.rate("bf16"):
        return None
    serving = Serving(
        arch=run.arch, card=card, tp=int(run.mesh.tp), weights_bytes=_weights(estimate),
        dtype=_dtype(run), bits=32 if run.precision == "fp32" else 16,
    )  # fmt: skip
    prompt = run.options.get("prompt_len") or PROMPT
    context = prompt + (run.options.get("new_tokens") or ANSWER)
    first = prefill(serving, prompt)
    rows = []
    for sequences in _batches(estimate, context):
        step = decode(serving, context, sequences, _cache(estimate, context))
        rows.append(DecodeSpeed(
            sequences=sequences, tokens_per_second=sequences / step.seconds,
            tokens_per_second_each=1 / step.seconds, bound=step.bound,
        ))  # fmt: skip
    return SpeedResult(
        prompt_len=prompt, context=context, first_token_seconds=first.seconds,
        prefill_tokens_per_second=prompt / first.seconds, prefill_bound=first.bound, decode=rows,
    )  # fmt: skip


def _dtype(run: Run) -> str:
    """What the products run in."""
    name = run.options.get("quantization") or "none"
    if name in FP8 or (run.quantized or {}).get("quant_method") == "fp8":
        return "fp8"
    return run.precision.removesuffix("_pure")


def _weights(estimate: Estimate) -> int:
    """Bytes a rank of each stage reads in a pass, one stage after the other."""
    if estimate.served:
        return sum(one.figure(WEIGHTS) for one in estimate.served)
    run = estimate.resolved.run
    return run.arch.num_parameters * (4 if run.precision == "fp32" else 2)


def _cache(estimate: Estimate, context: int) -> int:
    """One sequence's cache over all stages."""
    if estimate.served:
        return sum(one.sequence_bytes(context) for one in estimate.served)
    from ..memory.serving.cache import kept, plain_row, sequence_bytes
    from ..memory.serving.shard import Shard

    run = estimate.resolved.run
    bits = 32 if run.precision == "fp32" else 16
    shard = Shard(places=range(len(run.arch.layers)))
    caches = kept(run.arch, shard, plain_row(bits), state_bits=32, conv_bits=bits)
    return sequence_bytes(caches, context)


def _batches(estimate: Estimate, context: int) -> list[int]:
    """One user alone, and as many as there is room for."""
    if not estimate.served:
        return sorted({1, int(estimate.resolved.run.batch)})
    most = min(min(int(one.sequences(context)), one.most_sequences) for one in estimate.served)
    return sorted({1, most}) if most else [1]

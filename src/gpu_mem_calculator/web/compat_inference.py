"""The reference calculator's inference: its answer from ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..estimates.calculator import STEP, Estimate, full_estimate, resolved_verdict
from ..estimates.fit_verdict import FITS
from ..estimates.serving.capacity import matrix
from ..estimates.serving.speed import find_card_rates, no_speed, serving_replica
from ..ledger.ledger import ACT, CACHE, PARAM
from ..ledger.units import GIB
from ..runfile.config import GPUConfig, RunFile
from ..runfile.find_model.model_source import find_model
from ..serving import server
from ..timing.serving.roofline import step_rates
from ..tools.read import read
from .compat_fields import inference_run


def inference(body: Any, _options: Mapping[str, str]) -> dict[str, Any]:
    """Its answer, and ours as `result`; `left_out` are the fields of its engine that are not
    modelled and were at the page's defaults.
    """
    data, left_out = inference_run(body)
    estimate = full_estimate(_with_context(read(data)))
    result, context = estimate.result, _context(estimate)
    most = _most_sequences(estimate, context)
    rate, why = _rate(estimate, context, most)
    return {
        "total_memory_per_gpu_gb": result.total_memory_per_gpu_gb,
        "total_memory_all_gpus_gb": result.total_memory_all_gpus_gb,
        "breakdown": _breakdown(estimate),
        "max_supported_batch_size": most,
        "estimated_throughput_tokens_per_sec": rate,
        "no_throughput": why,
        "fits_on_gpu": result.fits_on_gpu,
        "memory_utilization_percent": result.memory_utilization_percent,
        "left_out": left_out,
        "result": result,
    }


def _with_context(file: RunFile) -> RunFile:
    """A transformers run with the longest prompt: max_seq_len less the new tokens.

    transformers has no pool to size; the reference calculator takes full sequences, too.
    """
    inference = file.inference
    assert inference is not None
    if inference.engine != "transformers" or inference.prompt_len is not None:
        return file
    length = inference.max_seq_len or find_model(file.model).arch.max_seq_len
    new = inference.new_tokens
    if new is None:
        new = int(server("transformers").options["new_tokens"])
    return replace(file, inference=replace(inference, prompt_len=max(1, length - new)))


def _context(estimate: Estimate) -> int:
    """Tokens of one sequence, prompt and new ones."""
    if estimate.served:
        return estimate.served[0].max_seq_len
    run = estimate.resolved.run
    return int(run.seq + run.generated)


def _most_sequences(estimate: Estimate, context: int) -> int:
    """The most sequences that fit at once. With transformers the ledger gives an upper bound, and
    verdicts decide: fewer in growing steps, then by bisection.
    """
    most = matrix(estimate, (context,), (1,)).most[0]
    if estimate.served or most == 0:
        return most
    resolved = estimate.resolved

    def fits(count: int) -> bool:
        return resolved_verdict(replace(resolved, run=replace(resolved.run, batch=count))) == FITS

    low, high, step = 0, most + 1, 1  # `low` fits, unless it is 0; `high` does not
    while high - low > 1:
        guess = (low + high) // 2 if low else max(1, high - step)
        low, high = (guess, high) if fits(guess) else (low, guess)
        step *= 2
    return low


def _breakdown(estimate: Estimate) -> dict[str, float]:
    """GiB of its four parts at the peak; they add up to the total."""
    ledger = estimate.ledger
    parts = ledger.parts(ledger.peak_instant(phases=STEP))
    sizes = {
        "model_params_gb": int(parts[PARAM]) / GIB,
        "kv_cache_gb": int(parts[CACHE]) / GIB,
        "activations_gb": int(parts[ACT]) / GIB,
    }
    rest = estimate.result.total_memory_per_gpu_gb - sum(sizes.values())
    return {**sizes, "overhead_gb": rest}


def _rate(estimate: Estimate, context: int, most: int) -> tuple[float | None, str]:
    """Tokens per second, an upper bound, with at most the sequences asked for that fit; or None and
    why there is no figure.
    """
    why = no_speed(estimate)
    resolved = estimate.resolved
    copies = int(resolved.run.mesh.dp)
    count = min(-(-(resolved.run.options.get("batch_size") or 1) // copies), most)
    hardware = GPUConfig(**estimate.result.run.get("hardware", {}))
    card = find_card_rates(hardware, int(resolved.run.mesh.tp), resolved.hardware.gpus_per_node)
    if why or card is None or not count:
        return None, why or "no speed: not one sequence fits"
    together, _, _ = step_rates(serving_replica(resolved, card), context, count)
    return copies * together, ""

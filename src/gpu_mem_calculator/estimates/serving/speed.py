"""A server's speed on its GPUs, prefill and decode: an estimate, and a bound by the roofline."""

from __future__ import annotations

from collections.abc import Iterator

from ... import catalog
from ...run.cuda.runtimes import ROCM
from ...runfile.config import GPUConfig
from ...runfile.inference_config import DecodeSpeed, ExpectedSpeed, SpeedResult
from ...runfile.resolve.card_name import named_card
from ...runfile.resolve.hardware import Hardware, ports_per_gpu
from ...runfile.resolve.resolved_run import ResolvedRun
from ...serving import server_row
from ...timing.serving.kernels import ServingGpu
from ...timing.serving.measured import ALONE, AMD_SHARE, COSTS, PROMPTS, SHARES, TOGETHER
from ...timing.serving.roofline import (
    CardRates,
    ServingReplica,
    first_token_time,
    prompt_rate,
    step_rates,
)
from ...timing.serving.seconds import ServingSeconds, TimedReplica, prompt_seconds, step_seconds
from ..calculator import Estimate
from ..machine import machine_of, own_link
from .roofline_stages import stage_work

PROMPT, ANSWER = 1024, 256  # tokens, where a run does not give them
# Links whose switches reduce in the network (NVLink SHARP).
ADDING = frozenset({"nvlink4", "nvlink4-h800", "nvlink5"})


def find_card_rates(config: GPUConfig, ranks: int = 1, per_node: int = 8) -> CardRates | None:
    """The rates of the GPU that a hardware section names; None where they are not known.

    `interconnect` is the link between the `ranks` that share a layer, unless it is a network and
    all of them are in one node.
    """
    found = named_card(config, fast=True)
    row = found[0] if found else None
    if row is None or "tflops" not in row or not row["bandwidth_gb_per_s"]:
        return None
    named = catalog.find("links", config.interconnect or "")
    if named is not None and named["scope"] == "node" and ranks <= per_node:
        named = None
    link = named or own_link(row)
    ports = ports_per_gpu(link, config.nics_per_node, per_node) if link["scope"] == "node" else 1.0
    return CardRates(
        flops={name: 1e12 * rate for name, rate in row["tflops"].items()},
        memory_bytes_per_second=1e9 * row["bandwidth_gb_per_s"],
        link_bytes_per_second=1e9 * link["bandwidth_gb_per_s"] * ports,
        link_seconds=1e-6 * link["latency_us"],
        adds_up=link["name"] in ADDING,
    )


def no_speed(estimate: Estimate) -> str:
    """A sentence on why no speed is computed; empty where it is."""
    if find_card_rates(_section(estimate)) is None:
        if _section(estimate).gpu is None:
            return "speed not estimated: no GPU given (add --gpu NAME)"
        return "speed not estimated: the rates of this GPU are not known"
    slow = next(on_host(estimate), "")
    return f"speed not estimated: {slow}, whose bandwidth is not known" if slow else ""


def on_host(estimate: Estimate) -> Iterator[str]:
    """What a pass reads from host memory, a sentence part for each."""
    options, serving = estimate.resolved.run.options, estimate.result.serving
    placed, layers = (None, 0) if serving is None else (serving.layers_on_gpus, serving.layers or 0)
    if placed is not None and placed < layers:
        yield f"{layers - placed} of {layers} layers are in host memory"
    if serving is not None and serving.partial_layers:
        yield f"the experts of {serving.partial_layers} layers are in host memory"
    if options.get("no_kv_offload"):
        yield "the KV cache is in host memory"
    if options.get("cpu_offload_gb"):
        yield f"{options['cpu_offload_gb']:g} GiB of weights are in host memory"


def serving_replica(resolved: ResolvedRun, card: CardRates) -> ServingReplica:
    """One replica of the server: the work of one rank of each stage, and its GPU."""
    return ServingReplica(
        card=card,
        stages=stage_work(resolved.run, resolved.engine),
        overlapped=not server_row(resolved.engine.name).splits_by_layer,
    )


def timed_replica(resolved: ResolvedRun, section: GPUConfig, card: CardRates) -> TimedReplica:
    """The replica with what its seconds depend on; `section` is the run's `hardware`."""
    hardware = resolved.hardware
    return TimedReplica(
        replica=serving_replica(resolved, card),
        gpu=ServingGpu(
            machine=machine_of(hardware, section.interconnect),
            rates=card,
            capability=hardware.compute_capability,
        ),
        costs=COSTS[_costs_name(resolved)],
        chunk=prompt_chunk(resolved),
        share=AMD_SHARE if hardware.runtime == ROCM else 1.0,
    )


def _costs_name(resolved: ResolvedRun) -> str:
    """The engine in the table of costs; an older generation may have its own entry."""
    name, timed_as = resolved.engine.name, server_row(resolved.engine.name).timed_as
    return name if timed_as is None else timed_as(resolved.run)


def prompt_chunk(resolved: ResolvedRun) -> int:
    """The most tokens of a prompt in one pass."""
    option, fewest = server_row(resolved.engine.name).prompt_chunk
    return int(resolved.run.options.get(option) or fewest)


def speed(estimate: Estimate) -> SpeedResult | None:
    """Estimates and upper bounds; None where a rate is not known (see `no_speed`)."""
    resolved = estimate.resolved
    run, hardware = resolved.run, resolved.hardware
    card = find_card_rates(_section(estimate), int(run.mesh.tp), hardware.gpus_per_node)
    if card is None or any(on_host(estimate)):
        return None
    timed = timed_replica(resolved, _section(estimate), card)
    serving = timed.replica
    (prompt, _), context = sequence_lengths(estimate), decode_context(estimate)
    first = first_token_time(serving.alone, prompt, prompt_chunk(resolved))
    rate, bound = prompt_rate(serving, prompt)
    copies = int(run.mesh.dp)
    return SpeedResult(
        engine=resolved.engine.name,
        prompt_len=prompt,
        context=context,
        first_token_seconds=first.seconds,
        prefill_tokens_per_second=copies * rate,
        prefill_bound=bound,
        decode=list(_decode(estimate, timed, context)),
        notes=list(_notes(resolved, hardware)),
        expected_prefill=_expected(
            prompt_seconds(timed, prompt),
            copies * prompt,
            copies * rate,
            _figures(resolved.engine.name, PROMPTS),
        ),
    )


def _expected(seconds: ServingSeconds, tokens: float, bound: float, figures: int) -> ExpectedSpeed:
    """Tokens per second from the seconds that they take, none above the bound."""
    return ExpectedSpeed(
        median=min(bound, tokens / seconds.estimate),
        least=min(bound, tokens / seconds.high),
        most=min(bound, tokens / seconds.low),
        figures=figures,
    )


def _figures(engine: str, kind: str) -> int:
    """How many published benchmarks of an engine the estimate was compared with."""
    share = SHARES[engine].get(kind)
    return 0 if share is None else share.count


def sequence_lengths(estimate: Estimate) -> tuple[int, int]:
    """Tokens of a prompt, and of prompt and answer: as given, else within the longest sequence."""
    run = estimate.resolved.run
    prompt, new = run.options.get("prompt_len"), run.options.get("new_tokens") or ANSWER
    if prompt:
        return prompt, prompt + new
    longest = estimate.served[0].max_seq_len if estimate.served else run.arch.max_seq_len
    context = min(PROMPT + new, longest)
    return max(1, context - new), context


def decode_context(estimate: Estimate) -> int:
    """Tokens of a sequence that is decoded: those of the users that the verdict names."""
    serving, run = estimate.result.serving, estimate.resolved.run
    if serving is None:
        return int(run.seq) + int(run.generated)
    if serving.users:
        return serving.users_context
    return min(serving.users_context, serving.longest_context) or serving.users_context


def _section(estimate: Estimate) -> GPUConfig:
    return GPUConfig(**estimate.result.run.get("hardware", {}))


def _decode(estimate: Estimate, timed: TimedReplica, context: int) -> Iterator[DecodeSpeed]:
    copies, serving = int(estimate.resolved.run.mesh.dp), timed.replica
    engine = estimate.resolved.engine.name
    for users in _decode_users(estimate):
        replicas, replica = (copies, serving) if users > 1 else (1, serving.alone)
        sequences = -(-users // replicas)
        _, each, bound = step_rates(replica, context, sequences)
        yield DecodeSpeed(
            sequences=users,
            tokens_per_second=users * each,
            tokens_per_second_each=each,
            bound=bound,
            expected=_expected(
                step_seconds(timed, context, sequences),
                users,
                users * each,
                _figures(engine, TOGETHER if users > 1 else ALONE),
            ),
        )


def _decode_users(estimate: Estimate) -> list[int]:
    """Concurrent users to decode: one, and as many as the verdict names: those asked for, or as
    many as fit.
    """
    serving = estimate.result.serving
    if serving is None:
        return sorted({1, int(estimate.resolved.run.batch)})
    most = min(serving.users, serving.users_asked or serving.users)
    return sorted({1, max(1, most)})


def _notes(resolved: ResolvedRun, hardware: Hardware) -> Iterator[str]:
    """What the figures leave out, a sentence for each."""
    run = resolved.run
    if run.options.get("speculative_method") or run.draft is not None:
        yield "without speculative decoding, which can generate several tokens per pass"
    if (run.options.get("num_beams") or 1) > 1:
        yield "without beam search"
    if int(run.mesh.tp) > hardware.gpus_per_node:
        yield "with the interconnect of one node, although tensor parallelism spans nodes"

"""How fast a server could be on its cards: prompts, and one token after another."""

from __future__ import annotations

from collections.abc import Iterator

from .. import catalog
from ..timing.card import CardRates
from ..timing.serving import ServingReplica, first_token, prompt_rate, step_rates
from .calculator import Estimate
from .hardware import Hardware
from .inference_config import DecodeSpeed, SpeedResult
from .models import GPUConfig
from .resolved_run import ResolvedRun
from .roofline_stages import stages

PROMPT, ANSWER = 1024, 256  # tokens, where a run does not say
# Switches that sum what cards send them (NVLink SHARP), by the links to them.
ADDING = frozenset({"nvlink4", "nvlink4-h800", "nvlink5"})
# Tokens of a prompt that run in one pass at most: the option that says so, else the fewest that an
# engine chooses by itself.
CHUNKS = {"llamacpp": ("n_ubatch", 512), "sglang": ("chunked_prefill_size", 2048)}
CHUNK = ("max_num_batched_tokens", 2048)
UNKNOWN_LINK = {"bandwidth_gb_per_s": 63, "latency_us": 1.0}  # PCI Express 5.0, x16


def find_card(config: GPUConfig, ranks: int = 1, per_node: int = 8) -> CardRates | None:
    """The rates of the card that a hardware section names; None where it names none.

    `interconnect` is what joins the ranks of a layer, unless it is a network and they are in one
    node.
    """
    row = catalog.find("gpus", config.gpu) if config.gpu else None
    if row is None or "bandwidth_gb_per_s" not in row:
        return None
    given = catalog.find("links", config.interconnect or "")
    if given is not None and given["scope"] == "node" and ranks <= per_node:
        given = None
    link = given or catalog.find("links", row.get("link") or "") or UNKNOWN_LINK
    return CardRates(
        flops={name: 1e12 * rate for name, rate in row["tflops"].items()},
        memory_bytes_per_second=1e9 * row["bandwidth_gb_per_s"],
        link_bytes_per_second=1e9 * link["bandwidth_gb_per_s"],
        link_seconds=1e-6 * link["latency_us"],
        adds_up=link.get("name") in ADDING,
    )


def no_speed(estimate: Estimate) -> str:
    """Why there is no figure, in a sentence; empty where there is one."""
    if find_card(_section(estimate)) is None:
        return "no speed: the card's rates are not known; name one with hardware.gpu"
    held = next(_on_host(estimate.resolved), "")
    return f"no speed: {held}, whose bandwidth is not known" if held else ""


def _on_host(resolved: ResolvedRun) -> Iterator[str]:
    """What a pass reads from the host's memory."""
    options, layers = resolved.run.options, len(resolved.run.arch.layers)
    asked = options.get("n_gpu_layers")
    if asked is not None and asked <= layers:
        yield f"{layers + 1 - asked} of {layers + 1} layers are in the host's memory"
    if options.get("n_cpu_moe"):
        yield f"the experts of {options['n_cpu_moe']} layers are in the host's memory"
    if options.get("no_kv_offload"):
        yield "the cache is in the host's memory"
    if options.get("cpu_offload_gb"):
        yield f"{options['cpu_offload_gb']:g} GiB of weights are in the host's memory"


def serving_of(resolved: ResolvedRun, card: CardRates) -> ServingReplica:
    """One replica: a rank of each stage, on its card."""
    name = resolved.engine.name
    return ServingReplica(card=card, stages=stages(resolved.run, resolved.engine),
                   overlapped=name != "llamacpp")  # fmt: skip


def speed(estimate: Estimate) -> SpeedResult | None:
    """Upper bounds by roofline; None where the card's rates or what is read are not known."""
    resolved = estimate.resolved
    run, hardware = resolved.run, resolved.hardware
    card = find_card(_section(estimate), int(run.mesh.tp), hardware.gpus_per_node)
    if card is None or any(_on_host(resolved)):
        return None
    serving = serving_of(resolved, card)
    prompt, context = _lengths(estimate)
    option, fewest = CHUNKS.get(resolved.engine.name, CHUNK)
    first = first_token(serving.alone, prompt, run.options.get(option) or fewest)
    rate, bound = prompt_rate(serving, prompt)
    copies = int(run.mesh.dp)
    return SpeedResult(
        engine=resolved.engine.name, prompt_len=prompt, context=context,
        first_token_seconds=first.seconds, prefill_tokens_per_second=copies * rate,
        prefill_bound=bound, decode=list(_decode(estimate, serving, context)),
        notes=list(_notes(resolved, hardware)),
    )  # fmt: skip


def _lengths(estimate: Estimate) -> tuple[int, int]:
    """Tokens of a prompt, and with its answer: as given, else within what is served."""
    run = estimate.resolved.run
    given, new = run.options.get("prompt_len"), run.options.get("new_tokens") or ANSWER
    if given:
        return given, given + new
    longest = estimate.served[0].max_seq_len if estimate.served else run.arch.max_seq_len
    context = min(PROMPT + new, longest)
    return max(1, context - new), context


def _section(estimate: Estimate) -> GPUConfig:
    return GPUConfig(**estimate.result.run.get("hardware", {}))


def _decode(estimate: Estimate, serving: ServingReplica, context: int) -> Iterator[DecodeSpeed]:
    copies = int(estimate.resolved.run.mesh.dp)
    for sequences in _batches(estimate, context):
        many, who = (copies, serving) if sequences > 1 else (1, serving.alone)
        together, each, bound = step_rates(who, context, sequences)
        yield DecodeSpeed(sequences=many * sequences, tokens_per_second=many * together,
                          tokens_per_second_each=each, bound=bound)  # fmt: skip


def _batches(estimate: Estimate, context: int) -> list[int]:
    """One sequence alone, and as many as there is room for; each replica has as many."""
    if not estimate.served:
        return sorted({1, int(estimate.resolved.run.batch)})
    most = min(min(int(one.sequences(context)), one.most_sequences) for one in estimate.served)
    return sorted({1, most}) if most else [1]


def _notes(resolved: ResolvedRun, hardware: Hardware) -> Iterator[str]:
    """What the figures leave out, a sentence each."""
    run = resolved.run
    if run.options.get("speculative_method") or run.draft is not None:
        yield "without speculation, which can make several tokens in a pass"
    if (run.options.get("num_beams") or 1) > 1:
        yield "without beams"
    if int(run.mesh.tp) > hardware.gpus_per_node:
        yield "with the link within a node, which the ranks of a layer go beyond"

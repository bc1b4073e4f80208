"""What Megatron refuses, one sentence each: the value, the rule, the nearest fix."""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.frameworks import TRANSFORMER_ENGINE
from ....models.arch.arch import Arch, Layer
from ....models.arch.blocks import Attention, LatentAttention, Mlp, Moe
from ....run.releases import parse_version
from ....run.run import Run
from .layout import CHUNKS, is_uneven, uneven_problems
from .options import ENGINE, LOCAL, expert_tp, fused, is_nanotron, option

TP, PP = "parallelism.tensor_parallel_size", "parallelism.pipeline_parallel_size"
CP, EP = "parallelism.context_parallel_size", "parallelism.expert_parallel_size"
ETP = "engine.expert_tensor_parallel_size"
PADS, INSTANCES = "moe_pad_expert_input_to_capacity", "num_distributed_optimizer_instances"
GROUP = "microbatch_group_size_per_virtual_pipeline_stage"
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
        why = f"{title} steps on fp32 main weights"
        yield f"training.precision={run.precision!r}: {why}; use '{kind}_mixed'"
    if run.autocast:
        why = f"{title} runs its layers in 16 bits without autocast"
        yield f"training.autocast=true: {why}; set it to false"
    if run.adapter is not None:
        yield f"training.lora: {title} trains every weight; leave it out or use pytorch_ddp"
    if run.quantization is not None:
        why = f"{title} has no quantized weights"
        yield f"training.quantization={run.quantization!r}: {why}; leave it out or use pytorch_ddp"
    kind = option(run, "transformer_implementation")
    if kind not in (LOCAL, ENGINE):
        why = f"must be {ENGINE!r} or {LOCAL!r}"
        yield f"engine.transformer_implementation={kind!r} {why}; try {ENGINE!r}"
    yield from _backend_problems(run)
    multiple = option(run, "make_vocab_size_divisible_by")
    if multiple < 1:
        yield f"engine.make_vocab_size_divisible_by={multiple} must be at least 1; try 128"


def _backend_problems(run: Run) -> Iterator[str]:
    """Transformer Engine's version and attention, and its loss; local layers have their own
    (megatron/training/arguments.py:434).
    """
    backend, version = option(run, "attention_backend"), option(run, "transformer_engine_version")
    oldest = TRANSFORMER_ENGINE.oldest
    if (parse_version(version) or (0, 0, 0)) < TRANSFORMER_ENGINE.oldest_numbers:
        why = "is not a version of Transformer Engine that is modelled"
        yield f"engine.transformer_engine_version={version!r} {why}; use {oldest} or newer"
    key = f"engine.attention_backend={backend!r}"
    if not fused(run) and backend not in ("auto", "local"):
        yield f"{key} is Transformer Engine's, and local layers have their own; leave it out"
    elif fused(run) and backend == "local":
        local = "engine.transformer_implementation='local'"
        yield f"{key} needs {local}; set it, or try 'unfused'"
    elif fused(run) and run.precision == "fp32" and backend in ("flash", "fused"):
        yield f"{key} has no fp32 kernel; try 'unfused'"
    if backend == "unfused" and run.mesh.cp > 1:
        yield f"{key} has no context parallelism; try 'fused' or set {CP} to 1"


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
    layers, lacks = [layer for layer, _, _ in arch.runs], f"which {title} does not have"
    other = any(not isinstance(x.mixer, Attention | LatentAttention) for x in layers)
    beside = any(layer.parallel for layer in layers)
    bare = any(not norm.affine for layer in layers for _, norm in layer.norms)
    narrow = any(dict(w.dims).get("embed", arch.hidden) != arch.hidden for w in arch.embedding)
    for found, what in (
        (other, f"has layers without softmax attention, which {title}'s GPT model does not have"),
        (not other and beside, f"runs attention and MLP side by side, {lacks}"),
        (any(getattr(x.mixer, "alibi", False) for x in layers), f"has ALiBi positions, {lacks}"),
        (bare, f"has norms without weights, and those of {title} have them"),
        (narrow, f"has an embedding of another width than its layers, {lacks}"),
    ):
        if found:
            yield f"model family {arch.family!r} {what}; try pytorch_ddp"


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
            why = f"neither divides {groups} key-value heads nor is a multiple of them"
            yield f"{TP}={tp} {why}; try {nearest_divisors(groups, tp)}"
    for block in (mlp, getattr(mlp, "shared", None)):
        ranks = int(expert_tp(run)) if isinstance(block, Moe) else tp
        if isinstance(block, Mlp | Moe) and ranks == tp:
            yield from divisor_problems(TP, tp, block.ffn, "MLP columns")


def _stage_problems(run: Run) -> Iterator[str]:
    """transformer_config.py:2004-2110, schedules.py:1133-1153."""
    layers, pp, chunks = len(run.arch.layers), int(run.mesh.pp), int(run.virtual_stages)
    if is_uneven(run):
        yield from uneven_problems(run)
    else:
        yield from divisor_problems(PP, pp, layers, "layers")
        if chunks > 1 and layers % pp == 0:
            yield from divisor_problems(CHUNKS, chunks, layers // pp, "layers a stage")
    yield from _group_problems(run)


def _group_problems(run: Run) -> Iterator[str]:
    """schedules.py:1133-1153: a group has at least pp micro-batches, and so has the last one."""
    pp, count = int(run.mesh.pp), int(run.micro_batches)
    group = int(run.micro_batch_group or pp)
    key = f"engine.{GROUP}={run.micro_batch_group}"
    steps = "training.gradient_accumulation_steps"
    if run.virtual_stages == 1:
        if run.micro_batch_group:
            yield f"{key} is for interleaved stages; set {CHUNKS} or leave it out"
    elif run.micro_batch_group and group < pp:
        yield f"{key} is less than {PP}={pp}; try {pp}"
    elif run.micro_batch_group and group > count:
        yield f"{key} is more than {steps}={count}; try {max(count, pp)}"
    elif 0 < count % group < pp or count < pp:
        fit = -(-count // group) * group
        whole = f"{PP}={pp}" if group == pp else f"{key}, and {count % group} is less than {PP}"
        groups = [n for n in range(pp, count + 1) if count % n == 0 or count % n >= pp]
        other = f", or engine.{GROUP}={groups[0]}" if groups else ""
        yield (
            f"{steps}={count} is not a multiple of {whole}, as interleaving wants; try {fit}{other}"
        )


def _sequence_problems(run: Run, title: str) -> Iterator[str]:
    seq, cp, tp = run.seq, run.mesh.cp, run.mesh.tp
    if cp > 1 and is_nanotron(run):
        why = "nanotron's Llama has no context parallelism"
        yield f"parallelism.context_parallel_size={cp}: {why}; set it to 1"
    elif cp > 1 and not fused(run):
        why = "needs Transformer Engine's attention"
        yield f"{CP}={cp} {why}; set engine.transformer_implementation={ENGINE!r}"
    if cp > 1 and seq % (2 * cp):
        why = f"is not a multiple of 2 × {CP} ({2 * cp})"
        yield f"training.seq_len={seq} {why}; try {-(-seq // (2 * cp)) * 2 * cp}"
    if run.sequence_parallel and tp == 1:
        yield f"parallelism.sequence_parallel=true needs {TP} above 1; set it to false"
    if run.sequence_parallel and seq % (cp * tp):
        why = f"is not a multiple of {cp * tp}, the ranks that split it"
        yield f"training.seq_len={seq} {why}; try {-(-seq // (cp * tp)) * cp * tp}"


def _expert_problems(run: Run, title: str) -> Iterator[str]:
    """moe_layer.py:629 and BaseMoELayer; transformer_config.py:1469, :2282."""
    ep, etp = int(run.mesh.ep), int(expert_tp(run))
    ranks = int(run.mesh.dp * run.mesh.cp * run.mesh.tp)
    blocks = [x.mlp for x, _, _ in run.arch.runs if isinstance(x.mlp, Moe)]
    if ep > 1 and not blocks:
        yield f"{EP}={ep}: the model has no experts; set it to 1"
    elif ranks % etp:
        yield from divisor_problems(ETP, etp, ranks, "ranks of a stage")
    elif ep > 1 and ranks // etp % ep:
        over = "data and context" if etp == run.mesh.tp else "data, context and tensor"
        why = f"does not divide the {ranks // etp} ranks of {over} parallelism that are left for it"
        yield f"{EP}={ep} {why}; try {nearest_divisors(ranks // etp, ep)}"
    for block in blocks:
        yield from divisor_problems(EP, ep, block.num_experts, "experts")
        if etp != run.mesh.tp:
            yield from divisor_problems(ETP, etp, block.ffn, "MLP columns of an expert")
        if etp > 1 and any(w.name.endswith("bias") for w in block.experts):
            key = ETP if etp != run.mesh.tp else TP
            yield f"{key}={etp}: experts with biases cannot be sharded; set it to 1 and use {EP}"
    if blocks and run.mesh.tp > 1 and not run.sequence_parallel:
        why = f"with experts needs sequence parallelism in {title}"
        yield f"{TP}={run.mesh.tp} {why}; set parallelism.sequence_parallel=true"
    yield from _dispatch_problems(run, title, bool(blocks))


def _dispatch_problems(run: Run, title: str, has_experts: bool) -> Iterator[str]:
    """Options of experts: without any, without a capacity, or not modelled."""
    capacity = option(run, "moe_expert_capacity_factor")
    keys = ("expert_tensor_parallel_size", "moe_expert_capacity_factor", PADS)
    for key in () if has_experts else keys:
        if value := option(run, key):
            yield f"engine.{key}={value}: the model has no experts; leave it out"
    if has_experts and option(run, PADS) and capacity is None:
        yield f"engine.{PADS}=true needs moe_expert_capacity_factor; set it, such as 1.0"
    if has_experts and option(run, "moe_token_dispatcher_type") == "flex":
        why = "the buffers of DeepEP and HybridEP are not modelled"
        yield f"engine.moe_token_dispatcher_type='flex': {why}; use 'alltoall'"


def instance_problems(run: Run) -> Iterator[str]:
    """Copies of the distributed optimizer (distributed_data_parallel.py:292, parallel_state.py:924,
    1448).
    """
    copies, ranks = option(run, INSTANCES), int(run.mesh.dp * run.mesh.cp)
    if copies == 1:
        return
    owners = int(run.mesh.ep * expert_tp(run))
    if not option(run, "distributed_optimizer"):
        yield f"engine.{INSTANCES}={copies} needs distributed_optimizer=true; set it"
    elif ranks % copies:
        what = "ranks of data and context parallelism"
        yield from divisor_problems(f"engine.{INSTANCES}", copies, ranks, what)
    elif owners:
        replicas, what = int(run.mesh.tp) * ranks // owners, "ranks with the same experts"
        yield from divisor_problems(f"engine.{INSTANCES}", copies, replicas, what)


def deferral_problems(run: Run) -> Iterator[str]:
    """The output layer's deferred weight gradient (model_parallel_config.py:545-557)."""
    defer, limit = "engine.defer_embedding_wgrad_compute", option(run, "wgrad_deferral_limit")
    if not option(run, "defer_embedding_wgrad_compute"):
        if limit:
            yield f"engine.wgrad_deferral_limit={limit} needs defer_embedding_wgrad_compute; set it"
    elif run.mesh.pp == 1:
        yield f"{defer}=true needs {PP} above 1; leave it out"
    elif not option(run, "gradient_accumulation_fusion"):
        yield f"{defer}=true needs gradient_accumulation_fusion; set it to true"

"""What a training run may be: a sentence for each setting that is refused or not modelled.

Whoever makes a run asks `problems`: `resolve` for a run file, the planner for each of its sizes.
What needs the run file, such as a key without effect, is in runfile/resolve/training_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..ledger.num import Num, ceil_div
from ..models.arch.blocks import Attention, Mlp
from ..pytorch.modelling.huggingface.flash import FLASH, NO_FLASH_CARD, has_flash
from ..pytorch.modelling.huggingface.liger import PLAIN
from ..run.cuda.capability import LARGEST_FLASH_HEAD
from ..run.cuda.runtimes import runtime_problems
from ..run.engine_row import REPLICATE, SHARD_UNITS, ZERO
from ..run.recompute import FULL, NONE
from ..run.rollout import VLLM
from ..run.run import AS_TOOL, FULL_DICT, PRECOMPUTED, Run
from .engines import DEFAULT as DDP
from .engines import engine_row
from .losses import DEFAULT as OWN_LOSS
from .losses import LOSSES, PER_TOKEN, TRANSFORMERS, loss_problems
from .optimizers import OPTIMIZERS
from .recompute_rules import recompute_problems

if TYPE_CHECKING:
    from ..run.engine import Engine

COMPILED = "default"  # the mode of training.compile=true
# Modes with CUDA graphs (torch _inductor list_mode_options).
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
GENERATION, EVALUATION = "training.generation", "training.evaluation"


def problems(run: Run, engine: Engine, of_keys: Iterable[str] = ()) -> Iterator[str]:
    """All problems of a run with an engine: common rules, then the engine's own; `of_keys`: those
    of a run file's keys, which are said between them.
    """
    yield from _common_rules(run, engine)
    yield from _loop_problems(run, engine)
    yield from of_keys
    if run.attention in FLASH:
        yield from _flash_problems(run)
    yield from _loss_key_problems(run, engine)
    yield from loss_problems(run, engine)
    yield from _reference_problems(run, engine)
    if run.rollout is not None:
        yield from _rollout_problems(run, engine)
    if run.generates is not None:
        yield from _generates_problems(run, engine)
    if run.evaluation is not None:
        yield from _evaluation_problems(run, engine)
    if run.compile:
        yield from _compile_problems(run, engine)
    yield from recompute_problems(run, engine)
    yield from engine.problems(run)
    yield from runtime_problems(run, engine, engine_row(engine.name).runtimes)


def positions_used(run: Run) -> Num:
    """Positions of a sequence; those of documents that share one start again."""
    return ceil_div(run.seq, run.documents)


def _replicates(engine: Engine) -> bool:
    """Whether the engine is DDP, for which alone some settings are modelled."""
    return engine_row(engine.name).ranks == REPLICATE


def _has_loop(engine: Engine) -> bool:
    """Whether the training loop is the user's own, in PyTorch: under DDP and FSDP."""
    return engine_row(engine.name).ranks in (REPLICATE, SHARD_UNITS)


def _common_rules(run: Run, engine: Engine) -> Iterator[str]:
    """Rules that hold for every engine."""
    arch = run.arch
    if arch.tower and not engine.tower:
        fix = "try engine deepspeed, fsdp or pytorch_ddp, or the text model alone"
        yield f"model: the vision tower of this model is not modelled under {engine.title}; {fix}"
    if run.optimizer not in engine.optimizers:
        fix = f"try {', '.join(sorted(engine.optimizers)[:3])}"
        yield f"training.optimizer={run.optimizer!r} is not one {engine.title} has; {fix}"
    allowed = OPTIMIZERS[run.optimizer].implementations
    if run.implementation and run.implementation not in allowed:
        choice = " or ".join(allowed) or "none: leave it out"
        wrong = f"training.optimizer_implementation={run.implementation!r}"
        yield f"{wrong} does not exist for {run.optimizer}; it has {choice}"
    learned = any("position" in dict(w.dims) for w in arch.embedding)
    if learned and positions_used(run) > arch.max_seq_len:
        most = f"{arch.max_seq_len} learned positions; use at most {arch.max_seq_len}"
        yield f"training.seq_len={run.seq} is longer than the model's {most}"
    wide = run.autocast and run.precision.endswith("_pure") and arch.layers[0].norm("after_mlp")
    if wide and run.record is None:
        what = f"layers of {arch.family} that end in a norm return fp32 under autocast"
        yield f"{what}, which is not modelled for 16-bit weights; set training.precision=bf16_mixed"
    if run.virtual_stages > 1 and run.mesh.pp == 1:
        yield "parallelism.virtual_pipeline_size needs pipeline_parallel_size above 1"


def _loop_problems(run: Run, engine: Engine) -> Iterator[str]:
    """Settings of the training loop that the engine, the precision or the model does not have."""
    own_loop = _has_loop(engine)
    if run.zero_grad != "after_step" and not own_loop:
        own = f"{engine.title} frees or zeroes gradients itself, after its own step"
        yield f"training.zero_grad={run.zero_grad!r} is for a PyTorch loop; {own}: leave it out"
    mixed = run.autocast or (_replicates(engine) and run.precision.endswith("_mixed"))
    if not (run.autocast_cache or mixed):
        yield "training.autocast_cache=false: this run has no autocast; leave it out"
    yield from _checkpoint_problems(run, engine)
    if run.use_cache:
        yield from _cache_problems(run, engine)
    if run.documents > 1:
        yield from _packing_problems(run, engine)
    if run.autocast and run.precision == "fp32":
        yield "training.autocast=true with precision 'fp32' is 'bf16_mixed'; set that instead"


def _checkpoint_problems(run: Run, engine: Engine) -> Iterator[str]:
    """Ways to save, and copies of the weights, that the engine does not have."""
    ranks = engine_row(engine.name).ranks
    if run.saving == FULL_DICT and ranks == ZERO and run.options.get("zero_stage") != 3:
        own = "is modelled for DDP, FSDP, ZeRO-3 and Megatron"
        yield f"training.saving={FULL_DICT!r} {own}; leave it out"
    elif run.saving not in ("", FULL_DICT) and ranks != SHARD_UNITS:
        yield f"training.saving={run.saving!r} is for FSDP, which shards the model; leave it out"
    if run.loading and ranks != SHARD_UNITS:
        yield f"training.loading={run.loading!r} is for FSDP; leave it out"
    if run.ema and not _has_loop(engine):
        yield f"training.ema={run.ema!r} is modelled for DDP and FSDP; leave it out"
    if run.resuming not in ("", AS_TOOL) and not _has_loop(engine):
        own = f"{engine.title} loads its own checkpoints; set it to {AS_TOOL!r}"
        yield f"training.resuming={run.resuming!r}: {own}"


def _cache_problems(run: Run, engine: Engine) -> Iterator[str]:
    """Runs for which a KV cache in training is not modelled, or does not exist."""
    what = "training.use_cache=true"
    if not _has_loop(engine) or run.arch.implementation != TRANSFORMERS or run.record:
        own = "is modelled for transformers' models under DDP and FSDP"
        yield f"{what} {own}; set it to false"
    elif run.compile:
        yield f"{what} is not modelled for a compiled model; leave one out"
    elif run.recompute != NONE:
        yield f"{what}: transformers turns it off under gradient checkpointing; leave it out"
    elif not all(isinstance(layer.mixer, Attention) for layer, _, _ in run.arch.runs):
        yield f"{what} is modelled for layers with keys and values alone; set it to false"


def _packing_problems(run: Run, engine: Engine) -> Iterator[str]:
    """Where documents that share a sequence are not modelled."""
    what = f"training.packed_documents={run.documents}"
    if not engine.transformers:
        yield f"{what} is for engines that run transformers; leave it out"
    if run.compile:
        yield f"{what} is not modelled with training.compile; leave one out"
    if run.record is not None:
        yield f"{what}: a recorded module has its own masks; leave it out"
    if run.documents > run.seq:
        yield f"{what} is more than the {run.seq} tokens of a sequence; use at most {run.seq}"


def _flash_problems(run: Run) -> Iterator[str]:
    """Precisions, cards and attention heads for which flash-attn has no kernel."""
    what = f"training.attention={run.attention!r}"
    if run.precision == "fp32":
        yield f"{what} has no fp32 kernel; use 'sdpa'"
    if not has_flash(run.compute_capability):
        yield NO_FLASH_CARD.format("training", run.compute_capability)
    elif run.attention == "flash_attention_3" and run.compute_capability != "9.0":
        needs = f"needs compute capability 9.0, and this GPU has {run.compute_capability}"
        yield f"{what} {needs}; use 'flash_attention_2'"
    heads = {getattr(layer.mixer, "head_dim", 0) for layer, _, _ in run.arch.runs}
    if max(heads, default=0) > LARGEST_FLASH_HEAD:
        most = f"heads of at most {LARGEST_FLASH_HEAD}, and {run.arch.family} has {max(heads)}"
        yield f"{what} has kernels for {most}; use 'sdpa'"


def _loss_key_problems(run: Run, engine: Engine) -> Iterator[str]:
    """Models without Liger's layers, and more labels than a sequence has."""
    if not engine.transformers:
        return
    if run.liger and run.arch.family == PLAIN and not _like_llama(run):
        fix = "set gated_mlp=true and normalization='rmsnorm', or give a config.json"
        yield f"training.liger: for plain numbers Liger needs a model like Llama; {fix}"
    if run.labelled is not None and run.labelled >= run.seq:
        fix = f"use at most {int(run.seq) - 1}: the first token of a sequence has none"
        yield f"training.labelled_tokens={run.labelled} is more than a sequence has; {fix}"


def _like_llama(run: Run) -> bool:
    """Whether every layer has what Llama's has: RMS norms, rotary positions and a gated MLP."""
    return all(
        isinstance(layer.mixer, Attention)
        and layer.mixer.rotary_dim > 0
        and isinstance(layer.mlp, Mlp)
        and layer.mlp.gated
        and all(norm.impl == "rms" for _, norm in layer.norms)
        for layer, _, _ in run.arch.runs
    )


def _reference_problems(run: Run, engine: Engine) -> Iterator[str]:
    """Engines and losses with which a reference model is not modelled."""
    if not run.reference:
        return
    what = f"training.reference_model={PRECOMPUTED if run.reference == PRECOMPUTED else 'true'}"
    if not _replicates(engine):
        yield f"{what} is not modelled under {engine.title}; use engine {DDP}, or set it to false"
    elif not LOSSES[run.loss].per_token:
        yield f"{what} needs loss {PER_TOKEN!r}, TRL's log-probabilities; set training.loss to it"


def _rollout_problems(run: Run, engine: Engine) -> Iterator[str]:
    """What is not modelled with the generation before a step."""
    rollout = run.rollout
    assert rollout is not None
    if not _replicates(engine):
        yield f"{GENERATION} is not modelled under {engine.title}; use engine {DDP}"
    if run.zero_grad != "after_step":
        yield f"training.zero_grad with {GENERATION} is not modelled; leave it out"
    if run.reference == PRECOMPUTED:
        yield f"training.reference_model='precomputed' with {GENERATION} does not exist; use true"
    total = int(rollout.prompt) + int(rollout.new_tokens)
    if run.seq != total:
        what = f"training.seq_len={run.seq} is not prompt + new_tokens = {total}"
        yield f"{what} of {GENERATION}; leave seq_len out"
    if not LOSSES[run.loss].per_token:
        fix = f"leave loss out: it is {PER_TOKEN!r}, on the completion's tokens"
        yield f"training.loss={run.loss!r} with {GENERATION} is not modelled; {fix}"
    elif run.labelled != rollout.new_tokens:
        what = f"training.labelled_tokens={run.labelled} is not new_tokens of {GENERATION}"
        yield f"{what}; leave it out"
    if int(rollout.sequences) % int(run.batch):
        fix = f"use a multiple of training.batch_size={run.batch}"
        yield f"{GENERATION}.sequences={rollout.sequences} does not fill its micro-batches; {fix}"
    elif int(rollout.sequences) < int(run.batch * run.micro_batches) and run.mesh.dp > 1:
        fix = f"use at least {int(run.batch * run.micro_batches)}, those of a step"
        why = "would be generated between micro-batches, which is not modelled on several GPUs"
        yield f"{GENERATION}.sequences={rollout.sequences} {why}; {fix}"
    if rollout.engine == VLLM and run.quantization == "int8":
        yield f"{GENERATION}.engine={VLLM!r} does not load int8 weights; use quantization 'nf4'"
    if run.quantization is not None and rollout.static:
        what = f"{GENERATION}.cache_implementation='static'"
        yield f"{what} is not modelled with quantized weights"


def _evaluation_problems(run: Run, engine: Engine) -> Iterator[str]:
    """What is not modelled with an evaluation between steps."""
    others = {
        "a model whose record is read": run.record is not None,
        "training.compile": bool(run.compile),
        GENERATION: run.rollout is not None,
        f"engine {engine.name!r}": engine_row(engine.name).megatron,
        "parallelism.pipeline_parallel_size": int(run.mesh.pp) > 1,
    }
    for name in (name for name, there in others.items() if there):
        yield f"{EVALUATION} is not modelled with {name}; leave one of them out"


def _generates_problems(run: Run, engine: Engine) -> Iterator[str]:
    """What is not modelled with a generation between steps."""
    others = {
        f"engine {engine.name!r}": not _replicates(engine),
        "a model whose record is read": run.record is not None,
        "training.compile": bool(run.compile),
        GENERATION: run.rollout is not None,
        "training.loss='reward'": LOSSES[run.loss].scores,
    }
    for name in (name for name, there in others.items() if there):
        yield f"training.generates is not modelled with {name}; leave one of them out"


def _compile_problems(run: Run, engine: Engine) -> Iterator[str]:
    """What is not modelled together with torch.compile."""
    what = f"training.compile={'true' if run.compile == COMPILED else run.compile}"
    if not _replicates(engine):
        yield f"{what} is not modelled under {engine.title}; use engine {DDP}, or set it to false"
        return
    if run.compile in CUDA_GRAPHS:
        kept = "its CUDA graphs keep memory of their own, which is not modelled"
        yield f"{what}: {kept}; use 'default' or 'max-autotune-no-cudagraphs'"
    for setting in _other_code(run):
        yield f"{what} is not modelled with training.{setting}; leave one of the two out"
    if run.options.get("gradient_as_bucket_view"):
        view = "engine.gradient_as_bucket_view=true"
        yield f"{what} is not modelled with {view}; leave one of the two out"
    if not _plain_layers(run):
        why = f"the graph of {run.arch.family} models is not modelled"
        yield f"{what}: {why}; set it to false, or use gpu-mem-calc measure"


def _other_code(run: Run) -> Iterator[str]:
    """Settings whose code torch.compile treats in ways that are not modelled."""
    adapter, policy = run.adapter, run.recompute
    settings = {
        f"attention={run.attention!r}": run.attention != "sdpa",
        f"loss={run.loss!r}": run.loss != OWN_LOSS,
        f"label_smoothing={run.label_smoothing}": run.label_smoothing > 0,
        "liger": run.liger,
        f"quantization={run.quantization!r}": run.quantization,
        "lora.dora=true": adapter is not None and adapter.dora,
        f"recompute={policy!r}": policy not in (NONE, FULL) or run.rule.offload,
        "checkpoint_reentrant=true": policy == FULL and run.reentrant,
        "use_cache=true": run.use_cache,
        f"packed_documents={run.documents}": run.documents > 1,
        "evaluation": run.evaluation is not None,
        "generation": run.rollout is not None,
    }
    return (setting for setting, given in settings.items() if given)


def _plain_layers(run: Run) -> bool:
    """Whether all layers have attention in SDPA's kernels and a plain MLP."""
    if run.record is not None or run.arch.tower or run.arch.implementation != TRANSFORMERS:
        return False
    if run.precision.startswith("bf16") and not has_flash(run.compute_capability):
        return False
    for layer, _, _ in run.arch.runs:
        mixer = layer.mixer
        if not (isinstance(mixer, Attention) and isinstance(layer.mlp, Mlp)):
            return False
        if mixer.alibi or mixer.always_masked or not mixer.sdpa:
            return False
    return True

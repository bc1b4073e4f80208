"""Settings of a training run that are impossible or would have no effect: a sentence for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...catalog.variants import variant
from ...ledger.num import Num, ceil_div
from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, Moe
from ...pytorch.modelling.huggingface.attention_kernels import FLASH, NO_FLASH_CARD, has_flash
from ...run.cuda.capability import LARGEST_FLASH_HEAD
from ...run.cuda.runtimes import runtime_problems
from ...run.engine import Engine
from ...run.limits import BoundedLimit, Limit
from ...run.recompute import FULL, NONE
from ...run.run import Run
from ...training.engines import engine_row
from ...training.losses import loss_problems
from ...training.optimizers import OPTIMIZERS
from ..config import RunFile, TrainingConfig
from ..find_model.model_facts import positions
from .compile_choices import compile_problems
from .evaluation_choices import evaluation_problems
from .loss_choices import loss_key_problems
from .recompute_rules import recompute_problems
from .reference_choices import reference_problems
from .rollout_choices import rollout_problems

# What a run with PEFT's wrap policy saves at most of an estimate without it.
SHARED_UNITS = "parameters+gradients+optimizer_states"
PACKED = {"awq": "AWQ", "gptq": "GPTQ", "bitsandbytes": "bitsandbytes"}  # of a checkpoint


def problems(run: Run, file: RunFile, engine: Engine) -> Iterator[str]:
    """All problems of a training run: common rules, keys without effect, the engine's rules."""
    yield from _common_rules(run, engine)
    yield from _unused_keys(run, file, engine)
    yield from loss_key_problems(run, file.training, engine)
    yield from loss_problems(run, engine)
    yield from reference_problems(run, file.training, engine)
    yield from rollout_problems(run, file.training, engine)
    yield from evaluation_problems(run, file.training.evaluation, engine)
    yield from compile_problems(run, file.training, engine)
    yield from recompute_problems(run, engine)
    yield from engine.problems(run)
    yield from runtime_problems(run, engine, engine_row(engine.name).runtimes)


def not_trained(arch: Arch, script: str = "train.py") -> str:
    """The sentence for a model whose activations are not modelled."""
    fix = f"gpu-mem-calc trace -- python {script} runs your own script on fake tensors"
    return f"model: the activations of {arch.family} models are not modelled; {fix}"


def packed_weights(name: str, config: Mapping[str, Any] | None, training: TrainingConfig) -> str:
    """A sentence where a checkpoint's weights are packed and the run trains them; else empty."""
    method = str(((config or {}).get("quantization_config") or {}).get("quant_method", ""))
    if method not in PACKED or training.quantization is not None:
        return ""
    found = variant(name)
    plain = f" ({found[0]['name']})" if found else ""
    cannot = f"model.name={name!r} has {PACKED[method]} weights, which cannot be trained"
    return f"{cannot}; add --qlora to train an adapter, or name the unquantized model{plain}"


def tower_note(run: Run, engine: Engine) -> Iterator[str]:
    """A sentence on what is assumed for a model with a vision tower."""
    if run.arch.tower:
        frozen = "frozen" if run.adapter is None else "frozen, and adapters are the text model's"
        treatment = engine.tower if run.trained_tower else frozen
        tower = f"the {run.arch.tower_parameters:,} parameters of the vision tower are {treatment}"
        yield tower


def image_limit(run: Run) -> Iterator[BoundedLimit]:
    """Images of a model with a vision tower: they add activations of the tower, and tokens."""
    if run.arch.tower:
        why = "the vision tower's activations, which images add, are not counted"
        yield BoundedLimit(key="images", why=why, saves_bytes=0)


def shared_units_limit(run: Run) -> Iterator[Limit]:
    """Adapters under FSDP 1: their units have frozen weights, too, which then have gradients.

    transformers' Trainer sets PEFT's fsdp_auto_wrap_policy (PEFT 0.21.2 utils/other.py), which
    makes every trained module a unit of its own: 8.3 GiB were measured where 14.5 are estimated.
    """
    if run.adapter is not None and run.options.get("fsdp_version") == 1:
        why = (
            "PEFT's wrap policy, which transformers' Trainer sets, gives adapters units of their "
            "own; here frozen weights of their units have gradients: 21 to 75 % too much"
        )
        settle = "use engine.fsdp_version=2, where frozen weights have none"
        yield Limit(
            key="adapters under FSDP 1", why=why, could="less", saves=SHARED_UNITS, settle=settle
        )


def long_sequence_note(run: Run, assumed: Iterable[str]) -> Iterator[str]:
    """A sentence where sequences are longer than the model's rotary positions, if it has a number
    of them: not one that is only assumed.
    """
    arch = run.arch
    known = run.record is None and not any("model.max_seq_len=" in one for one in assumed)
    if known and _positions_used(run) > arch.max_seq_len and positions(arch) == "rope":
        made = f"the {arch.max_seq_len:,} positions that the model was trained for"
        yield f"training.seq_len={run.seq:,} is more than {made}"


def _positions_used(run: Run) -> Num:
    """Positions of a sequence; those of documents that share one start again."""
    return ceil_div(run.seq, run.documents)


def expert_note(run: Run) -> Iterator[str]:
    """A sentence on what is assumed of the router where ranks share the experts, and how far from
    it a rank can be: all tokens may choose its experts, up to their capacity. Padded experts are
    never elsewhere.
    """
    ep = int(run.mesh.ep)
    blocks = [layer.mlp for layer, _, _ in run.arch.runs if isinstance(layer.mlp, Moe)]
    if ep == 1 or not blocks or run.options.get("moe_pad_expert_input_to_capacity"):
        return
    most = max(ep * min(b.top_k, b.num_experts // ep) / b.top_k for b in blocks)
    capacity = run.options.get("moe_expert_capacity_factor")
    most = most if capacity is None else min(most, max(capacity, 1))
    more = f"a rank whose experts get more has more of their activations, at most {most:g} times"
    yield f"tokens are taken to be spread evenly over the experts of {ep} ranks: {more}"


def quantized_experts_note(run: Run) -> Iterator[str]:
    """A sentence where a quantized base has experts, which stay as they are.

    transformers 5 keeps all experts of a layer in one parameter, and bitsandbytes replaces modules
    that are nn.Linear; PEFT's prepare_model_for_kbit_training casts what is left to fp32.
    """
    blocks = [(layer.mlp, n) for layer, _, n in run.arch.runs if isinstance(layer.mlp, Moe)]
    if run.quantization is None or not blocks:
        return
    size = sum(int(weight.numel) * int(n) for mlp, n in blocks for weight in mlp.experts)
    cast = ", PEFT casts them to fp32" * run.upcast_unquantized
    left = f"stay unquantized: bitsandbytes skips fused ones{cast}"
    others = "Axolotl's quantize_moe_experts and Unsloth quantize them"
    yield f"experts ({size / 1e9:.1f} B) {left}; {others}"


def _unused_keys(run: Run, file: RunFile, engine: Engine) -> Iterator[str]:
    """Keys without effect: refused, never ignored. A key that is set to off is accepted."""
    given = file.training
    if not engine.transformers:
        for key in ("attention", "checkpoint_reentrant", "autocast"):
            if getattr(given, key):
                own = f"{engine.title} has its own way: leave it out"
                yield f"training.{key} is for engines that run transformers; {own}"
    elif given.checkpoint_reentrant and run.recompute != FULL:
        yield "training.checkpoint_reentrant needs activation_checkpointing 'full'; leave it out"
    if given.embedding_states_32bit and not OPTIMIZERS[run.optimizer].block:
        yield "training.embedding_states_32bit is for 8-bit optimizers; leave it out"
    if run.zero_grad != "after_step" and engine.name not in ("pytorch_ddp", "fsdp"):
        own = f"{engine.title} frees or zeroes gradients itself, after its own step"
        yield f"training.zero_grad={run.zero_grad!r} is for a PyTorch loop; {own}: leave it out"
    mixed = run.autocast or (engine.name == "pytorch_ddp" and run.precision.endswith("_mixed"))
    if not (run.autocast_cache or mixed):
        yield "training.autocast_cache=false: this run has no autocast; leave it out"
    if run.saving and engine.name not in ("pytorch_ddp", "fsdp"):
        own = "is modelled for DDP and FSDP"
        yield f"training.saving='full_state_dict' {own}; leave it out"
    if run.use_cache:
        yield from _cache_problems(run, engine)
    if run.documents > 1:
        yield from _packing_problems(run, engine)
    if given.double_quant and run.quantization != "nf4":
        yield "training.double_quant applies to quantization 'nf4' only; leave it out"
    if given.nf4_compute_dtype and run.quantization != "nf4":
        yield "training.nf4_compute_dtype applies to quantization 'nf4' only; leave it out"
    if given.from_pretrained and run.options.get("init_device") != "cuda":
        yield "training.from_pretrained is for DDP with engine.init_device 'cuda'; leave it out"
    if given.int8_threshold and run.quantization != "int8":
        yield "training.int8_threshold applies to quantization 'int8' only; leave it out"
    if given.int8_outliers and not run.int8_threshold:
        yield "training.int8_outliers needs int8_threshold above 0; leave it out"
    if given.freeze_vision_tower and not run.arch.tower:
        yield "training.freeze_vision_tower is for models with a vision tower; leave it out"
    if given.upcast_unquantized and run.quantization is None:
        yield "training.upcast_unquantized applies to a quantized base only; leave it out"
    loaded = run.quantization is not None or run.from_pretrained
    if given.upcast_at_startup and (not loaded or run.upcast_unquantized):
        rule = "applies to weights that are loaded onto the GPU, without upcast_unquantized"
        yield f"training.upcast_at_startup {rule}; leave it out"
    if run.autocast and run.precision == "fp32":
        yield "training.autocast=true with precision 'fp32' is 'bf16_mixed'; set that instead"
    if run.attention in FLASH:
        yield from _flash_problems(run)


def _cache_problems(run: Run, engine: Engine) -> Iterator[str]:
    """Runs for which a KV cache in training is not modelled, or does not exist."""
    what, loops = "training.use_cache=true", ("pytorch_ddp", "fsdp")
    if engine.name not in loops or run.arch.implementation != "transformers" or run.record:
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
    if learned and _positions_used(run) > arch.max_seq_len:
        most = f"{arch.max_seq_len} learned positions; use at most {arch.max_seq_len}"
        yield f"training.seq_len={run.seq} is longer than the model's {most}"
    wide = run.autocast and run.precision.endswith("_pure") and arch.layers[0].norm("after_mlp")
    if wide and run.record is None:
        what = f"layers of {arch.family} that end in a norm return fp32 under autocast"
        yield f"{what}, which is not modelled for 16-bit weights; set training.precision=bf16_mixed"
    if run.virtual_stages > 1 and run.mesh.pp == 1:
        yield "parallelism.virtual_pipeline_size needs pipeline_parallel_size above 1"

"""What a run file says of a training run beside what the run is: keys without effect, models that
are not trained, what is assumed and what is not modelled. The rules of the run itself are
training/rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...models.arch.arch import Arch
from ...models.arch.blocks import Mlp, Moe
from ...run.engine import Engine
from ...run.limits import BoundedLimit, Limit
from ...run.recompute import FULL
from ...run.run import Run
from ...training.optimizers import OPTIMIZERS
from ...training.rules import positions_used
from ..config import RunFile, TrainingConfig
from ..find_model.model_facts import positions
from .loss_choices import loss_key_problems
from .step_choices import step_key_problems

# What a run with PEFT's wrap policy saves at most of an estimate without it.
SHARED_UNITS = "parameters+gradients+optimizer_states"
PACKED = {"awq": "AWQ", "gptq": "GPTQ", "bitsandbytes": "bitsandbytes"}  # of a checkpoint


def key_problems(run: Run, file: RunFile, engine: Engine) -> Iterator[str]:
    """A sentence for each key without effect: refused, never ignored. A key that is set to off is
    accepted.
    """
    yield from _engine_keys(run, file.training, engine)
    yield from _unused_keys(run, file.training)
    yield from loss_key_problems(run, file.training, engine)
    yield from step_key_problems(run, file.training)


def not_trained(arch: Arch, script: str = "train.py") -> str:
    """The sentence for a model whose activations are not modelled."""
    fix = f"gpu-mem-calc trace -- python {script} runs your own script on fake tensors"
    return f"model: the activations of {arch.family} models are not modelled; {fix}"


def packed_weights(name: str, config: Mapping[str, Any] | None, training: TrainingConfig) -> str:
    """A sentence where a checkpoint's weights are packed and the run trains them; else empty."""
    method = str(((config or {}).get("quantization_config") or {}).get("quant_method", ""))
    if method not in PACKED or training.quantization is not None:
        return ""
    from ...catalog.variants import variant

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
    if known and positions_used(run) > arch.max_seq_len and positions(arch) == "rope":
        made = f"the {arch.max_seq_len:,} positions that the model was trained for"
        yield f"training.seq_len={run.seq:,} is more than {made}"


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


def compile_note(run: Run) -> Iterator[str]:
    """What is assumed of the compiled graph."""
    if run.compile:
        graph = "the model is taken to be one graph, which also returns the logits"
        yield f"training.compile: {graph}, so that backward has zeros of their size"


def compile_limit(run: Run) -> Iterator[BoundedLimit]:
    """What inductor keeps in a recomputed MLP, which is not counted."""
    if run.compile and run.recompute == FULL:
        why = "inductor keeps buffers of a recomputed MLP for the next layer's"
        size = _reused_bytes(run)
        yield BoundedLimit(key="training.compile", why=why, adds_bytes=size, saves_bytes=0)


def _reused_bytes(run: Run) -> int:
    """Bytes of the widest tensors of an MLP (gate, up and their product, or the two of a plain one)
    that wait for the next layer to write into them (torch 2.13 _inductor/codegen/wrapper.py
    ReuseLine).
    """
    mlps = [layer.mlp for layer, _, _ in run.arch.runs if isinstance(layer.mlp, Mlp)]
    widths = [block.output.ins[1] * (3 if block.gated else 2) for block in mlps]
    bits = 32 if run.precision == "fp32" else 16
    return int(run.batch * run.seq) * max(widths, default=0) * bits // 8


def _engine_keys(run: Run, given: TrainingConfig, engine: Engine) -> Iterator[str]:
    """Keys of transformers under an engine that does not run it."""
    if not engine.transformers:
        for key in ("attention", "checkpoint_reentrant", "autocast"):
            if getattr(given, key):
                own = f"{engine.title} has its own way: leave it out"
                yield f"training.{key} is for engines that run transformers; {own}"
    elif given.checkpoint_reentrant and run.recompute != FULL:
        yield "training.checkpoint_reentrant needs activation_checkpointing 'full'; leave it out"


def _unused_keys(run: Run, given: TrainingConfig) -> Iterator[str]:
    """Keys that another setting of the run leaves without effect."""
    nf4, int8, packed = (run.quantization == "nf4", run.quantization == "int8", run.quantization)
    loaded = (packed or run.from_pretrained) and not run.upcast_unquantized
    needs = {
        "embedding_states_32bit": (OPTIMIZERS[run.optimizer].block, "is for 8-bit optimizers"),
        "double_quant": (nf4, "applies to quantization 'nf4' only"),
        "nf4_compute_dtype": (nf4, "applies to quantization 'nf4' only"),
        "from_pretrained": (
            run.options.get("init_device") == "cuda",
            "is for DDP with engine.init_device 'cuda'",
        ),
        "int8_threshold": (int8, "applies to quantization 'int8' only"),
        "int8_outliers": (run.int8_threshold, "needs int8_threshold above 0"),
        "freeze_vision_tower": (run.arch.tower, "is for models with a vision tower"),
        "upcast_unquantized": (packed, "applies to a quantized base only"),
        "upcast_at_startup": (
            loaded,
            "applies to weights that are loaded onto the GPU, without upcast_unquantized",
        ),
    }
    for key, (met, rule) in needs.items():
        if getattr(given, key) and not met:
            yield f"training.{key} {rule}; leave it out"

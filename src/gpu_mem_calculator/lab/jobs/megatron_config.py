"""A run as Megatron-Core's arguments, in plain values; what they cannot express is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, LatentAttention, Mlp, Moe
from ...run.run import Run
from ...runfile.text.errors import InputError
from ...tools.translation.arguments import tables
from ...training.engines.megatron_lm.layout import FIRST, LAST, LAYOUT, WITH_EMBEDDING, WITH_LOSS
from ...training.engines.megatron_lm.options import LOCAL, expert_tp, fused, option
from ...training.engines.megatron_lm.shards import local_vocab
from ...training.losses import DEFAULT
from .model import dtype_name

LAYERS, RMS = "LayerNorm", "RMSNorm"
TABLES = tables(__file__)
ACTIVATIONS: dict[str, str] = TABLES["activations"]


def refusals(run: Run) -> Iterator[str]:
    """A sentence for each choice that is estimated but that GPTModel's local spec does not run."""
    if fused(run):
        key = "engine.transformer_implementation"
        yield f"{key}='transformer_engine' is not run here; set {key}={LOCAL!r}"
    if run.loss == "te_fused":
        needs = "needs Transformer Engine, which is not run here"
        yield f"training.loss='te_fused' {needs}; try 'full' or 'megatron_fused'"
    if run.parameters_given is not None:
        yield "model.num_parameters: a program has its architecture's own count; leave it out"
    if run.implementation not in ("", "foreach"):
        why = "without Apex, Megatron steps with torch's foreach; leave it out"
        yield f"training.optimizer_implementation={run.implementation!r}: {why}"
    yield from _model_refusals(run.arch)


def _model_refusals(arch: Arch) -> Iterator[str]:
    name = f"model family {arch.family!r}"
    shapes = {_shape(layer) for layer, _, _ in arch.runs}
    if len(shapes) > 1:
        yield f"{name} has attention of several shapes, GPTModel has one; try pytorch_ddp"
    if len({layer.mlp for layer, _, _ in arch.runs if isinstance(layer.mlp, Mlp)}) > 1:
        yield f"{name} has MLPs of several shapes, GPTModel has one; try pytorch_ddp"
    for layer, _, _ in arch.runs:
        if {place for place, _ in layer.norms} != {"pre", "pre_mlp"}:
            yield f"{name} has other norms than GPTModel's two a layer; try pytorch_ddp"
            break
    if arch.embedding_norm is not None or arch.head_extra or (arch.head and arch.head.bias):
        yield f"{name} has weights around its layers that GPTModel has not; try pytorch_ddp"
    mixer = arch.layers[0].mixer
    if isinstance(mixer, LatentAttention):
        alone = "which Megatron-Core runs with Transformer Engine alone; try pytorch_ddp"
        yield f"{name} has latent attention, {alone}"
    if isinstance(mixer, Attention):
        other_weights = mixer.extra or mixer.sinks or mixer.value_dim not in (0, mixer.head_dim)
        other_norms = any(norm.size[1] != mixer.head_dim or norm.lead for norm in mixer.norms)
        if other_weights or other_norms:
            yield f"{name} has attention weights that GPTModel has not; try pytorch_ddp"
    for layer, _, _ in arch.runs:
        activation = getattr(layer.mlp, "activation", "")
        if activation not in ACTIVATIONS:
            yield f"{name} has activation {activation!r}, which is not run here; try pytorch_ddp"
            break
    try:
        _biases(arch)
    except InputError as error:
        yield from error.problems


def _shape(layer: Layer) -> tuple[Any, ...]:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.rotary_dim, len(mixer.norms))
    return (type(mixer).__name__, getattr(mixer, "heads", 0))


def transformer_arguments(run: Run) -> dict[str, Any]:
    """Arguments of TransformerConfig.

    Functions and dtypes are torch's names. Fusions that need no extension are on, as by default in
    Megatron-LM.
    """
    arch, mesh = run.arch, run.mesh
    layer, dtype = arch.layers[0], dtype_name(run.precision)
    arguments: dict[str, Any] = {
        "num_layers": len(arch.layers),
        "hidden_size": arch.hidden,
        "normalization": normalization(arch),
        "hidden_dropout": _hidden_dropout(layer),
        "attention_dropout": getattr(layer.mixer, "dropout", 0.0),
        "tensor_model_parallel_size": int(mesh.tp),
        "pipeline_model_parallel_size": int(mesh.pp),
        "context_parallel_size": int(mesh.cp),
        "expert_model_parallel_size": int(mesh.ep),
        "expert_tensor_parallel_size": int(expert_tp(run)),
        "sequence_parallel": run.sequence_parallel,
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "use_cpu_initialization": False,
        "bias_dropout_fusion": True,
        **{name: bool(option(run, name)) for name in TABLES["switches"]},
        **_biases(arch),
        **_heads(layer),
        **_feed_forward(run),
        **_recompute(run),
        **_pipeline(run),
        **_deferred(run),
        # megatron_fused is the native fusion; Transformer Engine's is refused
        "cross_entropy_loss_fusion": run.loss != DEFAULT,
        **({} if run.loss == DEFAULT else {"cross_entropy_fusion_impl": "native"}),
    }
    plain_gelu = arguments["activation_func"] == "gelu" and not arguments["gated_linear_unit"]
    arguments["bias_activation_fusion"] = arguments["add_bias_linear"] or not plain_gelu
    return arguments


def _deferred(run: Run) -> dict[str, Any]:
    """The output layer's weight gradient, where the last stage defers it."""
    keys = ("defer_embedding_wgrad_compute", "wgrad_deferral_limit")
    return {key: option(run, key) for key in keys if option(run, keys[0])}


def _pipeline(run: Run) -> dict[str, Any]:
    """Chunks, their micro-batches, and stages of unequal length, by Megatron-Core's names."""
    values = {
        "virtual_pipeline_model_parallel_size": run.virtual_stages > 1 and int(run.virtual_stages),
        "microbatch_group_size_per_vp_stage": run.micro_batch_group,
        "pipeline_model_parallel_layout": option(run, LAYOUT),
        "num_layers_in_first_pipeline_stage": option(run, FIRST),
        "num_layers_in_last_pipeline_stage": option(run, LAST),
        WITH_EMBEDDING: option(run, WITH_EMBEDDING),
        WITH_LOSS: option(run, WITH_LOSS),
    }
    return {key: value for key, value in values.items() if value}


def normalization(arch: Arch) -> str:
    """Megatron's name for the model's norm."""
    norm = arch.layers[0].norms[0][1]
    return LAYERS if norm.impl.startswith("layer") else RMS


def _hidden_dropout(layer: Layer) -> float:
    """The dropout rate; Megatron has one for both branches and the embedding."""
    inside = getattr(layer.mixer, "residual_dropout", 0.0)
    return layer.dropout or inside or getattr(layer.mlp, "dropout", 0.0)


def _biases(arch: Arch) -> dict[str, Any]:
    """Biases on every projection, on q, k and v alone, or on none; others are refused."""
    mixer, mlp = arch.layers[0].mixer, arch.layers[0].mlp
    inputs = outputs = False
    if isinstance(mixer, Attention):
        inputs, outputs = any(one.bias for one in mixer.inputs), mixer.output.bias
    if isinstance(mlp, Mlp):
        inner = {one.bias for one in (*mlp.inputs, mlp.output)}
    else:
        weights = mlp.experts if isinstance(mlp, Moe) else ()
        inner = {any(weight.name.endswith("bias") for weight in weights)}
    if len({inputs, outputs} | inner) == 1:
        return {"add_bias_linear": inputs, "add_qkv_bias": False}
    if inputs and not outputs and inner == {False}:
        return {"add_bias_linear": False, "add_qkv_bias": True}
    biases = "biases on some projections only, which GPTModel has not; try pytorch_ddp"
    raise InputError(f"model family {arch.family!r} has {biases}")


def _heads(layer: Layer) -> dict[str, Any]:
    mixer = layer.mixer
    assert isinstance(mixer, Attention)
    return {
        "num_attention_heads": mixer.heads,
        "num_query_groups": mixer.kv_heads,
        "kv_channels": mixer.head_dim,
        "qk_layernorm": len(mixer.norms) == 2,
    }


def _feed_forward(run: Run) -> dict[str, Any]:
    """The dense MLP's width, and the experts where there are some.

    Tokens are spread evenly over the experts, as the estimate assumes: `force_load_balancing` draws
    the router's logits at random.
    """
    kinds = [layer.mlp for layer in run.arch.layers]
    dense = next((mlp for mlp in kinds if isinstance(mlp, Mlp)), None)
    sparse = next((mlp for mlp in kinds if isinstance(mlp, Moe)), None)
    one = dense or sparse
    assert one is not None
    arguments: dict[str, Any] = {
        "ffn_hidden_size": one.ffn,
        "gated_linear_unit": one.gated,
        "activation_func": ACTIVATIONS[one.activation],
    }
    if sparse is None:
        return arguments
    arguments |= {
        "num_moe_experts": sparse.num_experts,
        "moe_router_topk": sparse.top_k,
        "moe_ffn_hidden_size": sparse.ffn,
        "moe_layer_freq": [int(isinstance(mlp, Moe)) for mlp in kinds],
        "moe_token_dispatcher_type": option(run, "moe_token_dispatcher_type"),
        "moe_expert_capacity_factor": option(run, "moe_expert_capacity_factor"),
        "moe_pad_expert_input_to_capacity": bool(option(run, "moe_pad_expert_input_to_capacity")),
        "moe_router_force_load_balancing": True,
        "moe_router_score_function": "sigmoid" if "sigmoid" in sparse.router_impl else "softmax",
    }
    if sparse.shared is not None:
        arguments["moe_shared_expert_intermediate_size"] = sparse.shared.ffn
        arguments["moe_shared_expert_gate"] = sparse.shared_gate is not None
    return arguments


def _recompute(run: Run) -> dict[str, Any]:
    """`uniform` recomputes every layer, `block` the first ones of each chunk."""
    rule = run.rule
    if run.recompute == "selective":
        modules = list(rule.modules) or ["core_attn"]
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    size = len(run.arch.layers) // (int(run.mesh.pp) * int(run.virtual_stages))
    count = size * run.recompute_quarters // 4 if rule.first_layers is None else rule.first_layers
    if run.recompute == "none" or not count:
        return {"recompute_granularity": None}
    whole = run.recompute_quarters == 4 and rule.first_layers is None
    method, layers = ("uniform", rule.layers_together) if whole else ("block", count)
    return {
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": layers,
    }


def model_arguments(run: Run) -> dict[str, Any]:
    """Arguments of GPTModel besides its config and layers."""
    arch, mixer = run.arch, run.arch.layers[0].mixer
    tables = [dict(weight.dims) for weight in arch.embedding]
    learned = next((dims["position"] for dims in tables if "position" in dims), None)
    rotary = getattr(mixer, "rotary_dim", 0)
    arguments: dict[str, Any] = {
        "vocab_size": int(local_vocab(run)) * int(run.mesh.tp),
        "max_sequence_length": learned or max(arch.max_seq_len, int(run.seq)),
        "share_embeddings_and_output_weights": arch.tied,
        "position_embedding_type": "learned_absolute" if learned else "none",
    }
    if rotary and isinstance(mixer, Attention):
        arguments |= {"position_embedding_type": "rope", "rotary_percent": rotary / mixer.head_dim}
    return arguments

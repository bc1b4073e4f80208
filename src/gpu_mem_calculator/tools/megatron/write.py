"""Writes a run and its model as a script that starts Megatron-LM's pretrain_gpt.py (branch
core_r0.19.0).
"""

from __future__ import annotations

import shlex
from typing import Any

from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention, Mlp, Moe
from ...run.recompute import FULL, SELECTIVE
from ...run.run import Run
from ...runfile.config import RunFile
from ...runfile.find_model.model_facts import shape_facts
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...training.engines.megatron_lm.options import OPTIMIZERS, OPTIONS, option
from ..reading.reading import Section
from ..translation.arguments import tables
from ..writing.texts import option_lines
from ..writing.written import Written, launch_words
from .arguments import TABLE, option_words
from .translate import LOSSES, RENAMED, SAME

NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
POSITIONS = {"learned": "learned_absolute", "rope": "rope", "none": "none"}
ENGINE = "megatron_lm"
NOTE = "it trains on mock data; set --data-path, a tokenizer, --lr and --train-iters of your own"
DATA: dict[str, Any] = tables(__file__)["data"]
# Arguments that are written even with their default, since the script needs them.
ALWAYS = frozenset({"micro_batch_size", "global_batch_size", "seq_length"})


def model_arguments(run: Run) -> Section:
    """The shape of the model."""
    arch, facts = run.arch, shape_facts(run.arch)
    mixer = arch.layers[-1].mixer
    if not isinstance(mixer, Attention | LatentAttention):
        raise InputError(
            f"model family {arch.family!r} has layers without softmax attention, which "
            "Megatron-LM's pretrain_gpt.py does not have; choose deepspeed or transformers"
        )
    position = facts["position_embedding"]
    if position not in POSITIONS:
        raise InputError(
            f"model family {arch.family!r} has {position} positions, which pretrain_gpt.py does "
            "not have; choose deepspeed or transformers"
        )
    return {
        "num_layers": len(arch.layers),
        "hidden_size": int(arch.hidden),
        "num_attention_heads": mixer.heads,
        **_attention(mixer, int(arch.hidden)),
        **_mlp(arch),
        "normalization": NORMS[facts["normalization"]],
        "position_embedding_type": POSITIONS[position],
        "max_position_embeddings": int(arch.max_seq_len or run.seq),
        "untie_embeddings_and_output_weights": not arch.tied,
        "vocab_size": int(arch.vocab),
    }


def _attention(mixer: Attention | LatentAttention, hidden: int) -> Section:
    """Heads, or ranks of latents; biases of q, k and v, and norms of q and k."""
    if isinstance(mixer, LatentAttention):
        return {
            "multi_latent_attention": True,
            "q_lora_rank": mixer.query_rank or None,
            "kv_lora_rank": mixer.kv_rank,
            "qk_head_dim": mixer.nope_dim,
            "qk_pos_emb_head_dim": mixer.rope_dim,
            "v_head_dim": mixer.value_dim,
            "qk_layernorm": True,
            "add_bias_linear": False,
        }
    grouped = mixer.kv_heads != mixer.heads
    usual = mixer.head_dim * mixer.heads == hidden
    inputs = any(part.bias for part in mixer.inputs)
    return {
        "group_query_attention": grouped,
        "num_query_groups": mixer.kv_heads if grouped else 1,
        "kv_channels": None if usual else mixer.head_dim,
        "qk_layernorm": bool(mixer.norms),
        "add_bias_linear": mixer.output.bias,
        "add_qkv_bias": inputs and not mixer.output.bias,
    }


def _mlp(arch: Arch) -> Section:
    """Widths, and the experts, of all layers or of those behind dense ones."""
    blocks: list[Any] = [layer.mlp for layer in arch.layers]
    dense = next((block for block in blocks if isinstance(block, Mlp)), None)
    experts = next((block for block in blocks if isinstance(block, Moe)), None)
    shown: Any = dense or experts
    found: Section = {"ffn_hidden_size": int(shown.ffn), "swiglu": bool(shown.gated)}
    if experts is None:
        return found
    first = sum(isinstance(block, Mlp) for block in blocks)
    return found | {
        "num_experts": experts.num_experts,
        "moe_router_topk": experts.top_k,
        "moe_ffn_hidden_size": int(experts.ffn),
        "moe_shared_expert_intermediate_size": int(experts.shared.ffn) if experts.shared else None,
        "moe_layer_freq": f"([0]*{first}+[1]*{len(blocks) - first})" if first else 1,
        "moe_grouped_gemm": True,
    }


def write(file: RunFile, resolved: ResolvedRun) -> Written:
    """The text of the script."""
    run = resolved.run
    if problem := _problem(run):
        raise InputError(problem)
    args: Section = {
        **model_arguments(run),
        **_batch(run),
        **_precision(run),
        **_parallelism(run),
        **_recompute(run),
        **_options(run),
        **DATA,
    }
    given = {name: value for name, value in args.items() if _differs(name, value)}
    launch = shlex.split(launch_words(resolved))
    launch = ["torchrun", "--nproc-per-node", "1"] if launch == ["python"] else launch
    lines = [shlex.join([*launch, "pretrain_gpt.py"]), *option_lines(list(option_words(given)))]
    text = " \\\n  ".join(lines)
    return Written(text=f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{text}\n", notes=(NOTE,))


def _problem(run: Run) -> str:
    """What Megatron-LM's script does not train."""
    if run.adapter is not None:
        return "training.lora: Megatron-LM's pretrain_gpt.py trains every weight; leave it out"
    if run.quantization is not None:
        return "training.quantization: Megatron-LM has no quantized weights; leave it out"
    if run.rollout is not None or run.reference:
        what = "generation" if run.rollout else "a reference model"
        return f"the run has {what}, and pretrain_gpt.py has none; choose trl"
    return ""


def _differs(name: str, value: Any) -> bool:
    return name in ALWAYS or value != TABLE[name].default


def _batch(run: Run) -> Section:
    return {
        "micro_batch_size": int(run.batch),
        "global_batch_size": int(run.batch * run.mesh.dp * run.micro_batches),
        "seq_length": int(run.seq),
        "clip_grad": 1.0 if run.clipping else 0.0,
    }


def _precision(run: Run) -> Section:
    """Precision, optimizer and loss. Those that the script does not have are another engine's, and
    such a run is refused when its text is read back (writing/unsaid.py).
    """
    losses = {ours: word for word, ours in LOSSES.items()}
    found: Section = {
        "bf16": run.precision.startswith("bf16"),
        "fp16": run.precision.startswith("fp16"),
    }
    if run.optimizer in OPTIMIZERS:
        row = OPTIMIZERS[run.optimizer]
        found |= {name: row[name] for name in ("optimizer", "sgd_momentum") if name in row}
    if run.loss in losses:
        found |= {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": losses[run.loss]}
    return found


def _parallelism(run: Run) -> Section:
    mesh, chunks = run.mesh, int(run.virtual_stages)
    return {
        "tensor_model_parallel_size": int(mesh.tp),
        "pipeline_model_parallel_size": int(mesh.pp),
        "context_parallel_size": int(mesh.cp),
        "expert_model_parallel_size": int(mesh.ep),
        "sequence_parallel": bool(run.sequence_parallel),
        "num_virtual_stages_per_pipeline_rank": chunks if chunks > 1 else None,
    }


def _recompute(run: Run) -> Section:
    """Recompute of parts of a layer, or of layers: of the first ones of each chunk, or in groups
    (megatron/core/transformer/transformer_block.py checkpointed forward).
    """
    rule = run.rule
    if run.recompute == SELECTIVE:
        modules = [] if rule.modules in ((), ("core_attn",)) else list(rule.modules)
        kept = {"recompute_modules": modules} if modules else {}
        return {"recompute_granularity": "selective", **kept}
    if run.recompute != FULL:
        return {}
    chunk = len(run.arch.layers) // (int(run.mesh.pp) * int(run.virtual_stages))
    first = rule.first_layers
    if first is None and run.recompute_quarters < 4:
        first = chunk * run.recompute_quarters // 4
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform" if first is None else "block",
        "recompute_num_layers": rule.layers_together if first is None else first,
    }


def _options(run: Run) -> Section:
    """The engine's options; those of another engine are Megatron-LM's defaults."""
    names = {name: name for name in SAME} | {arg: key for key, arg in RENAMED.items()}
    found = {arg: option(run, key) for arg, key in names.items() if key in OPTIONS}
    found["create_attention_mask_in_dataloader"] = False
    mixer: Any = run.arch.layers[-1].mixer
    found["attention_dropout"] = found["hidden_dropout"] = float(mixer.dropout)
    wide = option(run, "accumulate_allreduce_grads_in_fp32")
    if wide is False and run.precision.startswith("bf16"):
        found["grad_reduce_in_bf16"] = True
    elif wide and not run.precision.startswith("bf16"):
        found["accumulate_allreduce_grads_in_fp32"] = True
    return found

"""Label and meaning of each key of a run file, and its default where all engines share one.

Rows are (level, label, meaning). A form always shows `main` keys, `more` keys in the opened
section, and `expert` keys on request. Keys of inference are in inference_keys.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..families.plain import DEFAULTS as PLAIN
from .hardware import DEFAULT_MEMORY_GB
from .inference_keys import EXPERT, INFERENCE, MAIN, MORE, Row
from .resolve_training import AXES

MODEL: Mapping[str, Row] = {
    "name": (
        MAIN,
        "model",
        "A preset, a name on the hub such as owner/model, a path to a "
        "config.json or its folder, s3://bucket/path, or the address of a config.json.",
    ),
    "revision": (
        EXPERT,
        "revision",
        "A branch, a tag or a commit of a model on the hub; without "
        "it main. owner/model@revision says the same.",
    ),
    "config": (MORE, "config.json", "A Hugging Face config.json, as it is."),
    "recorded": (
        EXPERT,
        "module's record",
        "A model of one's own, as gpu-mem-calc calculate "
        "--function F --record FILE has seen it run: its batch and arithmetic are its "
        "own.",
    ),
    "num_parameters": (
        MORE,
        "parameters",
        "Wins over the architecture's own count, with a "
        "warning: parameters, gradients and states are scaled by it.",
    ),
    "num_layers": (MORE, "layers", "Transformer layers, one behind the other."),
    "hidden_size": (MORE, "hidden size", "Width of what one layer hands to the next."),
    "num_attention_heads": (MORE, "attention heads", "Query heads of a layer."),
    "num_key_value_heads": (
        MORE,
        "key-value heads",
        "Heads that keys and values have; without it "
        "as many as query heads. Fewer make the cache smaller.",
    ),
    "head_dim": (
        EXPERT,
        "head size",
        "Width of one head; without it the hidden size divided by the heads.",
    ),
    "intermediate_size": (
        MORE,
        "feed-forward size",
        "Inner width of the MLP; without it 4 times "
        "the hidden size, or 8/3 of it up to a multiple of 256 where it is "
        "gated.",
    ),
    "gated_mlp": (
        EXPERT,
        "gated MLP",
        "Whether the MLP has a gate beside its first projection, as Llama's has.",
    ),
    "normalization": (EXPERT, "normalization", "The norm in front of attention and of the MLP."),
    "position_embedding": (
        EXPERT,
        "positions",
        "How positions come in; learned ones are a table "
        "of max_seq_len rows, and no sequence is longer.",
    ),
    "bias": (EXPERT, "biases", "Whether projections have a bias."),
    "dropout": (
        EXPERT,
        "dropout",
        "Rate of dropout while training; above 0 its masks are kept for the backward pass.",
    ),
    "vocab_size": (MORE, "vocabulary", "Tokens that the embedding and the logits have."),
    "max_seq_len": (
        MORE,
        "longest sequence",
        "Positions that the model was made for, and the sequence of a run that names none.",
    ),
    "tie_word_embeddings": (EXPERT, "tied head", "Whether the output uses the embedding's table."),
    "largest_layer_params": (
        EXPERT,
        "largest layer",
        "Read, and compared: the architecture's own is what counts.",
    ),
    "moe_enabled": (
        EXPERT,
        "experts",
        "Whether the MLPs are mixtures of experts; without it they are where num_experts is given.",
    ),
    "num_experts": (
        EXPERT,
        "number of experts",
        "Experts of a layer; without it 8 where moe_enabled is true.",
    ),
    "top_k": (EXPERT, "experts of a token", "Experts that each token is sent to; without it 2."),
    "expert_intermediate_size": (
        EXPERT,
        "expert size",
        "Inner width of one expert; without it the feed-forward size.",
    ),
    "shared_expert_intermediate_size": (
        EXPERT,
        "shared expert size",
        "Inner width of an expert that sees every token; 0 or without it there is none.",
    ),
}
TRAINING: Mapping[str, Row] = {
    "batch_size": (
        MAIN,
        "micro-batch per GPU",
        "Sequences that one GPU runs forward and backward at a time.",
    ),
    "seq_len": (
        MAIN,
        "sequence length",
        "Tokens of a sequence; without it the model's max_seq_len.",
    ),
    "gradient_accumulation_steps": (
        MAIN,
        "micro-batches a step",
        "Micro-batches whose gradients "
        "are added up before the optimizer steps; also the "
        "pipeline's micro-batches.",
    ),
    "dtype": (EXPERT, "dtype", "fp32, fp16 or bf16; X alone means the precision X_mixed."),
    "precision": (
        MAIN,
        "precision",
        "Mixed is what the engine's users get, with fp32 kept "
        "somewhere; pure is 16 bits throughout, the optimizer's states included.",
    ),
    "autocast": (
        EXPERT,
        "autocast",
        "torch.autocast around a pure 16-bit model, as PEFT runs have it.",
    ),
    "optimizer": (
        MAIN,
        "optimizer",
        "What it keeps for each parameter, and what its step needs for a moment.",
    ),
    "optimizer_implementation": (
        MORE,
        "optimizer kernels",
        "foreach holds a temporary as large as "
        "all parameters (AdamW), forloop some as large as the largest, "
        "fused none; without it the engine's own.",
    ),
    "gradient_clipping": (
        MORE,
        "gradient clipping",
        "The norm that gradients are clipped to, which takes a small buffer; 0 turns it off.",
    ),
    "activation_checkpointing": (
        MAIN,
        "recompute",
        "What is run again in the backward pass "
        "instead of kept; or 0 none, 1 selective (attention), 2 and 3 "
        "full on a half and on three quarters of the layers, 4 full.",
    ),
    "checkpoint_reentrant": (
        EXPERT,
        "reentrant checkpoints",
        "use_reentrant of torch's checkpoints; needs activation_checkpointing full.",
    ),
    "attention": (
        MORE,
        "attention",
        "Which kernel: eager keeps scores of every pair of tokens, the others do not.",
    ),
    "lora": (
        EXPERT,
        "LoRA",
        "Train adapters beside frozen weights, with PEFT's own names; its keys are below.",
    ),
    "lora.r": (
        MAIN,
        "LoRA rank",
        "Width of the adapters; giving it, or another key of lora, "
        "trains adapters beside frozen weights.",
    ),
    "lora.target_modules": (
        MORE,
        "LoRA modules",
        "Projections that get an adapter; without it "
        "PEFT's own choice for the family, all-linear for all of them.",
    ),
    "lora.dropout": (
        EXPERT,
        "LoRA dropout",
        "Rate of dropout in front of the adapters; above 0 "
        "masks and inputs of each adapter are kept.",
    ),
    "lora.dora": (EXPERT, "DoRA", "Whether adapters also learn a magnitude for each output."),
    "lora.adapter_dtype": (EXPERT, "adapter dtype", "What the adapters are held in."),
    "quantization": (
        MAIN,
        "frozen weights in",
        "How bitsandbytes packs a frozen base; needs lora.",
    ),
    "double_quant": (EXPERT, "double quantization", "Whether nf4's scales are packed as well."),
    "upcast_unquantized": (
        EXPERT,
        "upcast the rest",
        "Whether what is not packed (norms, "
        "embedding, head) is widened to fp32, as PEFT's "
        "prepare_model_for_kbit_training does.",
    ),
    "pytorch_alloc_conf": (
        EXPERT,
        "allocator settings",
        "PYTORCH_ALLOC_CONF: changes what torch reserves and needs, not what tensors take.",
    ),
}
PARALLELISM: Mapping[str, Row] = {
    "data_parallel_size": (
        MAIN,
        "data parallel",
        "Ranks that run sequences of their own; without it what the other sizes leave of num_gpus.",
    ),
    "tensor_parallel_size": (
        MAIN,
        "tensor parallel",
        "Ranks that share every layer's matrices; it divides the heads.",
    ),
    "pipeline_parallel_size": (
        MAIN,
        "pipeline parallel",
        "Stages that have some of the layers each; the first keeps most micro-batches at once.",
    ),
    "context_parallel_size": (MAIN, "context parallel", "Ranks that share every sequence."),
    "expert_parallel_size": (
        MAIN,
        "expert parallel",
        "Ranks, of those of data and context parallelism, that share the experts.",
    ),
    "virtual_pipeline_size": (
        EXPERT,
        "interleaved stages",
        "Parts of the model that each "
        "pipeline stage has; more shorten the bubble and keep more "
        "activations.",
    ),
    "sequence_parallel": (
        MAIN,
        "sequence parallel",
        "Whether tensor-parallel ranks share norms and dropout as well, along the sequence.",
    ),
}
ENGINE: Mapping[str, Row] = {
    "type": (MAIN, "framework", "The framework that trains."),
    "zero_stage": (
        MAIN,
        "ZeRO stage",
        "What is cut over the data-parallel ranks: 1 optimizer "
        "states, 2 gradients too, 3 weights too.",
    ),
    "offload_optimizer": (
        MORE,
        "optimizer on",
        "Where optimizer states and fp32 weights are, and where the step runs; nvme needs stage 3.",
    ),
    "offload_param": (MORE, "weights on", "Where the shards of the weights are; needs stage 3."),
    "zero_init": (
        EXPERT,
        "zero.Init",
        "Stage 3: the model is cut while it is made; without, it is whole on every GPU first.",
    ),
    "reduce_bucket_size": (
        EXPERT,
        "reduce bucket",
        "Elements of gradients that are reduced at once.",
    ),
    "allgather_bucket_size": (
        EXPERT,
        "all-gather bucket",
        "Has no effect on memory: parameters are gathered in place.",
    ),
    "overlap_comm": (
        EXPERT,
        "overlap communication",
        "Reduce while backward goes on, out of a second bucket; unset: on at stage 3, off below.",
    ),
    "contiguous_gradients": (
        EXPERT,
        "contiguous gradients",
        "Gradients are copied into one buffer as they come.",
    ),
    "stage3_prefetch_bucket_size": (
        EXPERT,
        "prefetch",
        "Elements of weights that are gathered ahead of their use.",
    ),
    "stage3_max_live_parameters": (
        EXPERT,
        "most live weights",
        "Elements that may be gathered at once before prefetching stops.",
    ),
    "stage3_max_reuse_distance": (
        EXPERT,
        "reuse distance",
        "Weights that are used again within so many elements stay gathered.",
    ),
    "stage3_param_persistence_threshold": (
        EXPERT,
        "persistent weights",
        "Parameters with fewer elements are never cut.",
    ),
    "sub_group_size": (EXPERT, "sub-group", "Elements that stage 3 steps at once."),
    "pin_memory": (
        EXPERT,
        "pinned host memory",
        "What is offloaded lies in pinned memory, which torch rounds up to powers of two.",
    ),
    "partition_method": (
        EXPERT,
        "pipeline cut by",
        "How layers are shared out to pipeline stages: equal parameters, or equal numbers.",
    ),
    "partition_activations": (
        EXPERT,
        "partition checkpoints",
        "Cuts checkpoints over "
        "tensor-parallel ranks, of which there is one; with "
        "cpu_checkpointing their host memory is not pinned.",
    ),
    "cpu_checkpointing": (
        MORE,
        "checkpoints on CPU",
        "What full recompute keeps lies in host memory, but for the newest.",
    ),
    "amp": (EXPERT, "apex amp", "Gone from DeepSpeed: refused where it is true."),
    "sharding_strategy": (
        MAIN,
        "sharding",
        "What is cut: everything; gradients and states; "
        "nothing; or everything within a group of ranks that is repeated.",
    ),
    "reduce_dtype": (
        EXPERT,
        "reduce dtype",
        "What gradients are reduced in; unset: the dtype of the arithmetic.",
    ),
    "hybrid_shard_size": (
        EXPERT,
        "ranks of a group",
        "Ranks that share one copy under hybrid_shard; unset: the GPUs of a node.",
    ),
    "reshard_root_after_forward": (
        EXPERT,
        "reshard the root",
        "Whether embedding and head are "
        "let go between forward and backward; unset: as the layers "
        "are. torch's own default is false.",
    ),
    "cpu_offload": (
        MORE,
        "states on CPU",
        "Shards, gradients and the optimizer are in pinned host memory.",
    ),
    "gradient_as_bucket_view": (
        MORE,
        "gradients as views",
        "Gradients lie in DDP's buckets instead of beside them; needs more than one GPU.",
    ),
    "distributed_optimizer": (
        MAIN,
        "distributed optimizer",
        "Optimizer states and fp32 weights are cut over the data-parallel ranks.",
    ),
    "transformer_implementation": (
        MORE,
        "layers from",
        "Transformer Engine's layers, or "
        "Megatron's own without it: torch norms, attention that is not "
        "fused.",
    ),
    "masked_softmax_fusion": (
        EXPERT,
        "fused softmax",
        "Mask and softmax in one kernel, where layers are local.",
    ),
    "gradient_accumulation_fusion": (
        EXPERT,
        "fused gradient sums",
        "Weight gradients are added to the main gradients by the matmul itself.",
    ),
    "make_vocab_size_divisible_by": (
        EXPERT,
        "vocabulary multiple",
        "The vocabulary is padded to a multiple of this times tp; 1 pads it for tp alone.",
    ),
    "accumulate_allreduce_grads_in_fp32": (
        EXPERT,
        "fp32 main gradients",
        "Gradients are added up and reduced in fp32; unset: for bf16, not for fp16.",
    ),
    "attention_softmax_in_fp32": (
        EXPERT,
        "fp32 softmax",
        "Softmax of attention in fp32, where layers are local.",
    ),
    "deallocate_pipeline_outputs": (
        EXPERT,
        "free sent outputs",
        "A stage's output is freed once "
        "it was sent on, as Megatron-LM's script always does; "
        "megatron-core's own default is false.",
    ),
}
HARDWARE: Mapping[str, Row] = {
    "gpu": (MAIN, "GPU", "A name from `gpu-mem-calc gpus`, short where that is unique."),
    "num_gpus": (
        MAIN,
        "GPUs",
        "How many in all; without it as many as the parallel sizes or the nodes say, else 1.",
    ),
    "gpu_memory_gb": (
        MORE,
        "memory, as sold (GB)",
        "As marketed, for a card without a name; taken "
        "as the least that a card of that size reports.",
    ),
    "gpu_memory_bytes": (EXPERT, "memory, as reported (bytes)", "What the driver reports."),
    "available_memory_bytes": (
        EXPERT,
        "free memory (bytes)",
        "What is free before the run starts.",
    ),
    "num_nodes": (MORE, "nodes", "Machines; without it as many as num_gpus needs."),
    "gpus_per_node": (
        MORE,
        "GPUs of a node",
        "GPUs in one machine; without it 8, or all where there are fewer.",
    ),
    "interconnect": (EXPERT, "link", "A name or alias from the link table; no effect on memory."),
}

WORDS: Mapping[str, Row] = {
    f"{section}.{key}": row
    for section, rows in (
        ("model", MODEL),
        ("training", TRAINING),
        ("parallelism", PARALLELISM),
        ("engine", ENGINE),
        ("inference", INFERENCE),
        ("hardware", HARDWARE),
    )
    for key, row in rows.items()
}
MEANING: Mapping[str, str] = {path: meaning for path, (_, _, meaning) in WORDS.items()}
DEFAULT: Mapping[str, Any] = {
    "training.batch_size": 1,
    "training.gradient_accumulation_steps": 1,
    "training.precision": "bf16_mixed",
    "training.optimizer": "adamw",
    "training.activation_checkpointing": "none",
    "training.attention": "sdpa",
    "training.gradient_clipping": 1.0,
    "training.double_quant": True,
    "training.quantization": "none",
    "training.autocast": False,
    "training.checkpoint_reentrant": False,
    "training.upcast_unquantized": False,
    "parallelism.virtual_pipeline_size": 1,
    "parallelism.sequence_parallel": False,
    **{f"parallelism.{key}": 1 for key in AXES.values()},
    "engine.type": "pytorch_ddp",
    "inference.engine": "transformers",
    "hardware.gpu_memory_gb": int(DEFAULT_MEMORY_GB),
    **{f"model.{key}": value for key, value in PLAIN.items()},
}

"""Published closed forms, each with its citation.

These are the equations as their authors printed them: they leave out what the authors left out
(temporaries, communication buffers, fragmentation). Every result is a whole number of bytes; a
share that does not divide evenly is rounded up.

Sources:

- ZeRO: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion
  Parameter Models", SC20, arXiv 1910.02054.
- Korthikanti: Korthikanti, Casper, Lym, McAfee, Andersch, Shoeybi, Catanzaro, "Reducing Activation
  Recomputation in Large Transformer Models", MLSys 2023, arXiv 2205.05198.
- vLLM: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
  PagedAttention", SOSP 2023, arXiv 2309.06180.
"""

from typing import Final, Literal, NamedTuple, get_args

from ...ledger.num import ceil_div

__all__ = [
    "Technique",
    "adam_state_bytes",
    "korthikanti_first_stage_bytes",
    "korthikanti_layer_bytes",
    "kv_cache_bytes",
    "layer_activation_bytes",
    "parameter_bytes",
    "zero_bytes_per_parameter",
    "zero_communication_volume",
    "zero_model_states",
]

PARAMETER_BYTES: Final = 2
"""ZeRO section 3.1: a 16-bit parameter."""
GRADIENT_BYTES: Final = 2
"""ZeRO section 3.1: a 16-bit gradient."""
OPTIMIZER_BYTES: Final = 12
"""ZeRO section 3.1, K for mixed-precision Adam: fp32 parameter, momentum and variance."""

Technique = Literal[
    "none", "tensor", "tensor_sequence", "tensor_selective", "tensor_sequence_selective", "full"
]
"""The six rows of Korthikanti Table 2, in the paper's order."""


class _Row(NamedTuple):
    """One row of Korthikanti Table 2: coefficients of sbh and of as²b, in bytes.

    - `replicated_sbh`: sbh on every tensor-parallel GPU
    - `sharded_sbh`, `sharded_scores`: sbh and as²b that the GPUs share
    """

    replicated_sbh: int
    sharded_sbh: int
    sharded_scores: int


_TABLE_2: Final[dict[str, _Row]] = {
    "none": _Row(replicated_sbh=0, sharded_sbh=34, sharded_scores=5),
    "tensor": _Row(replicated_sbh=10, sharded_sbh=24, sharded_scores=5),
    "tensor_sequence": _Row(replicated_sbh=0, sharded_sbh=34, sharded_scores=5),
    "tensor_selective": _Row(replicated_sbh=10, sharded_sbh=24, sharded_scores=0),
    "tensor_sequence_selective": _Row(replicated_sbh=0, sharded_sbh=34, sharded_scores=0),
    "full": _Row(replicated_sbh=2, sharded_sbh=0, sharded_scores=0),
}


def _count(name: str, value: float, least: int = 1) -> int:
    """`value` as an integer of at least `least`; a whole float such as ``7e9`` is accepted."""
    if value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise ValueError(f"{name}={value} is not a whole number; try an integer such as {least}")
    if value < least:
        raise ValueError(f"{name}={value} is below {least}; try {least}")
    return int(value)


def _stage(stage: int) -> int:
    """The stage itself; a ValueError where ZeRO has no such stage."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage={stage} is not a ZeRO stage; try 0, 1, 2 or 3")
    return stage


def parameter_bytes(num_parameters: float, bits: int = 16) -> int:
    """Bytes of `num_parameters` values of `bits` bits each: P × bits / 8.

    The unit conversion every source here starts from (ZeRO section 3.1: 2 bytes at 16 bits).
    """
    total_bits = _count("num_parameters", num_parameters, 0) * _count("bits", bits)
    return int(ceil_div(total_bits, 8))


def adam_state_bytes(num_parameters: float, *, master_copy: bool = False) -> int:
    """Bytes of Adam's states: fp32 momentum and variance, 8P; with an fp32 `master_copy`, 12P.

    ZeRO section 3.1: K = 12 is 4 (fp32 parameters) + 4 (momentum) + 4 (variance).
    """
    states = 3 if master_copy else 2
    return states * parameter_bytes(num_parameters, 32)


def zero_bytes_per_parameter(stage: int) -> tuple[int, int]:
    """Bytes of model states per parameter: (replicated on every GPU, sharded over all of them).

    ZeRO Figure 1 with K = 12: (16, 0), (4, 12), (2, 14) and (0, 16) for stages 0 to 3.
    """
    by_stage = (OPTIMIZER_BYTES, GRADIENT_BYTES, PARAMETER_BYTES)  # each stage shards one more
    return sum(by_stage[_stage(stage) :]), sum(by_stage[:stage])


def zero_model_states(num_parameters: float, num_gpus: int, stage: int) -> int:
    """Bytes of parameters, gradients and Adam states on one of `num_gpus` data-parallel GPUs.

    ZeRO Figure 1 and sections 5.1 to 5.3, with K = 12:

    - stage 0: 16P
    - stage 1 (P_os): 4P + 12P/N
    - stage 2 (P_os+g): 2P + 14P/N
    - stage 3 (P_os+g+p): 16P/N
    """
    params, gpus = _count("num_parameters", num_parameters, 0), _count("num_gpus", num_gpus)
    replicated, sharded = zero_bytes_per_parameter(stage)
    return replicated * params + int(ceil_div(sharded * params, gpus))


def zero_communication_volume(num_parameters: float, stage: int) -> int:
    """Parameters (not bytes) each GPU moves in one step: 2P, 2P, 2P, 3P for stages 0 to 3.

    ZeRO section 7: data parallelism reduces and gathers the gradients (2P); P_os and P_os+g reduce
    the gradients and gather the parameters (2P); P_os+g+p gathers the parameters for the forward
    and again for the backward pass and reduces the gradients (3P).
    """
    return (3 if _stage(stage) == 3 else 2) * _count("num_parameters", num_parameters, 0)


def layer_activation_bytes(
    seq_len: int, batch: int, hidden: int, heads: int, training: bool = True
) -> int:
    """Bytes of activations of one transformer layer at 16 bits.

    Training, Korthikanti equation 1: 34sbh + 5as²b. Without `training` the one-byte dropout masks
    (sbh after the attention projection, sbh after the MLP, as²b on the scores) do not exist:
    32sbh + 4as²b. The coefficients are bytes already: 16-bit numbers are not counted twice.
    """
    sbh, scores = _sbh_and_scores(seq_len, batch, hidden, heads)
    return 34 * sbh + 5 * scores if training else 32 * sbh + 4 * scores


def korthikanti_layer_bytes(
    seq_len: int,
    batch: int,
    hidden: int,
    heads: int,
    tensor_parallel: int = 1,
    technique: Technique = "none",
) -> int:
    """Bytes of activations of one transformer layer on one GPU, t = `tensor_parallel`.

    Korthikanti Table 2:

    - ``none``: sbh(34 + 5as/h)
    - ``tensor``: sbh(10 + 24/t + 5as/(ht))
    - ``tensor_sequence``: sbh(34/t + 5as/(ht))
    - ``tensor_selective`` (recompute of the attention scores): sbh(10 + 24/t)
    - ``tensor_sequence_selective``: sbh(34/t)
    - ``full`` recompute: 2sbh
    """
    if technique not in _TABLE_2:
        names = ", ".join(get_args(Technique))
        raise ValueError(f"technique={technique!r} is not a row of Table 2; try one of {names}")
    ways = _count("tensor_parallel", tensor_parallel)
    if technique == "none" and ways != 1:
        raise ValueError(f"tensor_parallel={ways} is not 1 for technique 'none'; try 'tensor'")
    sbh, scores = _sbh_and_scores(seq_len, batch, hidden, heads)
    row = _TABLE_2[technique]
    sharded = ceil_div(row.sharded_sbh * sbh + row.sharded_scores * scores, ways)
    return row.replicated_sbh * sbh + int(sharded)


def korthikanti_first_stage_bytes(
    layer_bytes: int, num_layers: int, pipeline_parallel: int = 1, interleaved_stages: int = 1
) -> int:
    """Bytes of activations on the first pipeline stage, which holds the most micro-batches.

    Korthikanti section 4.2.3: the first of p stages keeps p micro-batches of L/p layers, so L
    layers for every p; with an interleaved schedule of m stages per GPU, L(1 + (p - 1)/(pm)).
    Embedding and output layer are left out, as in the paper's Table 2 and Figure 1.
    """
    layers = _count("num_layers", num_layers) * _count("layer_bytes", layer_bytes, 0)
    stages = _count("pipeline_parallel", pipeline_parallel)
    chunks = _count("interleaved_stages", interleaved_stages)
    if chunks == 1:
        return layers
    return layers + int(ceil_div(layers * (stages - 1), stages * chunks))


def kv_cache_bytes(
    num_tokens: int, num_layers: int, num_kv_heads: int, head_dim: int, bits: int = 16
) -> int:
    """Bytes of keys and values of `num_tokens` tokens: 2 × layers × KV heads × head size each.

    vLLM section 3: 2 (key and value) × hidden size × layers × bytes per number, with the hidden
    size of the KV heads where queries share them. Not for latent (MLA) or windowed attention.
    """
    per_token = _count("num_layers", num_layers) * _count("num_kv_heads", num_kv_heads)
    numbers = 2 * per_token * _count("head_dim", head_dim) * _count("num_tokens", num_tokens, 0)
    return parameter_bytes(numbers, bits)


def _sbh_and_scores(seq_len: int, batch: int, hidden: int, heads: int) -> tuple[int, int]:
    """sbh and as²b, the two products of which every activation formula consists."""
    s, b = _count("seq_len", seq_len), _count("batch", batch)
    return s * b * _count("hidden", hidden), _count("heads", heads) * s * s * b

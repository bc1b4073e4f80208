"""FSDP's options, the bits of each precision, and the ranks of a shard group.

Strategies have torch's names of version 1. By what version 2's `fully_shard` is given:
- `full_shard`: `reshard_after_forward=True` everywhere, the root included. (torch's own default,
  None, keeps the root gathered between forward and backward: `reshard_root_after_forward=false`.)
- `shard_grad_op`: `reshard_after_forward=False`.
- `hybrid_shard`: `full_shard` on a mesh of (replicas, `hybrid_shard_size`).
- `hybrid_shard_zero2`: `shard_grad_op` on that mesh (version 1: `_HYBRID_SHARD_ZERO2`).
- `no_shard`: `replicate`, FSDP2's code with one rank per shard, never resharded. It still keeps
  a gathered copy beside each parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ....ledger.dtypes import BITS
from ....ledger.num import Num, smaller
from ....run.run import Run
from .units import UnitBits

# Bits of the shards and of the arithmetic: MixedPrecisionPolicy(param_dtype) for mixed runs.
PRECISIONS = {
    "fp32": (32, 32),
    "bf16_mixed": (32, 16),
    "fp16_mixed": (32, 16),
    "bf16_pure": (16, 16),
    "fp16_pure": (16, 16),
}
# Options that version 2 does not have, with their defaults in version 1.
VERSION_1: Mapping[str, Any] = {
    "use_orig_params": False,
    "init_dtype": None,  # None: the dtype of the shards
    "backward_prefetch": "backward_pre",
    "forward_prefetch": False,
    "limit_all_gathers": True,
    "sync_module_states": False,
    "keep_low_precision_grads": False,
}
HYBRID = ("hybrid_shard", "hybrid_shard_zero2")  # sharded within a group, which is replicated
KEEP_GATHERED = ("shard_grad_op", "hybrid_shard_zero2", "no_shard")  # from forward to backward
OPTIONS: Mapping[str, Any] = {
    "fsdp_version": 2,
    "sharding_strategy": "full_shard",
    "reduce_dtype": None,  # None: the dtype of the gradients, which is that of the arithmetic
    "hybrid_shard_size": None,  # None: the GPUs of a node
    "reshard_root_after_forward": None,  # None: as the strategy says for the layers
    "cpu_offload": False,
    "wrap_embedding_and_head": None,  # None: as the model's implementation does
    "init_device": None,  # None: cpu in version 1, meta in version 2
    "sync_each_batch": True,
    **VERSION_1,
}


def option(run: Run, name: str) -> Any:
    """An option of the run, or its default."""
    return run.options.get(name, OPTIONS[name])


def wraps_ends(run: Run) -> bool:
    """Whether the embedding is a unit, and final norm and head are another one, as in torchtitan
    0.2.2 (models/llama3/infra/parallelize.py apply_fsdp); else both belong to the root.
    """
    return _wraps(run) and not run.arch.tied


def wraps_tied_ends(run: Run) -> bool:
    """Whether a tied embedding and the final norm are one unit, which stays gathered after forward,
    as in Accelerate 1.15 (utils/fsdp_utils.py fsdp2_prepare_model). Its backward begins with the
    gradient of the logits, so the last layer is not gathered before.
    """
    return _wraps(run) and run.arch.tied


def _wraps(run: Run) -> bool:
    given = option(run, "wrap_embedding_and_head")
    return run.arch.implementation == "torchtitan" if given is None else bool(given)


def loss_outside(run: Run) -> bool:
    """Whether the loss is computed after the root has returned, on its logits: Trainer's smoothed
    labels (transformers 5.17.0 trainer_pt_utils.py LabelSmoother), torchtitan 0.2.2 train.py.
    """
    return run.label_smoothing > 0 or run.arch.implementation == "torchtitan"


def shard_ranks(run: Run) -> Num:
    """Ranks that share one copy of the parameters."""
    strategy = option(run, "sharding_strategy")
    if strategy == "no_shard":
        return 1
    if strategy in HYBRID:
        return smaller(option(run, "hybrid_shard_size") or run.gpus_per_node, run.mesh.dp)
    return run.mesh.dp


def unit_bits(run: Run) -> tuple[UnitBits, UnitBits]:
    """Bits of the base model's parameters, and of the adapters'."""
    stored, compute = PRECISIONS[run.precision]
    name = option(run, "reduce_dtype")
    base = UnitBits(stored, compute, BITS[name] if name else compute)
    if run.adapter is None:
        return base, base
    inner = compute if stored != compute else run.adapter.bits
    return base, UnitBits(run.adapter.bits, inner, BITS[name] if name else inner)


def as_computed(run: Run) -> Run:
    """The run as its layers see it: the mixed-precision policy casts adapters, too."""
    stored, compute = PRECISIONS[run.precision]
    if run.adapter is None or stored == compute:
        return run
    return replace(run, adapter=replace(run.adapter, bits=compute))

"""PyTorch FSDP: what a rank holds, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from msgspec.structs import replace

from gpu_mem_calculator.ledger.ledger import GRAD, OPTIM, PARAM, Ledger
from gpu_mem_calculator.ledger.mesh import Mesh
from gpu_mem_calculator.models.arch.adapters import Adapter
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.training.engines.fsdp.engine import ENGINE, problems

STEP = ("forward", "backward", "optimizer")
LLAMA2_7B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
LLAMA3_8B = {
    **LLAMA2_7B,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LLAMA32_1B = {
    **LLAMA3_8B,
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "head_dim": 64,
    "tie_word_embeddings": True,
}


def make(config: dict[str, Any] = LLAMA2_7B, *, dp: Any = 8, **changes: Any) -> Run:
    """A run with small defaults."""
    arch = read_config({"model_type": "llama", **config})
    values = {"batch": 1, "seq": 2048, "micro_batches": 1, "precision": "bf16_mixed"}
    return Run(arch=arch, mesh=Mesh(dp=dp), **{**values, **changes})


def strategy(name: str, **options: Any) -> dict[str, Any]:
    """Engine options."""
    return {"sharding_strategy": name, **options}


def peak(run: Run) -> Any:
    """The highest instant of a step."""
    return ENGINE.ledger(run).peak(phases=STEP)


def kinds_at(ledger: Ledger, name: str, *kinds: str) -> int:
    """Bytes of some kinds at an instant."""
    instant = next(i for i in ledger.instants if i.name == name)
    parts = ledger.parts(instant)
    return sum(int(parts[kind]) for kind in kinds)


def states(run: Run) -> int:
    """Parameters, gradients and optimizer states at the optimizer step."""
    return kinds_at(ENGINE.ledger(run), "optimizer", PARAM, GRAD, OPTIM)


def test_strategies_cost_more_state_the_less_they_shard() -> None:
    """full_shard and shard_grad_op share everything, hybrid a node's worth, no_shard nothing."""
    full, grad, hybrid, none = (
        states(make(dp=16, options=strategy(name)))
        for name in ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard")
    )
    assert full == grad < hybrid < none
    assert hybrid == pytest.approx(2 * full, rel=1e-4)
    assert none == pytest.approx(16 * full, rel=1e-4)


def test_strategies_cost_more_at_the_peak_the_less_they_reshard() -> None:
    """Keeping layers gathered costs memory, not sharding them costs more."""
    full, grad, none = (
        peak(make(dp=16, options=strategy(name)))
        for name in ("full_shard", "shard_grad_op", "no_shard")
    )
    assert full < grad < none


def test_more_ranks_never_cost_more() -> None:
    """Shards shrink, and what is gathered stays as large."""
    peaks = [peak(make(dp=dp)) for dp in (1, 2, 4, 8, 16, 64)]
    assert peaks == sorted(peaks, reverse=True)


def test_arrays_give_what_scalars_give() -> None:
    """One ledger over arrays is the ledgers of its elements."""
    dp, batch, seq, micro = [1, 2, 8, 64], [1, 2, 1, 4], [512, 2048, 4096, 64], [1, 2, 1, 3]
    together = peak(
        make(
            dp=numpy.array(dp),
            batch=numpy.array(batch),
            seq=numpy.array(seq),
            micro_batches=numpy.array(micro),
        )
    )
    alone = [
        peak(make(dp=d, batch=b, seq=s, micro_batches=m))
        for d, b, s, m in zip(dp, batch, seq, micro, strict=True)
    ]
    assert together.tolist() == alone


def test_hybrid_over_all_ranks_is_full_shard() -> None:
    """One shard group holds what a plain mesh holds, except for the all-reduce's buffers."""
    hybrid = strategy("hybrid_shard", hybrid_shard_size=16)
    assert states(make(dp=16, options=hybrid)) == states(make(dp=16))


def test_hybrid_defaults_to_a_node() -> None:
    """Without a size the shard group is the GPUs of a node."""
    settings = strategy("hybrid_shard", hybrid_shard_size=4)
    default = make(dp=16, options=strategy("hybrid_shard"), gpus_per_node=4)
    assert peak(default) == peak(make(dp=16, options=settings))


def test_reduce_dtype_defaults_to_that_of_the_gradients() -> None:
    """torch's policy reduces in param_dtype by default."""
    assert peak(make()) == peak(make(options=strategy("full_shard", reduce_dtype="bf16")))
    assert peak(make()) < peak(make(options=strategy("full_shard", reduce_dtype="fp32")))


def test_accumulated_gradients_are_sharded() -> None:
    """From the second micro-batch on, each rank's sharded gradients are alive in forward."""
    ledger = ENGINE.ledger(make(micro_batches=4))
    share = kinds_at(ledger, "optimizer", GRAD)
    assert kinds_at(ledger, "forward", GRAD) == 0
    assert kinds_at(ledger, "later.forward", GRAD) == share
    assert share == pytest.approx(6_738_415_616 * 4 / 8, rel=1e-4)


def test_a_root_that_stays_gathered_is_not_gathered_twice() -> None:
    """torch's default for the root drops the instant at which it is gathered again."""
    ledger = ENGINE.ledger(make(options={"reshard_root_after_forward": False}))
    assert "gather.root" in {i.name for i in ENGINE.ledger(make()).instants}
    assert "gather.root" not in {i.name for i in ledger.instants}


def test_the_last_layer_has_no_reduce_scatter_above_it() -> None:
    """The first reduce-scatter input appears with the second layer from the top."""
    ledger = ENGINE.ledger(make())
    flat = next(e for e in ledger.entries if e.name == "dense layers: reduce-scatter input")
    assert flat.at("backward.2.last") == 0
    assert flat.at("backward.1.last") == 2 * 202_383_360


def test_one_layer_and_two_layers_have_a_step() -> None:
    """A stack whose first layer is its last has instants, too."""
    one, two = (make({**LLAMA2_7B, "num_hidden_layers": n}) for n in (1, 2))
    assert 0 < peak(one) < peak(two)


def test_adapters_alone_are_trained() -> None:
    """With LoRA the base is sharded, and gradients and states are those of the adapters."""
    adapter = Adapter(16, frozenset({"q_proj", "v_proj"}), 32, 0.0, False)
    ledger = ENGINE.ledger(make(adapter=adapter))
    trained = 32 * 2 * 16 * (4096 + 4096)
    assert kinds_at(ledger, "optimizer", GRAD) == trained * 4 // 8
    assert kinds_at(ledger, "optimizer", OPTIM) == 2 * trained * 4 // 8
    assert kinds_at(ledger, "startup", PARAM) == (6_738_415_616 + trained) * 4 // 8 + 1024
    assert ledger.peak(phases=STEP) < peak(make())


@pytest.mark.parametrize("precision", ["fp32", "bf16_mixed", "fp16_mixed", "bf16_pure"])
def test_widths_follow_the_precision(precision: str) -> None:
    """Shards and states are fp32 unless the model itself is 16-bit."""
    width = 2 if precision.endswith("pure") else 4
    share = 6_738_415_616 // 8
    ledger = ENGINE.ledger(make(precision=precision))
    assert kinds_at(ledger, "optimizer", OPTIM) == 2 * share * width
    assert kinds_at(ledger, "optimizer", GRAD) == share * width


def test_clipping_counts_where_the_step_needs_nothing() -> None:
    """SGD has no temporaries, so the norms of 291 tensors are what stands out."""
    clipped, free = (peak_of_step(make(optimizer="sgd", clipping=c)) for c in (True, False))
    chunks = 32000 * 4096 // 8 // 65536
    assert clipped - free == -(-4 * 291 * chunks // 512) * 512 + 512 * 291


def peak_of_step(run: Run) -> Any:
    """The optimizer's instant."""
    return ENGINE.ledger(run).peak(phases=("optimizer",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization": "nf4"}, "nf4"),
        ({"autocast": True, "precision": "bf16_pure"}, "autocast"),
        ({"options": strategy("full_shard", hybrid_shard_size=4)}, "applies to hybrid_shard"),
        ({"options": strategy("hybrid_shard", hybrid_shard_size=3)}, "does not divide"),
        ({"options": strategy("hybrid_shard", hybrid_shard_size=16)}, "try 8"),
    ],
)
def test_what_the_framework_refuses(changes: dict[str, Any], words: str) -> None:
    """Each problem is one sentence that names the value and a way out."""
    (problem,) = problems(make(**changes))
    assert words in problem


def test_a_plain_run_has_no_problems() -> None:
    """Defaults are accepted, a hybrid of equal groups too."""
    assert not list(problems(make()))
    assert not list(problems(make(dp=16, options=strategy("hybrid_shard"))))


def test_optimizers_that_fail_on_shards_are_not_offered() -> None:
    """Adafactor, Muon and bitsandbytes do not step on sharded tensors."""
    assert ENGINE.optimizers == {"adamw", "adam", "sgd", "sgd_momentum"}


def test_a_given_parameter_count_scales_the_states() -> None:
    """Twice the parameters are twice the shards, gradients and states."""
    twice = replace(make(), parameters_given=2 * 6_738_415_616)
    assert states(twice) == pytest.approx(2 * states(make()), rel=1e-6)

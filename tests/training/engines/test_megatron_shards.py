"""Elements of Megatron's shards on one rank; by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.megatron_lm.shards import (
    MegatronShard,
    after_shard,
    embedding_shard,
    layer_shard,
    local_vocab,
)
from tests.conftest import SMALL_LLAMA, small_run


def run(**sections: Any) -> Run:
    """A small run of Megatron-LM."""
    return resolve(read(small_run("megatron_lm", **sections)).file).run


def test_no_layers_have_no_largest_parameter() -> None:
    """A stage without a kind of layer has nothing of it, its largest parameter included."""
    shard = MegatronShard(dense=50, experts=30, vectors=5, largest=20)
    assert shard.times(0) == MegatronShard(0, 0, 0, 0)
    assert shard.times(3) == MegatronShard(150, 90, 15, 20)


def test_shards_add_up_but_for_the_largest() -> None:
    """The larger of two largest parameters is the sum's."""
    total = MegatronShard(10, 20, 3, 7) + MegatronShard(1, 2, 1, 9)
    assert total == MegatronShard(11, 22, 4, 9)
    assert total.total == 33


@pytest.mark.parametrize(("tp", "vocab"), [(1, 1000), (2, 1000), (4, 1000), (1, 1025)])
def test_the_vocabulary_is_padded_to_128_rows_of_each_rank(tp: int, vocab: int) -> None:
    """vocab_utils.py: a multiple of 128 x tp, of which a rank has its share."""
    config = {**SMALL_LLAMA, "vocab_size": vocab}
    small = run(model={"config": config}, parallelism={"tensor_parallel_size": tp})
    padded = next(n for n in range(vocab, vocab + 128 * tp) if n % (128 * tp) == 0)
    assert local_vocab(small) == padded // tp
    assert embedding_shard(small).dense == padded // tp * 256
    assert embedding_shard(small).largest == padded // tp * 256


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_layer_is_sharded_but_for_its_norms(tp: int) -> None:
    """q, o, k, v, gate, up and down over tp; two norms of 256 on every rank."""
    small = run(parallelism={"tensor_parallel_size": tp})
    shard = layer_shard(small, small.arch.layers[0])
    matrices = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 688 * 256
    assert (shard.dense, shard.vectors) == (matrices // tp + 2 * 256, 2 * 256)
    assert shard.largest == 688 * 256 // tp


def test_a_tied_head_is_a_copy_on_another_stage() -> None:
    """The last stage has the table too, unless it is the first; the final norm in any case."""
    small = run(model={"config": {**SMALL_LLAMA, "tie_word_embeddings": True}})
    assert after_shard(small, 1) == MegatronShard(256, 0, 256, 256)
    assert after_shard(small, 0) == MegatronShard(256 + 1024 * 256, 0, 256, 1024 * 256)


def test_experts_are_sharded_over_their_ranks() -> None:
    """8 experts over 4 ranks: 2 on each; the router and attention are whole."""
    config = {
        **SMALL_LLAMA,
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    small = run(model={"config": config}, parallelism={"expert_parallel_size": 4})
    shard = layer_shard(small, small.arch.layers[0])
    assert shard.experts == 2 * 3 * 688 * 256
    assert shard.dense == 2 * 256 * 256 + 2 * 128 * 256 + 8 * 256 + 2 * 256

"""DeepSpeed: what it refuses, what stages and offload change, and measured runs."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.ledger.ledger import CPU, GRAD, NVME, OPTIM, PARAM, Ledger
from gpu_mem_calculator.ledger.mesh import Mesh
from gpu_mem_calculator.models.arch.adapters import Adapter
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.training.engines.deepspeed.engine import ENGINE
from gpu_mem_calculator.training.engines.deepspeed.modules import size_counts

STEPS = ("forward", "backward", "optimizer")


def llama(hidden: int, layers: int, ffn: int, heads: int, kv: int, vocab: int, **more: Any) -> Any:
    """A Llama configuration."""
    return read_config(
        {
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "intermediate_size": ffn,
            "num_attention_heads": heads,
            "num_key_value_heads": kv,
            "vocab_size": vocab,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        }
        | more
    )


TINY = llama(2048, 22, 5632, 32, 4, 32000)
SEVEN = llama(4096, 32, 11008, 32, 32, 32000)
ONE = llama(2048, 16, 8192, 32, 8, 128256, head_dim=64, tie_word_embeddings=True)


def make(arch: Any = TINY, *, dp: Any = 8, pp: Any = 1, **more: Any) -> Run:
    """A run; what is not a field of `Run` is an option."""
    fields = {"batch": 1, "seq": 2048, "micro_batches": 1, "precision": "bf16_mixed"}
    options = {k: more.pop(k) for k in tuple(more) if k in ENGINE.options or k == "amp"}
    return Run(arch=arch, mesh=Mesh(dp=dp, pp=pp), options=options, **fields | more)


def book(*args: Any, **more: Any) -> Ledger:
    """The ledger of a run that has no problems."""
    run = make(*args, **more)
    assert list(ENGINE.problems(run)) == []
    return ENGINE.ledger(run)


def state_bytes(ledger: Ledger, instant: str = "optimizer.cast") -> int:
    """Parameters, gradients and optimizer states at an instant."""
    parts = ledger.parts(next(i for i in ledger.instants if i.name == instant))
    return int(parts[PARAM] + parts[GRAD] + parts[OPTIM])


AWAY = {"offload_optimizer": "cpu", "seq": 1024}
MEASURED = {  # run, allocated, startup: one H200, torch 2.11.0, deepspeed 0.19.8
    "z0": ({"zero_stage": 0}, TINY, 26469337088, 19800872960),
    "z1": ({"zero_stage": 1}, TINY, 9078777344, 4402292736),
    "z2": ({"zero_stage": 2}, TINY, 9011672576, 4402292736),
    "z3": ({"zero_stage": 3}, TINY, 10020973568, 2231464448),
    "z2 accumulating": ({"zero_stage": 2, "micro_batches": 4}, ONE, 11666831872, 4945221632),
    "z3 64 ranks": (
        {"zero_stage": 3, "dp": 64, "batch": 2, "seq": 4096, "recompute": "full"},
        SEVEN,
        10321722368,
        2105167360,
    ),
    "z3 offloaded": (
        {"zero_stage": 3, "offload_optimizer": "cpu", "recompute": "full"},
        SEVEN,
        6703737344,
        2947090944,
    ),
    "z1 offloaded": ({"zero_stage": 1, **AWAY}, TINY, 5613407744, 4402292224),
    "z2 offloaded": ({"zero_stage": 2, **AWAY}, TINY, 5530592768, 4402292224),
    "z3 both": ({"zero_stage": 3, "offload_param": "cpu", **AWAY}, ONE, 6463983104, 1592395264),
    "overlap": ({"zero_stage": 2, "overlap_comm": True, "seq": 1024}, ONE, 8822338560, 4945221632),
}


@pytest.mark.parametrize("name", MEASURED)
def test_measured_run_is_within_half_a_percent(name: str) -> None:
    """Allocated and start-up bytes agree with the GPU."""
    more, arch, allocated, startup = MEASURED[name]
    ledger = book(arch, **more)
    assert ledger.peak(phases=STEPS) == pytest.approx(allocated, rel=0.005)
    assert ledger.peak(phases=("startup",)) == pytest.approx(startup, rel=0.005)


REFUSED = [
    ({"zero_stage": 4}, "zero_stage=4"),
    ({"precision": "bf16_pure"}, "try bf16_mixed"),
    ({"autocast": True}, "autocast"),
    ({"implementation": "forloop"}, "optimizer_implementation=forloop"),
    ({"optimizer": "sgd"}, "optimizer=sgd"),
    ({"offload_optimizer": "disk", "zero_stage": 3}, "offload_optimizer=disk"),
    ({"offload_optimizer": "cpu"}, "try zero_stage 1, 2 or 3"),
    ({"offload_optimizer": "nvme", "zero_stage": 2}, "try cpu"),
    ({"offload_param": "cpu", "zero_stage": 2}, "try zero_stage 3"),
    ({"offload_optimizer": "cpu", "zero_stage": 3, "optimizer": "sgd"}, "no CPU version"),
    ({"offload_optimizer": "cpu", "zero_stage": 3, "implementation": "fused"}, "leave it out"),
    ({"pp": 2, "zero_stage": 2}, "does not go with a pipeline"),
    ({"pp": 2, "virtual_stages": 2}, "interleave"),
    ({"pp": 40}, "more than the 22 layers"),
    ({"pp": 2, "adapter": Adapter(8, frozenset({"q_proj"}))}, "lora"),
    ({"partition_method": "profile"}, "partition_method=profile"),
    ({"amp": True}, "amp"),
    ({"allgather_bucket_size": 5}, "try 6"),
    ({"cpu_checkpointing": True}, "activation_checkpointing full"),
    ({"quantization": "nf4", "zero_stage": 3}, "try zero_stage 2"),
    ({"quantization": "nf4", "zero_stage": 2}, "not modelled"),
]


@pytest.mark.parametrize(("more", "words"), REFUSED)
def test_refusal_is_one_sentence_with_a_fix(more: dict[str, Any], words: str) -> None:
    """Each thing that is refused says why in one line."""
    sentences = list(ENGINE.problems(make(**more)))
    assert any(words in sentence for sentence in sentences)
    assert all("\n" not in sentence and ";" in sentence for sentence in sentences)


def test_overlap_is_on_in_stage_3_only() -> None:
    """A second bucket appears where overlap_comm is set below stage 3, and nowhere by default."""
    plain, double = book(zero_stage=2), book(zero_stage=2, overlap_comm=True)
    assert double.peak() - plain.peak() == 1_000_000_000
    assert book(zero_stage=3).peak() == book(zero_stage=3, overlap_comm=True).peak()


def test_allgather_bucket_has_no_effect() -> None:
    """Weights are gathered in place."""
    assert book(zero_stage=1).peak() == book(zero_stage=1, allgather_bucket_size=2).peak()


def test_higher_stages_keep_less_state() -> None:
    """Each stage shards more than the one before."""
    sizes = [state_bytes(book(zero_stage=stage, dp=64), "embedding.backward") for stage in range(4)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_more_ranks_never_cost_more_state(stage: int) -> None:
    """Sharding over more ranks leaves less on each."""
    sizes = [state_bytes(book(zero_stage=stage, dp=dp)) for dp in (1, 2, 4, 8, 16, 64)]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offloaded_optimizer_leaves_the_gpu(stage: int) -> None:
    """What leaves the GPU is in host RAM."""
    on_gpu, offloaded = book(zero_stage=stage), book(zero_stage=stage, offload_optimizer="cpu")
    assert offloaded.peak() < on_gpu.peak()
    assert on_gpu.peak(CPU) == 0
    assert offloaded.peak(CPU) >= 16 * TINY.num_parameters // 8


def test_nvme_takes_what_ram_does_not() -> None:
    """Offload to NVMe puts states and parameters on disk, and less into RAM."""
    ram = book(SEVEN, zero_stage=3, offload_optimizer="cpu", offload_param="cpu", dp=2)
    disk = book(
        SEVEN,
        zero_stage=3,
        offload_optimizer="nvme",
        offload_param="nvme",
        dp=2,
        sub_group_size=100_000_000,
    )
    assert disk.peak(CPU) < ram.peak(CPU)
    assert disk.peak(NVME) == pytest.approx(18 * SEVEN.num_parameters / 2, rel=0.01)
    assert ram.peak(NVME) == 0


def test_swapped_tensors_are_whole_kibibytes() -> None:
    """Four buffers of a sub-group, and master, momentum and variance, each rounded up."""
    arch = llama(250, 3, 701, 10, 5, 1001)
    ledger = book(arch, zero_stage=3, offload_optimizer="nvme", dp=2)
    sizes = {entry.name: int(entry.bytes) for entry in ledger.entries}
    shards = 4 * sum(-(-size * times // 2) for size, times in size_counts(arch).items())
    each = -(-shards // 1024) * 1024
    assert shards < each
    assert sizes["master weights and optimizer states"] == 3 * each
    assert sizes["optimizer swap buffers, pageable"] == 4 * each


def test_offloaded_parameters_leave_the_gpu() -> None:
    """Their shards are pinned on the host."""
    on_gpu = book(zero_stage=3, offload_optimizer="cpu")
    offloaded = book(zero_stage=3, offload_optimizer="cpu", offload_param="cpu")
    assert offloaded.peak(phases=STEPS) < on_gpu.peak(phases=STEPS)
    assert offloaded.peak(CPU) > on_gpu.peak(CPU)


def test_unpinned_memory_is_not_rounded() -> None:
    """Pinned blocks are powers of two, pageable ones are not."""
    assert book(zero_stage=2, offload_optimizer="cpu", pin_memory=False).peak(CPU) < book(
        zero_stage=2, offload_optimizer="cpu"
    ).peak(CPU)


def test_checkpoints_can_go_to_the_host() -> None:
    """cpu_checkpointing moves all checkpoints but one."""
    on_gpu = book(SEVEN, zero_stage=3, recompute="full", seq=4096, dp=64)
    offloaded = book(SEVEN, zero_stage=3, recompute="full", seq=4096, dp=64, cpu_checkpointing=True)
    loss = next(i for i in on_gpu.instants if i.name == "loss")
    assert on_gpu.at(loss) - offloaded.at(loss) == 31 * 4096 * 4096 * 2
    assert offloaded.peak(CPU) == 31 * 4096 * 4096 * 2


def test_model_built_whole_costs_start_up() -> None:
    """Without zero.Init the whole model is on the GPU before it is sharded."""
    cut, whole = (book(SEVEN, zero_stage=3, zero_init=z) for z in (True, False))
    assert whole.peak(phases=("startup",)) > 2 * SEVEN.num_parameters
    assert cut.peak(phases=("startup",)) < whole.peak(phases=("startup",))


def test_adapters_leave_the_base_whole_below_stage_3() -> None:
    """Frozen weights are not sharded by stage 2, and are by stage 3."""
    adapter = Adapter(16, frozenset({"q_proj", "v_proj"}))
    two, three = (
        state_bytes(book(SEVEN, zero_stage=stage, dp=64, adapter=adapter)) for stage in (2, 3)
    )
    assert two > 2 * SEVEN.num_parameters
    assert three < 2 * SEVEN.num_parameters / 10


def test_foreach_needs_a_temporary() -> None:
    """torch_adam holds one more fp32 copy of the slice; FusedAdam does not."""
    fused, foreach = (
        next(e for e in book(zero_stage=1, implementation=i).entries if "temporaries" in e.name)
        for i in ("", "foreach")
    )
    assert fused.bytes == 0
    assert foreach.bytes == pytest.approx(4 * TINY.num_parameters / 8, rel=1e-6)


def test_little_room_means_little_is_gathered() -> None:
    """max_live_parameters bounds what is gathered."""
    small = book(SEVEN, zero_stage=3, stage3_max_live_parameters=0, stage3_max_reuse_distance=0)
    assert small.peak(phases=STEPS) < book(SEVEN, zero_stage=3).peak(phases=STEPS) - 1_500_000_000


UNREDUCED = "weights' gradients that are not reduced"


def total(ledger: Ledger, instant: str, name: str) -> int:
    """Bytes of the entries of a name at an instant."""
    return sum(int(e.bytes * e.live.get(instant, 0)) for e in ledger.entries if e.name == name)


def test_offload_takes_norms_of_its_own_gradients() -> None:
    """In fp64, in the last micro-batch and not before."""
    one, more = (book(zero_stage=2, micro_batches=n, **AWAY) for n in (1, 4))
    name, table = "bucket, copies for reduction", 8 * 32000 * 2048
    assert total(one, "epilogue", name) == total(more, "later.epilogue", name) == table
    assert total(more, "epilogue", name) == 0


@pytest.mark.parametrize("stage", [2, 3])
def test_gradient_of_a_shared_table_waits(stage: int) -> None:
    """The head's part is alive in every layer's backward until the embedding's is made."""
    ledger = book(ONE, zero_stage=stage)
    places = ("backward.0.last", "backward.0.first", "embedding.backward")
    assert min(total(ledger, p, UNREDUCED) for p in places) >= 2 * 128256 * 2048
    assert total(ledger, "epilogue", UNREDUCED) == 0


def test_gradient_larger_than_the_bucket_stays_where_it_is() -> None:
    """The embedding's is alive when all others are freed."""
    small = book(zero_stage=2, reduce_bucket_size=50_000_000)
    assert total(small, "epilogue", UNREDUCED) == 2 * 32000 * 2048
    assert total(book(zero_stage=2), "epilogue", UNREDUCED) == 0


def test_shards_from_the_host_are_gone_when_the_loss_is_made() -> None:
    """They are on the GPU only until their gather begins."""
    ledger, name = book(zero_stage=3, offload_param="cpu"), "shards, come from the host"
    assert total(ledger, "loss", name) == 0 < total(ledger, "begin", name)

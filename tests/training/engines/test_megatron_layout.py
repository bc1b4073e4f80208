"""Megatron-LM's pipeline stages of unequal length, and the interleaved schedule."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.stage_replay import replay_stage, with_block_rounding
from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.megatron_lm.engine import ENGINE
from gpu_mem_calculator.training.engines.megatron_lm.layout import layout_stages
from gpu_mem_calculator.training.engines.megatron_lm.model_inputs import early_tensors, idle_chunks
from gpu_mem_calculator.training.step.chunks import (
    StageMoment,
    chunk_passes,
    chunk_range,
    chunks_in_flight,
    schedule,
    stage_moments,
    walked_moments,
)
from gpu_mem_calculator.training.step.pipeline import pipeline_stage, pipeline_stages, stage_layers
from gpu_mem_calculator.training.step.stream import allocation_stream
from tests.conftest import small_run

NUMBERS = {"num_layers": 16, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1024}
GROUP = "microbatch_group_size_per_virtual_pipeline_stage"


def made(layers: int = 16, pp: int = 4, chunks: int = 1, batches: int = 8, **options: Any) -> Run:
    """A resolved run of a pipeline with these options of the engine."""
    parallelism = {"pipeline_parallel_size": pp, "virtual_pipeline_size": chunks}
    data = small_run(
        "megatron_lm",
        training={"gradient_accumulation_steps": batches},
        parallelism=parallelism,
        engine=options,
    )
    data["model"] = {**NUMBERS, "num_layers": layers}
    return resolve(read(data).file).run


def refused(**settings: Any) -> str:
    """The sentence that refuses a run."""
    with pytest.raises(InputError) as caught:
        made(**settings)
    assert len(caught.value.problems) == 1, caught.value.problems
    return str(caught.value.problems[0])


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Ett|ttL", ["Ett", "ttL"]),
        ("Et*3|(tt|)*2,t|L", ["Ettt", "tt", "tt", "t", "L"]),
        ("E(t|)*3,L", ["Et", "t", "t", "L"]),
        ("(|tt)*2", ["", "tt", "tt"]),
        ("(tt|)*99999999,L", []),
    ],
)
def test_layout_strings(text: str, stages: list[str]) -> None:
    """Commas are ignored, parts and stages repeat; what would never end is not unrolled."""
    assert layout_stages(text) == stages


COUNTS = [
    ({"pipeline_model_parallel_layout": "Ett|t*5|t*5|ttttL"}, 16, 1, [[2, 5, 5, 4]]),
    (
        {"pipeline_model_parallel_layout": "Et|tt|tt|ttt|tt|tt|tttt|L"},
        16,
        1,
        [[1, 2, 2, 3], [2, 2, 4, 0]],
    ),
    ({"decoder_first_pipeline_num_layers": 4}, 16, 1, [[4, 4, 4, 4]]),
    ({"decoder_last_pipeline_num_layers": 1}, 16, 1, [[5, 5, 5, 1]]),
    (
        {"decoder_first_pipeline_num_layers": 2, "decoder_last_pipeline_num_layers": 6},
        16,
        2,
        [[1, 2, 2, 3], [1, 2, 2, 3]],
    ),
    (
        {
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
        14,
        2,
        [[1, 2, 2, 2], [2, 2, 2, 1]],
    ),
    ({"pipeline_model_parallel_layout": "E|t*8|t*8|L"}, 16, 1, [[0, 8, 8, 0]]),
    ({"account_for_loss_in_pipeline_split": True}, 3, 1, [[1, 1, 1, 0]]),
]


@pytest.mark.parametrize(("options", "layers", "chunks", "counts"), COUNTS)
def test_stages_share_all_layers(
    options: dict[str, Any], layers: int, chunks: int, counts: list[list[int]]
) -> None:
    """Chunk by chunk and stage by stage, each layer is on one stage."""
    run = made(layers, chunks=chunks, **options)
    ranges = [
        chunk_range(replace(run, stage=stage), chunk)
        for chunk in range(len(counts))
        for stage in range(4)
    ]
    assert [size for _, size in ranges] == [size for row in counts for size in row]
    assert [low for low, _ in ranges] == [
        sum(size for _, size in ranges[:index]) for index in range(len(ranges))
    ]
    assert sum(stage_layers(run)) == layers
    for stage in range(4):
        part = replace(run, stage=stage)
        assert sum(pipeline_stage(part).held) == sum(row[stage] for row in counts)
    total = sum(int(ENGINE.parameters(replace(run, stage=stage))) for stage in range(4))
    assert total == run.arch.num_parameters


EMPTY = [
    (3, 2, 1, {"account_for_embedding_in_pipeline_split": True}),
    (4, 3, 1, {"account_for_loss_in_pipeline_split": True}),
    (4, 16, 1, {"pipeline_model_parallel_layout": "E|t*16||L"}),
    (2, 16, 2, {"pipeline_model_parallel_layout": "E|t*8|t*8|L"}),
    (3, 16, 2, {"pipeline_model_parallel_layout": "E|t*8||t*8|L|"}),
]


@pytest.mark.parametrize(("pp", "layers", "chunks", "options"), EMPTY)
def test_a_stage_without_a_layer(
    pp: int, layers: int, chunks: int, options: dict[str, Any]
) -> None:
    """It has the embedding, the loss, or nothing; its replay is as high as its ledger."""
    parallelism = {"pipeline_parallel_size": pp, "virtual_pipeline_size": chunks}
    training = {"gradient_accumulation_steps": 2 * pp}
    data = small_run("megatron_lm", pp, training=training, parallelism=parallelism, engine=options)
    data["model"] = {**NUMBERS, "num_layers": layers}
    found = resolve(read(data).file)
    for stage in range(pp):
        ledger = found.engine.ledger(replace(found.run, stage=stage))
        replayed = replay_stage(found, stage, ledger)
        assert replayed is not None
        with_block_rounding(ledger, replayed)
        trained = 18 * int(ENGINE.parameters(replace(found.run, stage=stage)))  # bytes with AdamW
        if not stage_layers(found.run)[stage]:
            assert trained <= ledger.peak() <= trained + 128 * MIB  # cuBLAS has up to 100 MiB
    assert 0 in stage_layers(found.run) or chunks > 1


REFUSED = [
    ({"pipeline_model_parallel_layout": "Ett|tt"}, "must have E, then 16 t, then L"),
    ({"pipeline_model_parallel_layout": "Et*16|m|t|L"}, "an MTP layer (m), which is not modelled"),
    ({"pipeline_model_parallel_layout": "Ex|L"}, "other letters than E, t, L and |"),
    ({"pipeline_model_parallel_layout": "Et*8|t*8L"}, "has 2 stages, and"),
    (
        {"pipeline_model_parallel_layout": "Et*8|t*8L", "decoder_first_pipeline_num_layers": 2},
        "both set the layers of stages; leave one of them out",
    ),
    (
        {"decoder_first_pipeline_num_layers": 2},
        "a multiple of 3 other stages; try engine.decoder_first_pipeline_num_layers=1",
    ),
    (
        {"decoder_first_pipeline_num_layers": 16},
        "0 layers are left for 3 other stages; try engine.decoder_first_pipeline_num_layers=13",
    ),
    ({"account_for_loss_in_pipeline_split": True}, "17 layers, embedding and loss counted"),
    ({"pp": 1, "decoder_first_pipeline_num_layers": 2}, "pipeline_parallel_size above 1"),
    ({GROUP: 4}, "is for interleaved stages"),
    ({"chunks": 2, GROUP: 2}, "is less than parallelism.pipeline_parallel_size=4; try 4"),
    ({"chunks": 2, GROUP: 9}, "is more than training.gradient_accumulation_steps=8; try 8"),
    ({"chunks": 2, "batches": 10}, f"try 12, or engine.{GROUP}=5"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_refusals(settings: dict[str, Any], sentence: str) -> None:
    """One sentence with the value, the rule and a fix."""
    assert sentence in refused(**settings)


@pytest.mark.parametrize(("layers", "pp"), [(16, 4), (19, 4), (5, 2)])
def test_the_layout_that_is_suggested_works(layers: int, pp: int) -> None:
    """It is for the run's own layers and stages."""
    text = refused(layers=layers, pp=pp, pipeline_model_parallel_layout="Et|L")
    written = re.search(r"write it like '(.*)'", text)
    assert written
    run = made(layers=layers, pp=pp, pipeline_model_parallel_layout=written[1])
    assert sum(stage_layers(run)) == layers


@pytest.mark.parametrize(("first", "last"), [(2, None), (40, None), (3, 4), (None, 6)])
def test_the_number_of_layers_that_is_suggested_works(first: int | None, last: int | None) -> None:
    """Of the first stage, or of the last one."""
    keys = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    given = {key: count for key, count in zip(keys, (first, last), strict=True) if count}
    written = re.search(r"try engine\.(\w+)=(\d+)", refused(**given))
    assert written
    assert sum(stage_layers(made(**given | {written[1]: int(written[2])}))) == 16


@pytest.mark.parametrize(("batches", "chunks", "group"), [(8, 2, 4), (5, 2, 3), (14, 3, 5)])
def test_passes_of_a_chunk(batches: int, chunks: int, group: int) -> None:
    """As the schedule's table has them, with a smaller last group, too."""
    table = [chunk for chunk, _ in schedule(batches, chunks, group)]
    for count in range(len(table) + 1):
        for chunk in range(chunks):
            wanted = table[:count].count(chunk)
            assert chunk_passes(count, group, chunks, chunk, batches) == wanted


@pytest.mark.parametrize(
    ("pp", "batches", "chunks", "group"), [(4, 8, 2, 4), (2, 5, 3, 3), (4, 50, 3, 6), (4, 64, 1, 4)]
)
def test_moments_are_those_of_the_whole_schedule(
    pp: int, batches: int, chunks: int, group: int
) -> None:
    """Each with the passes begun before it less those whose backward has ended."""
    table = [chunk for chunk, _ in schedule(batches, chunks, group)]
    for stage in range(pp):
        flight = int(chunks_in_flight(pp, stage, batches, chunks, group))
        every = {
            (
                chunks - 1 - table[done],
                tuple(
                    table[: flight + done].count(c) - table[:done].count(chunks - 1 - c)
                    for c in range(chunks)
                ),
            )
            for done in range(len(table) - flight + 1)
        }
        assert set(walked_moments(flight, batches, chunks, group)) == every


def test_a_larger_group_waits_longer() -> None:
    """Each chunk but the last has `group` passes before the first backward."""
    assert [chunks_in_flight(4, s, 16, 2, 8) for s in range(4)] == [15, 13, 11, 9]
    assert chunks_in_flight(4, 0, 6, 2, 6) == 12  # no more than there are
    small, large = (
        ENGINE.ledger(made(chunks=2, batches=16, **{GROUP: group})).peak() for group in (4, 8)
    )
    assert large > small


def test_the_moments_of_unequal_chunks() -> None:
    """One for each chunk that runs backward with most passes alive."""
    run = made(pp=2, batches=4, pipeline_model_parallel_layout="Et*8|t*4||t*4L")
    assert StageMoment(0, (4, 1)) in stage_moments(run)
    layers = [(sum(stage.working), sum(stage.waiting)) for stage in pipeline_stages(run)]
    assert max(sum(pair) for pair in layers) == 4 * 8
    assert (8, 3 * 8) in layers


def test_a_loss_alone() -> None:
    """A stage whose last chunk has the loss alone is fullest when the other chunk runs: all its
    passes are of that one.
    """
    run = replace(made(pp=2, pipeline_model_parallel_layout="Et*4|t*6|t*6|L", batches=4), stage=1)
    assert stage_moments(run) == (StageMoment(0, (3, 0)), StageMoment(1, (2, 1)))
    other, with_loss = pipeline_stages(run)
    assert (other.loss, other.losses, sum(other.working), sum(other.waiting)) == (0, 0, 6, 12)
    assert (with_loss.loss, with_loss.losses, sum(with_loss.working)) == (1, 0, 0)
    assert "loss" not in {i.name for i in ENGINE.ledger(run).instants if i.present}


def test_losses_that_wait() -> None:
    """A smaller last group runs through its chunks before the group before it is done: several
    losses wait for their backward. Groups of one size have one loss at a time.
    """
    run = replace(made(chunks=2, batches=10, **{GROUP: 6}), stage=3)
    assert max(stage.losses for stage in pipeline_stages(run)) == 2
    name = "final norm, logits and loss: kept by micro-batches in flight"
    (entry,) = (e for e in ENGINE.ledger(run).entries if e.name == name)
    softmax = 4 * 1024 * int(run.seq)
    assert entry.bytes > softmax
    assert entry.at("loss") == 2 * entry.bytes
    assert stage_moments(replace(run, micro_batches=12)) == ()
    assert stage_moments(replace(run, stage=2)) == ()


def test_the_order_of_passes() -> None:
    """Two micro-batches a group: both go through a chunk before the next one begins."""
    assert schedule(3, 2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stream_has_every_pass(stage: int) -> None:
    """Each chunk runs forward and backward once for each micro-batch, the last one first; passes
    wait on the stage as its warm-up says.
    """
    run = replace(made(pp=2, chunks=2, batches=4), stage=stage, unrolled=True)
    marks = [title for _, title in allocation_stream(ENGINE.ledger(run), 4, 1).marks]
    flight = int(pipeline_stage(run).flight)
    order = [0, 1, 2, 3, 4, 5, 6, 7]
    back = [2, 3, 0, 1, 6, 7, 4, 5]
    assert [m for m in marks if "fwd" in m] == [f"s0.a{n}.fwd" for n in order]
    assert [m for m in marks if "bwd" in m] == [f"s0.a{n}.bwd" for n in back]
    assert marks.index("s0.a2.bwd") == 1 + flight


# Stage, chunks, micro-batches, group: tensors between four stages at the peak, beyond two for each
# pass in flight. Counted on a CPU in the schedule of megatron-core 0.19.2, with chunks that save
# one tensor.
SEEN = [
    (0, 2, 16, 4, 4),
    (1, 2, 16, 4, 4),
    (3, 2, 16, 4, 6),
    (0, 2, 16, 6, 6),
    (1, 2, 16, 6, 6),
    (3, 2, 16, 6, 8),
    (1, 2, 16, 8, 6),
    (3, 2, 16, 8, 10),
    (0, 3, 16, 4, 6),
    (1, 3, 16, 4, 6),
    (3, 3, 16, 4, 6),
    (0, 3, 16, 6, 8),
    (1, 3, 16, 6, 6),
    (3, 3, 16, 6, 8),
    (0, 2, 10, 6, 4),
    (3, 2, 10, 6, 8),
    (0, 2, 8, 8, 4),
    (1, 2, 8, 8, 4),
    (3, 2, 8, 8, 6),
    (3, 2, 6, 6, 4),
]


@pytest.mark.parametrize(("stage", "chunks", "batches", "group", "seen"), SEEN)
def test_tensors_between_stages(
    stage: int, chunks: int, batches: int, group: int, seen: int
) -> None:
    """Four that come and go; two of each idle chunk; those that came early."""
    run = made(layers=24, chunks=chunks, batches=batches, **{GROUP: group})
    run = replace(run, stage=stage)
    early = early_tensors(run, pipeline_stage(run))
    assert 4 + 2 * int(idle_chunks(run)) + int(early) == seen

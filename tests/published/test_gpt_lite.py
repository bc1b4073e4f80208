"""The GPT-lite article: DeepSpeed's estimates of its model, on 8 GPUs of one node.

The model is built here from its architecture alone (GPT-3 Small's sizes, 65 characters, one linear
each for a head's query, key and value). The article was written with DeepSpeed 0.10.3, whose ZeRO-2
formula without offload was 4P + 16P/N; today's gives 0.343 where it printed 0.484.
"""

from collections.abc import Iterator
from itertools import chain, count

import pytest

from gpu_mem_calculator.estimates.published.formulas import parameter_bytes
from gpu_mem_calculator.estimates.published.zero_tables import (
    estimate_zero2_model_states_mem_needs,
    estimate_zero2_model_states_mem_needs_all_live,
    estimate_zero3_model_states_mem_needs,
    estimate_zero3_model_states_mem_needs_all_live,
    model_to_params,
    zero2_bytes,
    zero2_table,
)

LAYERS, EMBED, HEADS, HEAD_SIZE, CONTEXT, VOCAB = 12, 768, 12, 64, 2048, 65
GPUS = 8
_addresses = count(start=4096, step=64)


class Parameter:
    """What a torch parameter shows: a size, and an address (0 on the meta device)."""

    def __init__(self, size: int, *, meta: bool = False) -> None:
        self.size = size
        self.address = 0 if meta else next(_addresses)

    def numel(self) -> int:
        """Number of elements."""
        return self.size

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.address


class Module:
    """What a torch module shows: its own parameters and the modules inside it."""

    def __init__(self, own: list[Parameter], children: "list[Module] | None" = None) -> None:
        self.own = own
        self.children = children or []

    def modules(self) -> "Iterator[Module]":
        """This module and all inside it."""
        yield self
        yield from chain.from_iterable(child.modules() for child in self.children)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Its parameters, with those of its submodules where `recurse` is set."""
        for module in self.modules() if recurse else [self]:
            yield from module.own


def _linear(inputs: int, outputs: int, bias: bool, meta: bool) -> Module:
    """A linear layer."""
    weight = [Parameter(inputs * outputs, meta=meta)]
    return Module(weight + [Parameter(outputs, meta=meta)] * bias)


def _norm(meta: bool) -> Module:
    """A layer norm with weight and bias."""
    return Module([Parameter(EMBED, meta=meta), Parameter(EMBED, meta=meta)])


def _block(meta: bool = False) -> Module:
    """One decoder block of GPT-lite."""
    heads = [_linear(EMBED, HEAD_SIZE, False, meta) for _ in range(3 * HEADS)]
    projection = _linear(HEADS * HEAD_SIZE, EMBED, True, meta)
    feed_forward = [_linear(EMBED, 4 * EMBED, True, meta), _linear(4 * EMBED, EMBED, True, meta)]
    return Module([], [*heads, projection, *feed_forward, _norm(meta), _norm(meta)])


def _gptlite(meta: bool = False) -> Module:
    """The whole model; the output layer is not tied to the embedding."""
    tokens = Module([Parameter(VOCAB * EMBED, meta=meta)])
    positions = Module([Parameter(CONTEXT * EMBED, meta=meta)])
    blocks = [_block(meta) for _ in range(LAYERS)]
    return Module([], [tokens, positions, *blocks, _norm(meta), _linear(EMBED, VOCAB, False, meta)])


def _stage() -> Module:
    """A pipeline stage of two blocks."""
    return Module([], [_block(), _block()])


def _gib(num_bytes: int) -> str:
    """Three decimals, as the article prints them."""
    return f"{num_bytes / 2**30:.3f}"


def test_gptlite_has_86_701_056_parameters() -> None:
    """The count and the largest layer (768 to 3072) follow from the architecture."""
    assert model_to_params(_gptlite()) == (86_701_056, 2_362_368)


def test_stage_of_two_blocks() -> None:
    """A pipeline stage has two blocks of 7,085,568 parameters."""
    assert model_to_params(_stage()) == (2 * 7_085_568, 2_362_368)


@pytest.mark.parametrize(
    ("model", "native", "offload", "no_offload"),
    [(_gptlite(), "0.323", "0.161", "0.484"), (_stage(), "0.053", "0.026", "0.079")],
    ids=["whole", "pipeline"],
)
def test_zero2_as_printed(model: Module, native: str, offload: str, no_offload: str) -> None:
    """The fp32 weights, ZeRO-2 with offload, and without it by the formula of the article's day."""
    params, _ = model_to_params(model)
    _, offloaded = estimate_zero2_model_states_mem_needs(params, GPUS, 1, cpu_offload=True)
    _, kept = zero2_bytes(params, GPUS, 1, cpu_offload=False, legacy=True)
    figures = (parameter_bytes(params, 32), offloaded, kept)
    assert tuple(map(_gib, figures)) == (native, offload, no_offload)


@pytest.mark.parametrize(
    ("model", "offload", "no_offload"),
    [(_gptlite(), "0.009", "0.190"), (_stage(), "0.009", "0.038")],
    ids=["whole", "pipeline"],
)
def test_zero3_as_printed(model: Module, offload: str, no_offload: str) -> None:
    """ZeRO-3 with everything offloaded is the largest layer; without, 18P/N come to it."""
    counts = model_to_params(model)
    _, offloaded, _ = estimate_zero3_model_states_mem_needs(*counts, GPUS, 1)
    _, kept, _ = estimate_zero3_model_states_mem_needs(
        *counts, GPUS, 1, cpu_offload=False, cpu_offload_params=False
    )
    assert (_gib(offloaded), _gib(kept)) == (offload, no_offload)


def test_zero2_without_offload_today() -> None:
    """Since DeepSpeed 0.14.3 the figure is 2P + 18P/N, 0.343 in place of 0.484."""
    _, kept = estimate_zero2_model_states_mem_needs(86_701_056, GPUS, 1, cpu_offload=False)
    assert _gib(kept) == "0.343"


def test_live_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """The two calls of the article print DeepSpeed's two tables for the model itself."""
    estimate_zero2_model_states_mem_needs_all_live(_gptlite(), num_gpus_per_node=8, num_nodes=1)
    estimate_zero3_model_states_mem_needs_all_live(_gptlite(), num_gpus_per_node=8, num_nodes=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "SW: Model with 86M total params."
    assert lines[4] == "    3.88GB |   0.16GB | offload_optimizer=cpu "
    assert lines[5] == "    3.88GB |   0.34GB | offload_optimizer=none"
    assert lines[8] == "SW: Model with 86M total params, 2M largest layer params."
    assert lines[-1].endswith("0.19GB | offload_param=none, offload_optimizer=none, zero_init=0")


def test_legacy_table_differs_in_one_row() -> None:
    """The older formula changes the GPU column without offload and nothing else."""
    today = zero2_table(86_701_056, GPUS).splitlines()
    before = zero2_table(86_701_056, GPUS, legacy=True).splitlines()
    assert today[:-1] == before[:-1]
    assert before[-1] == "    3.88GB |   0.48GB | offload_optimizer=none"


def test_meta_model_counts_every_parameter() -> None:
    """On the meta device, where every address is 0, the counts are the same."""
    assert model_to_params(_gptlite(meta=True)) == model_to_params(_gptlite())


@pytest.mark.parametrize("meta", [False, True], ids=["data", "meta"])
def test_shared_parameters_count_once(meta: bool) -> None:
    """An output layer tied to the embedding adds nothing, with data or without."""
    shared = Parameter(VOCAB * EMBED, meta=meta)
    other = Parameter(7, meta=meta)
    model = Module([], [Module([shared]), Module([other]), Module([shared])])
    assert model_to_params(model) == (VOCAB * EMBED + 7, VOCAB * EMBED)


def test_a_model_without_parameters() -> None:
    """An empty module has nothing, and no largest layer."""
    assert model_to_params(Module([])) == (0, 0)

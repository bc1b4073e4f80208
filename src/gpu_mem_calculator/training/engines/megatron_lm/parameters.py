"""The parameters of one rank as Megatron-Core makes them, tensor by tensor.

Sizes are plain ints, so this is for one run at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ....models.arch.arch import Layer
from ....models.arch.blocks import Weight
from ....run.run import Run
from ...step.chunks import chunk_layers
from .options import distributed
from .shards import (
    DENSE,
    embedding_shard,
    experts_apart,
    layer_parts,
    local_vocab,
    made_matrices,
    stepped_shares,
)


class MegatronParameter(Struct, frozen=True):
    """A parameter on one rank.

    elements: on this rank
    vector: a norm or bias, which the optimizer steps in another parameter group
    expert: an expert's weight, where another optimizer steps experts
    moved: torch.nn makes it on the host in fp32, and it is cast on the GPU
    chunk: the chunk of an interleaved stage that it belongs to
    """

    elements: int
    vector: bool = False
    expert: bool = False
    moved: bool = False
    chunk: int = 0


vector_parameter = partial(MegatronParameter, vector=True, moved=True)


def stage_tensors(run: Run) -> list[MegatronParameter]:
    """Every parameter of the run's stage, chunk by chunk in the model's order.

    models/gpt/gpt_model.py: embeddings, layers, final norm, output layer; a tied output
    layer on another stage than the embedding has its own table.
    """
    parameters: list[MegatronParameter] = []
    pp, at, chunks = int(run.mesh.pp), int(run.stage), int(run.virtual_stages)
    table = int(run.scaled(local_vocab(run) * run.arch.hidden))
    of_layer: dict[int, list[MegatronParameter]] = {}  # equal layers are one object
    for chunk in range(chunks):
        in_chunk: list[MegatronParameter] = []
        if at == chunk == 0:
            rest = int(embedding_shard(run).dense) - table
            in_chunk.append(MegatronParameter(table))
            in_chunk += [MegatronParameter(rest, moved=True)] * (rest > 0)
        for layer in chunk_layers(run, chunk):
            if id(layer) not in of_layer:
                of_layer[id(layer)] = list(layer_tensors(run, layer))
            in_chunk += of_layer[id(layer)]
        if at == pp - 1 and chunk == chunks - 1:
            vectors = (w for w in run.arch.after_weights() if len(w.dims) == 1)
            in_chunk += [vector_parameter(_vector_elements(run, w)) for w in vectors]
            in_chunk += [MegatronParameter(table)] * (not run.arch.tied or at > 0)
        parameters += [replace(tensor, chunk=chunk) for tensor in in_chunk]
    return parameters


def _vector_elements(run: Run, weight: Weight) -> int:
    """Elements of a norm's weight, or of the output layer's bias (of the padded vocabulary)."""
    name, _ = weight.dims[0]
    return int(run.scaled(local_vocab(run)) if name == "vocab" else weight.numel)


def layer_tensors(run: Run, layer: Layer) -> Iterator[MegatronParameter]:
    """The parameters of one layer: norms, attention with its output projection first, then the
    rest.
    """
    shard, inside = layer_parts(run, layer)
    attention, experts, rest = made_matrices(run, layer)
    dense = [int(run.scaled(size)) for _, size, _ in (*attention, *rest)]
    each = [(int(run.scaled(size)), shape[0]) for shape, size, _ in experts]
    dims = (w.dims for w in layer.weights() if len(w.dims) == 1)
    vectors = [int(run.scaled(DENSE.local_elements(one, run.mesh))) for one in dims]
    router = int(shard.dense) - sum(dense) - sum(vectors)
    yield from map(vector_parameter, vectors)
    yield from map(MegatronParameter, dense[: len(attention)])
    if router > 0:
        yield MegatronParameter(router)
    num_experts, apart = int(experts[0][2]) if experts else 0, bool(experts_apart(run))
    biased = int(inside.experts) > num_experts * sum(size for size, _ in each)
    for _ in range(num_experts):
        for size, outputs in each:
            yield MegatronParameter(size, expert=apart)
            if biased:  # one for each output (transformer/mlp.py linear_fc1, linear_fc2)
                yield MegatronParameter(int(run.scaled(outputs)), expert=apart)
    yield from map(MegatronParameter, dense[len(attention) :])


def stepped_parameters(run: Run) -> list[tuple[MegatronParameter, int]]:
    """The parameters that the rank's optimizers step, in their order, and the elements of each.

    Dense matrices, then vectors, then experts (optimizer/__init__.py _get_param_groups). The
    distributed optimizer steps the first rank's part of each buffer, in which a chunk's parameters
    are in reverse order (optimizer/distrib_optimizer.py:300-340).
    """
    parameters, split = stage_tensors(run), distributed(run)
    parts: list[tuple[MegatronParameter, int]] = []
    for expert in (False, True):
        before = end = 0
        for chunk in range(int(run.virtual_stages)):
            buffered = [t for t in parameters if t.chunk == chunk and t.expert == expert]
            before += sum(t.elements for t in buffered)
            shares = stepped_shares(run, before, before) if split else (before, before)
            begin, end = end, int(shares[expert])
            parts += _first(buffered[::-1] if split else buffered, end - begin)
    return sorted(parts, key=lambda part: (part[0].expert, part[0].vector))


def _first(tensors: list[MegatronParameter], left: int) -> Iterator[tuple[MegatronParameter, int]]:
    """The tensors that have the first `left` elements of some tensors, and how many of each."""
    for tensor in tensors:
        elements = min(tensor.elements, left)
        left -= elements
        if elements:
            yield tensor, elements

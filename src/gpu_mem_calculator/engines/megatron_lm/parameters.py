"""The parameters of one rank as Megatron-Core makes them, one tensor after the other.

Only for one run at a time: sizes are plain ints here.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...model.arch import Layer
from ...model.blocks import LatentAttention, Moe
from ...run.run import Run
from ...step.pipeline import chunk_layers
from .shards import DENSE, embedding_shard, layer_shard, local_vocab, matrices


class MegatronParameter(Struct, frozen=True):
    """A parameter: its elements, and how it is made and stepped.

    `moved`: torch.nn makes it on the host in fp32, and it is cast on the GPU. A `vector` is
    stepped in a group of its own, an expert's weight by an optimizer of its own. `chunk`: the part
    of an interleaved stage that it belongs to.
    """

    elements: int
    vector: bool = False
    expert: bool = False
    moved: bool = False
    chunk: int = 0


def stage_tensors(run: Run) -> list[MegatronParameter]:
    """Every parameter of the run's stage, chunk by chunk in the model's order.

    models/gpt/gpt_model.py: embeddings, layers, final norm, output layer; a tied one that is
    alone on its stage is a table of its own.
    """
    found: list[MegatronParameter] = []
    pp, at, chunks = int(run.mesh.pp), int(run.stage), int(run.virtual_stages)
    table = int(run.scaled(local_vocab(run) * run.arch.hidden))
    for chunk in range(chunks):
        made: list[MegatronParameter] = []
        if at == chunk == 0:
            rest = int(embedding_shard(run).dense) - table
            made += [MegatronParameter(table)] + [MegatronParameter(rest, moved=True)] * (rest > 0)
        for layer in chunk_layers(run, chunk):
            made += layer_tensors(run, layer)
        if at == pp - 1 and chunk == chunks - 1:
            made += [MegatronParameter(int(w.numel), vector=True, moved=True)
                     for w in run.arch.after_weights() if len(w.dims) == 1]  # fmt: skip
            made += [MegatronParameter(table)] * (not run.arch.tied or at > 0)
        found += [MegatronParameter(t.elements, t.vector, t.expert, t.moved, chunk) for t in made]
    return found


def layer_tensors(run: Run, layer: Layer) -> Iterator[MegatronParameter]:
    """One layer: its norms, attention with the projection back first, then the rest.

    transformer/attention.py makes the output projection in Attention.__init__, before the others.
    """
    mixer, shard = layer.mixer, layer_shard(run, layer)
    sizes = [(int(run.scaled(size)), int(count)) for _, size, count in matrices(run, layer)]
    count = len(mixer.query) + 3 if isinstance(mixer, LatentAttention) else 2
    vectors = [int(run.scaled(DENSE.local_elements(w.dims, run.mesh)))
               for w in layer.weights() if len(w.dims) == 1]  # fmt: skip
    experts = sizes[count : count + 2] if isinstance(layer.mlp, Moe) else []
    dense = [size for size, _ in sizes[:count] + sizes[count + len(experts) :]]
    router = int(shard.dense) - sum(dense) - sum(vectors)
    yield from (MegatronParameter(size, vector=True, moved=True) for size in vectors)
    for size in (dense[count - 1], *dense[: count - 1]):
        yield MegatronParameter(size)
    if router > 0:
        yield MegatronParameter(router)
    for _ in range(experts[0][1] if experts else 0):
        yield from (MegatronParameter(size, expert=True) for size, _ in experts)
    yield from (MegatronParameter(size) for size in dense[count:])


def stepped(run: Run, *, split: bool) -> list[tuple[MegatronParameter, int]]:
    """What the optimizers of the rank step, in their order: parameters, and elements of each.

    Dense matrices, then vectors, then experts (optimizer/__init__.py _get_param_groups). `split`:
    the distributed optimizer has the first rank's part of each buffer, in which a chunk's
    parameters lie from the last to the first (optimizer/distrib_optimizer.py:300-340).
    """
    made = stage_tensors(run)
    ranks = int(run.mesh.dp * run.mesh.cp)
    parts: list[tuple[MegatronParameter, int]] = []
    for expert in (False, True):
        repeat = int(run.mesh.ep) if expert else 1
        before = end = 0
        for chunk in range(int(run.virtual_stages)):
            own = [t for t in made if t.chunk == chunk and t.expert == expert]
            before += sum(t.elements for t in own)
            begin, end = end, -(-before * repeat // ranks) if split else before
            parts += _first(own[::-1] if split else own, end - begin)
    return sorted(parts, key=lambda part: (part[0].expert, part[0].vector))


def _first(tensors: list[MegatronParameter], left: int) -> Iterator[tuple[MegatronParameter, int]]:
    """The first elements of some tensors, so many of them."""
    for tensor in tensors:
        here = min(tensor.elements, left)
        left -= here
        if here:
            yield tensor, here

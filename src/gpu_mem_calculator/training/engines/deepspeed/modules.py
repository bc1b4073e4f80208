"""A model's modules in the order of their calls, and parameters in the order of registration.

Sizes are plain ints, so that equal models have equal modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from ....ledger.remember import remembered
from ....models.arch.blocks import Mlp, Moe, Norm, Weight

if TYPE_CHECKING:
    from ....models.arch.adapters import Adapter
    from ....models.arch.arch import Arch, Layer
    from ....run.run import Run

Module = tuple[int, ...]  # elements of the parameters that a module owns directly


def _grouped(weights: Iterable[Weight], adapter: Adapter | None = None) -> Iterator[Module]:
    """The weights of each module, in order, each module before its adapter's."""
    for _, group in groupby(weights, lambda weight: weight.name.rpartition(".")[0]):
        module = list(group)
        yield tuple(int(weight.numel) for weight in module)
        if adapter is not None:
            yield from ((size,) for weight in module for size in adapter_sizes(weight, adapter))


def _feed_forward(block: Mlp | Moe, adapter: Adapter | None) -> tuple[Module, ...]:
    """The modules of an MLP: itself, gate, activation, up, down (transformers: down(act(gate x) ·
    up x)).
    """
    modules = list(_grouped(block.weights(), adapter))
    if isinstance(block, Mlp):
        return ((), modules[0], (), *modules[1:])
    return ((), *modules)


@remembered(64, always=True)
def layer_modules(layer: Layer, adapter: Adapter | None = None) -> tuple[tuple[Module, ...], ...]:
    """The modules of one layer in the order of their forward calls, in groups.

    A group is a module and its submodules; the layer itself comes first. Modules without parameters
    are included: DeepSpeed prefetches at each of them.
    """
    if layer.modules:
        return layer.modules
    groups: list[tuple[Module, ...]] = [(tuple(int(w.numel) for w in layer.extra),)]

    def norm(where: str) -> None:
        groups.extend((module,) for module in _norm(layer.norm(where)))

    norm("pre")
    if layer.mixer is not None:
        groups.append(((), *_grouped(layer.mixer.weights(), adapter)))
    norm("post")
    norm("pre_mlp")
    if layer.mlp is not None:
        groups.append(_feed_forward(layer.mlp, adapter))
    norm("post_mlp")
    return tuple(groups)


@remembered(64, always=True)
def before_modules(arch: Arch) -> tuple[Module, ...]:
    """The modules called before the layers: the model, its base, embeddings, the rotary tables."""
    if arch.around:
        first, *rest = arch.around[0] or ((),)
        return (first, (), *rest)
    return ((), (), *_grouped(arch.embedding), *_norm(arch.embedding_norm), ())


def root_modules(before: tuple[Module, ...], head: int, *, tied: bool) -> tuple[Module, ...]:
    """The modules before the layers where the model's own forward reads the head's weight.

    A loss that takes the weight does: deepspeed 0.19.8 zero/parameter_offload.py:88 registers it as
    an external parameter of the module that runs, so from the second step on it is gathered with
    the model (zero/partitioned_param_coordinator.py:45), and stays while the model runs.
    """
    _, base, table, *rest = before
    return ((head,), base, table[1:] if tied else table, *rest)


def _norm(block: Norm | None) -> Iterator[Module]:
    if block is not None and block.affine:
        yield tuple(int(w.numel) for w in block.weights())


@remembered(64, always=True)
def after_modules(arch: Arch) -> tuple[Module, ...]:
    """The modules called after the layers: final norm, head. A tied head reads the embedding."""
    if arch.around:
        return arch.around[1] or ((),)
    return (*_norm(arch.final_norm), head_module(arch))


def head_module(arch: Arch) -> Module:
    """Elements of each parameter of the output projection."""
    own = arch.embedding[:1] if arch.head is None or arch.tied else arch.head.weights()
    return tuple(int(w.numel) for w in (*own, *arch.head_extra))


@remembered(64, always=True)
def layer_sizes(layer: Layer, adapter: Adapter | None = None) -> tuple[int, ...]:
    """Elements of each trainable parameter of a layer, in the order of registration."""
    if adapter is None:
        return tuple(int(w.numel) for w in layer.weights())
    return tuple(size for w in layer.weights() for size in adapter_sizes(w, adapter))


def adapter_sizes(weight: Weight, adapter: Adapter) -> tuple[int, ...]:
    """LoRA's A and B for one weight, and DoRA's magnitudes (PEFT 0.21.2 tuners/lora/layer.py)."""
    path = weight.name.split(".")
    if len(weight.dims) != 2 or len(path) < 2 or path[-2] not in adapter.targets:
        return ()
    rows, columns = (size for _, size in weight.dims)
    pair = (int(adapter.rank * columns), int(adapter.rank * rows))
    return (*pair, int(rows)) if adapter.dora else pair


@remembered(64, always=True)
def trainable_runs(
    arch: Arch, adapter: Adapter | None = None
) -> tuple[tuple[tuple[int, ...], int, int], ...]:
    """Trainable parameters in order: (sizes of one unit, first layer, units).

    What comes before and after the layers is one unit each, with the first layer -1 and -2; a
    vision tower comes first (transformers 5.17.0: `visual` or `vision_tower`, then
    `language_model`), and DeepSpeed flattens or shards all that requires a gradient
    (0.19.8 zero/stage_1_and_2.py:449, zero/stage3.py:972), whether it gets one or not.
    """
    stack = [(layer_sizes(layer, adapter), first, count) for layer, first, count in arch.runs]
    if adapter is not None:
        return tuple(stack)
    norm = arch.embedding_norm.weights() if arch.embedding_norm else ()
    before = tuple(int(w.numel) for w in (*arch.tower, *arch.embedding, *norm))
    after = tuple(int(w.numel) for w in arch.after_weights())
    return ((before, -1, 1), *stack, (after, -2, 1))


@remembered(64, always=True)
def size_counts(arch: Arch, adapter: Adapter | None = None) -> Mapping[int, int]:
    """The number of trainable parameters of each size, in elements."""
    counts: Counter[int] = Counter()
    for sizes, _, units in trainable_runs(arch, adapter):
        for size, times in Counter(sizes).items():
            counts[size] += times * units
    return counts


def tower_problems(run: Run, stage: int) -> Iterator[str]:
    """Runs in which a vision tower is not modelled: stages of a pipeline, and fp32 without ZeRO,
    where the optimizer skips parameters without a gradient.
    """
    tower = "model: the vision tower of this model is not modelled"
    if run.arch.tower and not (isinstance(run.mesh.pp, int) and run.mesh.pp == 1):
        yield f"{tower} in a DeepSpeed pipeline; try pipeline_parallel_size 1"
    if run.arch.tower and run.freeze_vision_tower:
        yield "training.freeze_vision_tower is not modelled under DeepSpeed; leave it out"
    if run.arch.tower and stage == 0 and run.precision == "fp32":
        yield f"{tower} at zero_stage 0 in fp32; try zero_stage 1, or engine pytorch_ddp"

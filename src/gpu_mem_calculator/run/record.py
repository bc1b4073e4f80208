"""The record of a user's module: what each of its parts allocates, keeps and frees.

Such a module has no architecture from which a walk could be derived. It is run once on fake
tensors, which take no memory; the record has the events of its layers, which engines use like those
of known models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert

from ..models.arch.arch import Arch, Buffer, Layer
from ..models.arch.blocks import Weight
from ..pytorch.autograd.events import BlockEvents

Shape = tuple[int, ...]
ModuleGroups = tuple[tuple[tuple[int, ...], ...], ...]
ARITHMETICS = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "bf16_autocast": "bf16 under autocast",
    "fp16_autocast": "fp16 under autocast",
    "bf16_weights": "bf16, buffers as they are",
    "fp16_weights": "fp16, buffers as they are",
}
"""The arithmetics of a record, in words."""


class RecordedPart(Struct, frozen=True, kw_only=True):
    """A layer, or what is before or after the layers.

    - `weights`: name and shape of each parameter.
    - `modules`: elements of the parameters that each module owns itself, in the order of the calls,
      in groups.
    - `script`: its events; `once`: events of a forward that keeps nothing.
    - `kept`: name and bytes of what forward keeps for backward.
    """

    kind: str
    weights: tuple[tuple[str, Shape], ...]
    modules: ModuleGroups
    script: BlockEvents
    once: BlockEvents
    kept: tuple[tuple[str, int], ...] = ()

    def named(self) -> tuple[Weight, ...]:
        """The part's parameters as weights, whose dims have no names."""
        return tuple(
            Weight(name, tuple(("", size) for size in shape) or (("", 1),))
            for name, shape in self.weights
        )


class ModuleRecord(Struct, frozen=True, kw_only=True):
    """A module run with one batch in one arithmetic.

    - `batch`: samples; `batch_bytes`: bytes of their tensors.
    - `tokens`, `width`: rows of one sample and columns of the tensor between layers.
    - `before`, `after`: what runs before and after the layers.
    - `layers`: the distinct layers; `order`: for each layer of the stack, its index in `layers`.
    - `prefix`: what the layers' names begin with.
    - `held`: made before the layers and alive until forward ends; `kept`: until its backward ends.
      Name and bytes each.
    - `buffers`; `frozen`: parameters that are not trained. Name, shape and bits each.
    - `unused`: trained parameters that get no gradient.
    - `biases`: threads that run matmuls with a bias.
    """

    title: str
    arithmetic: str  # a key of WORDS
    compute_capability: str
    batch: int
    batch_bytes: int
    tokens: int
    width: int
    before: RecordedPart
    layers: tuple[RecordedPart, ...]
    order: tuple[int, ...]
    after: RecordedPart
    prefix: str = ""
    buffers: tuple[tuple[str, Shape, int], ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    kept: tuple[tuple[str, int], ...] = ()
    frozen: tuple[tuple[str, Shape, int], ...] = ()
    unused: tuple[str, ...] = ()
    biases: int = 0


def arithmetic(engine: str, precision: str, options: Mapping[str, Any], autocast: bool) -> str:
    """A run's arithmetic, a key of `ARITHMETICS`: 16-bit weights, or fp32 under autocast.

    FSDP2 and DeepSpeed do not cast buffers (deepspeed 0.19.8 runtime/engine.py:2084), but a model
    created under zero.Init has 16-bit ones (zero/partition_parameters.py:253).
    """
    kind, _, mode = precision.partition("_")
    if autocast or (engine == "pytorch_ddp" and mode == "mixed"):
        return f"{kind}_autocast"
    return kind if mode != "mixed" or under_init(options) else f"{kind}_weights"


def under_init(options: Mapping[str, Any]) -> bool:
    """Whether a model is created under zero.Init, which also replaces torch's linear function with
    its own (deepspeed 0.19.8 zero/linear.py): biases are added after the matmul.
    """
    return options.get("zero_stage") == 3 and bool(options.get("zero_init", True))


def read_record(data: Mapping[str, Any]) -> ModuleRecord:
    """A record from JSON data; a RecordError says in a sentence what is wrong with it."""
    try:
        record = convert(data, ModuleRecord)
    except ValidationError as error:
        raise RecordError(f"model.recorded is not a module's record, {error}") from None
    if record.arithmetic not in ARITHMETICS or not record.order or not record.layers:
        raise RecordError(
            "model.recorded is not a module's record: it has no layers, or an "
            "arithmetic that is not known; record it again"
        )
    parts = (record.before, *record.layers, record.after)
    if not all(0 <= n < len(record.layers) for n in record.order) or not all(
        _is_valid(events, has_ends=part is not record.before)
        for part in parts
        for events in (part.script, part.once)
    ):
        raise RecordError(
            "model.recorded is not a module's record: it frees what it has not made; "
            "record it again"
        )
    return record


class RecordError(ValueError):
    """Data that is not a module's record."""


def _is_valid(block: BlockEvents, *, has_ends: bool) -> bool:
    """Whether all tensor numbers exist, and no tensor is allocated while it is alive or freed while
    it is not. `has_ends`: the block has an input and an output.
    """
    count = len(block.sizes)
    optional = (block.exit_grad, block.entry_grad, *(t for _, t in block.drops), *block.work)
    ends = (block.entry, block.exit) if has_ends else ()
    if not (all(-1 <= n < count for n in optional) and all(0 <= n < count for n in ends)):
        return False
    if not all(isinstance(n, int) and n >= 0 for n in block.sizes):
        return False
    alive = {block.entry, block.exit_grad}
    for event in (*block.forward, *block.backward):
        tensor = event if event >= 0 else ~event
        if tensor >= count or (tensor in alive) == (event >= 0):
            return False
        alive ^= {tensor}
    return True


def record_arch(record: ModuleRecord) -> Arch:
    """The architecture of a recorded module as engines need it: weights, modules, buffers."""
    layers = tuple(
        Layer(kind=part.kind, extra=part.named(), part=number, modules=part.modules)
        for number, part in enumerate(record.layers)
    )
    return Arch(
        family="module",
        hidden=record.width,
        vocab=1,
        max_seq_len=record.tokens,
        layers=tuple(layers[number] for number in record.order),
        layer_prefix=record.prefix,
        embedding=record.before.named(),
        head_extra=record.after.named(),
        buffers=tuple(
            Buffer(name, shape, bits) for name, shape, bits in (*record.buffers, *record.frozen)
        ),
        around=(_flat(record.before.modules), _flat(record.after.modules)),
    )


def _flat(groups: ModuleGroups) -> tuple[tuple[int, ...], ...]:
    return tuple(module for group in groups for module in group)

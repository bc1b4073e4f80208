"""A module's own record: what each of its parts makes, keeps and frees, as it was seen to run.

A model of one's own has no architecture that could be walked. It is run once on tensors that take
no memory; what its layers did is written down here as scripts, which engines play as they do those
of models that they know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert

from ..autograd.events import BlockEvents
from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Weight

Shape = tuple[int, ...]
Groups = tuple[tuple[tuple[int, ...], ...], ...]
WORDS = {
    "fp32": "fp32", "bf16": "bf16", "fp16": "fp16",
    "bf16_autocast": "bf16 under autocast", "fp16_autocast": "fp16 under autocast",
    "bf16_weights": "bf16, buffers as they are", "fp16_weights": "fp16, buffers as they are",
}  # fmt: skip
"""What a record may have been made in."""


class RecordedPart(Struct, frozen=True, kw_only=True):
    """A layer, or what stands before or behind them.

    `once` is a forward that keeps nothing. `kept` names what forward keeps for backward. `modules`:
    elements of the parameters that each module owns itself, in the order of their calls, in groups.
    """

    kind: str
    weights: tuple[tuple[str, Shape], ...]
    modules: Groups
    script: BlockEvents
    once: BlockEvents
    kept: tuple[tuple[str, int], ...] = ()

    def named(self) -> tuple[Weight, ...]:
        """Its parameters."""
        return tuple(Weight(name, tuple(("", size) for size in shape) or (("", 1),))
                     for name, shape in self.weights)  # fmt: skip


class ModuleRecord(Struct, frozen=True, kw_only=True):
    """A module, a batch and an arithmetic.

    `layers` are those that differ, `order` says which one stands where. `held` is made before the
    stack and named until forward is over, `kept` until its backward is. Frozen parameters are held
    as buffers are: `buffers` and `frozen` have a name, a shape and bits each.
    """

    title: str
    arithmetic: str  # a key of WORDS
    compute_capability: str
    batch: int
    batch_bytes: int
    tokens: int  # rows of what flows between layers, of one sample
    width: int  # and its columns
    before: RecordedPart
    layers: tuple[RecordedPart, ...]
    order: tuple[int, ...]
    after: RecordedPart
    prefix: str = ""  # what the layers' names begin with
    buffers: tuple[tuple[str, Shape, int], ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    kept: tuple[tuple[str, int], ...] = ()
    frozen: tuple[tuple[str, Shape, int], ...] = ()  # parameters that are not trained
    unused: tuple[str, ...] = ()  # trained ones that no gradient reaches
    biases: int = 0  # threads that multiply and add a bias in one


def arithmetic(engine: str, precision: str, options: Mapping[str, Any], autocast: bool) -> str:
    """In what a run's layers compute: 16-bit weights, or fp32 ones under autocast.

    FSDP2 and DeepSpeed leave buffers as they are (deepspeed 0.19.8 runtime/engine.py:2084), but
    what is made under zero.Init is made in 16 bits (zero/partition_parameters.py:253).
    """
    kind, _, how = precision.partition("_")
    if autocast or (engine == "pytorch_ddp" and how == "mixed"):
        return f"{kind}_autocast"
    return kind if how != "mixed" or under_init(options) else f"{kind}_weights"


def under_init(options: Mapping[str, Any]) -> bool:
    """Whether a model is made under zero.Init, which also puts its own linear function in the place
    of torch's (deepspeed 0.19.8 zero/linear.py): biases are added behind the matmul.
    """
    return options.get("zero_stage") == 3 and bool(options.get("zero_init", True))


def read_record(data: Mapping[str, Any]) -> ModuleRecord:
    """A record from JSON, or a ValueError that says in a sentence what it is not."""
    try:
        record = convert(data, ModuleRecord)
    except ValidationError as error:
        raise RecordError(f"model.recorded is not a module's record, {error}") from None
    if record.arithmetic not in WORDS or not record.order or not record.layers:
        raise RecordError("model.recorded is not a module's record: it has no layers, or an "
                          "arithmetic that is not known; record it again")  # fmt: skip
    parts = (record.before, *record.layers, record.after)
    if not all(0 <= n < len(record.layers) for n in record.order) or not all(
        sound(script, begins=part is not record.before)
        for part in parts
        for script in (part.script, part.once)
    ):
        raise RecordError("model.recorded is not a module's record: it frees what it has not made; "
                          "record it again")  # fmt: skip
    return record


class RecordError(ValueError):
    """A record that cannot be one."""


def sound(script: BlockEvents, *, begins: bool) -> bool:
    """Whether a script frees what it has made, once, and names nothing that is not there."""
    count = len(script.sizes)
    named = (script.exit_grad, script.entry_grad, *(t for _, t in script.drops), *script.work)
    ends = (script.entry, script.exit) if begins else ()
    events = (*script.forward, *script.backward)
    if not (all(-1 <= n < count for n in named) and all(0 <= n < count for n in ends)):
        return False
    if not all(isinstance(n, int) and n >= 0 for n in script.sizes):
        return False
    alive = {script.entry, script.exit_grad}
    for event in events:
        tensor = event if event >= 0 else ~event
        if tensor >= count or (tensor in alive) == (event >= 0):
            return False
        alive ^= {tensor}
    return True


def arch_of(record: ModuleRecord) -> Arch:
    """The architecture, as far as engines ask for it: parameters, modules, buffers."""
    kinds = tuple(
        Layer(kind=part.kind, extra=part.named(), part=number, modules=part.modules)
        for number, part in enumerate(record.layers)
    )
    return Arch(
        family="module", hidden=record.width, vocab=1, max_seq_len=record.tokens,
        layers=tuple(kinds[number] for number in record.order),
        layer_prefix=record.prefix,
        embedding=record.before.named(), head_extra=record.after.named(),
        buffers=tuple(Buffer(name, shape, bits)
                      for name, shape, bits in (*record.buffers, *record.frozen)),
        around=(_flat(record.before.modules), _flat(record.after.modules)),
    )  # fmt: skip


def _flat(groups: Groups) -> tuple[tuple[int, ...], ...]:
    return tuple(module for group in groups for module in group)

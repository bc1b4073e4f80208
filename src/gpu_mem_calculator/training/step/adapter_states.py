"""The weights of adapters, and how they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...ledger.ledger import PARAM, Entry
from ...ledger.num import Bytes, Num, sized
from ...ledger.source import code
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...run.run import Run
from .instants import Instants
from .states import parameter_entry, startups
from .weights import trained_shapes

CAST_CODE = code("trl 1.16.0 trainer/sft_trainer.py: param.data.to(torch.bfloat16), one by one")


def adapter_entries(
    run: Run, elements: Num, sizes: Sequence[Bytes], instants: Instants
) -> Iterator[Entry]:
    """The adapters' weights: `elements` in all, tensors of `sizes` bytes in an unrolled run."""
    assert run.adapter is not None
    bits, initial = run.adapter.bits, run.adapter.initial_bits
    total = sized(elements, bits)
    entry = parameter_entry("LoRA adapters", total, instants, tensors=lambda: sizes)
    entry = replace(entry, live={**dict.fromkeys(startups(run)[1:], 1), **entry.live})
    if initial and run.unrolled:
        yield replace(entry, script=_cast_events(sizes, bits, initial))
        return
    yield entry
    if initial:
        rows, columns = next(iter(trained_shapes(run)))
        first = sized(rows * columns, bits)
        yield Entry(
            name="LoRA adapters before they are cast, and the first one's copy",
            kind=PARAM,
            bytes=sized(elements, initial) - total + first,
            live={"startup.adapted": 1},
            source=CAST_CODE,
        )


def _cast_events(sizes: Sequence[Bytes], bits: int, initial: int) -> BlockEvents:
    """All adapters are made, then cast one by one."""
    recorder = EventRecorder()
    made = [recorder.weight(size * initial // bits) for size in sizes]
    cast = []
    for size, old in zip(sizes, made, strict=True):
        cast.append(recorder.weight(size))
        recorder.over((old,))
    return recorder.forward_only(cast)

"""The entries of weights and of cuBLAS workspaces, which stay alive during the whole generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...ledger.ledger import PARAM, RUNTIME, Entry
from ...ledger.num import EMPTY, Num, sized
from ...ledger.source import ARITHMETIC, code
from ...ledger.units import MIB
from ...models.arch.adapters import linears
from ...pytorch.replay.rounding import block_bytes
from ...run.cuda.chips import cublas_bytes
from ...run.run import Precision
from ...training.generation.case import GenerationCase
from ...training.generation.instants import MASKS, GenerationInstant
from ...training.step.loading import loading_events
from ...training.step.weights import base_bytes, base_tensors
from ...training.step.workspaces import WORKSPACES

BITSANDBYTES = code("bitsandbytes 0.50.2 nn/modules.py Params4bit, Int8Params")


def weight_entries(
    case: GenerationCase, instants: set[str], title: str = "", startup: str = "startup"
) -> Iterator[Entry]:
    """Parameters and buffers of one model, which are alive at `instants` and from `startup` on.

    Quantized parameters are packed while they are loaded. A tied head is allocated like any other,
    then tied: it is alive at `startup` only. `title` begins the names of the entries.
    """
    run, arch, bits = case.run, case.run.arch, case.how.weight_bits
    always: dict[str, Num] = dict.fromkeys((startup, *sorted(instants)), 1)
    precision = Precision(bits, bits)
    packed = run.quantization is not None
    yield Entry(
        f"{title}parameters",
        PARAM,
        base_bytes(run, precision),
        always,
        BITSANDBYTES if packed else ARITHMETIC,
        tensors=None if packed else lambda: list(base_tensors(run, precision)),
        script=loading_events(run, precision) if packed and run.unrolled else None,
    )
    buffers = [sized(block_bytes(b.num_bytes), 8) for b in arch.buffers]
    size, name = sum(buffers, EMPTY), f"{title}buffers"
    yield Entry(name, PARAM, size, always, ARITHMETIC, tensors=lambda: buffers)
    if arch.tied:
        yield Entry(
            f"{title}head before it is tied to the embedding",
            PARAM,
            sized(run.scaled(arch.vocab * arch.hidden), bits),
            {startup: 1},
            code("transformers 5.17.0 modeling_utils.py: lm_head is allocated, then tied"),
        )


def workspace_entries(case: GenerationCase, table: Iterable[GenerationInstant]) -> Iterator[Entry]:
    """The workspace of cuBLAS, one for the only thread, and that of cuBLASLt, which adds biases: 1
    MiB. Both are allocated at the first product and never freed.
    """
    run = case.run
    source = code("torch 2.11 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize")
    biases = any(one.bias for layer, _, _ in run.arch.runs for one in linears(layer))
    added = MIB * (biases and run.quantization != "int8")
    cublas = cublas_bytes(run.compute_capability)
    for name, size in ((WORKSPACES, cublas), ("cuBLASLt workspace", added)):
        if size:
            live: dict[str, Num] = {b.name: 1 for b in table if b.work != MASKS}
            yield Entry(name, RUNTIME, size, live, source)

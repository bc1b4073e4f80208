"""Start-up of a DDP rank: the model is built, adapters are added, DDP wraps it."""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.ledger import COMM, PARAM, Entry, Instant
from ....ledger.num import Bytes, holds, sized
from ....ledger.source import code
from ....run.phases import STARTUP
from ....run.run import COPY, PRECOMPUTED, Precision, Run
from ...step.broadcast import broadcast_bytes, broadcast_events
from ...step.states import STARTUP_REFERENCE
from ...step.weights import widened_elements
from .options import option


def startup_instants(run: Run) -> tuple[Instant, ...]:
    """The instants of start-up; DDP's own only where there are several ranks."""
    wrapped, copied = holds(run.mesh.dp > 1), int(run.reference in (COPY, PRECOMPUTED))
    rows = (
        ("startup", "model on the GPU", 1),
        ("startup.adapted", "adapters added", int(run.adapter is not None)),
        *(((STARTUP_REFERENCE, "reference model", copied),) if run.reference else ()),
        ("startup.sent", "parameters broadcast", wrapped),
        ("startup.wrapped", "wrapped by DDP", wrapped),
    )
    return tuple(
        Instant(name=name, phase=STARTUP, title=f"start-up: {words}", present=present)
        for name, words, present in rows
    )


def build_entries(run: Run, precision: Precision) -> Iterator[Entry]:
    """Bytes that are freed before the model is complete: an upcast weight, or an untied head."""
    loaded_wide = run.from_pretrained and precision.weights == 32
    arch = run.arch
    if run.quantization is not None and run.upcast_unquantized and not loaded_wide:
        name, size = "largest weight that is widened, in 16 bits", sized(arch.largest_weight, 16)
        where = "PEFT 0.21.2 utils/other.py prepare_model_for_kbit_training: data.to"
    elif run.upcast_at_startup and not run.unrolled:
        name = "embedding, head and norms, in fp32 until they are cast back"
        size = sized(widened_elements(run) + arch.largest_weight, 16)
        where = "Axolotl 067b021 loaders/model.py _configure_embedding_dtypes"
    elif arch.tied and option(run, "init_device") != "cpu" and not run.from_pretrained:
        name = "head before it is tied to the embedding"
        size = sized(run.scaled(arch.vocab * arch.hidden), precision.weights)
        where = "transformers 5.17.0 modeling_utils.py: lm_head is allocated, then tied"
    else:
        return
    yield Entry(name, PARAM, size, {"startup": 1}, code(where))


def broadcast_entry(run: Run, sizes: list[Bytes]) -> Entry:
    """Flat copies of parameters while rank 0 broadcasts them. `sizes`: bytes of each parameter."""
    if sizes and run.mesh.dp == 1:
        sizes = []  # no other rank, so nothing is sent
    size, live = broadcast_bytes(sizes) * holds(run.mesh.dp > 1), {"startup.sent": 1}
    script = broadcast_events(sizes) if sizes else None
    source = code("torch 2.11 csrc/distributed/c10d/comm.cpp broadcast_coalesced")
    return Entry("parameters sent to the other ranks", COMM, size, live, source, script=script)

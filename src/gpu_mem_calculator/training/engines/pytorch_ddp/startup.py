"""Start-up of a DDP rank: the model is built, adapters are added, DDP wraps it."""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.ledger import COMM, PARAM, Entry, Instant
from ....ledger.num import Bytes, holds, sized
from ....ledger.source import code
from ....run.phases import STARTUP
from ....run.run import Precision, Run
from ...step.broadcast import broadcast_bytes, broadcast_events
from ...step.reference import COPY, PRECOMPUTED
from ...step.states import STARTUP_REFERENCE
from ...step.weights import widened_elements


def startup_instants(run: Run) -> tuple[Instant, ...]:
    """The instants of start-up; DDP's own only where there are several ranks."""
    wrapped = holds(run.mesh.dp > 1)
    second = Instant(
        name=STARTUP_REFERENCE,
        phase=STARTUP,
        title="start-up: reference model",
        present=int(run.reference in (COPY, PRECOMPUTED)),
    )
    return (
        Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU"),
        Instant(
            name="startup.adapted",
            phase=STARTUP,
            title="start-up: adapters added",
            present=int(run.adapter is not None),
        ),
        *((second,) if run.reference else ()),
        Instant(
            name="startup.sent",
            phase=STARTUP,
            title="start-up: parameters broadcast",
            present=wrapped,
        ),
        Instant(
            name="startup.wrapped", phase=STARTUP, title="start-up: wrapped by DDP", present=wrapped
        ),
    )


def build_entries(run: Run, precision: Precision) -> Iterator[Entry]:
    """Bytes that are freed before the model is complete: an upcast weight, or an untied head."""
    loaded_wide = run.from_pretrained and precision.weights == 32
    if run.quantization is not None and run.upcast_unquantized and not loaded_wide:
        yield Entry(
            "largest weight that is widened, in 16 bits",
            PARAM,
            sized(run.arch.largest_weight, 16),
            {"startup": 1},
            code("PEFT 0.21.2 utils/other.py prepare_model_for_kbit_training: data.to"),
        )
    elif run.upcast_at_startup and not run.unrolled:
        yield Entry(
            "embedding, head and norms, in fp32 until they are cast back",
            PARAM,
            sized(widened_elements(run) + run.arch.largest_weight, 16),
            {"startup": 1},
            code("Axolotl 067b021 loaders/model.py _configure_embedding_dtypes"),
        )
    elif run.arch.tied and run.options.get("init_device") != "cpu" and not run.from_pretrained:
        yield Entry(
            "head before it is tied to the embedding",
            PARAM,
            sized(run.scaled(run.arch.vocab * run.arch.hidden), precision.weights),
            {"startup": 1},
            code("transformers 5.17.0 modeling_utils.py: lm_head is allocated, then tied"),
        )


def broadcast_entry(run: Run, sizes: list[Bytes]) -> Entry:
    """Flat copies of parameters while rank 0 broadcasts them. `sizes`: bytes of each parameter."""
    return Entry(
        "parameters sent to the other ranks",
        COMM,
        broadcast_bytes(sizes) * holds(run.mesh.dp > 1),
        {"startup.sent": 1},
        code("torch 2.11 csrc/distributed/c10d/comm.cpp broadcast_coalesced"),
        script=broadcast_events(sizes) if sizes else None,
    )

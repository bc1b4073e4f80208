"""What helps a run whose host had too little memory: changes that a node's estimate verifies."""

from __future__ import annotations

from collections.abc import Iterator

from ...estimates.calculator import Estimate, full_estimate
from ...estimates.fit_verdict import FITS
from ...ledger.units import GIB
from ...runfile.read import with_settings
from ...runfile.text.errors import InputError
from ...tools.read import Asked
from .diagnosis import Advice

# Changes of what a run holds on the host, the cheapest first.
CHANGES = {
    "no data-loader workers": ("training.data_workers=0",),
    "each rank saves its shard": ("training.saving=sharded",),
    "one rank of a node loads the weights": ("training.loading=first_rank",),
    "optimizer states stay on the GPU": ("engine.offload_optimizer=null",),
    "parameters and states stay on the GPU": (
        "engine.offload_optimizer=null",
        "engine.offload_param=null",
    ),
    "nothing is offloaded": ("engine.cpu_offload=null",),
}
SAVES = GIB  # bytes of a node from which on a change is told


def host_advice(asked: Asked, estimate: Estimate) -> Iterator[Advice]:
    """Changes with which a node of a training run takes less; then the RAM that it needs as it is.

    `fits` is that of the node, None where nobody says what it has.
    """
    node = estimate.result.host
    if node is None or estimate.serves:
        return
    from .own_words import changed_words

    for title, settings in CHANGES.items():
        try:
            after = full_estimate(with_settings(asked.run, settings), replay=False).result.host
        except InputError:
            continue
        if after is None or node.bytes_per_node - after.bytes_per_node < SAVES:
            continue
        fits = None if after.verdict is None else after.verdict == FITS
        command = changed_words(asked, settings) or " ".join(f"--set {one}" for one in settings)
        yield Advice(sentence=f"{title}: {after.words}", command=command, fits=fits)
    least = f"{-(-node.bytes_per_node // GIB):,} GiB"
    yield Advice(
        sentence=f"Give each node at least {least} of RAM, which the run takes by an estimate."
    )

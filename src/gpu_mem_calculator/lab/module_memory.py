"""What a module takes to train: `estimate_memory(model, batch, optimizer).fits("h100")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..estimates.fit_verdict import FITS, replay_verdict
from ..ledger.extras import install
from ..ledger.ledger import ACT, GRAD, OPTIM, PARAM
from ..ledger.shown import Shown
from ..ledger.units import gib
from ..runfile.resolve.resolve import resolve
from ..runfile.text.errors import InputError
from ..tools.read import read
from .jobs.function import STAND_IN

if TYPE_CHECKING:
    from ..runfile.resolve.resolved_run import ResolvedRun
    from .trace.run import RunTrace

CARD = "h100-80gb-sxm"  # that of the figures, where nobody names one


class MemoryEstimate(Shown):
    """What the steps of a module take, in bytes.

    - `allocated_bytes`: the most that tensors take at once, torch's max_memory_allocated
    - `reserved_bytes`: what torch reserves with enough memory; `needs_bytes`: the least that it
      must be given; `margin_bytes`: what must be added to be certain
    - `parameter_bytes`, `gradient_bytes`, `optimizer_bytes`, `activation_bytes`: at the peak
    - `peak_phase`: the phase that has it; `notes`: what was assumed

    All are those of the card `gpu`: torch's kernels and workspaces differ a little by card.
    """

    def __init__(self, gpu: str, record: Callable[[ResolvedRun], RunTrace]) -> None:
        self.gpu, self._record = gpu, record
        self._traces: dict[tuple[str, int], RunTrace] = {}
        trace = self.trace()
        peak = next(one for one in trace.ledger.instants if one.name == trace.peak_phase)
        parts = {kind: int(size) for kind, size in trace.ledger.parts(peak).items()}
        self.allocated_bytes, self.reserved_bytes = trace.allocated_bytes, trace.reserved_bytes
        self.needs_bytes, self.margin_bytes = trace.needs_bytes, trace.margin_bytes
        self.parameter_bytes, self.gradient_bytes = parts[PARAM], parts[GRAD]
        self.optimizer_bytes, self.activation_bytes = parts[OPTIM], parts[ACT]
        self.peak_phase, self.notes = peak.title, trace.notes

    def fits(self, device: str | Mapping[str, Any]) -> bool:
        """Whether it is certain to survive on a card: its name, or a `hardware` section."""
        return self.verdict(device) == FITS

    def verdict(self, device: str | Mapping[str, Any]) -> str:
        """`fits`, `does_not_fit`, or `cannot_tell` where it survives within the margin."""
        resolved = resolved_card(device)
        outside = sum(size for _, size, _ in resolved.outside_torch)
        return replay_verdict(self.trace(device), resolved.hardware.memory_bytes - outside)

    def trace(self, device: str | Mapping[str, Any] | None = None) -> RunTrace:
        """The trace on a card, by default that of the figures."""
        resolved = resolved_card(self.gpu if device is None else device)
        run = resolved.run
        key = (run.compute_capability, run.multiprocessors)
        if key not in self._traces:
            self._traces[key] = self._record(resolved)
        return self._traces[key]

    def __repr__(self) -> str:
        """The figures in one line."""
        needs = f"needs {gib(self.needs_bytes, 2)} GiB"
        return (
            f"MemoryEstimate(allocated {gib(self.allocated_bytes, 2)} GiB, {needs} on {self.gpu})"
        )


def estimate_memory(
    model: Any,
    sample_input: Any,
    optimizer: Any = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    gpu: str = CARD,
) -> MemoryEstimate:
    """What training a module takes: its own code runs for three steps on fake tensors.

    - model: a torch.nn.Module, on the CPU, a GPU or the meta device; it is not changed
    - sample_input: a tensor, or a tuple or dict of arguments
    - optimizer: an optimizer of torch, its class, or its name such as "adamw"; without one the
      model runs forward once, without gradients
    - loss: makes the loss of the output, where the model returns none
    - gpu: the card of the figures
    """
    try:
        from .module_step import trace_module
    except ModuleNotFoundError as error:
        fix = install("torch")
        raise InputError(
            f"estimate_memory needs {error.name}, which is not installed: {fix}"
        ) from None

    def record(resolved: ResolvedRun) -> RunTrace:
        return trace_module(model, sample_input, optimizer, loss, resolved)

    return MemoryEstimate(gpu, record)


def resolved_card(device: str | Mapping[str, Any]) -> ResolvedRun:
    """A run on one card; its model is never shown."""
    if not isinstance(device, str | Mapping):
        named = "give the name of a card, such as 'h100', or {'gpu_memory_gb': 24}"
        raise InputError(f"device={device!r} is no card: {named}")
    hardware = {"gpu": device} if isinstance(device, str) else dict(device)
    run = {"model": dict(STAND_IN), "hardware": {**hardware, "num_gpus": 1}}
    return resolve(read(run).file)

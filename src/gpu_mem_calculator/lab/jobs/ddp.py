"""DistributedDataParallel, also where the process group is fake."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from ...ledger.units import MIB
from .job import FAKE, Job

BROADCAST_BYTES = 250 * MIB  # DistributedDataParallel.broadcast_bucket_size


def wrap_ddp(job: Job, model: Any) -> Any:
    """The model in DistributedDataParallel; over a fake process group with hooks in its place."""
    import torch

    view = job.resolved.run.options["gradient_as_bucket_view"]
    wrap = torch.nn.parallel.DistributedDataParallel
    if job.world.process_group != FAKE:
        device = [torch.cuda.current_device()]
        return wrap(model, device_ids=device, gradient_as_bucket_view=view)
    broadcast_parameters(model)
    wrapped = wrap(model, init_sync=False, gradient_as_bucket_view=view)
    return send_to_nobody(wrapped, int(job.resolved.run.micro_batches))


def send_to_nobody(wrapped: Any, micro_batches: int = 1) -> Any:
    """A DDP module whose buckets no rank receives; they are kept as long as NCCL keeps them.

    `micro_batches`: of a step, of which each has a forward.
    """
    sent: list[list[Any]] = []  # the buckets of each micro-batch
    wrapped.register_comm_hook(None, _all_reduce_hook(sent))
    forwards = cycle(range(micro_batches))
    wrapped.register_forward_pre_hook(
        lambda *_: _before_forward(wrapped, sent, step_begins=next(forwards) == 0)
    )
    return wrapped


def _before_forward(wrapped: Any, sent: list[list[Any]], *, step_begins: bool) -> None:
    """Free the buckets sent before the last micro-batch, or in the last step; rebuild the buckets.

    NCCL's tensors are freed by the first collective after its watchdog has run, every 100 ms (torch
    2.11 ProcessGroupNCCL.cpp workEnqueue, shelvesToUnstash_), so usually not in the micro-batch
    that follows.
    """
    del sent[: len(sent) if step_begins else -1]
    _rebuild_in_backward_order(wrapped.reducer)


def _rebuild_in_backward_order(reducer: Any) -> None:
    """Rebuild the buckets in the order of the first backward, as DDP's forward would.

    Ranks agree on that order through a tensor of indices that they read: it must be a real one.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
    from torch.utils._pytree import tree_iter

    class RealIndices(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            tensors = [a for a in tree_iter(args) if isinstance(a, torch.Tensor)]
            if kwargs.get("dtype") == torch.int32 or any(
                not isinstance(t, FakeTensor) for t in tensors
            ):
                with _disable_current_modes():
                    return func(*args, **kwargs)
            return func(*args, **kwargs)

    if torch.is_grad_enabled():
        with RealIndices():
            reducer._rebuild_buckets()


def broadcast_parameters(model: Any) -> None:
    """DDP's first broadcast of every parameter, without its check of the other ranks' shapes, which
    a fake group cannot answer.
    """
    import torch.distributed as dist
    from torch.distributed.utils import _sync_module_states

    _sync_module_states(model, dist.group.WORLD, BROADCAST_BYTES, 0, set())


def _all_reduce_hook(sent: list[list[Any]]) -> Any:
    """A hook that replaces the all-reduce of a bucket; it adds the bucket to `sent`."""
    import torch
    import torch.distributed as dist

    def hook(state: Any, bucket: Any) -> Any:
        future: Any = torch.futures.Future()
        if bucket.index() == 0:
            sent.append([])
        sent[-1].append(bucket.buffer())
        future.set_result(bucket.buffer())
        return future

    # DDP checks these annotations, as types
    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return hook

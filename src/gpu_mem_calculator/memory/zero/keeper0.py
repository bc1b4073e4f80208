"""ZeRO 0, tensor by tensor: deepspeed 0.19.8 runtime/fp16/fused_optimizer.py, bf16_optimizer.py."""

from __future__ import annotations

from .keeper import Keeper
from .partition import padded, slice_elements
from .stage0 import REDUCE_ELEMENTS


class WholeKeeper(Keeper):
    """Gradients stay until the step; all ranks' are added up in flat copies (engine.py:3795)."""

    def epilogue(self) -> None:
        """Tensors go into a flat copy until 5e8 elements are passed; one alone needs none."""
        if not self.last or int(self.plan.ranks) == 1:
            return
        filled = count = 0
        for tensor in list(self.grads.values())[::-1]:
            filled, count = filled + self.to.size(tensor), count + 1
            if filled > REDUCE_ELEMENTS * self.plan.width:
                self.moment(filled if count > 1 else 0)
                filled = count = 0
        self.moment(filled if count > 1 else 0)


class FusedKeeper(WholeKeeper):
    """FP16_Optimizer around FusedAdam."""

    def startup(self) -> None:
        """Clones, the flat copy of them, masters, and a first step with zero gradients."""
        plan = self.plan
        width, count = plan.width, int(plan.trainable)
        self.model()
        self.make("clones", *(width * size for size in self.sizes))
        self.make("flat", width * count)
        self.free("clones", "model")
        self.make("clone", width * count)
        self.make("masters", 4 * count)
        self.free("clone")
        self.make("zeros", 4 * count)
        self.states(0, count)
        self.free("zeros")

    def step(self) -> None:
        """fp32 copies one by one, then flat; the gradients themselves go when both are there."""
        tower = () if self.plan.run.frozen else self.plan.run.arch.tower  # zeros: line 285
        sizes = [4 * int(weight.numel) for weight in tower]
        sizes += [2 * self.to.size(tensor) for tensor in list(self.grads.values())[::-1]]
        self.make("wide", *sizes)
        self.make("grad", sum(sizes))
        self.free("wide")
        self.to.free(self.in_order())
        self.update(sum(sizes) // 4)
        self.free("grad")


class PlainKeeper(WholeKeeper):
    """fp32: the optimizer steps on the weights themselves."""

    def step(self) -> None:
        """States parameter by parameter, then the gradients go."""
        for number, size in enumerate(self.sizes):
            self.states(number, size)
        self.update(int(self.plan.trainable))
        super().step()


class PipelineKeeper(WholeKeeper):
    """BF16_Optimizer under a pipeline: masters and states spread over dp, whole gradients."""

    def startup(self) -> None:
        """The flat copy, masters, and a gradient buffer of the whole stage."""
        plan = self.plan
        whole = int(padded(plan.trainable, plan.ranks))
        local = int(slice_elements(plan.trainable, plan.ranks))
        self.model()
        self.make("flat", plan.width * whole)
        self.free("model")
        self.make("clone", plan.width * local)
        self.make("masters", 4 * local)
        self.free("clone")
        self.make("buffer", plan.width * whole)

    def step(self) -> None:
        """fp32 gradients of the slice."""
        local = int(slice_elements(self.plan.trainable, self.plan.ranks))
        self.to.free(self.in_order())
        self.make("grad", 4 * local)
        self.states(0, local)
        self.update(local)
        self.free("grad")

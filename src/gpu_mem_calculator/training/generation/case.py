"""One model of a generation: its passes and their instants, of a server or of a policy that is
trained.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.run import Run
from .decode_steps import CacheMode, DecodeStep, LayerKinds, Passes
from .instants import GenerationInstant, GenerationInstants
from .token_choice import TokenChoice


class GenerationCase(Struct, frozen=True, kw_only=True, dict=True):
    """One model of a generation.

    - `how`: how its blocks run; `manner`: how it caches.
    - `found`: its kinds of layers; `passes`: for each kind, its passes by name.
    - `table`: the instants in order.
    - `choice`: how a token is chosen.
    """

    run: Run
    how: BlockSetting
    manner: CacheMode
    found: LayerKinds
    passes: Passes
    table: GenerationInstants
    choice: TokenChoice

    def step(self, instant: GenerationInstant) -> DecodeStep:
        """The pass of an instant, for the kind of layer that runs."""
        return self.passes[max(instant.kind, 0)][instant.step]

    def at(self, step: DecodeStep) -> BlockSetting:
        """How blocks run in one pass."""
        decodes = type(step.seq) is int and step.seq == 1 and step.stored is not None
        return replace(self.how, seq=step.seq, past=step.past, decoding=decodes)

    def in_pass(self, name: str) -> list[GenerationInstant]:
        """The instants of one pass."""
        return [i for i in self.table if i.step == name]

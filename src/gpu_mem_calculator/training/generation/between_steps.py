"""A program's own call of `generate` between two steps of training.

The model is the one that is trained: transformers generates as it does alone, and Accelerate's
autocast, which is around its forward, casts weights in every pass. What is alive between two steps
is alive here; a cache that is off makes each pass one over the whole sequence, of which only the
last token's logits are computed.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.ledger import ACT, Entry, Instant, Ledger
from ...ledger.num import Bytes, sized
from ...ledger.source import code
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.phases import GENERATING
from ...run.rollout import Rollout
from ...run.run import Run
from ..step.between_steps import outliving
from .rollout import rollout_case, rollout_ledger
from .token_choice import GREEDY

SOURCE = code("transformers 5.17.0 generation/utils.py _sample; accelerate 1.15.0 accelerator.py")
TEXT = Instant(
    name=GENERATING, phase=GENERATING, title="generation between steps", where=GENERATING
)
PIECES = 64  # tensors that stand for it in a replay


def with_generating(run: Run, setting: BlockSetting, ledger: Ledger) -> Ledger:
    """The ledger of a step with a generation after it. `setting`: how the step runs blocks."""
    found = run.generates
    if found is None:
        return ledger
    prompt, new = found.prompt, found.new_tokens
    if not found.use_cache:
        prompt, new = prompt + new - 1, 1
    rollout = Rollout(sequences=found.batch, prompt=prompt, new_tokens=new)
    case = rollout_case(replace(run, unrolled=False), rollout, replace(setting, use_cache=False))
    case = replace(case, choice=replace(case.choice, how=GREEDY))
    peak = sized(rollout_ledger(case).peak(), 8)

    def tensors() -> list[Bytes]:
        return [sized(peak // PIECES, 8)] * (PIECES - 1) + [peak - peak // PIECES * (PIECES - 1)]

    live = {TEXT.name: 1}
    own = Entry("generation between steps", ACT, peak, live, SOURCE, tensors=tensors)
    kept = outliving(ledger, [TEXT.name])
    return replace(ledger, instants=(*ledger.instants, TEXT), entries=(*kept, own))

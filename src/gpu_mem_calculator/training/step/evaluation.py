"""The evaluation after a step (transformers 5.17.0 trainer.py evaluation_loop).

Each batch runs forward without gradients. Where metrics need logits, all ranks' logits of a batch
are gathered and concatenated to those of the batches before, until they are moved to the host. The
loop's variable keeps a batch's own logits while the next batch runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.ledger import ACT, Entry, Instant, Ledger
from ...ledger.num import Bytes, Num, sized
from ...ledger.source import code
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.evaluation import Evaluation
from ...run.phases import EVALUATION
from ...run.run import Run
from ..losses import DEFAULT, LOSSES, TRANSFORMERS
from .between_steps import outliving
from .layer_groups import layer_groups
from .reference import most_bytes, no_grad_forward

FORWARD_CODE = code("transformers 5.17.0 trainer.py prediction_step: under torch.no_grad")
KEPT_CODE = code(
    "transformers 5.17.0 trainer.py evaluation_loop, trainer_pt_utils.py EvalLoopContainer: "
    "torch.cat of all batches; accelerate 1.15.0 operations.py: fp32 outputs, gathered"
)
RUNS = Instant(name=EVALUATION, phase=EVALUATION, title="evaluation", where=EVALUATION)
JOINS = Instant(
    name="evaluation.logits", phase=EVALUATION, title="evaluation: logits of all batches"
)


def with_evaluation(run: Run, setting: BlockSetting, found: Evaluation, ledger: Ledger) -> Ledger:
    """The ledger of a step with the evaluation after it. `setting`: how the step runs blocks."""
    events = _forward(run, found, setting)
    size = logits_bytes(run, found, setting)
    own = tuple(_entries(run, found, events, size))
    instants = (RUNS, JOINS) if found.kept and not run.unrolled else (RUNS,)
    names = [one.name for one in instants]
    kept = outliving(ledger, names)
    return replace(ledger, instants=(*ledger.instants, *instants), entries=(*kept, *own))


def _forward(run: Run, found: Evaluation, setting: BlockSetting) -> BlockEvents:
    """The events of one batch's forward. Where logits are kept, a loss that computes them from the
    weight is not used (prediction_step: skip_logits).
    """
    loss = setting.loss
    if found.kept and loss is not None and loss.reads == "weight":
        loss = LOSSES[DEFAULT].kernels[TRANSFORMERS]
    how = replace(setting, batch=found.batch, seq=found.seq, labelled=None, loss=loss)
    alone = replace(run, batch=found.batch, seq=found.seq)
    return no_grad_forward(alone, how, layer_groups(alone, 0, len(run.arch.layers)))


def logits_bytes(run: Run, found: Evaluation, setting: BlockSetting) -> Bytes:
    """Bytes of one batch's logits of all ranks; accelerate casts a mixed model's to fp32."""
    bits = 32 if setting.autocast else setting.bits
    return sized(found.batch * found.seq * run.arch.vocab * run.mesh.dp, bits)


def _entries(run: Run, found: Evaluation, events: BlockEvents, size: Bytes) -> Iterator[Entry]:
    if run.unrolled:
        whole = _whole(events, size, found.kept)
        bytes_ = most_bytes(whole)
        yield Entry("evaluation", ACT, bytes_, {RUNS.name: 1}, FORWARD_CODE, script=whole)
        return
    peak = most_bytes(events)
    yield Entry("evaluation: forward", ACT, peak, {RUNS.name: 1}, FORWARD_CODE)
    if found.kept:
        live: dict[str, Num] = {RUNS.name: waiting(found.kept), JOINS.name: joined(found.kept)}
        yield Entry("evaluation: logits of one batch", ACT, size, live, KEPT_CODE)


def waiting(batches: int) -> int:
    """Copies of a batch's logits while the last batch runs: those of the batches before, and the
    last but one's own, which a variable names. The first batch's own are not a copy.
    """
    return batches - 1 + (batches > 2)


def joined(batches: int) -> int:
    """Copies while the last batch's logits are concatenated: old, new, and the result."""
    return 2 * batches if batches > 1 else 1


def _whole(forward: BlockEvents, size: Bytes, kept: int) -> BlockEvents:
    """The events of a whole evaluation: without kept logits one batch, since all are alike."""
    recorder = EventRecorder()
    joined_logits = own = -1
    for batch in range(max(kept, 1)):
        ids = [recorder.number(one) for one in forward.sizes]
        recorder.events += [ids[e] if e >= 0 else ~ids[~e] for e in forward.forward]
        if not kept:
            break
        new = recorder.weight(size)
        if own >= 0:
            recorder.events.append(~own)
        if batch == 0:
            joined_logits, own = new, -1
            continue
        result = recorder.weight(size * (batch + 1))
        recorder.events.append(~joined_logits)
        joined_logits, own = result, new
    recorder.events += [~tensor for tensor in (own, joined_logits) if tensor >= 0]
    return recorder.forward_only(())

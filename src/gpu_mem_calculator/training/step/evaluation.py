"""The evaluation after a step (transformers 5.17.0 trainer.py evaluation_loop).

Each batch runs forward without gradients, on weights that the engine gathers as in a step's
forward. Where metrics need logits, all ranks' logits of a batch are gathered and concatenated to
those of the batches before, until they are moved to the host. The loop's variable keeps a batch's
own logits while the next batch runs.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ...ledger.ledger import ACT, COMM, CPU, GPU, PARAM, Entry, Instant, Ledger
from ...ledger.num import Bytes, Num, larger, sized, smaller
from ...ledger.source import code
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.evaluation import Evaluation
from ...run.phases import EVALUATION, FORWARD
from ...run.run import Run
from ..losses import DEFAULT, LOSSES, TRANSFORMERS
from .between_steps import outliving, resting
from .layer_groups import layer_groups
from .reference import Whole, most_bytes, no_grad_forward

FORWARD_CODE = code("transformers 5.17.0 trainer.py prediction_step: under torch.no_grad")
KEPT_CODE = code(
    "transformers 5.17.0 trainer.py evaluation_loop, trainer_pt_utils.py EvalLoopContainer: "
    "torch.cat of all batches; accelerate 1.15.0 operations.py: fp32 outputs, gathered"
)
HOST_CODE = code(
    "transformers 5.17.0 trainer_pt_utils.py EvalLoopContainer.to_cpu_and_numpy: nested_numpify, "
    "nested_concat"
)
MOST_WALKED, MOST_SUMMED = 256, 2  # batches at the end of an evaluation, in a replay and in a sum
RUNS = Instant(name=EVALUATION, phase=EVALUATION, title="evaluation", where=EVALUATION)


def with_evaluation(
    run: Run, setting: BlockSetting, ledger: Ledger, make: Callable[[Run], Ledger]
) -> Ledger:
    """The ledger of a step with the evaluation after it.

    - setting: how the step runs blocks
    - make: the ledger of a run with this engine
    """
    found = run.evaluation
    if found is None:
        return ledger
    rolled = make(replace(run, unrolled=False, evaluation=None, saving=False))
    shares = gathered(rolled)
    events = last = _forward(run, found, setting, shares)
    if found.kept and found.last != found.batch:
        last = _forward(run, replace(found, batch=found.last), setting, shares)
    whole = _whole(events, last, run, found, setting)
    peak, most = most_bytes(events), most_bytes(whole)
    if run.unrolled:
        own = [Entry(EVALUATION, ACT, most, {RUNS.name: 1}, FORWARD_CODE, script=whole)]
    else:
        own = [Entry("evaluation: forward", ACT, peak, {RUNS.name: 1}, FORWARD_CODE)]
    if found.kept and not run.unrolled:
        own.append(Entry("evaluation: logits", ACT, most - peak, {RUNS.name: 1}, KEPT_CODE))
    if found.kept:
        own.append(_on_host(run, found, setting))
    kept = outliving(ledger, [RUNS.name])
    return replace(ledger, instants=(*ledger.instants, RUNS), entries=(*kept, *own))


def _on_host(run: Run, found: Evaluation, setting: BlockSetting) -> Entry:
    """What each rank's host has of the kept logits: numpy arrays, which have no bf16, so that it is
    cast there; what comes later is concatenated to it.
    """
    each = found.seq * run.mesh.dp * (1 if found.tokens else run.arch.vocab)
    copies = 1 if found.rows <= found.batch * found.kept else 2
    size = sized(found.rows * each * copies, 64 if found.tokens else 32)
    if setting.bits == 16 and not setting.half and not setting.autocast and not found.tokens:
        size = size + sized(smaller(found.rows, found.batch * found.kept) * each, 16)
    return Entry("evaluation: arrays", ACT, size, {RUNS.name: 1}, HOST_CODE, place=CPU)


def gathered(ledger: Ledger) -> Whole:
    """Bytes of whole parameters that an engine gathers in forward, those beside what is alive
    between steps: the most that is alive at layers, and at the loss.
    """
    rest = resting(ledger)
    most: dict[bool, Num] = {True: 0, False: 0}
    entries = [e for e in ledger.entries if e.place == GPU and e.kind in (PARAM, COMM)]
    for one in ledger.instants:
        if one.phase == FORWARD and not one.step and not one.micro_batch:
            more = sum(e.at(one.name) - e.at(rest) for e in entries)
            of_head = one.where == "loss"
            most[of_head] = larger(most[of_head], more)
    return Whole(sized(most[False], 8), sized(most[True], 8))


def _forward(run: Run, found: Evaluation, setting: BlockSetting, whole: Whole) -> BlockEvents:
    """The events of one batch's forward. Where logits are kept, a loss that computes them from the
    weight is not used (prediction_step: skip_logits).
    """
    loss = setting.loss
    if found.kept and loss is not None and loss.reads == "weight":
        loss = LOSSES[DEFAULT].kernels[TRANSFORMERS]
    labelled = setting.labelled if found.seq == run.seq else None
    how = replace(setting, batch=found.batch, seq=found.seq, labelled=labelled, loss=loss)
    alone = replace(run, batch=found.batch, seq=found.seq)
    return no_grad_forward(alone, how, layer_groups(alone, 0, len(run.arch.layers)), whole)


def logits_bytes(run: Run, found: Evaluation, setting: BlockSetting) -> Bytes:
    """Bytes of one sequence's logits on all ranks; accelerate casts a mixed model's to fp32.
    `tokens`: predicted tokens alone are kept.
    """
    if found.tokens:
        return sized(found.seq * run.mesh.dp, 64)
    return sized(found.seq * run.arch.vocab * run.mesh.dp, 32 if setting.autocast else setting.bits)


def _whole(
    usual: BlockEvents, last: BlockEvents, run: Run, found: Evaluation, setting: BlockSetting
) -> BlockEvents:
    """The events of a whole evaluation: without kept logits one batch, since all are alike.
    Of many batches the last ones are walked, where most is kept; before them stands their sum.
    `usual`, `last`: the forward of a batch, and of the last one, which may have fewer sequences.
    """
    size = logits_bytes(run, found, setting)
    recorder = EventRecorder()
    first = max(found.kept - (MOST_WALKED if run.unrolled else MOST_SUMMED), 0)
    rows: Num = first * found.batch
    joined = recorder.weight(size * rows) if first else -1
    own = recorder.weight(size * found.batch) if first > 1 else -1
    for batch in range(first, max(found.kept, 1)):
        forward = last if batch == found.kept - 1 else usual
        ids = [recorder.number(one) for one in forward.sizes]
        recorder.events += [ids[e] if e >= 0 else ~ids[~e] for e in forward.forward]
        if not found.kept:
            break
        count = found.last if batch == found.kept - 1 else found.batch
        new, rows = recorder.weight(size * count), rows + count
        if own >= 0:
            recorder.events.append(~own)
        if batch == 0:
            joined, own = new, -1
            continue
        result = recorder.weight(size * rows)
        recorder.events.append(~joined)
        joined, own = result, new
    recorder.events += [~tensor for tensor in (own, joined) if tensor >= 0]
    return recorder.forward_only(())

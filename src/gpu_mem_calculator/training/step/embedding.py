"""The embedding's backward: its events, and its entries where they are not replayed."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import ACT, GRAD, HEAD_GRADIENT, TEMP, TIED, Entry
from ...ledger.num import EMPTY, choose, holds, larger, nothing, sized
from ...ledger.source import code
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...pytorch.autograd.reductions import embedding_sort_tensors, embedding_sort_workspace
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.phases import BACKWARD
from ...run.run import Run
from .instants import Instants
from .weights import embedding_tensors


def embedding_events(run: Run, setting: BlockSetting) -> BlockEvents:
    """Events of the embedding's backward, the tensors that `embedding_entries` counts: the gradient
    before dropout or a scale; of learnt positions, summed over the batch; of the table.
    """
    recorder = EventRecorder()
    row = sized(run.seq * setting.hidden, setting.bits)
    exit_grad = recorder.number(row * run.batch)
    normed = run.arch.embedding_norm is not None
    remade = normed or run.arch.embedding_dropout or setting.quirks.scaled_embedding
    undropped = recorder.work((row * run.batch,) if remade else ())
    if undropped:
        recorder.free(exit_grad)
    grads: list[int] = []
    several = holds(run.batch > 1)
    for elements in embedding_tensors(run)[:0:-1]:
        alone = normed or nothing(several)
        summed = recorder.work(() if alone else (choose(several, row, 0 * row),))
        grads.insert(0, recorder.weight(sized(elements, setting.weight_bits)))
        recorder.over(summed)
    if setting.compiled:
        last = undropped[0] if undropped else exit_grad
        from .compiled import table_backward

        head_grad, grad = table_backward(recorder, run, setting, last)
        return recorder.table_backward(head_grad, exit_grad, [grad, *grads])
    grads.insert(0, recorder.weight(sized(embedding_tensors(run)[0], setting.weight_bits)))
    sorting = embedding_sort_tensors(run.batch * run.seq, run.arch.vocab, setting.hidden)
    recorder.over(recorder.work(sorting))
    if undropped:
        recorder.over(undropped)
    else:
        recorder.free(exit_grad)
    head_grad = -1
    if run.arch.tied:
        table = recorder.sizes[grads[0]]
        head_grad, table_grad = recorder.number(table), grads[0]
        if _summed_anew(setting):
            grads[0] = recorder.weight(table)
            recorder.over((head_grad, table_grad))
        else:
            grads[0] = head_grad
            recorder.over((table_grad,))
    return recorder.table_backward(head_grad, exit_grad, grads)


def _summed_anew(setting: BlockSetting) -> bool:
    """Whether the sum of a tied table's two gradients is a new tensor: the head's is a transposed
    view, unless it was cast, or a loss that reads the weight made it.
    """
    made = setting.loss is not None and setting.loss.reads == "weight"
    return setting.weight_bits == setting.matmul_bits and not made


def embedding_entries(
    run: Run, setting: BlockSetting, instants: Instants, *, fresh: bool
) -> Iterator[Entry]:
    """Backward of the embedding: its output's gradient, and a gradient of the whole table.

    A table that is tied to the head has two gradients: the head's waits in autograd's buffer,
    and their sum is a new tensor, because the head's is a transposed view (input_buffer.cpp
    can_accumulate_inplace). Where autocast has cast the table, the head's is cast back to a tensor
    into which the sum is written. `fresh`: the engine gives each micro-batch new gradients, so none
    of an earlier one is there.
    """
    if run.frozen and run.unrolled:  # the first layer's events have its gradient, if any
        return
    source = code("torch 2.11 embedding_dense_backward: a dense gradient of the table")
    live = {i.name: 1 for i in instants if i.work == "embedding"}
    grad = sized(run.batch * run.seq * setting.hidden, setting.bits)
    yield Entry("embedding: gradient of its output", ACT, grad, live, source)
    if run.frozen:
        return
    size = sized(run.arch.embedding_parameters, setting.weight_bits)
    yield Entry(
        name="embedding: gradient being computed",
        kind=GRAD,
        bytes=size,
        live=live,
        source=source,
        tensors=lambda: [sized(n, setting.weight_bits) for n in embedding_tensors(run)],
    )
    work = embedding_sort_workspace(run.batch * run.seq, run.arch.vocab, setting.hidden)
    if setting.compiled:
        from .compiled import table_temporaries

        work = table_temporaries(run, setting, grad)
    if not nothing(work):
        yield Entry(
            name="embedding: sorted ids and partial sums",
            kind=TEMP,
            bytes=work,
            live=live,
            source=code("torch 2.11 aten/src/ATen/native/cuda/Embedding.cu"),
        )
    buffer = code("torch 2.11 csrc/autograd/input_buffer.cpp: summed out of place")
    table = sized(run.arch.embedding[0].numel, setting.weight_bits)
    if run.arch.tied and _summed_anew(setting) and not setting.compiled:
        yield Entry(
            name="embedding: its gradient and the head's, added",
            kind=GRAD,
            bytes=larger(table - grad - work, EMPTY),
            live=live,
            source=buffer,
            role=TIED,
        )
    if run.arch.tied and not fresh:
        from .compiled import waiting_bytes

        views = bool(run.options.get("gradient_as_bucket_view"))
        back = [i for i in instants if i.instant.phase == BACKWARD and (i.later or views)]
        waits = {i.name: 1 for i in back if i.work in ("layer", "embedding")}
        yield Entry(
            name="head: gradient that waits for the embedding's",
            kind=GRAD,
            bytes=waiting_bytes(run, setting),
            live=waits,
            source=buffer,
            role=HEAD_GRADIENT,
        )

"""What a compiled model has besides its layers: masks, zeros for the logits' gradient, and the
backward of its embedding.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import ACT, AFTER_EMBEDDING, GRAD, Entry
from ...ledger.num import EMPTY, Bytes, larger, sized
from ...ledger.source import code
from ...pytorch.autograd.events import EventRecorder
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.phases import BACKWARD, FORWARD
from ...run.run import Run
from .instants import Instants
from .layer_groups import LayerGroups


def compiled_masks(
    run: Run, setting: BlockSetting, groups: LayerGroups, instants: Instants
) -> Entry:
    """The additive masks that all layers share, one for each kind of layer.

    While torch.compile traces, transformers does not ask whether a mask is needed, and SDPA's
    conversion of the boolean one is the same in every layer.
    """
    kinds = {group.window for group in groups}
    size = sized(run.batch * run.seq * run.seq * len(kinds), setting.matmul_bits)
    return Entry(
        name="attention masks",
        kind=ACT,
        bytes=size,
        live={i.name: 1 for i in instants if i.work in ("layer", "head")},
        source=code("transformers 5.17.0 masking_utils.py _ignore_causal_mask_sdpa: is_tracing"),
        role=AFTER_EMBEDDING,
    )


def compiled_entries(run: Run, setting: BlockSetting, instants: Instants) -> Iterator[Entry]:
    """The logits that the graph returns, and zeros of their size: autograd gives backward a
    gradient for every output, and holds it until backward has returned (torch 2.11
    csrc/autograd/python_function.cpp PyNode::apply). torch 2.13 frees it after the first kernel
    (autograd/function.py boxed_grads_call).

    Under autocast the logits are an fp32 copy (accelerate 1.15.0 convert_outputs_to_fp32); else
    they are the ones that the loss saves.
    """
    copied, apart = setting.autocast, setting.quirks.loss_apart
    at = [i for i in instants if i.work and i.instant.phase == BACKWARD and not apart]
    if copied:
        at += [i for i in instants if i.work == "head" and i.instant.phase == FORWARD]
    yield Entry(
        name="logits that the graph returns, then zeros as their gradient",
        kind=ACT,
        bytes=sized(run.batch * run.seq * run.arch.vocab, 32 if copied else setting.matmul_bits),
        live={i.name: 1 for i in at},
        source=code("torch 2.11 csrc/autograd/python_function.cpp PyNode::apply: zeros for None"),
    )
    if delays(run, setting) and not run.unrolled:
        first = [i for i in instants if i.instant.phase == BACKWARD and not i.later]
        yield Entry(
            name="head: what its weight's gradient waits with for the embedding's",
            kind=GRAD,
            bytes=waiting_bytes(run, setting),
            live={i.name: 1 for i in first if i.work in ("layer", "embedding")},
            source=code("torch 2.13 _inductor/fx_passes/post_grad.py: one kernel adds the two"),
        )


def delays(run: Run, setting: BlockSetting) -> bool:
    """Whether the head's gradient of a tied table is completed with the embedding's."""
    return setting.compiled and run.arch.tied and not run.frozen


def waiting_bytes(run: Run, setting: BlockSetting) -> Bytes:
    """Bytes that wait in backward for the embedding's gradient of a tied table: the head's gradient
    of it, or where a compiled graph delays the matmul, the logits' gradient.
    """
    table = run.arch.embedding[0].numel
    if not delays(run, setting):
        return sized(table, setting.weight_bits)
    if setting.matmul_bits < setting.weight_bits:
        return sized(table, setting.matmul_bits)
    return sized(run.batch * run.seq * run.arch.vocab, setting.matmul_bits)


def table_backward(
    recorder: EventRecorder, run: Run, setting: BlockSetting, output_grad: int
) -> tuple[int, int]:
    """Record the backward of a compiled model's table: the gradient is summed in fp32, then cast to
    the weights' dtype, then added to the head's. Returns the number of the gradient that waits, or
    -1, and that of the table's.
    """
    table = run.arch.embedding[0].numel
    bits = setting.weight_bits
    summed = recorder.weight(sized(table, 32))
    recorder.free(output_grad)
    grad = summed
    if bits < 32:
        grad = recorder.weight(sized(table, bits))
        recorder.over((summed,))
    if not run.arch.tied:
        return -1, grad
    waiting = recorder.number(waiting_bytes(run, setting))
    total = recorder.weight(sized(table, bits))
    recorder.over((waiting, grad))
    return waiting, total


def table_temporaries(run: Run, setting: BlockSetting, output_grad: Bytes) -> Bytes:
    """Bytes at the peak of that backward besides the output's and the table's gradient."""
    table, bits = run.arch.embedding[0].numel, setting.weight_bits
    if bits < 32:
        most = larger(output_grad, sized(table, bits))
        return sized(table, 32) + most - output_grad - sized(table, bits)
    return larger(sized(table, 32) - output_grad, EMPTY) if run.arch.tied else EMPTY

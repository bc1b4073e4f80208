"""What a compiled model has besides its layers: masks, zeros for the logits' gradient, and a tied
table's gradient that waits in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ledger.ledger import ACT, AFTER_EMBEDDING, GRAD, Entry
from ..ledger.num import Bytes, sized
from ..ledger.source import code
from ..modelling.huggingface.setting import BlockSetting
from ..run.phases import BACKWARD, FORWARD
from ..run.run import Run
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
        live={i.name: 1 for i in instants if i.work},
        source=code("transformers 5.17.0 masking_utils.py _ignore_causal_mask_sdpa: is_tracing"),
        role=AFTER_EMBEDDING,
    )


def compiled_entries(run: Run, setting: BlockSetting, instants: Instants) -> Iterator[Entry]:
    """The logits that the graph returns, and zeros of their size: autograd gives backward a
    gradient for every output, and holds it until backward has returned (torch 2.13
    csrc/autograd/python_function.cpp PyNode::apply, materialize_grads).

    Under autocast the logits are an fp32 copy (accelerate 1.15.0 convert_outputs_to_fp32); else
    they are the ones that the loss saves.
    """
    copied = setting.autocast
    at = [i for i in instants if i.work and i.instant.phase == BACKWARD]
    if copied:
        at += [i for i in instants if i.work == "head" and i.instant.phase == FORWARD]
    yield Entry(
        name="logits that the graph returns, then zeros as their gradient",
        kind=ACT,
        bytes=sized(run.batch * run.seq * run.arch.vocab, 32 if copied else setting.matmul_bits),
        live={i.name: 1 for i in at},
        source=code(
            "torch 2.13 csrc/autograd/python_function.cpp PyNode::apply: materialize_grads"
        ),
    )
    if waits_narrow(run, setting) and not run.unrolled:
        first = [i for i in instants if i.instant.phase == BACKWARD and not i.later]
        yield Entry(
            name="head: 16-bit gradient that waits for the embedding's",
            kind=GRAD,
            bytes=waiting_bytes(run, setting),
            live={i.name: 1 for i in first if i.work in ("layer", "embedding")},
            source=code("torch 2.13 _inductor: cast in the kernel that adds the embedding's"),
        )


def waits_narrow(run: Run, setting: BlockSetting) -> bool:
    """Whether the head's gradient of a tied table waits in fewer bits for the embedding's: the cast
    is part of the kernel that adds the two.
    """
    narrow = setting.matmul_bits < setting.weight_bits
    return setting.compiled and run.arch.tied and narrow and not run.frozen


def waiting_bytes(run: Run, setting: BlockSetting) -> Bytes:
    """Bytes of the head's gradient of a tied table while it waits for the embedding's."""
    bits = setting.matmul_bits if waits_narrow(run, setting) else setting.weight_bits
    return sized(run.arch.embedding[0].numel, bits)

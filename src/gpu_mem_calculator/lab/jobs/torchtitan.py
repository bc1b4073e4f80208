"""torchtitan's own model, built from a Llama's config.json, with its loss outside the model."""

from __future__ import annotations

from typing import Any

from ...models.arch.blocks import Attention, Mlp
from ...runfile.text.errors import InputError
from .job import Job
from .model import weight_dtype

NAME = "torchtitan"


def build(job: Job, device: str) -> Any:
    """torchtitan's Transformer with random weights on a device; "meta" allocates nothing."""
    import torch

    try:
        from torchtitan.models.llama3.model.args import TransformerModelArgs
        from torchtitan.models.llama3.model.model import Transformer
    except ImportError as error:
        why = f"it cannot be imported: {error}; pip install torchtitan==0.2.2"
        raise InputError(
            f"model.implementation={NAME!r} needs torchtitan 0.2.2, and {why}"
        ) from None
    arch, seq = job.resolved.run.arch, int(job.resolved.run.seq)
    layer = arch.layers[0]
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.mlp, Mlp)
    ffn = layer.mlp.output.ins[1]
    args = TransformerModelArgs(
        dim=arch.hidden,
        n_layers=len(arch.layers),
        n_heads=layer.mixer.heads,
        n_kv_heads=layer.mixer.kv_heads,
        vocab_size=arch.vocab,
        multiple_of=1,
        ffn_dim_multiplier=(ffn + 0.5) / int(8 * arch.hidden / 3),  # FeedForward rounds it down
        max_seq_len=seq,
    )
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(weight_dtype(job.resolved.run))  # as train.py does
    try:
        with torch.device(device):
            return Transformer(args).train()
    finally:
        torch.set_default_dtype(usual)


def make_table(model: Any, device: str) -> None:
    """Compute the rotary table, which sharding leaves empty."""
    import torch

    with torch.device(device):
        model.freqs_cis = model._precompute_freqs_cis()


class LossOf:
    """Calls a model, then torchtitan's cross entropy on what it returns."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, input_ids: Any, labels: Any) -> Any:
        """The loss of a batch; the logits are freed before backward (train.py
        forward_backward_step).
        """
        from torchtitan.components.loss import cross_entropy_loss

        return cross_entropy_loss(self.model(input_ids), labels) / labels.numel()

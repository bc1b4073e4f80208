"""GPT-lite: a small GPT written head by head, at the size of GPT-3 Small.

Every head has its own projections and its own causal mask, a buffer of block_size x block_size:
144 masks of 16 MiB in fp32, which tools that count parameters alone never see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

VOCABULARY = 65  # characters of the text that ships
SIZES = {"n_layer": 12, "n_embd": 768, "n_head": 12, "block_size": 2048, "dropout": 0.1}
"""GPT-3 Small (Brown et al. 2020, table 2.1)."""


class Head(nn.Module):
    """One head of causal self-attention."""

    def __init__(self, n_embd: int, head_size: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """What each token gathers from those before it."""
        length = x.shape[1]
        k, q = self.key(x), self.query(x)
        weights = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        weights = weights.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        weights = self.dropout(F.softmax(weights, dim=-1))
        return weights @ self.value(x)


class MultiHeadAttention(nn.Module):
    """The heads one after the other, joined and projected back."""

    def __init__(self, n_embd: int, n_head: int, block_size: int, dropout: float) -> None:
        super().__init__()
        size = n_embd // n_head
        self.heads = nn.ModuleList(Head(n_embd, size, block_size, dropout) for _ in range(n_head))
        self.proj = nn.Linear(n_head * size, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """All heads."""
        return self.dropout(self.proj(torch.cat([head(x) for head in self.heads], dim=-1)))


class FeedForward(nn.Module):
    """Four times as wide, and back."""

    def __init__(self, n_embd: int, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Each token by itself."""
        return self.net(x)


class Block(nn.Module):
    """Attention, then feed-forward, each behind a norm and beside a residual."""

    def __init__(self, n_embd: int, n_head: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.sa = MultiHeadAttention(n_embd, n_head, block_size, dropout)
        self.ffwd = FeedForward(n_embd, dropout)
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """One step of the residual stream."""
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class Embedding(nn.Module):
    """What a character is, plus where it stands."""

    def __init__(self, vocab_size: int, n_embd: int, block_size: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, n_embd)
        self.position = nn.Embedding(block_size, n_embd)

    def forward(self, idx: Tensor) -> Tensor:
        """Characters as vectors."""
        places = torch.arange(idx.shape[1], device=idx.device)
        return self.token(idx) + self.position(places)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss, in fp32 whatever the model's dtype is."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class GPTlite(nn.Module):
    """The whole model. `checkpoint` runs a block and forgets what it made: see train.py."""

    checkpoint: Callable[..., Tensor] | None = None

    def __init__(
        self,
        vocab_size: int = VOCABULARY,
        *,
        n_layer: int = 12,
        n_embd: int = 768,
        n_head: int = 12,
        block_size: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_embd={n_embd} does not divide into n_head={n_head} heads")
        self.block_size = block_size
        self.embedding = Embedding(vocab_size, n_embd, block_size)
        self.blocks = nn.Sequential(
            *(Block(n_embd, n_head, block_size, dropout) for _ in range(n_layer))
        )
        self.ln = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """The loss where there are targets, else the logits."""
        x = self.embedding(idx)
        for block in self.blocks:
            x = block(x) if self.checkpoint is None else self.checkpoint(block, x)
        logits = self.lm_head(self.ln(x))
        return logits if targets is None else cross_entropy(logits, targets)

    def to_layers(self) -> list[nn.Module]:
        """The same in a row, for a pipeline."""
        return [self.embedding, *self.blocks, self.ln, self.lm_head]

    @torch.no_grad()
    def generate(self, idx: Tensor, count: int) -> Tensor:
        """`count` more characters behind those of `idx`, drawn from what the model believes."""
        for _ in range(count):
            logits = self(idx[:, -self.block_size :])[:, -1]
            drawn = torch.multinomial(F.softmax(logits.float(), dim=-1), 1)
            idx = torch.cat([idx, drawn], dim=1)
        return idx


def model_and_batch(
    *, batch_size: int = 1, vocab_size: int = VOCABULARY, checkpoint: bool = False, **sizes: Any
) -> tuple[GPTlite, tuple[Tensor, Tensor]]:
    """A model and a batch, for `gpu-mem-calc ... --function gptlite:model_and_batch`."""
    model = GPTlite(vocab_size, **{**SIZES, **sizes})
    if checkpoint:
        from torch.utils.checkpoint import checkpoint as forget

        model.checkpoint = lambda block, x: forget(block, x, use_reentrant=True)
    idx = torch.randint(0, vocab_size, (batch_size, model.block_size))
    return model, (idx, idx.clone())

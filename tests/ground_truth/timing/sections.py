"""The sections of a run file from the fields of a row."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .rows import TimingRow

GPUS = {
    "A100-SXM": "a100-80gb-sxm",
    "A100-80GB": "a100-80gb-sxm",
    "A100-80GB-SXM": "a100-80gb-sxm",
    "A100-40GB-SXM": "a100-40gb-sxm",
    "H100-80GB": "h100-80gb-sxm",
    "H100-80GB-SXM": "h100-80gb-sxm",
    "H200": "h200",
    "B200": "b200-180gb-sxm",
    "GB200": "gb200-186gb",
}
PER_NODE = {"gb200-186gb": 4}  # others have 8; 72 of GB200 are one NVLink domain


class UnusableError(Exception):
    """A row that cannot become a run file, with the reason."""


class RunFileParts(Struct, frozen=True, kw_only=True):
    """The sections of a run file."""

    model: dict[str, Any]
    training: dict[str, Any]
    parallelism: dict[str, Any]
    engine: dict[str, Any]
    hardware: dict[str, Any]

    def run_file(self) -> dict[str, Any]:
        """All of them."""
        return {name: dict(getattr(self, name)) for name in self.__struct_fields__}


def number(row: TimingRow, name: str) -> int:
    """A field that a run file cannot do without."""
    found = getattr(row, name)
    if found is None:
        raise UnusableError(f"its source does not say {WORDS[name]}")
    return int(found)


WORDS = {
    "mbs": "how large a micro-batch is",
    "gbs": "how large the batch is",
    "seq": "how long a sequence is",
    "n_layers": "how many layers the model has",
    "hidden": "how wide the model is",
    "heads": "how many heads the model has",
    "pp": "how many pipeline stages there are",
    "tp": "how many ranks tensor parallelism has",
}


def ranks(row: TimingRow) -> dict[str, int]:
    """The mesh, whose product is the number of GPUs."""
    tp, pp, cp = number(row, "tp"), number(row, "pp"), row.cp or 1
    dp, rest = divmod(row.n_gpus, tp * pp * cp)
    printed = row.dp is None or row.dp in (dp, dp // (row.ep or 1))
    if rest or not printed:
        raise UnusableError("its mesh does not multiply out to its number of GPUs")
    return {"data": dp, "tensor": tp, "pipeline": pp, "context": cp, "expert": row.ep or 1}


def parallelism(row: TimingRow, *, sequence_parallel: bool = False) -> dict[str, Any]:
    """The section `parallelism`."""
    sizes = {f"{axis}_parallel_size": size for axis, size in ranks(row).items()}
    return {**sizes, "virtual_pipeline_size": row.vp or 1, "sequence_parallel": sequence_parallel}


def training(row: TimingRow, precision: str, recompute: str, **further: Any) -> dict[str, Any]:
    """The section `training`; the batch of a step decides how many micro-batches there are."""
    mbs, dp = number(row, "mbs"), ranks(row)["data"]
    micro_batches, rest = divmod(batch(row), mbs * dp)
    if rest:
        raise UnusableError("its batch is no multiple of micro-batch and data-parallel ranks")
    return {
        "batch_size": mbs,
        "seq_len": number(row, "seq"),
        "gradient_accumulation_steps": micro_batches,
        "precision": precision,
        "activation_checkpointing": recompute,
        **further,
    }


def batch(row: TimingRow) -> int:
    """Sequences of a step."""
    if row.gbs is None and row.grad_acc is not None:
        return number(row, "mbs") * ranks(row)["data"] * row.grad_acc
    return number(row, "gbs")


def hardware(row: TimingRow, network: str) -> dict[str, Any]:
    """The section `hardware`; `network` is the link of one GPU to other nodes."""
    gpu = GPUS[row.gpu]
    per_node = min(row.n_gpus, PER_NODE.get(gpu, 8))
    section = {
        "gpu": gpu,
        "num_gpus": row.n_gpus,
        "num_nodes": row.n_gpus // per_node,
        "gpus_per_node": per_node,
    }
    return section if section["num_nodes"] == 1 else {**section, "interconnect": network}


def gpt(row: TimingRow, **further: Any) -> dict[str, Any]:
    """GPT-3's architecture with a row's sizes: learned positions, biases, a tied head."""
    return {
        "num_layers": number(row, "n_layers"),
        "hidden_size": number(row, "hidden"),
        "num_attention_heads": number(row, "heads"),
        "intermediate_size": row.ffn or 4 * number(row, "hidden"),
        "gated_mlp": False,
        "normalization": "layernorm",
        "position_embedding": "learned",
        "bias": True,
        "dropout": 0.1,
        "vocab_size": number(row, "vocab"),
        "max_seq_len": number(row, "seq"),
        "tie_word_embeddings": True,
        **further,
    }

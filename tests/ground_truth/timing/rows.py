"""Public step times, as their sources print them; `translate.py` makes run files of them.

One file for each large source, `papers.jsonl` for the others; vTrain's sweep is a CSV. A row
keeps the fields that a run file, a time or a check needs, and `where` it stands: file, line and
commit.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent
VTRAIN = "vTrain"
# file -> what tables call its source
SOURCES = {
    "vtrain": VTRAIN,
    "bigscience": "BigScience",
    "llm_foundry": "llm-foundry",
    "dgxc": "NVIDIA dgxc",
    "nemo": "NVIDIA NeMo",
    "internevo": "InternEvo",
}
# in papers.jsonl
PAPERS = {
    "Korthikanti et al. 2022": "Korthikanti",
    "megatron_sc21": "Megatron SC21",
    "MegaScale (Jiang et al., NSDI 2024)": "MegaScale",
    "llama3_paper": "Llama 3",
    "stas00/ml-engineering": "stas00",
    "hpcaitech/ColossalAI": "ColossalAI",
    "DeepSeek-V3 technical report": "DeepSeek-V3",
}


class TimingRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured run as its source prints it; None where it says nothing."""

    id: str
    source: str = ""
    where: str = ""
    framework: str = ""
    task: str = "pretrain"
    model: str = ""
    gpu: str
    n_gpus: int
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    vp: int | None = None
    sp: bool | None = None
    mbs: int | None = None
    grad_acc: int | None = None
    gbs: int | None = None
    seq: int | None = None
    precision: str = ""
    recompute: str = ""
    strategy: str = ""
    n_layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    fsdp_mixed_precision: str = ""
    zero1_group: int | None = None
    section: str = ""
    date: str = ""
    balanced: bool = False  # the embedding and the head each take the place of a layer of a stage
    step_seconds: float | None = None
    tokens_per_s: float | None = None
    tflops_gpu: float | None = None
    mfu_pct: float | None = None
    quality: str = "high"
    check: str = ""
    mesh_check: str = ""
    config_match: str = ""
    notes: str = ""


@cache
def every_row() -> tuple[TimingRow, ...]:
    """All rows of all sources."""
    return tuple(_read())


def _read() -> Iterator[TimingRow]:
    yield from _vtrain()
    for name, title in SOURCES.items():
        if title != VTRAIN:
            for row in _lines(name):
                yield msgspec.structs.replace(row, source=title)
    for row in _lines("papers"):
        yield msgspec.structs.replace(row, source=PAPERS[row.source])


def _lines(name: str) -> Iterator[TimingRow]:
    decoder = msgspec.json.Decoder(TimingRow)
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return map(decoder.decode, text.splitlines())


def _vtrain() -> Iterator[TimingRow]:
    """VIA-Research/vTrain data/ground_truth_single.csv @f8dda84: 16 heads, 1,024 tokens."""
    with (FOLDER / "vtrain.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            tp, pp, dp = int(line["tp"]), int(line["pp"]), int(line["dp"])
            yield TimingRow(
                id=f"vtrain/{line['row']}",
                source=VTRAIN,
                where=f"data/ground_truth_single.csv:{int(line['row']) + 1} @f8dda84",
                gpu="A100-SXM",
                n_gpus=tp * pp * dp,
                tp=tp,
                pp=pp,
                dp=dp,
                mbs=int(line["micro_batch"]),
                gbs=int(line["global_batch"]),
                seq=1024,
                precision="fp16",
                recompute="full",
                n_layers=int(line["layers"]),
                hidden=int(line["hidden"]),
                heads=16,
                vocab=50257,
                step_seconds=float(line["seconds"]),
            )
